"""
Netlink messages by hand: packing, sending, reading answers.

A plain sync asks the kernel three small questions (addresses, accounting objects, generation). Importing pyroute2 for
them costs 150 ms, a tenth of what a whole run of the command may take, and it is too slow where there is much to read
(`conntrack_records.py`, `notify_tables.py`): so these lines exist.

Attribute integers of nfnetlink are big-endian, headers are in the byte order of the machine.
"""

import os
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence

import msgspec

ROUTE = 0
NETFILTER = 12
NFPROTO_IPV4 = 2
NFPROTO_IPV6 = 10
NFPROTO_UNSPEC = 0
NLM_F_REQUEST = 0x001
NLM_F_ACK = 0x004
NLM_F_EXCL = 0x200
NLM_F_DUMP = 0x300
NLM_F_CREATE = 0x400
_NLMSG_ERROR = 2
_NLMSG_DONE = 3
_BATCH_BEGIN = 0x10
_BATCH_END = 0x11
_NFNL_BATCH_GENID = 1
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_ERROR = struct.Struct("=i")
NESTED = 0x8000
"""Bit of the kind of an attribute that holds attributes."""
_KIND_MASK = 0x3FFF
_BUFFER = 1 << 17
_TIMEOUT_S = 10.0


class Request(msgspec.Struct, frozen=True):
    """One message to send: its type, its flags (`NLM_F_REQUEST` is added) and all that follows the netlink header."""

    kind: int
    flags: int
    body: bytes


def attribute(kind: int, payload: bytes) -> bytes:
    """One attribute, padded to four bytes."""
    length = _ATTRIBUTE.size + len(payload)
    return _ATTRIBUTE.pack(length, kind) + payload + b"\0" * (-length % 4)


def text_attribute(kind: int, text: str) -> bytes:
    """A string attribute with its closing zero."""
    return attribute(kind, text.encode() + b"\0")


def number_attribute(kind: int, value: int) -> bytes:
    """A big-endian 32-bit attribute."""
    return attribute(kind, struct.pack("!I", value & 0xFFFFFFFF))


def nested_attribute(kind: int, *inner: bytes) -> bytes:
    """An attribute that holds attributes."""
    return attribute(kind | NESTED, b"".join(inner))


def nfnetlink_body(protocol_family: int, *attributes: bytes, resource: int = 0) -> bytes:
    """What follows the netlink header of an nfnetlink message: `struct nfgenmsg`, then attributes."""
    return struct.pack("!BBH", protocol_family, 0, resource) + b"".join(attributes)


def read_attributes(octets: bytes, offset: int) -> Mapping[int, bytes]:
    """The attributes from *offset* on, by kind; of a repeated kind the last."""
    found: dict[int, bytes] = {}
    while offset + _ATTRIBUTE.size <= len(octets):
        length, kind = _ATTRIBUTE.unpack_from(octets, offset)
        if length < _ATTRIBUTE.size:
            break
        found[kind & _KIND_MASK] = octets[offset + _ATTRIBUTE.size : offset + length]
        offset += (length + 3) & ~3
    return found


def exchange(protocol: int, request: Request) -> list[bytes]:
    """
    Send one request and collect the answers.

    Args:
        protocol: `ROUTE` or `NETFILTER`.
        request: A dump, or a question or order; the latter two are acknowledged by the kernel.

    Returns:
        The bodies (behind the netlink header) of all answers, in order; empty for an order that was obeyed.

    Raises:
        OSError: The kernel's refusal (`errno` tells), or no answer within 10 s.
    """
    is_dump = request.flags & NLM_F_DUMP == NLM_F_DUMP
    flags = request.flags if is_dump else request.flags | NLM_F_ACK
    with _open(protocol) as channel:
        channel.send(_pack(Request(request.kind, flags, request.body), 1))
        return list(_answers(channel))


def exchange_batch(subsystem: int, requests: Sequence[Request], generation: int | None = None) -> list[int]:
    """
    Send requests as one nfnetlink batch: the kernel does all of them or none.

    Args:
        subsystem: The batch's owner, 10 for nf_tables.
        requests: In order; each one is acknowledged.
        generation: The kernel refuses with ERESTART (85) if anything was changed since it had this number.

    Returns:
        For each request 0 or the errno that it was refused with, and a last number for the batch as a whole.

    Raises:
        OSError: The batch could not be sent or was not answered.
    """
    check = () if generation is None else (number_attribute(_NFNL_BATCH_GENID, generation),)
    last = len(requests) + 1
    begin = Request(_BATCH_BEGIN, 0, nfnetlink_body(0, *check, resource=subsystem))
    end = Request(_BATCH_END, NLM_F_ACK, nfnetlink_body(0, resource=subsystem))
    acked = [Request(request.kind, request.flags | NLM_F_ACK, request.body) for request in requests]
    answers: dict[int, int] = {}
    with _open(NETFILTER) as channel:
        channel.send(b"".join(_pack(request, number) for number, request in enumerate([begin, *acked, end])))
        while not _is_answered(answers, last):
            for sequence, code, _ in _messages(channel):
                if code is not None and code >= 0:
                    answers.setdefault(sequence, code)
    whole = answers.get(0) or answers.get(last, 0)
    return [*(answers.get(number, whole) for number in range(1, last)), whole]


def _is_answered(answers: Mapping[int, int], last: int) -> bool:
    """Refusing the beginning ends a batch at once; otherwise each request has its answer, or the end has."""
    return 0 in answers or last in answers or all(number in answers for number in range(1, last))


def _open(protocol: int) -> socket.socket:
    channel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
    try:
        channel.settimeout(_TIMEOUT_S)
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 21)
        channel.bind((0, 0))
    except BaseException:
        channel.close()
        raise
    return channel


def _pack(request: Request, sequence: int) -> bytes:
    length = _HEADER.size + len(request.body)
    header = _HEADER.pack(length, request.kind, request.flags | NLM_F_REQUEST, sequence, 0)
    return header + request.body + b"\0" * (-length % 4)


def _answers(channel: socket.socket) -> Iterator[bytes]:
    while True:
        for _, code, body in _messages(channel):
            if code is None:
                yield body
            elif code > 0:
                raise OSError(code, os.strerror(code))
            else:
                return


def _messages(channel: socket.socket) -> Iterator[tuple[int, int | None, bytes]]:
    """One datagram as (sequence, code, body): code is None for a content, 0 for done or obeyed, else an errno."""
    octets = channel.recv(_BUFFER)
    offset = 0
    while offset + _HEADER.size <= len(octets):
        length, kind, _, sequence, _ = _HEADER.unpack_from(octets, offset)
        body = octets[offset + _HEADER.size : offset + length]
        if kind in (_NLMSG_ERROR, _NLMSG_DONE):
            code = -_ERROR.unpack_from(body)[0] if len(body) >= _ERROR.size else 0
            yield sequence, code, body
        else:
            yield sequence, None, body
        offset += (length + 3) & ~3
