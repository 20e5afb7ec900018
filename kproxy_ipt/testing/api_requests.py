"""
How the test API server reads a request and finds the answer: credentials, routes, faults, watches.

Source: answers recorded from a kube-apiserver v1.36.2.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Mapping
from enum import Enum, auto
from typing import Protocol, cast

import msgspec
from aiohttp import web

from kproxy_ipt.testing.api_faults import Fault
from kproxy_ipt.testing.api_replies import Reply, status_reply
from kproxy_ipt.testing.api_store import ApiStore, ListQuery, Target, target_of
from kproxy_ipt.testing.api_watch import StreamingLists, WatchQuery, WatchStream
from kproxy_ipt.testing.api_wire import HungUpError, Wire
from kproxy_ipt.testing.api_writes import write

_ANONYMOUS = "system:anonymous"
_UNKNOWN_PATH = Reply(status=404, body=b"404 page not found\n", content_type="text/plain; charset=utf-8")


class ReceivedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request as it arrived: path without query, query decoded, header names in lower case, user as recognised."""

    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    user: str
    method: str = "GET"
    body: bytes = b""

    @property
    def is_watch(self) -> bool:
        """Whether a stream is asked for."""
        return self.query.get("watch", "") in ("1", "true")


class Act(Enum):
    """What an open watch is told to do."""

    LOOK = auto()
    """Something may have changed."""
    SEND = auto()
    """Send these bytes, whatever they are."""
    CUT = auto()
    """Send these bytes and hang up."""
    FREEZE = auto()
    """Send nothing any more; the connection stays."""
    END = auto()
    """End the stream as if its time were up."""


class OpenWatch:
    """A watch that is being served; *orders* is fed from the loop of the server."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.orders: asyncio.Queue[tuple[Act, bytes]] = asyncio.Queue()


class RequestReceiver(Protocol):
    """What requests need of their server; all of it is used in its loop."""

    tokens: dict[str, str]
    tls: ssl.SSLContext | None
    store: ApiStore
    streaming_lists: StreamingLists
    bookmark_interval_s: float
    watch_limit_s: float | None
    open_watches: set[OpenWatch]
    transports: set[asyncio.Transport]
    stopping: asyncio.Event

    @property
    def lock(self) -> contextlib.AbstractContextManager[bool, None]:
        """Guards the store."""

    def record(self, request: ReceivedRequest) -> Fault:
        """Note a request and say what goes wrong with it."""

    def changed(self) -> None:
        """Tell all watches to look."""


async def answer(server: RequestReceiver, request: web.BaseRequest) -> web.StreamResponse:
    """Answer one request, or fail it as scheduled."""
    received = ReceivedRequest(
        method=request.method,
        path=request.path,
        query=dict(request.query),
        headers={name.lower(): value for name, value in request.headers.items()},
        user=_user(server, request),
        body=await request.read(),
    )
    if request.transport is not None:
        server.transports.add(request.transport)
    fault = server.record(received)
    wire = Wire(request, fault, server.stopping)
    with contextlib.suppress(HungUpError, ConnectionError):
        if fault.delay_s:
            await wire.wait(fault.delay_s)
        await _answer(server, received, fault, wire)
    return wire.response


async def _answer(server: RequestReceiver, received: ReceivedRequest, fault: Fault, wire: Wire) -> None:
    reply = fault.reply or _refusal(server, received)
    target = target_of(received.path)
    if reply is None and target is not None and received.is_watch:
        await _watch(server, received, target, fault, wire)
        return
    if reply is None:
        with server.lock:
            reply = _UNKNOWN_PATH if target is None else _right_reply(server.store, received, target)
        if received.method != "GET":
            server.changed()
    await wire.send_reply(reply)


def _user(server: RequestReceiver, request: web.BaseRequest) -> str:
    """Name of the user, `system:anonymous` without credentials, "" with a token that is not known."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return server.tokens.get(token, "")
    certificate = request.get_extra_info("peercert")
    if certificate:
        subject = cast("tuple[tuple[tuple[str, str], ...], ...]", certificate.get("subject", ()))
        return next((value for names in subject for name, value in names if name == "commonName"), "")
    return _ANONYMOUS


