"""
Records of connection tracking over netlink: dumping with filters, fast scanning, deleting in batches.

A table can hold hundreds of thousands of records, and nearly all of them are in order. So a dump is read datagram by
datagram; what a record looks like is said in `conntrack_records.py`.

Kernels from 5.8 on search by themselves (`CTA_FILTER`); older ones ignore the filter and send everything, which is
noticed.

Source: `nf_conntrack_netlink` of Linux, `linux/netfilter/nfnetlink_conntrack.h`.
"""

import os
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Self

from kproxy_ipt.addresses import Family
from kproxy_ipt.kernel.conntrack_records import (
    PackedEndpoint,
    PackedEntry,
    Question,
    filter_attributes,
    is_answer,
    record_layout,
)
from kproxy_ipt.kernel.nfnetlink import (
    NETFILTER,
    NFPROTO_IPV4,
    NFPROTO_IPV6,
    NLM_F_ACK,
    NLM_F_DUMP,
    NLM_F_REQUEST,
    nfnetlink_body,
)

_NFPROTO = {Family.IPV4: NFPROTO_IPV4, Family.IPV6: NFPROTO_IPV6}
CT_NEW = 0x100
"""Type of a message that holds a record."""
_CT_GET, _CT_DELETE = 0x101, 0x102
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
DUMP_INTERRUPTED = 0x10
"""Flag of a message: the table changed so much that records may be missing."""
_HEADER = struct.Struct("=IHHII")
_CODE = struct.Struct("=i")
_DATAGRAM = 1 << 16
_TIMEOUT_S = 10.0
_LOOPBACK_OCTET = 127


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
        body = nfnetlink_body(_NFPROTO[self._family], *(filter_attributes(self._family, question) if question else ()))
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
    return all(is_answer(body, question) for kind, _, body in _messages(datagram) if kind == CT_NEW)


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
