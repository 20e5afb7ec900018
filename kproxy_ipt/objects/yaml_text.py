"""
YAML text becomes JSON text, without trusting it.

What comes in is the bytes of one or more documents, from anybody; what goes out is one JSON text for each document, so
that typed decoding has one form to read. Values are built straight from the event stream of the YAML parser, in a
loop: nesting, repeated keys and what aliases expand to are bounded while reading, nothing recurses, and a value that
refers to itself is found at its alias. Decided against: `yaml.safe_load`, whose composer recurses in C and dies of deep
nesting, and which reads dates and base-60 numbers that Kubernetes takes as text.

Plain scalars mean what they mean to kubectl: `yes`, `no`, `on`, `off` are booleans, `010` and `0x10` are numbers, dates
are text, `1e999` is text. Merge keys (`<<`) work. Source: sigs.k8s.io/yaml (YAML 1.1 as in go-yaml v2).
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import TypeAlias

import msgspec
import yaml

MAX_BYTES = 64 * 1024 * 1024
MAX_DEPTH = 64
MAX_WEIGHT = 4_000_000
"""Values of one text, aliases expanded; every 64 characters of a scalar weigh as much as one value."""

Scalar: TypeAlias = str | int | float | bool | None
Value: TypeAlias = "Scalar | list[Value] | dict[str, Value]"

_TAG_PREFIX = "tag:yaml.org,2002:"
_CONTAINER_TAGS = (None, "!", f"{_TAG_PREFIX}map", f"{_TAG_PREFIX}seq")
_CHARACTERS_PER_WEIGHT = 64
_MAX_NAME_IN_MESSAGE = 40

_WORDS: dict[str, Scalar] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"), False),
}
_INTEGER = re.compile(r"[-+]?(?:0[xX][0-9a-fA-F]+|0[bB][01]+|0[oO]?[0-7]+|[1-9][0-9]*|0)", re.ASCII)
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", re.ASCII)
_MAX_NUMBER_LENGTH = 100
_MAX_INTEGER = 2**64

_Loader: type[yaml.SafeLoader] | type[yaml.CSafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class TextError(ValueError):
    """
    Text that cannot be used, whatever it was meant to be.

    Attributes:
        found: What stands there, one printable line, with the line number where that is known.
        expected: What would be right.
    """

    def __init__(self, found: str, expected: str) -> None:
        super().__init__(f"{found}, expected {expected}")
        self.found = found
        self.expected = expected


def json_of_yaml(text: bytes, *, first_line: int = 1) -> Iterator[bytes]:
    """
    Turn each YAML document of *text* into JSON; empty documents become `null`.

    Args:
        text: UTF-8 without byte order mark.
        first_line: 1-based number of the first line of *text* in its file, for messages.

    Yields:
        JSON text in UTF-8, document by document.

    Raises:
        TextError: No YAML, or YAML beyond the limits of this module. Later documents of *text* are lost.
    """
    if len(text) > MAX_BYTES:
        raise TextError(
            f"{len(text)} bytes of YAML", f"at most {MAX_BYTES} bytes; large dumps are better taken as JSON"
        )
    try:
        characters = text.decode()
    except UnicodeDecodeError as error:
        line = first_line + text.count(b"\n", 0, error.start)
        raise TextError(f"bytes that are not UTF-8 in line {line}", "text in UTF-8") from error
    composer = _Composer(first_line)
    try:
        for event in yaml.parse(characters, Loader=_Loader):
            composer.take(event)
            if isinstance(event, yaml.DocumentEndEvent):
                yield msgspec.json.encode(composer.document)
    except yaml.YAMLError as error:
        raise TextError(_explanation(error, first_line), "YAML or JSON") from error


def _explanation(error: yaml.YAMLError, first_line: int) -> str:
    """The parser's complaint as one line."""
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        place = f" in line {mark.line + first_line}, column {mark.column + 1}" if mark else ""
        return f"broken YAML ({error.problem or error.context or 'unknown reason'}{place})"
    if isinstance(error, yaml.reader.ReaderError):
        return f"a character that YAML does not allow ({error.reason})"
    return "broken YAML"


@lru_cache(maxsize=4096)
def plain_scalar(text: str) -> Scalar:
    """What the unquoted *text* means: null, boolean, number or the text itself."""
    if text in _WORDS:
        return _WORDS[text]
    if len(text) > _MAX_NUMBER_LENGTH or text[0] not in "+-.0123456789":
        return text
    digits = text.replace("_", "")
    if _INTEGER.fullmatch(digits):
        number = _integer(digits)
        if -_MAX_INTEGER < number < _MAX_INTEGER:
            return number
    return _float(digits, otherwise=text)


def _integer(digits: str) -> int:
    unsigned = digits.lstrip("+-")
    is_old_octal = len(unsigned) > 1 and unsigned[0] == "0" and unsigned[1].isdigit()
    number = int(unsigned, 8 if is_old_octal else 0)
    return -number if digits[0] == "-" else number


def _float(digits: str, *, otherwise: str) -> Scalar:
    """A finite number, as an int where it is whole, since JSON does not tell the two apart."""
    if not _FLOAT.fullmatch(digits):
        return otherwise
    number = float(digits)
    if number in (float("inf"), float("-inf")):
        return otherwise
    return int(number) if number.is_integer() and abs(number) < _MAX_INTEGER else number


class _Frame:
    """A list or mapping whose end has not come yet; `key` is the key whose value comes next."""

    __slots__ = ("anchor", "container", "key", "merged", "weight_before")

    def __init__(self, container: "list[Value] | dict[str, Value]", anchor: str | None, weight_before: int) -> None:
        self.container = container
        self.anchor = anchor
        self.weight_before = weight_before
        self.key: str | _MergeKey | None = None
        self.merged: list[Value] = []


