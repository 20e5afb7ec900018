"""Objects in the protobuf form of Kubernetes."""

import pytest

from kproxy_ipt.lab.protobuf import ProtobufError, decode_protobuf


def _field(number: int, content: bytes | int) -> bytes:
    if isinstance(content, int):
        return bytes([number << 3]) + _varint(content)
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    octets = b""
    while value >= 0x80:
        octets += bytes([value & 0x7F | 0x80])
        value >>= 7
    return octets + bytes([value])


def _envelope(kind: str, raw: bytes) -> bytes:
    return b"k8s\0" + _field(1, _field(1, b"v1") + _field(2, kind.encode())) + _field(2, raw) + _field(3, b"")


def test_a_service_is_read_with_its_ports_and_labels() -> None:
    """Repeated messages, maps, numbers of several bytes, and a target port in both forms; empty fields are left out."""
    label = _field(11, _field(1, b"app") + _field(2, b"web"))
    metadata = _field(1, b"np") + _field(2, b"") + label
    named = _field(1, b"a") + _field(2, b"TCP") + _field(3, 80) + _field(4, _field(1, 1) + _field(3, b"http"))
    numbered = _field(1, b"b") + _field(3, 81) + _field(4, _field(1, 0) + _field(2, 8080)) + _field(5, 30123)
    spec = _field(1, named) + _field(1, numbered) + _field(3, b"") + _field(4, b"NodePort")

    assert decode_protobuf(_envelope("Service", _field(1, metadata) + _field(2, spec))) == {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "np", "labels": {"app": "web"}},
        "spec": {
            "ports": [
                {"name": "a", "protocol": "TCP", "port": 80, "targetPort": "http"},
                {"name": "b", "port": 81, "targetPort": 8080, "nodePort": 30123},
            ],
            "type": "NodePort",
        },
    }


def test_no_replicas_are_not_unknown_replicas() -> None:
    """A field that tells 0 from nothing keeps its 0."""
    assert decode_protobuf(_envelope("Deployment", _field(2, _field(1, 0))))["spec"] == {"replicas": 0}


def test_unknown_fields_are_passed_over() -> None:
    """Numbers of fixed width and messages that nobody reads."""
    raw = bytes([9 << 3 | 1]) + bytes(8) + bytes([9 << 3 | 5]) + bytes(4) + _field(8, b"more") + _field(7, 1)

    assert decode_protobuf(_envelope("Namespace", raw)) == {"apiVersion": "v1", "kind": "Namespace"}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{}", "does not begin"),
        (b"k8s\0\x12\x7f", "cut off"),
        (b"k8s\0\x12", "cut off"),
        (b"k8s\0\x13", "type 3"),
        (b"k8s\0" + _field(1, 7), "envelope"),
        (_envelope("Secret", b""), "reads Secret as JSON only"),
    ],
)
def test_what_is_no_known_object_is_refused(body: bytes, message: str) -> None:
    """Each way to be wrong has its words."""
    with pytest.raises(ProtobufError, match=message):
        decode_protobuf(body)
