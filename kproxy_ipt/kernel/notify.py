"""
Listening to the kernel: a netlink socket in a network namespace of choice, read by the event loop.

No thread, no polling: the loop wakes up when something arrives. What arrives faster than it is read waits in a large
receive buffer; what does not fit there is lost, and the kernel says so once (`Received.lost`). Whoever listens must
then look at the machine as if everything could have changed.

`notify_addresses.py` and `notify_tables.py` say what is listened to; legacy tables notify nobody, so
`notify_legacy.py` is asked again and again.
"""

import asyncio
import errno
import socket
import struct
from collections.abc import Callable, Iterable, Iterator

import msgspec

from kproxy_ipt.errors import KernelError, MissingPrivilegeError
from kproxy_ipt.kernel.netns import inside

_SOL_NETLINK = 270
_ADD_MEMBERSHIP = 1
_SO_RCVBUFFORCE = 33
_RECEIVE_BUFFER = 32 << 20
"""Bytes; the kernel doubles them. They are used only while messages wait: 50,000 new rules are some 40 MB."""
_DATAGRAM = 1 << 16
_HEADER = struct.Struct("=IHHII")


class Message(msgspec.Struct, frozen=True):
    """
    One netlink message.

    Attributes:
        kind: `nlmsg_type`.
        port_id: Of the socket whose request caused it, 0 for the kernel itself.
        body: What follows the netlink header.
    """

    kind: int
    port_id: int
    body: bytes


class Received(msgspec.Struct, frozen=True):
    """
    What had arrived.

    Attributes:
        datagrams: In order.
        lost: Whether the receive buffer overran before or between them.
        is_empty: Whether nothing is left to be read.
    """

    datagrams: tuple[bytes, ...]
    lost: bool
    is_empty: bool


def messages_of(datagram: bytes) -> Iterator[Message]:
    """The messages of one datagram, in order; what is cut off is left out."""
    offset = 0
    while offset + _HEADER.size <= len(datagram):
        length, kind, _, _, port_id = _HEADER.unpack_from(datagram, offset)
        if length < _HEADER.size:
            return
        yield Message(kind, port_id, datagram[offset + _HEADER.size : offset + length])
        offset += (length + 3) & ~3


class Listener:
    """A socket that is a member of multicast groups; `start` hooks it into the running loop."""

    def __init__(self, protocol: int, groups: Iterable[int], netns: str | None) -> None:
        """
        Open the socket; from now on nothing is missed.

        Args:
            protocol: `ROUTE` or `NETFILTER` of `nfnetlink.py`.
            groups: Numbers of multicast groups, not bits.
            netns: See `netns.inside`; the socket stays there, the thread does not.

        Raises:
            NamespaceError: There is no such namespace.
            MissingPrivilegeError: The kernel does not let us listen.
            KernelError: It cannot: no netfilter, no memory.
        """
        with inside(netns):
            try:
                self._socket = _joined(protocol, groups)
            except PermissionError as error:
                raise MissingPrivilegeError("the kernel does not let us listen to changes: root is needed") from error
            except OSError as error:
                raise KernelError(f"changes cannot be listened to: {error.strerror or error}") from error
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, on_readable: Callable[[], None]) -> None:
        """Have the running loop call *on_readable* as long as something waits."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket, on_readable)

    def receive(self, limit: int) -> Received:
        """Take up to *limit* datagrams, without waiting."""
        datagrams: list[bytes] = []
        lost = False
        while len(datagrams) < limit:
            try:
                datagram, sender = self._socket.recvfrom(_DATAGRAM)
            except BlockingIOError:
                return Received(tuple(datagrams), lost, is_empty=True)
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                lost = True
                continue
            if sender[0] == 0:
                datagrams.append(datagram)
        return Received(tuple(datagrams), lost, is_empty=False)

    def close(self) -> None:
        """Stop listening; may be called twice."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._socket)
        self._loop = None
        self._socket.close()


def _joined(protocol: int, groups: Iterable[int]) -> socket.socket:
    channel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, protocol)
    try:
        _enlarge(channel)
        channel.bind((0, 0))
        for group in groups:
            channel.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, group)
    except BaseException:
        channel.close()
        raise
    return channel


def _enlarge(channel: socket.socket) -> None:
    """Beyond the limit of the system (`net.core.rmem_max`) where we may, up to it otherwise."""
    try:
        channel.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BUFFER)
    except PermissionError:
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