def _refusal(server: RequestReceiver, received: ReceivedRequest) -> Reply | None:
    """401 or 403 for who is not known; None for all others."""
    guarded = bool(server.tokens) or (server.tls is not None and server.tls.verify_mode is not ssl.CERT_NONE)
    if guarded and not received.user:
        return status_reply(401, "Unauthorized", "Unauthorized")
    if guarded and received.user == _ANONYMOUS:
        resource = received.path.rpartition("/")[2]
        message = (
            f'{resource} is forbidden: User "{received.user}" cannot list resource "{resource}" in API group "" '
            "at the cluster scope"
        )
        return status_reply(403, "Forbidden", message, details={"kind": resource})
    return None


def _right_reply(store: ApiStore, received: ReceivedRequest, target: Target) -> Reply:
    """What a healthy server answers."""
    if received.method != "GET":
        content_type = received.headers.get("content-type", "").partition(";")[0]
        return write(store, received.method, target, received.body, content_type)
    return store.get(target) if target.name else store.list(target, _list_query(received.query))


def _list_query(query: Mapping[str, str]) -> ListQuery:
    version = query.get("resourceVersion", "") or "0"
    return ListQuery(
        label_selector=query.get("labelSelector", ""),
        field_selector=query.get("fieldSelector", ""),
        limit=int(query.get("limit", "0")),
        continue_token=query.get("continue", ""),
        not_older_than=int(version) if query.get("resourceVersionMatch") != "Exact" else 0,
    )


def _watch_query(query: Mapping[str, str]) -> WatchQuery:
    timeout = query.get("timeoutSeconds", "")
    return WatchQuery(
        label_selector=query.get("labelSelector", ""),
        field_selector=query.get("fieldSelector", ""),
        resource_version=query.get("resourceVersion", ""),
        timeout_s=float(timeout) if timeout else None,
        allow_bookmarks=query.get("allowWatchBookmarks", "") in ("1", "true"),
        initial_events=query.get("sendInitialEvents", "") in ("1", "true"),
    )


async def _watch(server: RequestReceiver, received: ReceivedRequest, target: Target, fault: Fault, wire: Wire) -> None:
    """Serve a watch until its time is up, or until it is told to break."""
    query = _watch_query(received.query)
    if query.initial_events and received.query.get("resourceVersionMatch") != "NotOlderThan":
        message = 'ListOptions is invalid: resourceVersionMatch: Forbidden: sendInitialEvents requires "NotOlderThan"'
        await wire.send_reply(status_reply(422, "Invalid", message))
        return
    opened = OpenWatch(received.path)
    server.open_watches.add(opened)
    try:
        with server.lock:
            stream = WatchStream(server.store, target, query)
            first = stream.first_lines(server.streaming_lists)
        await wire.open(Reply(status=200, body=b""))
        await wire.send(b"".join((*fault.lines, *first)))
        if not stream.is_over:
            await _follow(server, stream, opened, _limit_s(server, query), wire)
    finally:
        server.open_watches.discard(opened)


def _limit_s(server: RequestReceiver, query: WatchQuery) -> float:
    limits = [limit for limit in (server.watch_limit_s, query.timeout_s) if limit is not None]
    return min(limits, default=1800.0)


async def _follow(server: RequestReceiver, stream: WatchStream, opened: OpenWatch, limit_s: float, wire: Wire) -> None:
    """Send what happens, bookmarks, and what the test orders."""
    loop = asyncio.get_running_loop()
    end = loop.time() + limit_s
    next_bookmark = loop.time() + server.bookmark_interval_s
    while True:
        act, content = await _next_order(opened, min(end, next_bookmark) - loop.time())
        now = loop.time()
        with server.lock:
            lines = stream.lines() if act in (Act.LOOK, Act.END) else []
            if act is Act.END or (act is Act.LOOK and min(end, next_bookmark) <= now):
                lines += stream.bookmark()
                next_bookmark = now + server.bookmark_interval_s
        if act is Act.FREEZE:
            await wire.fall_silent()
        if lines or content:
            await wire.send(b"".join((*lines, content)))
        if act is Act.CUT:
            wire.hang_up()
        if act is Act.END or now >= end:
            return


async def _next_order(opened: OpenWatch, timeout_s: float) -> tuple[Act, bytes]:
    try:
        async with asyncio.timeout(max(timeout_s, 0.0)):
            return await opened.orders.get()
    except TimeoutError:
        return Act.LOOK, b""
