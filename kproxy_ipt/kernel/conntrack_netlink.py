"""
Records of connection tracking over netlink: dumping with filters, fast scanning, deleting in batches.

A table can hold hundreds of thousands of records, and nearly all of them are in order. So a dump is read datagram by
datagram, each record is looked at through one `struct` layout, and only what looks wrong is read completely. pyroute2
turns every record into nested objects, which takes 20 times as long.

Kernels from 5.8 on search by themselves (`CTA_FILTER`); older ones ignore the filter and send everything, which is
noticed.

Source: `nf_conntrack_netlink` of Linux, `linux/netfilter/nfnetlink_conntrack.h`.
"""

import os
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from ipaddress import ip_address
from typing import Self

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.kernel.nfnetlink import (
    NETFILTER,
    NFPROTO_IPV4,
    NFPROTO_IPV6,
    NLM_F_ACK,
    NLM_F_DUMP,
    NLM_F_REQUEST,
    attribute,
    nested_attribute,
    nfnetlink_body,
    read_attributes,
)
from kproxy_ipt.state.flows import Flow

PROTOCOL_NUMBERS: Mapping[str, int] = {"tcp": 6, "udp": 17, "sctp": 132}
"""The protocols of service ports."""

_PROTOCOL_NAMES = {number: name for name, number in PROTOCOL_NUMBERS.items()}
_NFPROTO = {Family.IPV4: NFPROTO_IPV4, Family.IPV6: NFPROTO_IPV6}
CT_NEW = 0x100
"""Type of a message that holds a record."""
_CT_GET, _CT_DELETE = 0x101, 0x102
_TUPLE_ORIG, _TUPLE_REPLY, _ID, _ZONE, _FILTER = 1, 2, 12, 18, 25
_TUPLE_IP, _TUPLE_PROTO, _TUPLE_ZONE = 1, 2, 3
_IPV4_SOURCE, _IPV4_DESTINATION, _IPV6_SOURCE, _IPV6_DESTINATION = 1, 2, 3, 4
_PROTO_NUMBER, _PROTO_SOURCE, _PROTO_DESTINATION = 1, 2, 3
_FILTER_ORIG_FLAGS = 1
_BY_DESTINATION, _BY_PROTOCOL, _BY_DESTINATION_PORT = 1 << 1, 1 << 3, 1 << 5
_NESTED = 0x8000
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
DUMP_INTERRUPTED = 0x10
"""Flag of a message: the table changed so much that records may be missing."""
_HEADER = struct.Struct("=IHHII")
_CODE = struct.Struct("=i")
_NFGENMSG_SIZE = 4
_DATAGRAM = 1 << 16
_TIMEOUT_S = 10.0
_LOOPBACK_OCTET = 127

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


