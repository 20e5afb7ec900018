"""
The text of a configuration file becomes plain values: dict, list, str, int, float, bool, None.

The rules are those of kube-proxy's reader: text that begins with `{` is JSON and nothing else, everything else is YAML
with Go's idea of plain scalars (`yes` and `on` are booleans, `1:30` and `2001-01-01` are strings), and of several YAML
documents only the first counts. Size, depth and number of values are bounded, and an alias never copies what it stands
for, so no text can exhaust the process.

Source: sigs.k8s.io/yaml and k8s.io/apimachinery/pkg/runtime/serializer/json.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import cast

import msgspec
import yaml

from kproxy_ipt.errors import ConfigError

MAX_BYTES = 1_048_576
MAX_DEPTH = 32
MAX_VALUES = 50_000

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE = frozenset({"y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"})
_FALSE = frozenset({"n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"})
_INTEGER = re.compile(r"[-+]?(?:0[xX][0-9a-fA-F_]{1,64}|0[bB][01_]{1,64}|0[oO]?[0-7_]{1,64}|[0-9][0-9_]{0,63})")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_OCTAL = re.compile(r"0[oO]?([0-7]+)")

_TAG = "tag:yaml.org,2002:"
_SCALAR_TAGS: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "null": (type(None),),
}


class PlainDocument(msgspec.Struct, frozen=True):
    """What a text holds: *value*, and *notes* about duplicate fields and further documents."""

    value: object
    notes: tuple[str, ...] = ()


def plain_document(text: bytes) -> PlainDocument:
    """
    Read JSON or the first YAML document of *text*.

    Raises:
        ConfigError: Not UTF-8, neither JSON nor YAML, larger than 1 MiB, deeper than 32 levels, or more than 50 000
            values; one problem that names the line where one is known.
    """
    if len(text) > MAX_BYTES:
        raise ConfigError((f"the file has {len(text)} bytes, at most {MAX_BYTES} are read",))
    try:
        decoded = text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError((f"not UTF-8 text: {error.reason} at byte {error.start}",)) from error
    return _json_document(decoded) if decoded.lstrip().startswith("{") else _yaml_document(decoded)


def _json_document(text: str) -> PlainDocument:
    notes: list[str] = []

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        fields = dict(pairs)
        if len(fields) < len(pairs):
            counts = Counter(name for name, _ in pairs)
            notes.extend(_duplicate(name) for name, count in counts.items() if count > 1)
        return fields

    def no_constant(word: str) -> object:
        raise ValueError(f"{word} is no JSON number")

    try:
        value: object = json.loads(text, object_pairs_hook=unique, parse_constant=no_constant)
        if _SURROGATE.search(text) and not _is_unicode(value):
            raise ValueError("half of a surrogate pair")
    except (ValueError, RecursionError) as error:
        raise ConfigError((f"bad JSON: {error}",)) from error
    return PlainDocument(value, tuple(notes))


def _is_unicode(value: object) -> bool:
    """Whether all texts of *value* can be written down again."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _duplicate(name: str, line: int = 0) -> str:
    place = f" in line {line}" if line else ""
    return f"duplicate field {shown(name)}{place}: the last one counts"


def shown(value: object) -> str:
    """A value as one short printable line, as it would stand in JSON; collections by kind only."""
    if isinstance(value, (dict, list)):
        return "a mapping" if isinstance(value, dict) else "a list"
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= 60 else f"{text[:56]}..."


def _yaml_document(text: str) -> PlainDocument:
    try:
        events = iter(yaml.parse(text, Loader=_Loader))
        reader = _YamlReader(events)
        value = reader.first_document()
    except yaml.YAMLError as error:
        raise ConfigError((f"bad YAML: {_where(error)}",)) from error
    if _more_documents(events):
        reader.notes.append("only the first YAML document is read")
    return PlainDocument(value, tuple(reader.notes))


def _where(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "not readable"
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}" if mark else str(problem)


def _more_documents(events: Iterator[yaml.Event]) -> bool:
    try:
        return any(isinstance(event, yaml.DocumentStartEvent) for event in events)
    except yaml.YAMLError:
        return True


