"""
HTTP servers on the event loop: `HttpListener` answers on sockets, `Servers` keeps the health and metrics servers open.

Plain HTTP without authentication, as kube-proxy has it; so nothing can be changed by it, and every method but GET and
HEAD is refused. A port that cannot be opened is tried again every 5 seconds,
since the proxy must run even if nobody can ask it; with `bindAddressHardFail` it is an error instead.
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping

import msgspec
from aiohttp import web

from kproxy_ipt.config.host_port import split_host_port
from kproxy_ipt.daemon.answers import Answer, Request, Responder, text_answer
from kproxy_ipt.daemon.listen import listen_on
from kproxy_ipt.daemon.log import Log
from kproxy_ipt.errors import ListenError

RETRY_S = 5.0
_KEEPALIVE_S = 75.0
_SHUTDOWN_S = 1.0
_READING = ("GET", "HEAD")
_NO_HEADERS: Mapping[str, str] = {}

Pause = Callable[[float], Awaitable[None]]
Prepare = Callable[[str], Awaitable[None]]
"""Awaited with the path of each request before it is answered."""


def _silent_logger() -> logging.Logger:
    """The web server's own log would give anybody who sends nonsense a stack trace."""
    logger = logging.getLogger("kproxy_ipt.daemon.http")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger


class HttpListener:
    """
    Answers with *respond* on the sockets that it is given, after *prepare* if there is something to wait for.

    A task that is cancelled while it opens or closes leaves nothing behind that `close` would not find.
    """

    def __init__(self, respond: Responder, log: Log, prepare: Prepare | None = None) -> None:
        self._respond = respond
        self._prepare = prepare
        self._log = log
        self._listening: list[asyncio.Server] = []
        self._web: web.Server | None = None

    async def open(self, sockets: Iterable[socket.socket]) -> None:
        """Answer on *sockets*, which belong to the listener from now on."""
        self._web = web.Server(
            self._answer, access_log=None, logger=_silent_logger(), keepalive_timeout=_KEEPALIVE_S, tcp_keepalive=True
        )
        loop = asyncio.get_running_loop()
        # Without serving at once nothing waits here, so there is no moment at which a socket belongs to nobody.
        self._listening = [await loop.create_server(self._web, sock=one, start_serving=False) for one in sockets]
        for server in self._listening:
            await server.start_serving()

    @property
    def ports(self) -> tuple[int, ...]:
        """Numbers of the ports, in the order of the sockets."""
        return tuple(opened.getsockname()[1] for server in self._listening for opened in server.sockets)

    def stop_listening(self) -> None:
        """Close the sockets: from now on the ports are free."""
        for server in self._listening:
            server.close()
        self._listening = []

    async def close(self) -> None:
        """Close sockets and connections."""
        self.stop_listening()
        if self._web is not None:
            self._web.pre_shutdown()  # connections that nobody uses at present end at once
            await self._web.shutdown(_SHUTDOWN_S)

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        if request.method not in _READING:
            return _response(text_answer("405 method not allowed\n", 405), {"Allow": ", ".join(_READING)})
        if self._prepare is not None:
            await self._prepare(request.path)
        headers = {name.lower(): text for name, text in request.headers.items()}
        asked = Request(path=request.path, query=dict(request.query), headers=headers)
        return _response(await self._safe_answer(asked))

    async def _safe_answer(self, request: Request) -> Answer:
        try:
            answer = self._respond(request)
            return answer if isinstance(answer, Answer) else await answer
        except Exception as error:  # noqa: BLE001  (a page that fails must not end the connection without an answer)
            self._log.warning("page failed", path=request.path, error=repr(error))
            return text_answer(f"{type(error).__name__}\n", 500)


def _response(answer: Answer, more_headers: Mapping[str, str] = _NO_HEADERS) -> web.Response:
    headers = {
        "Content-Type": answer.content_type,
        "X-Content-Type-Options": "nosniff",
        "Server": "kproxy-ipt",
        **answer.headers,
        **more_headers,
    }
    return web.Response(status=answer.status, body=answer.body, headers=headers)


class Server(msgspec.Struct, frozen=True):
    """
    One of the servers.

    Attributes:
        name: For messages: `healthz`, `metrics`, `status`.
        address: `host:port`; a wildcard host means every address of both families; "" means that it is turned off.
        respond: Its pages.
        prepare: What is waited for before a page is made; must not raise.
    """

    name: str
    address: str
    respond: Responder
    prepare: Prepare | None = None


class Servers:
    """
    Opens *servers* in a network namespace and keeps trying.

    Args:
        servers: Those to open.
        netns: Name or path of the network namespace, None: where we are.
        hard_fail: `bindAddressHardFail`.
        log: Gets a line for each port that is opened or refused.
        pause: Waits some seconds.
    """

    def __init__(
        self,
        servers: Iterable[Server],
        *,
        netns: str | None,
        hard_fail: bool,
        log: Log,
        pause: Pause = asyncio.sleep,
    ) -> None:
        self._servers = tuple(server for server in servers if server.address)
        self._netns = netns
        self._hard_fail = hard_fail
        self._log = log
        self._pause = pause
        self._listeners: dict[str, HttpListener] = {}
        self._retries: set[asyncio.Task[None]] = set()
        self._busy = asyncio.Lock()

    async def start(self) -> None:
        """
        Open all servers.

        Raises:
            ListenError: With *hard_fail*: one cannot be opened; those that were are closed again.
        """
        try:
            for server in self._servers:
                await self._open_or_retry(server)
        except ListenError:
            await self.close()
            raise

    async def close(self) -> None:
        """Close all servers and give up trying; afterwards the ports are free."""
        async with self._busy:
            for retry in self._retries:
                retry.cancel()
            await asyncio.gather(*self._retries, return_exceptions=True)
            self._retries.clear()
            for listener in self._listeners.values():
                await listener.close()
            self._listeners.clear()

    def port(self, name: str) -> int | None:
        """The port on which a server answers; None while it cannot."""
        listener = self._listeners.get(name)
        return listener.ports[0] if listener and listener.ports else None

    async def _open_or_retry(self, server: Server) -> None:
        try:
            await self._open(server)
        except ListenError as error:
            self._log.warning("cannot listen", server=server.name, error=str(error), hard_fail=self._hard_fail)
            if self._hard_fail:
                raise
            self._retries.add(asyncio.create_task(self._keep_trying(server)))

    async def _keep_trying(self, server: Server) -> None:
        while True:
            await self._pause(RETRY_S)
            try:
                async with self._busy:
                    return await self._open(server)
            except ListenError as error:
                self._log.warning("cannot listen", server=server.name, error=str(error))

    async def _open(self, server: Server) -> None:
        parts = split_host_port(server.address)
        if parts is None or not parts.port.isdecimal():
            raise ListenError(f"{server.address} is no address with a port")
        opened = listen_on(parts.host, int(parts.port), netns=self._netns, dual_stack=True)
        self._listeners[server.name] = listener = HttpListener(server.respond, self._log, server.prepare)
        await listener.open((opened,))
        self._log.info("listening", server=server.name, address=server.address)
