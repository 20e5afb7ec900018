"""
A configuration file becomes a Config: text, plain values, typed document, defaults, validation.

As strict as kube-proxy: another kind or version, bad YAML and values of a wrong type are errors; unknown and duplicate
fields are only noted, the last duplicate counts. More lenient in one place: `null` is "absent" for durations too, where
kube-proxy wants a pointer. All errors of types are reported together, then all errors of values (`validate.py`).

Decided against: decoding straight into the document with msgspec, which stops at the first problem and passes over
unknown fields in silence.

Source: strict, then lenient decoding in kube-proxy's `loadConfig`.
"""

import re
from collections.abc import Iterator
from typing import TypeVar, cast, get_args, get_origin

import msgspec

from kproxy_ipt.config.build import DecodedConfig, build_config
from kproxy_ipt.config.document import API_VERSION, KIND, Document, FlushFrequency, Quantity, with_defaults
from kproxy_ipt.config.document_text import plain_document, shown
from kproxy_ipt.config.duration import Duration, parse_duration
from kproxy_ipt.errors import ConfigError

_Struct = TypeVar("_Struct", bound=msgspec.Struct)

QUANTITY = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[KMGTPE]i|[numkMGTPE]|[eE][-+]?[0-9]{1,3})?")
_MAX_NANOSECONDS = 2**63 - 1

# Never of any effect in iptables mode, whatever they hold. The sections of the other modes come on top.
_DEAD_FIELDS = ("winkernel", "portRange", "windowsRunAsService")
_ACTIVE_ELSEWHERE = {
    "ipvs": {"ipvs.syncPeriod", "ipvs.minSyncPeriod", "ipvs.scheduler"},
    "nftables": {"nftables.syncPeriod", "nftables.minSyncPeriod", "nftables.masqueradeBit", "nftables.masqueradeAll"},
}


def decode_config(text: bytes, origin: str) -> DecodedConfig:
    """
    Read a `KubeProxyConfiguration` v1alpha1 in YAML or JSON.

    Args:
        text: At most 1 MiB of UTF-8.
        origin: Where the text comes from, for messages: `/var/lib/kube-proxy/config.conf`.

    Returns:
        The effective Config, and notes: one line each about what was ignored or is odd, in the order of the file.

    Raises:
        ConfigError: All problems of the first step that found one.
    """
    decoded = read_document(text, origin)
    return build_config(decoded.document, decoded.notes)


class ReadDocument(msgspec.Struct, frozen=True):
    """A file with defaults applied, not yet validated."""

    document: Document
    notes: tuple[str, ...]


def read_document(text: bytes, origin: str) -> ReadDocument:
    """Everything of `decode_config` but the validation: flags are laid over the result first."""
    try:
        plain = plain_document(text)
    except ConfigError as error:
        raise ConfigError(tuple(f"{origin}: {problem}" for problem in error.problems)) from error
    fields = _checked_kind(plain.value, origin)
    walk = _Walk()
    given = walk.struct(Document, fields, "")
    if walk.problems:
        raise ConfigError(tuple(f"{origin}: {problem}" for problem in walk.problems))
    document = with_defaults(given)
    notes = [*plain.notes, *walk.notes, *_dead_fields(document)]
    return ReadDocument(document, tuple(f"{origin}: {note}" for note in notes))


def _checked_kind(value: object, origin: str) -> dict[str, object]:
    """The fields of the file, if it is one of ours at all: other problems would only confuse."""
    if not isinstance(value, dict):
        found = "nothing" if value is None else shown(value)
        raise ConfigError((f"{origin}: found {found}, expected a mapping with kind: {KIND}",))
    fields = cast("dict[str, object]", value)
    expected = {"apiVersion": API_VERSION, "kind": KIND}
    problems = tuple(
        f"{origin}: {name}: found {'nothing' if fields.get(name) is None else shown(fields[name])}, expected {right}"
        for name, right in expected.items()
        if fields.get(name) != right
    )
    if problems:
        raise ConfigError(problems)
    return fields