class _YamlReader:
    """Builds values from parser events; anchors keep the value itself, so an alias costs nothing."""

    def __init__(self, events: Iterator[yaml.Event]) -> None:
        self._events = events
        self._anchors: dict[str, object] = {}
        self._count = 0
        self.notes: list[str] = []

    def first_document(self) -> object:
        """The value of the first document, None if there is none; what follows is left unread."""
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                value = self._value(next(self._events), 0)
                next(self._events)
                return value
        return None

    def _value(self, event: yaml.Event, depth: int) -> object:
        self._spend(event, 1)
        if depth > MAX_DEPTH:
            raise _error(event, f"nested deeper than {MAX_DEPTH} levels")
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                raise _error(event, f"unknown alias {shown(event.anchor)}")
            return self._anchors[event.anchor]
        value = self._content(event, depth)
        if isinstance(event, yaml.NodeEvent) and event.anchor is not None:
            self._anchors[event.anchor] = value
        return value

    def _content(self, event: yaml.Event, depth: int) -> object:
        if isinstance(event, yaml.ScalarEvent):
            return _scalar(event)
        _check_collection_tag(event)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._sequence(depth)
        return self._mapping(depth)

    def _sequence(self, depth: int) -> list[object]:
        values: list[object] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            values.append(self._value(event, depth + 1))
        return values

    def _mapping(self, depth: int) -> dict[str, object]:
        fields: dict[str, object] = {}
        merged: list[tuple[yaml.Event, object]] = []
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            name = _field_name(event, self._value(event, depth + 1))
            value = self._value(next(self._events), depth + 1)
            if name is None:
                merged.append((event, value))
                continue
            if name in fields:
                self.notes.append(_duplicate(name, _mark(event).line + 1))
            fields[name] = value
        return self._with_merged(fields, merged)

    def _with_merged(self, fields: dict[str, object], merged: list[tuple[yaml.Event, object]]) -> dict[str, object]:
        """Add the fields of merge keys (`<<`); those of the mapping itself win."""
        result = dict(fields)
        for event, source in merged:
            for mapping in source if isinstance(source, list) else [source]:
                if not isinstance(mapping, dict):
                    raise _error(event, "a merge key (<<) needs a mapping or a list of mappings")
                self._spend(event, len(mapping))
                for name, value in mapping.items():
                    result.setdefault(name, value)
        return result

    def _spend(self, event: yaml.Event, count: int) -> None:
        self._count += count
        if self._count > MAX_VALUES:
            raise _error(event, f"more than {MAX_VALUES} values")


def _field_name(event: yaml.Event, value: object) -> str | None:
    """The name of a field, None for a merge key."""
    if isinstance(value, (dict, list)) or value is None:
        raise _error(event, "the name of a field must be a word")
    if not isinstance(event, yaml.ScalarEvent):
        return str(value)
    return None if event.value == "<<" and event.implicit[0] else event.value


def _check_collection_tag(event: yaml.Event) -> None:
    expected = "seq" if isinstance(event, yaml.SequenceStartEvent) else "map"
    tag = event.tag if isinstance(event, yaml.CollectionStartEvent) else None
    if tag not in {None, "!", f"{_TAG}{expected}"}:
        raise _error(event, f"tag {shown(tag)} is not supported")


def _scalar(event: yaml.ScalarEvent) -> object:
    if event.tag is None:
        return _plain(event.value) if event.implicit[0] else event.value
    if event.tag in {"!", f"{_TAG}str"}:
        return event.value
    kind = _SCALAR_TAGS.get(event.tag.removeprefix(_TAG)) if event.tag.startswith(_TAG) else None
    value = _plain(event.value)
    if kind is None or not isinstance(value, kind):
        raise _error(event, f"tag {shown(event.tag)} is not supported here")
    return value


def _plain(text: str) -> object:
    """The value of a scalar without quotes, by the rules of Go's YAML."""
    if text in _NULLS:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    number = plain_integer(text)
    if number is not None:
        return number
    if _FLOAT.fullmatch(text):
        value = float(text)
        return int(value) if value.is_integer() and abs(value) < 1e21 else value
    return text


def plain_integer(text: str) -> int | None:
    """Read an integer as Go does with base 0 (`10`, `0x1f`, `0o17`, `017`, `1_000`); None where it is none."""
    if not _INTEGER.fullmatch(text):
        return None
    sign = -1 if text.startswith("-") else 1
    digits = text.lstrip("+-").replace("_", "")
    octal = _OCTAL.fullmatch(digits)
    try:
        return sign * (int(octal[1], 8) if octal else int(digits, 0))
    except ValueError:
        return None


def reads_as_text(text: str) -> bool:
    """Whether *text* without quotes would be read as the same string."""
    return _plain(text) == text and text != "<<"


def _mark(event: yaml.Event) -> yaml.Mark:
    """Where *event* begins; the parser always tells."""
    return cast("yaml.Mark", event.start_mark)


def _error(event: yaml.Event, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=_mark(event))