class _MergeKey:
    """The key `<<`, unquoted."""


class _Composer:
    """
    Values of one text after the other, from parser events.

    `document` is the value of the latest document; it is valid once its DocumentEndEvent was taken.
    """

    def __init__(self, first_line: int) -> None:
        self.document: Value = None
        self._first_line = first_line
        self._weight = 0
        self._stack: list[_Frame] = []
        self._anchors: dict[str, tuple[Value, int]] = {}

    def take(self, event: yaml.Event) -> None:
        """Go on by one event; raises TextError."""
        if isinstance(event, yaml.ScalarEvent):
            self._take_scalar(event)
        elif isinstance(event, yaml.MappingStartEvent):
            self._open(event, {})
        elif isinstance(event, yaml.SequenceStartEvent):
            self._open(event, [])
        elif isinstance(event, yaml.CollectionEndEvent):
            self._close(event)
        elif isinstance(event, yaml.AliasEvent):
            self._take_alias(event)
        elif isinstance(event, yaml.DocumentStartEvent):
            self.document = None
            self._anchors.clear()

    def _error(self, event: yaml.Event, found: str, expected: str) -> TextError:
        line = event.start_mark.line if event.start_mark else 0
        return TextError(f"{found} in line {line + self._first_line}", expected)

    def _add_weight(self, event: yaml.Event, weight: int) -> None:
        self._weight += weight
        if self._weight > MAX_WEIGHT:
            raise self._error(event, f"more than {MAX_WEIGHT} values, aliases expanded,", "less, or JSON")

    def _take_scalar(self, event: yaml.ScalarEvent) -> None:
        weight = 1 + len(event.value) // _CHARACTERS_PER_WEIGHT
        self._add_weight(event, weight)
        if event.value == "<<" and event.implicit[0] and self._wants_key():
            self._stack[-1].key = _MergeKey()
            return
        value = self._scalar(event)
        if event.anchor is not None:
            self._anchors[event.anchor] = (value, weight)
        self._place(event, value)

    def _scalar(self, event: yaml.ScalarEvent) -> Scalar:
        text: str = event.value
        if event.tag is None:
            return plain_scalar(text) if event.implicit[0] else text
        tag = event.tag.removeprefix(_TAG_PREFIX)
        if tag in ("!", "str", "timestamp"):
            return text
        value = plain_scalar(text)
        fits = {
            "int": _is_int(value),
            "float": _is_number(value),
            "bool": isinstance(value, bool),
            "null": value is None,
        }
        if not fits.get(tag, False):
            raise self._bad_tag(event, event.tag)
        return value

    def _bad_tag(self, event: yaml.Event, tag: str) -> TextError:
        return self._error(event, f"the tag {tag[:_MAX_NAME_IN_MESSAGE]!r}", "a value that JSON has too")

    def _open(self, event: yaml.CollectionStartEvent, container: "list[Value] | dict[str, Value]") -> None:
        self._add_weight(event, 1)
        if len(self._stack) >= MAX_DEPTH:
            raise self._error(event, f"nesting deeper than {MAX_DEPTH}", "a Kubernetes object")
        if event.tag not in _CONTAINER_TAGS:
            raise self._bad_tag(event, event.tag)
        self._place(event, container)
        if event.anchor is not None:
            self._anchors.pop(event.anchor, None)
        self._stack.append(_Frame(container, event.anchor, self._weight - 1))

    def _close(self, event: yaml.CollectionEndEvent) -> None:
        frame = self._stack.pop()
        if isinstance(frame.container, dict):
            for value in frame.merged:
                self._merge(event, frame.container, value)
        if frame.anchor is not None:
            self._anchors[frame.anchor] = (frame.container, self._weight - frame.weight_before)

    def _merge(self, event: yaml.Event, target: "dict[str, Value]", value: "Value") -> None:
        """Add what *target* lacks; of several sources the first wins."""
        for source in value if isinstance(value, list) else [value]:
            if not isinstance(source, dict):
                raise self._error(event, "a merge key (<<) without a mapping before the end", "a mapping or its alias")
            for key, merged_value in source.items():
                target.setdefault(key, merged_value)

    def _take_alias(self, event: yaml.AliasEvent) -> None:
        anchor = event.anchor or ""
        anchored = self._anchors.get(anchor)
        if anchored is None:
            name = anchor[:_MAX_NAME_IN_MESSAGE]
            raise self._error(event, f"the alias *{name}, which refers to itself or to nothing,", "a complete value")
        value, weight = anchored
        self._add_weight(event, weight)
        self._place(event, value)

    def _wants_key(self) -> bool:
        return bool(self._stack) and self._stack[-1].key is None and isinstance(self._stack[-1].container, dict)

    def _place(self, event: yaml.Event, value: "Value") -> None:
        """Put *value* where it belongs: document, list entry, key or value of a mapping."""
        if not self._stack:
            self.document = value
            return
        frame = self._stack[-1]
        if isinstance(frame.container, list):
            frame.container.append(value)
        elif frame.key is None:
            frame.key = self._key(event, frame.container, value)
        elif isinstance(frame.key, str):
            frame.container[frame.key] = value
            frame.key = None
        else:
            frame.merged.append(value)
            frame.key = None

    def _key(self, event: yaml.Event, mapping: "dict[str, Value]", value: "Value") -> str:
        if isinstance(value, bool):
            value = "true" if value else "false"
        if isinstance(value, int | float):
            value = str(value)
        if not isinstance(value, str):
            raise self._error(event, "a key that is no text", "text as key")
        if value in mapping:
            raise self._error(event, f"the key {value[:_MAX_NAME_IN_MESSAGE]!r} twice", "each key once")
        return value


def _is_int(value: Scalar) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Scalar) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
