"""
A small API server on the loopback for tests: real HTTP and TLS, lists in pages, watches, writes, faults on demand.

::

    with ApiServer() as server:
        server.put(service("web"))
        server.schedule(Fault.too_many_requests(retry_after_s=1), path="/services")
        objects = read_cluster(ClusterConnection(master=server.url), node_name="node1")

What it answers is shaped as what a kube-apiserver v1.36.2 answers: the same Status objects, lists without kind in
their items, chunked bodies from 2 KiB on, continue tokens that stand for a snapshot, watches with bookmarks, streaming
lists and 410 after a compaction. Known are the resources that kproxy-ipt reads or writes.

The server runs in a thread with a loop of its own, so that clients that block can be tested as well as those that do
not; every method here may be called from any thread. A pause in an answer ends as soon as the server is stopped, so no
test has to wait for it.

Why not kmock (0.8): it lives in the event loop of the test, which a blocking client would stop; it has neither pages
nor selectors nor TLS; and an answer that is cut off in the middle of its body is out of its reach.
"""

import asyncio
import contextlib
import functools
import logging
import socket
import ssl
import threading
import weakref
from collections.abc import Mapping
from types import TracebackType
from typing import Self

import msgspec
from aiohttp import web

from kproxy_ipt.objects.model import EndpointSlice, Node, Service
from kproxy_ipt.testing.api_faults import Fault
from kproxy_ipt.testing.api_requests import Act, OpenWatch, ReceivedRequest, answer
from kproxy_ipt.testing.api_selectors import ApiObject
from kproxy_ipt.testing.api_store import ApiStore
from kproxy_ipt.testing.api_watch import StreamingLists
from kproxy_ipt.testing.sockets import reserved_port

_SILENT = logging.getLogger("kproxy_ipt.testing.api_server")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False  # a client that hangs up or sends no HTTP is what many tests are about


class _Scheduled(msgspec.Struct, kw_only=True):
    """A fault that waits for its requests."""

    fault: Fault
    path: str
    watch: bool | None
    skip: int
    times: int

    def befalls(self, request: ReceivedRequest) -> bool:
        """Whether this request is one of them."""
        return self.times > 0 and self.path in request.path and self.watch in (None, request.is_watch)


