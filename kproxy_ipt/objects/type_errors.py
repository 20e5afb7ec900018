"""
Values of the wrong type, in the words of the person who wrote them.

What comes in is the message of the typed decoder, ``Expected `int`, got `str` - at `$.spec.ports[0].port` ``, and the
JSON text of the object; what goes out is a finding that names the object although it could not be decoded.
"""

import re
from typing import Any

import msgspec

from kproxy_ipt.errors import Finding, Severity
from kproxy_ipt.objects.report import object_text, printable, printable_word

UNREADABLE = (msgspec.MsgspecError, RecursionError, ValueError)
"""What decoding of arbitrary text can raise."""

_MESSAGE = re.compile(r"(?P<text>.*?)(?: - at `(?:key` in `)?\$(?P<path>[^`]*)`)?", re.DOTALL)
_WRONG_TYPE = re.compile(r"Expected `(?P<expected>[^`]*)`, got `(?P<got>[^`]*)`")
_MISSING = re.compile(r"Object missing required field `(?P<field>[^`]*)`")
_STEP = re.compile(r"\.(?P<key>[^.\[\]]+)|\[(?P<index>\d+)\]|\[(?P<any>\.\.\.)\]")

_TYPE_WORDS = {
    "int": "a whole number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "a mapping",
}
_FIELD_WORDS = {
    "port": "a number from 1 to 65535",
    "nodePort": "a number from 0 to 65535",
    "healthCheckNodePort": "a number from 0 to 65535",
    "timeoutSeconds": "a number of seconds from 1 to 86400",
}


class _Names(msgspec.Struct):
    """Name and namespace, whatever their types; all else is skipped."""

    name: Any = None
    namespace: Any = None


class _Named(msgspec.Struct):
    metadata: _Names


def type_finding(raw: msgspec.Raw | bytes, error: Exception, *, name: str, consequence: str) -> Finding:
    """
    Say what is wrong with a text that the typed decoder refused.

    Args:
        raw: The JSON text.
        error: What the decoder raised.
        name: `object` of the finding.
        consequence: Of the finding.
    """
    match = _MESSAGE.fullmatch(str(error))
    text, path = (match["text"], match["path"] or "") if match else (str(error), "")
    field, value = _follow(path, _decoded(raw))
    wrong = _WRONG_TYPE.fullmatch(text)
    missing = _MISSING.fullmatch(text)
    if missing:
        field, found, expected = f"{field}.{missing['field']}".lstrip("."), "nothing", "a mapping"
    elif wrong:
        found = printable(value) if value is not None or wrong["got"] == "null" else _TYPE_WORDS.get(wrong["got"], "")
        expected = _expectation(field, wrong["expected"], wrong["got"])
    elif isinstance(error, RecursionError):
        found, expected = "nesting too deep to be read", "a Kubernetes object"
    else:
        found, expected = f"text that cannot be read ({text})", "JSON or YAML as Kubernetes writes it"
    return Finding(
        object=name,
        field=field,
        found=found,
        expected=expected,
        consequence=consequence,
        severity=Severity.REJECTED,
    )


def lenient_object_text(kind: str, raw: msgspec.Raw | bytes, place: str) -> str:
    """Kind and name of an object whatever its other fields are; its *place* where it has no name."""
    try:
        names = msgspec.json.decode(raw, type=_Named).metadata
    except UNREADABLE:
        return f"{kind} in {place}"
    has_name = isinstance(names.name, str) and names.name
    return object_text(kind, names.namespace, names.name) if has_name else f"{kind} in {place}"


def with_texts_for_nulls(raw: msgspec.Raw | bytes) -> bytes | None:
    """
    The object with "" for every label and annotation that is null, as the API server reads them.

    Returns:
        New JSON text, or None where there is no such label.
    """
    value = _decoded(raw)
    metadata = value.get("metadata") if isinstance(value, dict) else None
    if not isinstance(metadata, dict):
        return None
    changed = False
    for field in ("labels", "annotations"):
        mapping = metadata.get(field)
        if isinstance(mapping, dict) and None in mapping.values():
            metadata[field] = {key: "" if text is None else text for key, text in mapping.items()}
            changed = True
    return msgspec.json.encode(value) if changed else None


def _decoded(raw: msgspec.Raw | bytes) -> Any:
    """The object as plain values; None where it cannot be read at all."""
    try:
        return msgspec.json.decode(raw)
    except UNREADABLE:
        return None


def _follow(path: str, value: Any) -> tuple[str, Any]:
    """The path in Kubernetes notation and the value at its end; keys that the decoder does not name are found."""
    field = ""
    for step in _STEP.finditer(path):
        key: str | int | None = step["key"]
        if step["index"]:
            key = int(step["index"])
        elif step["any"]:
            key = _key_of_no_text(value)
        word = "..." if key is None else printable_word(str(key))
        field += f".{word}" if step["key"] else f"[{word}]"
        value = _inside(value, key)
    return field.lstrip("."), value


def _inside(value: Any, key: str | int | None) -> Any:
    try:
        return value[key]
    except (KeyError, IndexError, TypeError):
        return None


def _key_of_no_text(value: Any) -> str | None:
    """The first key whose value is no text: the mappings of the model hold nothing but text."""
    if not isinstance(value, dict):
        return None
    return next((key for key, entry in value.items() if not isinstance(entry, str)), None)


def _expectation(field: str, expected: str, got: str) -> str:
    name = field.rpartition(".")[2]
    if name in _FIELD_WORDS and "int" in expected:
        return _FIELD_WORDS[name]
    types = [part for part in expected.split(" | ") if part != "null"]
    words = " or ".join(_TYPE_WORDS.get(part, part) for part in types)
    return f"{words}, in quotes" if types == ["str"] and got in ("int", "float", "bool") else words
