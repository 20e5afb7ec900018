"""
What records of connection tracking look like in netlink messages, and how to say which ones are meant.

Nearly all records are in order, so most are only looked at through one `struct` layout (`record_layout`), and what
looks wrong is read completely (`read_record`). pyroute2 turns every record into nested objects, which takes 20 times as
long.

Source: `nf_conntrack_netlink` of Linux, `linux/netfilter/nfnetlink_conntrack.h`.
"""

import socket
import struct
from collections.abc import Iterable, Mapping
from functools import lru_cache
from ipaddress import ip_address

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.kernel.nfnetlink import NESTED, attribute, nested_attribute, read_attributes
from kproxy_ipt.state.flows import Flow

PROTOCOL_NUMBERS: Mapping[str, int] = {"tcp": 6, "udp": 17, "sctp": 132}
"""The protocols of service ports."""

_PROTOCOL_NAMES = {number: name for name, number in PROTOCOL_NUMBERS.items()}
_TUPLE_ORIG, _TUPLE_REPLY, _ID, _ZONE, _FILTER = 1, 2, 12, 18, 25
_TUPLE_IP, _TUPLE_PROTO, _TUPLE_ZONE = 1, 2, 3
_IPV4_SOURCE, _IPV4_DESTINATION, _IPV6_SOURCE, _IPV6_DESTINATION = 1, 2, 3, 4
_PROTO_NUMBER, _PROTO_SOURCE, _PROTO_DESTINATION = 1, 2, 3
_FILTER_ORIG_FLAGS = 1
_BY_DESTINATION, _BY_PROTOCOL, _BY_DESTINATION_PORT = 1 << 1, 1 << 3, 1 << 5
_NFGENMSG_SIZE = 4

PackedEndpoint = tuple[bytes, bytes]
"""Address and big-endian port."""

PackedEntry = tuple[bytes, int, bytes]
"""Address, protocol number, big-endian port."""


class Question(msgspec.Struct, frozen=True):
    """
    Which records are asked for.

    Attributes:
        protocol: Number.
        destination: Packed address that the flow was sent to, b"" for any.
        port: Big-endian port that the flow was sent to, b"" for any.
    """

    protocol: int
    destination: bytes = b""
    port: bytes = b""


class Record(msgspec.Struct, frozen=True):
    """
    One record that was read completely.

    Attributes:
        flow: What it tracks.
        key: The attributes that name this very record, and none that leads elsewhere: reply tuple and id.
        zone: 0 unless somebody assigned one; then addresses mean what that one says.
    """

    flow: Flow
    key: bytes
    zone: int = 0


def filter_attributes(family: Family, question: Question) -> Iterable[bytes]:
    """What a request for a dump holds, so that the kernel sends the answer to *question* alone."""
    flags = _BY_PROTOCOL
    proto = attribute(_PROTO_NUMBER, bytes([question.protocol]))
    parts = []
    if question.destination:
        flags |= _BY_DESTINATION
        kind = _IPV4_DESTINATION if family is Family.IPV4 else _IPV6_DESTINATION
        parts.append(nested_attribute(_TUPLE_IP, attribute(kind, question.destination)))
    if question.port:
        flags |= _BY_DESTINATION_PORT
        proto += attribute(_PROTO_DESTINATION, question.port)
    parts.append(nested_attribute(_TUPLE_PROTO, proto))
    return (
        nested_attribute(_TUPLE_ORIG, *parts),
        nested_attribute(_FILTER, attribute(_FILTER_ORIG_FLAGS, struct.pack("=I", flags))),
    )


def is_answer(body: bytes, question: Question) -> bool:
    """Whether a record is one that *question* asks for."""
    original = _read_tuple(read_attributes(body, _NFGENMSG_SIZE).get(_TUPLE_ORIG, b""))
    return (
        original.protocol == question.protocol
        and question.destination in (b"", original.destination)
        and question.port in (b"", original.port)
    )


def read_record(body: bytes) -> Record | None:
    """Read one record completely; None for a protocol that services do not have."""
    attributes = read_attributes(body, _NFGENMSG_SIZE)
    answer = attributes.get(_TUPLE_REPLY, b"")
    original, reply = _read_tuple(attributes.get(_TUPLE_ORIG, b"")), _read_tuple(answer)
    protocol = _PROTOCOL_NAMES.get(original.protocol)
    if protocol is None or not (original.destination and reply.source):
        return None
    flow = Flow(
        protocol,
        _address_text(original.source),
        _number(original.source_port),
        _address_text(original.destination),
        _number(original.port),
        _address_text(reply.source),
        _number(reply.source_port),
    )
    zone = _number(attributes.get(_ZONE, b"")) or original.zone or reply.zone
    # The id alone is no proof, since a successor can lie in the same memory; the reply tuple holds the old endpoint.
    key = nested_attribute(_TUPLE_REPLY, answer) + attribute(_ID, attributes.get(_ID, b""))
    return Record(flow, key, zone)


def pack_address(text: str) -> bytes:
    """A canonical address as 4 or 16 bytes."""
    return socket.inet_pton(socket.AF_INET6 if ":" in text else socket.AF_INET, text)


def pack_port(number: int) -> bytes:
    """A port as it stands in packets."""
    return number.to_bytes(2, "big")


def record_layout(family: Family) -> tuple[struct.Struct, bytes]:
    """
    The layout of a record up to the source of replies, and the attribute headers that prove it.

    The kernel writes attributes in a fixed order: original tuple, reply tuple, all else.
    """
    size = family.bits // 8
    ip_size = 4 + 2 * (4 + size)
    layout = struct.Struct(
        f"=IHH12x12s{size}x4x{size}s8xB3x8x4x2s2x"  # header, nfgenmsg; source, destination, protocol, ports
        f"12x{size}s4x{size}x8x4x4x2s"  # the same of the reply as far as the source port
    )
    proto_size = 4 + 3 * 8
    first = _IPV4_SOURCE if family is Family.IPV4 else _IPV6_SOURCE
    head = struct.pack(
        "=HHHHHH", 4 + ip_size + proto_size, _TUPLE_ORIG | NESTED, ip_size, _TUPLE_IP | NESTED, 4 + size, first
    )
    return layout, head


class _Tuple(msgspec.Struct, frozen=True, gc=False):
    """One direction of a record, packed; b"" is what it does not have."""

    protocol: int
    source: bytes
    source_port: bytes
    destination: bytes
    port: bytes
    zone: int


def _read_tuple(octets: bytes) -> _Tuple:
    parts = read_attributes(octets, 0)
    addresses = read_attributes(parts.get(_TUPLE_IP, b""), 0)
    proto = read_attributes(parts.get(_TUPLE_PROTO, b""), 0)
    return _Tuple(
        _number(proto.get(_PROTO_NUMBER, b"")),
        addresses.get(_IPV4_SOURCE) or addresses.get(_IPV6_SOURCE, b""),
        proto.get(_PROTO_SOURCE, b""),
        addresses.get(_IPV4_DESTINATION) or addresses.get(_IPV6_DESTINATION, b""),
        proto.get(_PROTO_DESTINATION, b""),
        _number(parts.get(_TUPLE_ZONE, b"")),
    )


@lru_cache(maxsize=4096)
def _address_text(packed: bytes) -> str:
    return ip_address(packed).compressed


def _number(octets: bytes) -> int:
    return int.from_bytes(octets, "big")
