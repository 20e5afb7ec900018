"""
A small API server on the loopback for tests: real HTTP and TLS, lists in pages, and faults on demand.

::

    with ApiServer() as server:
        server.put(service("web"))
        server.schedule(Fault.too_many_requests(retry_after_s=1), path="/services")
        objects = read_cluster(ClusterConnection(master=server.url), node_name="node1")

What it answers is shaped as what a kube-apiserver v1.36.2 answers: the same Status objects, lists without kind in
their items, chunked bodies from 2 KiB on, continue tokens that stand for a snapshot. Known are the resources that
kproxy-ipt reads. A pause in an answer ends as soon as the server is stopped, so no test has to wait for it.

Why not kmock (0.8): it lives in the event loop of the test, which a blocking client would stop; it has neither pages
nor selectors nor TLS; and an answer that is cut off in the middle of its body is out of its reach. Threads of
`http.server` give all that in few lines, and a watch can block in its own thread.
"""

import contextlib
import socket
import ssl
import threading
from collections.abc import Mapping
from http.server import ThreadingHTTPServer
from types import TracebackType
from typing import Self

import msgspec

from kproxy_ipt.objects.model import EndpointSlice, Node, Service
from kproxy_ipt.testing.api_faults import Fault
from kproxy_ipt.testing.api_requests import ApiRequestHandler, ReceivedRequest
from kproxy_ipt.testing.api_store import ApiObject, ApiStore


class _Scheduled(msgspec.Struct, kw_only=True):
    """A fault that waits for its requests."""

    fault: Fault
    path: str
    skip: int
    times: int


class ApiServer(ThreadingHTTPServer):
    """
    The server; a context manager that serves from entry to exit.

    Attributes:
        tokens: Bearer token to user name; may change at any time. Empty, and no TLS client certificates: everybody
            may do everything. Otherwise a wrong token is answered 401, and no credentials 403.
        requests: All requests so far, in order.
        changed: Notified on every change of an object (for watches).
    """

    daemon_threads = False  # so that `stop` waits for every connection to end

    def __init__(self, *, tls: ssl.SSLContext | None = None, tokens: Mapping[str, str] | None = None) -> None:
        super().__init__(("127.0.0.1", 0), ApiRequestHandler)
        self.tokens: dict[str, str] = dict(tokens or {})
        self.requests: list[ReceivedRequest] = []
        self.store = ApiStore()
        self.changed = threading.Condition()
        self.stopping = threading.Event()
        self.tls = tls
        self._scheduled: list[_Scheduled] = []
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, name="api-server")

    @property
    def port(self) -> int:
        """The port, chosen by the system."""
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        """The address for clients."""
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    def put(self, *api_objects: Service | EndpointSlice | Node | ApiObject) -> None:
        """Create or replace objects; mappings are full documents with `kind`. Every one raises the resource version."""
        with self.changed:
            for api_object in api_objects:
                self.store.put(api_object)
            self.changed.notify_all()

    def delete(self, kind: str, name: str, namespace: str = "default") -> None:
        """Remove an object; `KeyError` if there is none."""
        with self.changed:
            self.store.delete(kind, name, namespace)
            self.changed.notify_all()

    def compact(self) -> None:
        """Forget all snapshots: continue tokens handed out so far are answered 410."""
        with self.changed:
            self.store.compact()

    def schedule(self, fault: Fault, *, path: str = "", skip: int = 0, times: int = 1) -> None:
        """Let *fault* befall the next *times* requests whose path contains *path*, after the first *skip* of them."""
        with self._lock:
            self._scheduled.append(_Scheduled(fault=fault, path=path, skip=skip, times=times))

    def record(self, request: ReceivedRequest) -> Fault:
        """Note a request and say what goes wrong with it (for the request handler)."""
        with self._lock:
            self.requests.append(request)
            for scheduled in self._scheduled:
                if scheduled.times <= 0 or scheduled.path not in request.path:
                    continue
                if scheduled.skip > 0:
                    scheduled.skip -= 1
                    continue
                scheduled.times -= 1
                return scheduled.fault
        return Fault()

    def get_request(self) -> tuple[socket.socket, object]:
        """Accept a connection and remember it, so that stopping can end it."""
        connection, address = super().get_request()
        with self._lock:
            self._connections.add(connection)
        return connection, address

    def finish_request(self, request: socket.socket | tuple[bytes, socket.socket], client_address: object) -> None:
        """Serve one connection, in its own thread; the TLS handshake happens here, so that it blocks nobody else."""
        if not isinstance(request, socket.socket):
            raise TypeError("this server speaks TCP only")
        if self.tls is None:
            super().finish_request(request, client_address)
            return
        with self.tls.wrap_socket(request.dup(), server_side=True) as wrapped:
            super().finish_request(wrapped, client_address)

    def shutdown_request(self, request: socket.socket | tuple[bytes, socket.socket]) -> None:
        """Close a connection and forget it."""
        if isinstance(request, socket.socket):
            with self._lock:
                self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: a client that hangs up or does not like our certificate is what many tests are about."""

    def stop(self) -> None:
        """Stop serving and end all connections."""
        self.stopping.set()
        with self.changed:
            self.changed.notify_all()
        self.shutdown()
        self._thread.join()
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            with contextlib.suppress(OSError):  # it has ended by itself meanwhile
                connection.shutdown(socket.SHUT_RDWR)
        self.server_close()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
