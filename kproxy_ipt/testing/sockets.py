"""
Sockets of the lab's servers and clients: how they are made, and how an early refusal is read.

A socket belongs for ever to the namespace in which it was made. So one thread enters a namespace, makes what it needs
and returns; one event loop can serve sockets of many namespaces. Decided against: a process for each namespace, which
costs start-up time and a protocol to talk to it.

Over veth pairs the answer to a SYN is worked on while `connect` still holds the socket. The kernel then does not act on
an ICMPv6 error and finds out by its next SYN, a second later. The clients here therefore have such errors queued
(`IPV6_RECVERR`) until they are connected, and read them from there.
"""

import socket
import struct
from functools import cache
from typing import Literal

from kproxy_ipt.addresses import Family, family_of

Protocol = Literal["tcp", "udp", "sctp"]
QUESTION = b"who?\n"
CHUNK = 256
"""More bytes than any question or answer has."""

# Not in the socket module of Python 3.11. The first one chooses the source port at connect, for many on one source.
_IP_BIND_ADDRESS_NO_PORT = 24
_IPV6_RECVERR = 25
_TOTAL_RETRANSMISSIONS = 100
"""Where `struct tcp_info` of linux/tcp.h has `tcpi_total_retrans`."""


def make_socket(family: Family, protocol: Protocol) -> socket.socket:
    """
    Make a non-blocking socket in the namespace of the current thread.

    Raises:
        OSError: The kernel lacks the protocol (SCTP often), or no file descriptor is left.
    """
    kind = socket.SOCK_DGRAM if protocol == "udp" else socket.SOCK_STREAM
    number = socket.IPPROTO_SCTP if protocol == "sctp" else 0
    created = socket.socket(
        socket.AF_INET6 if family is Family.IPV6 else socket.AF_INET, kind | socket.SOCK_NONBLOCK, number
    )
    if family is Family.IPV6:
        created.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    return created


def reserved_port() -> socket.socket:
    """
    Reserve a TCP port of 127.0.0.1 that nobody else is given until the socket is closed.

    It refuses connections, and a server with `SO_REUSEADDR` can listen on it. A port that was merely free a moment ago
    is given away again by the system, once in a while to the test next door.

    Raises:
        OSError: No port or no file descriptor is left.
    """
    kept = socket.socket()
    try:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1", 0))
    except BaseException:
        kept.close()
        raise
    return kept


@cache
def sctp_available() -> bool:
    """Whether the kernel has SCTP sockets; rules for SCTP can be loaded all the same."""
    try:
        make_socket(Family.IPV4, "sctp").close()
    except OSError:
        return False
    return True


def make_client(target: str, protocol: Protocol, source: str, source_port: int) -> socket.socket:
    """
    Make a client's socket in the namespace of the current thread.

    Args:
        target: The address that it will connect to.
        protocol: `tcp`, `udp` or `sctp`.
        source: Source address, "" lets the kernel choose.
        source_port: Source port, 0 lets the kernel choose; a fixed one of a stream is closed with a reset, since it
            could not be used again for a minute otherwise.

    Raises:
        OSError: The source cannot be used, or the kernel lacks the protocol.
    """
    client = make_socket(family_of(target), protocol)
    try:
        _queue_errors(client, protocol, 1)
        if source_port:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        elif source:
            client.setsockopt(socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
        if source_port and protocol != "udp":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if source or source_port:
            client.bind((source, source_port))
    except BaseException:
        client.close()
        raise
    return client


def connection_error(client: socket.socket, protocol: Protocol) -> int:
    """
    What stopped the connection of a client that can be written, as an errno; 0 means that it is connected.

    After a connection was made errors are left to the kernel, which mends what it can.
    """
    code = client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) or _queued_error(client, protocol)
    if not code:
        _queue_errors(client, protocol, 0)
    return code


def sent_again(client: socket.socket, protocol: Protocol) -> int:
    """TCP segments that a client had to send more than once so far, its SYN included; 0 for other protocols."""
    if protocol != "tcp":
        return 0
    told = client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TOTAL_RETRANSMISSIONS + 4)
    return int(struct.unpack_from("I", told, _TOTAL_RETRANSMISSIONS)[0])


def _has_queue(client: socket.socket, protocol: Protocol) -> bool:
    return protocol == "tcp" and client.family == socket.AF_INET6


def _queue_errors(client: socket.socket, protocol: Protocol, on: int) -> None:
    if _has_queue(client, protocol):
        client.setsockopt(socket.IPPROTO_IPV6, _IPV6_RECVERR, on)


def _queued_error(client: socket.socket, protocol: Protocol) -> int:
    if not _has_queue(client, protocol):
        return 0
    try:
        _, ancillary, _, _ = client.recvmsg(CHUNK, CHUNK, socket.MSG_ERRQUEUE)
    except BlockingIOError:
        return 0
    codes = [
        struct.unpack_from("I", payload)[0]
        for level, kind, payload in ancillary
        if (level, kind) == (socket.IPPROTO_IPV6, _IPV6_RECVERR)
    ]
    return int(codes[0]) if codes else 0
