"""
The API of a lab on a port of the loopback: HTTP for `api_routes`, and watches.

Everybody on this machine may do everything, which is no more than to start and stop servers of a lab: pods run no
programs.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable

from aiohttp import web

from kproxy_ipt.errors import ListenError
from kproxy_ipt.lab.api_routes import Request, answer
from kproxy_ipt.lab.cluster import Cluster
from kproxy_ipt.lab.documents import ApiObject
from kproxy_ipt.lab.resources import route_of
from kproxy_ipt.lab.tables import row_table, wants_table
from kproxy_ipt.testing.api_replies import Reply, status_reply
from kproxy_ipt.testing.api_store import Target
from kproxy_ipt.testing.api_watch import StreamingLists, WatchQuery, WatchStream

_HOST = "127.0.0.1"
_BOOKMARK_INTERVAL_S = 30.0
_LONGEST_WATCH_S = 1800.0
_CLOSE_S = 0.2


def listening_socket(port: int) -> socket.socket:
    """
    A socket that listens on a port of the loopback; 0 lets the system choose.

    Raises:
        ListenError: The port is taken, or the loopback interface is down.
    """
    try:
        listening = socket.create_server((_HOST, port), backlog=128)
    except OSError as error:
        raise ListenError(f"the API cannot listen on {_HOST} port {port}: {error.strerror}") from error
    listening.setblocking(False)
    return listening


class LabApi:
    """The server of a cluster; made inside of the loop that owns the cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._watchers: set[asyncio.Event] = set()
        cluster.listen(self._wake)

    @contextlib.asynccontextmanager
    async def serving(self, listening: socket.socket) -> AsyncIterator[None]:
        """Serve on a socket until the end of the body."""
        logger = logging.getLogger(__name__)
        protocol = web.Server(self._answer, handler_cancellation=True, access_log=None, logger=logger)
        server = await asyncio.get_running_loop().create_server(protocol, sock=listening)
        try:
            yield
        finally:
            server.close()
            await protocol.shutdown(_CLOSE_S)

    async def _answer(self, received: web.BaseRequest) -> web.StreamResponse:
        request = Request(
            method=received.method,
            path=received.path,
            query=dict(received.query),
            accept=received.headers.get("Accept", ""),
            content_type=received.headers.get("Content-Type", "").partition(";")[0].strip(),
            body=await received.read(),
        )
        if _is_from_browser(received):
            return _response(status_reply(403, "Forbidden", "the API of a lab is not for web pages"))
        route = route_of(request.path)
        if request.query.get("watch") in ("1", "true") and route is not None and request.method == "GET":
            return await self._watch(received, request, route.target)
        reply = answer(self._cluster, request)
        return _response(reply)

    async def _watch(self, received: web.BaseRequest, request: Request, target: Target) -> web.StreamResponse:
        """Serve a watch until its time is up or its client is gone."""
        stream = WatchStream(self._cluster.store, _collection(target), _watch_query(request, target), _shape(request))
        response = web.StreamResponse(
            headers={"Content-Type": "application/json", "Cache-Control": "no-cache, private"}
        )
        response.enable_chunked_encoding()
        await response.prepare(received)
        changed = asyncio.Event()
        self._watchers.add(changed)
        try:
            with contextlib.suppress(ConnectionError):
                await _follow(stream, response, changed, _limit_s(request))
        finally:
            self._watchers.discard(changed)
        return response

    def _wake(self) -> None:
        for changed in self._watchers:
            changed.set()


def _is_from_browser(received: web.BaseRequest) -> bool:
    """Whether a page of some web site asks, whose visitor happens to run a lab."""
    host = received.host.rpartition(":")[0] or received.host
    return "Origin" in received.headers or host not in (_HOST, "localhost")


async def _follow(stream: WatchStream, response: web.StreamResponse, changed: asyncio.Event, limit_s: float) -> None:
    loop = asyncio.get_running_loop()
    end_s = loop.time() + limit_s
    lines = stream.first_lines(StreamingLists.ACCEPTED)
    while True:
        if lines:
            await response.write(b"".join(lines))
        if stream.is_over or loop.time() >= end_s:
            return
        is_due = await _is_quiet(changed, min(_BOOKMARK_INTERVAL_S, max(0.0, end_s - loop.time())))
        changed.clear()
        lines = stream.lines() + (stream.bookmark() if is_due else [])


async def _is_quiet(changed: asyncio.Event, timeout_s: float) -> bool:
    """Wait for a change; whether none came."""
    try:
        async with asyncio.timeout(timeout_s):
            await changed.wait()
    except TimeoutError:
        return True
    return False


def _limit_s(request: Request) -> float:
    sent = request.query.get("timeoutSeconds", "")
    return min(float(sent), _LONGEST_WATCH_S) if sent.isdecimal() else _LONGEST_WATCH_S


def _collection(target: Target) -> Target:
    return Target(collection=target.collection, namespace=target.namespace)


def _watch_query(request: Request, target: Target) -> WatchQuery:
    query = request.query
    fields = [query.get("fieldSelector", ""), f"metadata.name={target.name}" if target.name else ""]
    as_table = wants_table(request.accept)
    return WatchQuery(
        label_selector=query.get("labelSelector", ""),
        field_selector=",".join(each for each in fields if each),
        resource_version=query.get("resourceVersion", ""),
        allow_bookmarks=query.get("allowWatchBookmarks", "") in ("1", "true") and not as_table,
        initial_events=query.get("sendInitialEvents", "") in ("1", "true"),
    )


def _shape(request: Request) -> Callable[[ApiObject], ApiObject]:
    return (lambda document: row_table(document, request.include)) if wants_table(request.accept) else dict


def _response(reply: Reply) -> web.Response:
    headers = {"Content-Type": reply.content_type, "Cache-Control": "no-cache, private"}
    return web.Response(status=reply.status, body=reply.body, headers=headers)