class Channel:
    """A netlink socket for one dump after the other, or for deletions; a context manager. Errors are OSError."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETFILTER)
        self._socket.settimeout(_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def dump(self, question: Question | None) -> Iterator[bytes]:
        """Ask, and give the datagrams of the answer as they come; who reads them knows the last one (`Scan`)."""
        body = nfnetlink_body(_NFPROTO[self._family], *(_filter_attributes(self._family, question) if question else ()))
        self._socket.send(_message(_CT_GET, NLM_F_DUMP, 0, body))
        while True:
            yield self._socket.recv(_DATAGRAM)

    def delete(self, keys: Sequence[bytes]) -> list[int]:
        """
        Delete records, all in one datagram.

        The kernel is silent about those that it deleted, but for the last one.

        Args:
            keys: Of records, a few hundred at most.

        Returns:
            The errno of each deletion that failed.
        """
        head = nfnetlink_body(_NFPROTO[self._family])
        last = len(keys) - 1
        orders = (
            _message(_CT_DELETE, NLM_F_ACK if number == last else 0, number, head + key)
            for number, key in enumerate(keys)
        )
        self._socket.send(b"".join(orders))
        failures: list[int] = []
        while True:
            for sequence, code in _answers(self._socket.recv(_DATAGRAM)):
                if code:
                    failures.append(code)
                if sequence == last:
                    return failures


class Scan:
    """
    What a series of dumps of one family says about some entries.

    Attributes:
        listed: Records seen.
        is_interrupted: The table changed so much meanwhile that records may be missing; ask again.
    """

    def __init__(
        self,
        family: Family,
        allowed: Mapping[PackedEntry, frozenset[PackedEndpoint]],
        node_ports: Mapping[tuple[int, bytes], frozenset[PackedEndpoint]],
        node_addresses: frozenset[bytes],
        *,
        localhost: bool,
    ) -> None:
        """
        Prepare for scanning.

        Args:
            family: Of the dumps.
            allowed: For each entry the endpoints that are in order.
            node_ports: The same by protocol and port, for packets to *node_addresses*, which win if they agree.
            node_addresses: Where node ports are answered.
            localhost: Whether 127.0.0.0/8 answers as well.
        """
        self.listed = 0
        self.is_interrupted = False
        self._layout, self._head = record_layout(family)
        self._allowed = allowed
        self._node_ports = node_ports
        self._node_addresses = node_addresses
        self._localhost = localhost and family is Family.IPV4

    def suspects(self, datagrams: Iterable[bytes]) -> Iterator[list[bytes]]:
        """
        Scan one dump, datagram by datagram.

        Args:
            datagrams: From `Channel.dump`; nothing is asked for behind the end of the dump.

        Returns:
            For each datagram the records that go to an entry but not to an endpoint of it, as bodies for `read_record`.
            A record with another layout than usual (a zone in its tuple, another protocol) is among them as well.

        Raises:
            OSError: The kernel tells an error.
        """
        for datagram in datagrams:
            found, end = self._scan(datagram)
            yield found
            if self._is_end(datagram, end):
                return

    def _scan(self, datagram: bytes) -> tuple[list[bytes], int]:
        """The suspects of a datagram, and where its records end."""
        unpack, head, size = self._layout.unpack_from, self._head, _HEADER.size
        found: list[bytes] = []
        offset, last_start = 0, len(datagram) - self._layout.size
        while offset <= last_start:
            length, kind, flags, start, address, protocol, port, source, source_port = unpack(datagram, offset)
            if kind != CT_NEW:
                break
            self.listed += 1
            if start != head or self._is_suspect((address, protocol, port), (source, source_port)):
                found.append(datagram[offset + size : offset + length])
            if flags & DUMP_INTERRUPTED:
                self.is_interrupted = True
            offset += (length + 3) & ~3
        return found, offset

    def _is_suspect(self, entry: PackedEntry, endpoint: PackedEndpoint) -> bool:
        endpoints = self._allowed.get(entry)
        if endpoints is not None and endpoint in endpoints:
            return False
        address, protocol, port = entry
        if address in self._node_addresses or (self._localhost and address[0] == _LOOPBACK_OCTET):
            at_node = self._node_ports.get((protocol, port))
            if at_node is not None:
                return endpoint not in at_node
        return endpoints is not None

    def _is_end(self, datagram: bytes, offset: int) -> bool:
        end, is_interrupted = dump_end(datagram, offset)
        self.is_interrupted |= is_interrupted
        return end


def dump_end(datagram: bytes, offset: int) -> tuple[bool, bool]:
    """
    Whether a dump ends in the messages from *offset* on, and whether they say that records may be missing.

    Raises:
        OSError: The kernel tells an error.
    """
    is_interrupted = False
    for kind, flags, body in _messages(datagram, offset):
        is_interrupted |= bool(flags & DUMP_INTERRUPTED)
        if kind in (_NLMSG_ERROR, _NLMSG_DONE):
            _raise_error(body)
            return True, is_interrupted
    return False, is_interrupted


def is_filtered(datagram: bytes, question: Question) -> bool:
    """Whether all records of a datagram answer *question*; if not, this kernel has no filter and sends the table."""
    for kind, _, body in _messages(datagram):
        if kind == CT_NEW:
            original = _read_tuple(read_attributes(body, _NFGENMSG_SIZE).get(_TUPLE_ORIG, b""))
            if (
                original.protocol != question.protocol
                or question.destination not in (b"", original.destination)
                or question.port not in (b"", original.port)
            ):
                return False
    return True


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
    key = attribute(_TUPLE_REPLY | _NESTED, answer) + attribute(_ID, attributes.get(_ID, b""))
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
        "=HHHHHH", 4 + ip_size + proto_size, _TUPLE_ORIG | _NESTED, ip_size, _TUPLE_IP | _NESTED, 4 + size, first
    )
    return layout, head


def _filter_attributes(family: Family, question: Question) -> Iterable[bytes]:
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


def _message(kind: int, flags: int, sequence: int, body: bytes) -> bytes:
    header = _HEADER.pack(_HEADER.size + len(body), kind, flags | NLM_F_REQUEST, sequence, 0)
    return header + body + b"\0" * (-len(body) % 4)


def _messages(datagram: bytes, offset: int = 0) -> Iterator[tuple[int, int, bytes]]:
    """Kind, flags and body of each message."""
    while offset + _HEADER.size <= len(datagram):
        length, kind, flags, _, _ = _HEADER.unpack_from(datagram, offset)
        yield kind, flags, datagram[offset + _HEADER.size : offset + length]
        offset += (max(length, _HEADER.size) + 3) & ~3


def _answers(datagram: bytes) -> Iterator[tuple[int, int]]:
    """Sequence number and errno of each acknowledgement."""
    offset = 0
    while offset + _HEADER.size + _CODE.size <= len(datagram):
        length, kind, _, sequence, _ = _HEADER.unpack_from(datagram, offset)
        if kind == _NLMSG_ERROR:
            yield sequence, -_CODE.unpack_from(datagram, offset + _HEADER.size)[0]
        offset += (max(length, _HEADER.size) + 3) & ~3


def _raise_error(body: bytes) -> None:
    code = -_CODE.unpack_from(body)[0] if len(body) >= _CODE.size else 0
    if code > 0:
        raise OSError(code, os.strerror(code))


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
