"""
The sockets of a client of an API server: they notice when their peer is gone, and none is left behind.

Transports of asyncio are closed by the loop in its next turns. Under TLS there are two, one inside of the other, and
where a request is cancelled in the moment in which the handshake ends, the outer one waits up to 30 s for the peer's
farewell, longer than the loop runs. Such a socket is shut down here; its transport learns that from the kernel.
"""

import asyncio
import contextlib
import socket
import weakref

KEEPALIVE_IDLE_S = 30
KEEPALIVE_INTERVAL_S = 10
KEEPALIVE_PROBES = 3
USER_TIMEOUT_MS = 30_000
"""A peer that confirms nothing for this long is gone."""

_TURNS = 4
_MOST_TURNS = 100


class ApiSockets:
    """Makes sockets, and sees that they are closed."""

    def __init__(self) -> None:
        self._made: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def make(
        self, address: tuple[int | socket.AddressFamily, int | socket.SocketKind, int, str, tuple[object, ...]]
    ) -> socket.socket:
        """A socket with TCP keep-alive and TCP_USER_TIMEOUT; *address* is one of `getaddrinfo`."""
        family, kind, protocol, _, _ = address
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
        self._made.add(made)
        return made

    async def closed(self) -> None:
        """Give the loop the turns to close all of them, after their connections were closed."""
        await self._turns(_TURNS)
        for each in self._open():
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        await self._turns(_MOST_TURNS)

    async def _turns(self, most: int) -> None:
        for _ in range(most):
            if not self._open():
                return
            await asyncio.sleep(0)

    def _open(self) -> list[socket.socket]:
        return [each for each in self._made if each.fileno() != -1]