class _Walk:
    """Compares plain values with the types of the document, field by field, and collects what does not fit."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.notes: list[str] = []

    def struct(self, wanted: type[_Struct], value: object, path: str) -> _Struct:
        """The struct that *value* describes, at its defaults wherever it does not fit."""
        if not isinstance(value, dict):
            self._problem(path, value, "a mapping")
            return wanted()
        fields = {field.encode_name: field for field in msgspec.structs.fields(wanted)}
        given: dict[str, object] = {}
        for name, inner in value.items():
            inner_path = f"{path}.{name}" if path else name
            if name not in fields:
                self.notes.append(f"unknown field {shown(inner_path)} is ignored")
            elif inner is not None:
                given[fields[name].name] = self._value(fields[name].type, inner, inner_path)
        return wanted(**given)

    def _value(self, wanted: object, value: object, path: str) -> object:
        wanted = _without_none(wanted)
        if wanted is Duration or wanted is FlushFrequency or wanted is Quantity:
            return self._text_value(wanted, value, path)
        if isinstance(wanted, type) and issubclass(wanted, msgspec.Struct):
            return self.struct(wanted, value, path)
        if get_origin(wanted) is tuple and issubclass(get_args(wanted)[0], msgspec.Struct):
            return self._structs(get_args(wanted)[0], value, path)
        try:
            converted: object = msgspec.convert(value, wanted, strict=True)
        except msgspec.ValidationError as error:
            self.problems.append(f"{path}: found {shown(value)}: {_plain_words(error)}")
            return value
        return converted

    def _structs(self, wanted: type[_Struct], value: object, path: str) -> tuple[_Struct, ...]:
        if not isinstance(value, list):
            self._problem(path, value, "a list")
            return ()
        return tuple(self.struct(wanted, inner, f"{path}[{index}]") for index, inner in enumerate(value))

    def _text_value(self, wanted: type[msgspec.Struct], value: object, path: str) -> msgspec.Struct:
        if wanted is Quantity:
            if type(value) in {str, int, float} and QUANTITY.fullmatch(str(value)):
                return Quantity(str(value))
            self._problem(path, value, 'a quantity such as "64Ki"')
            return Quantity()
        if wanted is FlushFrequency and type(value) is int and abs(value) <= _MAX_NANOSECONDS:
            return FlushFrequency(value)
        if isinstance(value, str):
            try:
                return wanted(parse_duration(value).nanoseconds)
            except ValueError:
                pass
        self._problem(path, value, 'a duration such as "30s" or "1h2m"')
        return wanted()

    def _problem(self, path: str, value: object, expected: str) -> None:
        self.problems.append(f"{path}: found {shown(value)}, expected {expected}")


def _without_none(wanted: object) -> object:
    members = [member for member in get_args(wanted) if member is not type(None)]
    has_none = type(None) in get_args(wanted)
    return members[0] if has_none else wanted


def _plain_words(error: msgspec.ValidationError) -> str:
    text = str(error).replace("`", "").replace(" - at $[...]", "").replace(" - at $", " at ")
    return text[:1].lower() + text[1:]


def _dead_fields(document: Document) -> Iterator[str]:
    """Name every field that kube-proxy would honour in another mode only, and that is not at its default."""
    live = _ACTIVE_ELSEWHERE.get(document.mode, set())
    usual = with_defaults(Document())
    for name in ("ipvs", "nftables", *_DEAD_FIELDS):
        for path in _differences(document, usual, name):
            if path not in live:
                yield f"{path} plays no part in iptables mode"


def _differences(struct: msgspec.Struct, usual: msgspec.Struct, name: str) -> Iterator[str]:
    attribute = {field.encode_name: field.name for field in msgspec.structs.fields(struct)}[name]
    ours, theirs = getattr(struct, attribute), getattr(usual, attribute)
    if isinstance(ours, (Duration, Quantity)) or not isinstance(ours, msgspec.Struct):
        if ours != theirs:
            yield name
        return
    for field in msgspec.structs.fields(ours):
        for inner in _differences(ours, theirs, field.encode_name):
            yield f"{name}.{inner}"