class ApiServer:
    """
    The server; a context manager that serves from entry to exit.

    Attributes:
        tokens: Bearer token to user name; may change at any time. Empty, and no TLS client certificates: everybody
            may do everything. Otherwise a wrong token is answered 401, and no credentials 403.
        tls: Settings of TLS, or None; a change counts from the next start.
        requests: All requests so far, in order.
        store: The objects; use `put` and `delete` to change them.
        streaming_lists: What becomes of watches that ask for initial events.
        bookmark_interval_s: How often watches get a bookmark; the real server sends one about each minute.
        watch_limit_s: Watches end after so long, whatever they ask for; None leaves it to them.
    """

    def __init__(self, *, tls: ssl.SSLContext | None = None, tokens: Mapping[str, str] | None = None) -> None:
        self.tokens: dict[str, str] = dict(tokens or {})
        self.requests: list[ReceivedRequest] = []
        self.store = ApiStore()
        self.tls = tls
        self.streaming_lists = StreamingLists.ACCEPTED
        self.bookmark_interval_s = 60.0
        self.watch_limit_s: float | None = None
        self.lock = threading.RLock()
        self.open_watches: set[OpenWatch] = set()
        self.transports: set[asyncio.Transport] = set()
        self.stopping = asyncio.Event()
        self._scheduled: list[_Scheduled] = []
        self._keeper: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """The port, chosen by the system at the first start and kept from then on, while the server is stopped too."""
        return int(self._keeper.getsockname()[1]) if self._keeper else 0

    @property
    def url(self) -> str:
        """The address for clients."""
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    def put(self, *api_objects: Service | EndpointSlice | Node | ApiObject) -> None:
        """Create or replace objects; mappings are full documents with `kind`. Every one raises the resource version."""
        with self.lock:
            for api_object in api_objects:
                self.store.put(api_object)
        self.changed()

    def delete(self, kind: str, name: str, namespace: str = "default") -> None:
        """Remove an object; `KeyError` if there is none."""
        with self.lock:
            self.store.delete(kind, name, namespace)
        self.changed()

    def compact(self) -> None:
        """Forget history and snapshots: continue tokens and versions handed out so far are answered 410."""
        with self.lock:
            self.store.compact()

    def lose_state(self) -> None:
        """Begin with nothing, from version 1, as after a restore of an empty etcd."""
        with self.lock:
            self.store = ApiStore()

    def schedule(
        self, fault: Fault, *, path: str = "", skip: int = 0, times: int = 1, watch: bool | None = None
    ) -> None:
        """
        Let *fault* befall the next requests.

        Args:
            fault: What goes wrong.
            path: Part of the paths that it befalls.
            skip: So many requests are spared first.
            times: So many are befallen then.
            watch: Only watches, or only other requests; None makes no difference.
        """
        with self.lock:
            self._scheduled.append(_Scheduled(fault=fault, path=path, watch=watch, skip=skip, times=times))

    def unschedule(self) -> None:
        """All is well again, from the next request on."""
        with self.lock:
            self._scheduled.clear()

    def watches(self, path: str = "") -> int:
        """Number of open watches whose path contains *path*."""
        return sum(path in opened.path for opened in tuple(self.open_watches))

    def send_line(self, line: bytes, path: str = "") -> None:
        """Send *line*, whatever it is, to the open watches of *path*."""
        self._order(Act.SEND, line + b"\n", path)

    def cut_watches(self, path: str = "", *, after: bytes = b"") -> None:
        """Break open watches off, behind *after*, which may be part of a line."""
        self._order(Act.CUT, after, path)

    def freeze_watches(self, path: str = "") -> None:
        """Open watches send nothing any more, and stay open."""
        self._order(Act.FREEZE, b"", path)

    def end_watches(self, path: str = "", *, after: bytes = b"") -> None:
        """Open watches end in good order, as if their time were up, behind *after*, which may be part of a line."""
        self._order(Act.END, after, path)

    def changed(self) -> None:
        """Tell all watches to look for changes."""
        self._order(Act.LOOK, b"", "")

    def record(self, request: ReceivedRequest) -> Fault:
        """Note a request and say what goes wrong with it."""
        with self.lock:
            self.requests.append(request)
            for scheduled in self._scheduled:
                if not scheduled.befalls(request):
                    continue
                if scheduled.skip > 0:
                    scheduled.skip -= 1
                    continue
                scheduled.times -= 1
                return scheduled.fault
        return Fault()

    def start(self) -> None:
        """Serve; after a `stop` on the same port as before."""
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), name="api-server")
        self._thread.start()
        started.wait()

    def stop(self) -> None:
        """Stop serving and end all connections; objects are kept."""
        if self._thread is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self.stopping.set)
            self._thread.join()
        self._thread = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self, started: threading.Event) -> None:
        """The thread."""
        try:
            asyncio.run(self._serve(started))
        finally:
            self._loop = None
            started.set()

    async def _serve(self, started: threading.Event) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, _context: None)  # failed handshakes are no news
        self.stopping = asyncio.Event()
        server = web.Server(functools.partial(answer, self), handler_cancellation=True, access_log=None, logger=_SILENT)
        if self._keeper is None:
            self._keeper = reserved_port()
            weakref.finalize(self, self._keeper.close)
        listening = socket.create_server(("127.0.0.1", self.port), backlog=128)
        listening.setblocking(False)
        connecting: set[asyncio.Task[None]] = set()
        loop.add_reader(listening, self._accept, listening, server, connecting)
        self._loop = loop
        started.set()
        await self.stopping.wait()
        self._loop = None
        loop.remove_reader(listening)
        listening.close()
        await _ended(connecting)
        await server.shutdown(0.1)
        for transport in self.transports:
            transport.abort()  # TLS would wait for the goodbye of the client
        self.transports.clear()
        await _let_pass()

    def _accept(self, listening: socket.socket, server: web.Server, connecting: set[asyncio.Task[None]]) -> None:
        """
        Take a new connection in.

        Done here since `loop.create_server` (3.11) loses connections that arrive while it is being closed.
        """
        try:
            connection, _ = listening.accept()
        except OSError:
            return
        task = asyncio.get_running_loop().create_task(_connect(connection, server, self.tls))
        connecting.add(task)
        task.add_done_callback(connecting.discard)

    def _order(self, act: Act, content: bytes, path: str) -> None:
        loop = self._loop
        if loop is not None:
            loop.call_soon_threadsafe(self._pass_on, act, content, path)

    def _pass_on(self, act: Act, content: bytes, path: str) -> None:
        for opened in self.open_watches:
            if path in opened.path:
                opened.orders.put_nowait((act, content))


async def _connect(connection: socket.socket, server: web.Server, tls: ssl.SSLContext | None) -> None:
    """Shake hands and serve."""
    connection.setblocking(False)
    with contextlib.suppress(OSError):  # a handshake that fails is no news
        await asyncio.get_running_loop().connect_accepted_socket(server, connection, ssl=tls)


async def _ended(connecting: set[asyncio.Task[None]]) -> None:
    """Let connections begin that only just arrived, so that they can be closed; break off handshakes that take long."""
    await _let_pass()
    for task in tuple(connecting):
        task.cancel()
    await asyncio.gather(*connecting, return_exceptions=True)


async def _let_pass() -> None:
    """Let the loop do what is pending."""
    for _ in range(20):
        await asyncio.sleep(0)
