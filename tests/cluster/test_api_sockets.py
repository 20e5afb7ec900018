"""Sockets of a client are kept alive, and closed whenever a request is cancelled."""

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator

import pytest

from kproxy_ipt.sources.api_sockets import ApiSockets
from kproxy_ipt.testing.certificates import CertificateAuthority


class _Told(asyncio.Protocol):
    """Says that a connection is there, right before whoever asked for it hears of that."""

    def __init__(self, tell: Callable[[], object]) -> None:
        self._tell = tell

    def connection_made(self, _: asyncio.BaseTransport) -> None:
        """The handshake has ended."""
        self._tell()


@contextlib.contextmanager
def silent_server(authority: CertificateAuthority) -> Iterator[int]:
    """The port of a server that shakes hands, and neither reads nor says farewell."""
    context = authority.server_context(authority.issue("server"))
    over = threading.Event()

    def serve(listening: socket.socket) -> None:
        accepted, _ = listening.accept()
        with context.wrap_socket(accepted, server_side=True):
            over.wait()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening,))
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            over.set()
            thread.join()


def test_a_connection_that_is_cancelled_as_it_is_there_leaves_no_socket(authority: CertificateAuthority) -> None:
    """However long the peer takes to say farewell."""
    trusting = ssl.create_default_context(cafile=authority.certificate)

    async def scenario(port: int) -> socket.socket:
        sockets, loop = ApiSockets(), asyncio.get_running_loop()
        made = sockets.make((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port)))
        made.setblocking(False)
        await loop.sock_connect(made, ("127.0.0.1", port))
        asking: asyncio.Task[tuple[asyncio.Transport, _Told]] = asyncio.create_task(
            loop.create_connection(lambda: _Told(asking.cancel), sock=made, ssl=trusting, server_hostname="127.0.0.1")
        )
        with pytest.raises(asyncio.CancelledError):
            await asking
        await sockets.closed()
        return made

    with silent_server(authority) as port:
        assert asyncio.run(scenario(port)).fileno() == -1


def test_sockets_notice_a_peer_that_is_gone() -> None:
    """C105: packets that nobody confirms end a connection after half a minute, and idle connections are probed."""
    with ApiSockets().make((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 1))) as made:
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
