"""
What answers in a pod: HTTP with its name as the body on TCP ports, a line of text to each datagram on UDP ports.

Headers of the answer say more: `Pod`, `Node`, and `Client`, the address that the pod saw. The line of a datagram is
`NAME ADDRESS PORT`, the form of `kproxy_ipt.testing.servers`.
"""

import asyncio
import functools
import logging
import socket
from collections.abc import Callable, Sequence
from typing import cast

import msgspec
from aiohttp import web

from kproxy_ipt.addresses import family_of
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.lab.pods import PodPort
from kproxy_ipt.testing.sockets import make_socket

_BACKLOG = 1024
_CLOSE_S = 0.1
_LOGGER = logging.getLogger(__name__)


class Identity(msgspec.Struct, frozen=True):
    """What a pod says of itself."""

    name: str
    node: str


class PodServer:
    """All servers of one pod."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._http = web.Server(self._answer, access_log=None, logger=_LOGGER)
        self._closers: list[Callable[[], None]] = []

    async def start(self, netns: str, addresses: Sequence[str], ports: Sequence[PodPort]) -> None:
        """
        Answer on ports of a namespace; SCTP is left out.

        Raises:
            NamespaceError: The namespace cannot be entered.
            OSError: A port is taken.
        """
        loop = asyncio.get_running_loop()
        for port in ports:
            for address in addresses if port.protocol in ("TCP", "UDP") else ():
                listening = _bound_socket(netns, address, port)
                if port.protocol == "TCP":
                    server = await loop.create_server(self._http, sock=listening)
                    self._closers.append(server.close)
                else:
                    answering = functools.partial(_Datagrams, self._identity)
                    transport, _ = await loop.create_datagram_endpoint(answering, sock=listening)
                    self._closers.append(transport.close)

    async def stop(self) -> None:
        """Close all ports and cut what is open."""
        for close in self._closers:
            close()
        self._closers.clear()
        await self._http.shutdown(_CLOSE_S)

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        headers = {"Pod": self._identity.name, "Node": self._identity.node, "Client": request.remote or ""}
        return web.Response(text=f"{self._identity.name}\n", headers=headers)


class _Datagrams(asyncio.DatagramProtocol):
    """Answers each datagram."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called once, by the loop."""
        # Not to be asked with isinstance: the transports of Python 3.11 are no DatagramTransport.
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:  # noqa: ARG002 - the signature is asyncio's
        """Answer with who we are and whom we saw."""
        if self._transport is not None:
            self._transport.sendto(f"{self._identity.name} {addr[0]} {addr[1]}\n".encode(), addr)


def _bound_socket(netns: str, address: str, port: PodPort) -> socket.socket:
    with inside(netns):
        made = make_socket(family_of(address), "tcp" if port.protocol == "TCP" else "udp")
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((address, port.port))
        if port.protocol == "TCP":
            made.listen(_BACKLOG)
    except OSError:
        made.close()
        raise
    return made
