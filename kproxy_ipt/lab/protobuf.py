"""
Objects in the protobuf form of Kubernetes, as kubectl from 1.32 on sends them for `kubectl create KIND NAME`.

Known are the fields that these commands can set; others are passed over. Go writes fields that are not set as empty
ones, hence empty values are left out unless the field tells 0 from nothing.

Source: `generated.proto` of k8s.io/api and k8s.io/apimachinery, whose numbers of fields never change; "Encoding" of
protobuf.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

CONTENT_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WIDTHS = {_FIXED64: 8, _FIXED32: 4}


class ProtobufError(ValueError):
    """Bytes that are no such object, or one of a kind that is not known."""


@dataclass(frozen=True)
class _Field:
    """Where a value goes: its name, the fields of a message, and how several or empty ones are meant."""

    name: str
    message: "Mapping[int, _Field] | None" = None
    is_list: bool = False
    is_map: bool = False
    keeps_zero: bool = False


_Message = Mapping[int, _Field]
_META: _Message = {
    1: _Field("name"),
    2: _Field("generateName"),
    3: _Field("namespace"),
    11: _Field("labels", is_map=True),
    12: _Field("annotations", is_map=True),
}
_INT_OR_STRING: _Message = {1: _Field("type"), 2: _Field("intVal"), 3: _Field("strVal")}
_SERVICE_PORT: _Message = {
    1: _Field("name"),
    2: _Field("protocol"),
    3: _Field("port"),
    4: _Field("targetPort", _INT_OR_STRING),
    5: _Field("nodePort"),
}
_SERVICE_SPEC: _Message = {
    1: _Field("ports", _SERVICE_PORT, is_list=True),
    2: _Field("selector", is_map=True),
    3: _Field("clusterIP"),
    4: _Field("type"),
    5: _Field("externalIPs", is_list=True),
    7: _Field("sessionAffinity"),
    10: _Field("externalName"),
    11: _Field("externalTrafficPolicy"),
}
_CONTAINER_PORT: _Message = {1: _Field("name"), 3: _Field("containerPort"), 4: _Field("protocol")}
_CONTAINER: _Message = {1: _Field("name"), 2: _Field("image"), 6: _Field("ports", _CONTAINER_PORT, is_list=True)}
_POD_SPEC: _Message = {
    2: _Field("containers", _CONTAINER, is_list=True),
    4: _Field("terminationGracePeriodSeconds", keeps_zero=True),
    10: _Field("nodeName"),
}
_TEMPLATE: _Message = {1: _Field("metadata", _META), 2: _Field("spec", _POD_SPEC)}
_DEPLOYMENT_SPEC: _Message = {
    1: _Field("replicas", keeps_zero=True),
    2: _Field("selector", {1: _Field("matchLabels", is_map=True)}),
    3: _Field("template", _TEMPLATE),
}
_KINDS: Mapping[str, _Message] = {
    "Namespace": {1: _Field("metadata", _META)},
    "Service": {1: _Field("metadata", _META), 2: _Field("spec", _SERVICE_SPEC)},
    "Deployment": {1: _Field("metadata", _META), 2: _Field("spec", _DEPLOYMENT_SPEC)},
    "Pod": {1: _Field("metadata", _META), 2: _Field("spec", _POD_SPEC)},
}
_TYPE_META: _Message = {1: _Field("apiVersion"), 2: _Field("kind")}


def decode_protobuf(body: bytes) -> dict[str, object]:
    """
    Read an object in its envelope.

    Raises:
        ProtobufError: It is none, or of a kind that is not known.
    """
    if not body.startswith(_MAGIC):
        raise ProtobufError("the body does not begin as protobuf of Kubernetes does")
    parts = dict(_fields(body[len(_MAGIC) :]))
    type_meta, raw = parts.get(1, b""), parts.get(2, b"")
    if not isinstance(type_meta, bytes) or not isinstance(raw, bytes):
        raise ProtobufError("the envelope is not what it should be")
    document = _decoded(type_meta, _TYPE_META)
    kind = str(document.get("kind", ""))
    if kind not in _KINDS:
        raise ProtobufError(f"the lab reads {kind or 'such an object'} as JSON only: kubectl apply -f sends that")
    return document | _decoded(raw, _KINDS[kind])


def _decoded(content: bytes, message: _Message) -> dict[str, object]:
    found: dict[str, object] = {}
    for number, raw in _fields(content):
        field = message.get(number)
        if field is None:
            continue
        value = _value(raw, field)
        if field.is_map and isinstance(value, dict):
            entries = found.setdefault(field.name, {})
            assert isinstance(entries, dict)
            entries.update(value)
        elif field.is_list:
            entries = found.setdefault(field.name, [])
            assert isinstance(entries, list)
            entries.append(value)
        elif value or field.keeps_zero:
            found[field.name] = value
    return found


def _value(raw: int | bytes, field: _Field) -> object:
    if isinstance(raw, int):
        return raw
    if field.is_map:
        pair = dict(_fields(raw))
        return {_text(pair.get(1, b"")): _text(pair.get(2, b""))}
    if field.message is None:
        return _text(raw)
    inner = _decoded(raw, field.message)
    if field.message is _INT_OR_STRING:
        return inner.get("strVal", "") if inner.get("type") else inner.get("intVal", 0)
    return inner


def _text(raw: int | bytes) -> str:
    return raw.decode(errors="replace") if isinstance(raw, bytes) else str(raw)


def _fields(content: bytes) -> Iterator[tuple[int, int | bytes]]:
    """
    Numbers and raw values of the fields of a message.

    Raises:
        ProtobufError: The message is cut off, or holds a type of value that is not known.
    """
    at = 0
    while at < len(content):
        key, at = _varint(content, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _varint(content, at)
            yield number, value
            continue
        if kind == _BYTES:
            length, at = _varint(content, at)
        elif kind in _WIDTHS:
            length = _WIDTHS[kind]
        else:
            raise ProtobufError(f"values of type {kind} are not known")
        if at + length > len(content):
            raise ProtobufError("the message is cut off")
        yield number, content[at : at + length]
        at += length


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(content):
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ProtobufError("the message is cut off")
