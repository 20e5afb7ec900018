"""
The pages of the status server: which path is which page, and where its parts are made.

On the event loop a request is judged, the moment is taken, and connections are looked up for what is shown; the rest is
made at the desk. Counts that are old are read anew, which a page waits for only a moment: where the kernel has long
tables to print, the next look has them.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping

from kproxy_ipt.daemon.answers import Answer, Request, text_answer
from kproxy_ipt.daemon.status import guard, views
from kproxy_ipt.daemon.status.desk import RETRY_AFTER_S, BusyError, Desk
from kproxy_ipt.daemon.status.render import static_file
from kproxy_ipt.daemon.status.scene import Scene, Watched, take_scene
from kproxy_ipt.daemon.status.service_rows import ServicePage, ServiceRow, ServiceTable
from kproxy_ipt.state.tracker import ServiceName
from kproxy_ipt.stats.model import TrafficReport, TrafficSource

TRAFFIC_AGE_S = 5.0
"""Counts that are older than this are read anew when somebody looks."""
PATIENCE_S = 0.2
"""How long a page waits for counts."""

_SERVICE = re.compile(r"/(service|graph)/([^/]+)/([^/]+?)(\.json|\.svg)?")
_STATIC_AGE_S = 86400

Maker = Callable[[Scene, Request], Awaitable[Answer]]
ListView = Callable[[Scene, ServicePage, TrafficReport], Answer]
CountedView = Callable[[Scene, Request, ServiceRow | None, TrafficReport], Answer]
PlainView = Callable[[Scene, Request, ServiceRow | None], Answer]

_LISTS: Mapping[str, ListView] = {"/": views.services_page, "/status.json": views.status_json}
_OTHERS: Mapping[str, Callable[[Scene, Request], Answer]] = {
    "/syncs": views.syncs_page,
    "/drift": views.drift_page,
    "/trace": views.trace_page,
}
_COUNTED: Mapping[tuple[str, str | None], CountedView] = {
    ("service", None): views.service_page,
    ("service", ".json"): views.service_json,
}
_PLAIN: Mapping[tuple[str, str | None], PlainView] = {
    ("graph", None): views.graph_page,
    ("graph", ".svg"): views.picture,
}


class StatusPages:
    """Answers for one daemon; *traffic* is None where nobody counts connections."""

    def __init__(self, watched: Watched, desk: Desk, *, bound_host: str, traffic: TrafficSource | None = None) -> None:
        self._watched = watched
        self._desk = desk
        self._bound_host = bound_host
        self._traffic = traffic
        self._reading: asyncio.Task[None] | None = None
        self._table = ServiceTable()

    def respond(self, request: Request) -> Answer | Awaitable[Answer]:
        """Answer a request."""
        refused = guard.refusal(request, self._bound_host)
        if refused is not None:
            return _guarded(refused)
        if request.path.startswith("/static/"):
            return _static(request.path.removeprefix("/static/"))
        maker = self._maker(request.path)
        return _guarded(text_answer("404 page not found\n", 404)) if maker is None else self._made(maker, request)

    def close(self) -> None:
        """Give up reading counts; the desk is closed by its owner."""
        if self._reading is not None:
            self._reading.cancel()

    def _maker(self, path: str) -> Maker | None:
        if path in _LISTS:
            return lambda scene, request: self._list(_LISTS[path], scene, request)
        if path in _OTHERS:
            return lambda scene, request: self._desk.work(_OTHERS[path], scene, request)
        found = _SERVICE.fullmatch(path)
        if found is None:
            return None
        name, kind = (found[2], found[3]), (found[1], found[4])
        if kind in _COUNTED:
            return lambda scene, request: self._service(_COUNTED[kind], scene, request, name)
        if kind in _PLAIN:
            return lambda scene, request: self._desk.work(self._of_row, _PLAIN[kind], scene, request, name)
        return None

    async def _made(self, maker: Maker, request: Request) -> Answer:
        try:
            with self._desk.place():
                await self._read_traffic()
                return _guarded(await maker(take_scene(self._watched), request))
        except BusyError:
            return _guarded(text_answer("503 busy with other pages\n", 503), {"Retry-After": str(RETRY_AFTER_S)})

    async def _list(self, view: ListView, scene: Scene, request: Request) -> Answer:
        table = await self._desk.work(self._table.page, scene, views.query_of(request))
        report = self._report(frozenset((row.namespace, row.name) for row in table.rows))
        return await self._desk.work(view, scene, table, report)

    async def _service(self, view: CountedView, scene: Scene, request: Request, name: ServiceName) -> Answer:
        report = self._report(frozenset((name,)))
        return await self._desk.work(lambda: view(scene, request, self._table.row(scene, name), report))

    def _of_row(self, view: PlainView, scene: Scene, request: Request, name: ServiceName) -> Answer:
        return view(scene, request, self._table.row(scene, name))

    async def _read_traffic(self) -> None:
        """Have counts read where they are old, one reading at a time, and wait for a moment."""
        if self._traffic is None:
            return
        if self._reading is None or self._reading.done():
            self._reading = asyncio.get_running_loop().create_task(self._read(self._traffic))
        await asyncio.wait((self._reading,), timeout=PATIENCE_S)

    async def _read(self, traffic: TrafficSource) -> None:
        await traffic.read(max_age_s=TRAFFIC_AGE_S)

    def _report(self, names: frozenset[ServiceName]) -> TrafficReport:
        return TrafficReport() if self._traffic is None else self._traffic.report(names)


def _static(name: str) -> Answer:
    found = static_file(name)
    if found is None:
        return _guarded(text_answer("404 page not found\n", 404))
    # The address of a file holds the hash of its content.
    kept = {"Cache-Control": f"private, max-age={_STATIC_AGE_S}"}
    return _guarded(Answer(body=found.body, content_type=found.content_type), kept)


def _guarded(answer: Answer, more: Mapping[str, str] | None = None) -> Answer:
    headers = {**guard.HEADERS, **answer.headers, **(more or {})}
    return Answer(status=answer.status, body=answer.body, content_type=answer.content_type, headers=headers)
