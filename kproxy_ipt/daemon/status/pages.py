"""
The pages of the status server: which path is which page, and what each is made from.

A request is judged and the moment taken on the event loop; the page itself is made at the desk. Counts of connections
are those that are known by then; where they are old, reading them anew is begun and the next look has them.
"""

import asyncio
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.answers import Answer, Request, json_answer, text_answer
from kproxy_ipt.daemon.status import guard
from kproxy_ipt.daemon.status.desk import RETRY_AFTER_S, BusyError, Desk
from kproxy_ipt.daemon.status.documents import service_document, status_document
from kproxy_ipt.daemon.status.render import page, static_file
from kproxy_ipt.daemon.status.scene import Scene, Watched, take_scene
from kproxy_ipt.daemon.status.service_rows import Query, ServiceCondition, ServicePage, ServiceTable
from kproxy_ipt.daemon.status.service_view import graph_sentences, service_graph, service_view
from kproxy_ipt.daemon.status.trace_view import PROTOCOLS, trace_view
from kproxy_ipt.errors import Severity
from kproxy_ipt.rules.fallbacks import FALLBACKS, missed_parts
from kproxy_ipt.state.tracker import ServiceName
from kproxy_ipt.stats.model import ServiceTraffic, TrafficReport, TrafficSource
from kproxy_ipt.trace.graph import MAX_CHAINS, Graph
from kproxy_ipt.trace.graph_svg import render_svg

TRAFFIC_AGE_S = 5.0
"""Counts that are older than this are read anew when somebody looks."""
MOST_SHOWN_SYNCS = 200
MOST_SHOWN_FINDINGS = 200

_SERVICE = re.compile(r"/(service|graph)/([^/]+)/([^/]+?)(\.json|\.svg)?")
_SVG = "image/svg+xml"
_STATIC_AGE_S = 86400

Made = Callable[[Scene, Request], Answer]


class StatusPages:
    """Answers for one daemon; *traffic* is None where nobody counts connections."""

    def __init__(self, watched: Watched, desk: Desk, *, bound_host: str, traffic: TrafficSource | None = None) -> None:
        self._watched = watched
        self._desk = desk
        self._bound_host = bound_host
        self._traffic = traffic
        self._reading: asyncio.Task[TrafficReport] | None = None
        self._table = ServiceTable()
        self._pages: Mapping[str, Made] = {
            "/": self._services,
            "/status.json": self._status_document,
            "/syncs": self._syncs,
            "/drift": self._drift,
            "/trace": self._trace,
        }

    def respond(self, request: Request) -> Answer | Awaitable[Answer]:
        """Answer a request."""
        refused = guard.refusal(request, self._bound_host)
        if refused is not None:
            return _guarded(refused)
        if request.path.startswith("/static/"):
            return _static(request.path.removeprefix("/static/"))
        make = self._pages.get(request.path) or self._page_of_service(request.path)
        return _guarded(_not_found(None, request)) if make is None else self._made(make, request)

    def _page_of_service(self, path: str) -> Made | None:
        found = _SERVICE.fullmatch(path)
        if found is None:
            return None
        name = (found[2], found[3])
        makers: Mapping[tuple[str, str | None], Callable[[Scene, Request, ServiceName], Answer]] = {
            ("service", None): self._service,
            ("service", ".json"): self._service_document,
            ("graph", None): self._graph,
            ("graph", ".svg"): self._picture,
        }
        maker = makers.get((found[1], found[4]))
        return None if maker is None else lambda scene, request: maker(scene, request, name)

    async def _made(self, make: Made, request: Request) -> Answer:
        self._read_traffic()
        try:
            return _guarded(await self._desk.work(make, take_scene(self._watched), request))
        except BusyError:
            return _guarded(text_answer("503 busy with other pages\n", 503), {"Retry-After": str(RETRY_AFTER_S)})

    def _read_traffic(self) -> None:
        """Begin to read counts where they are old, for whoever looks next; one reading at a time."""
        if self._traffic is not None and (self._reading is None or self._reading.done()):
            self._reading = asyncio.ensure_future(self._traffic.refresh(max_age_s=TRAFFIC_AGE_S))

    def _report(self) -> TrafficReport:
        return self._traffic.report() if self._traffic is not None else TrafficReport()

    def _services(self, scene: Scene, request: Request) -> Answer:
        table, report = self._service_page(scene, request), self._report()
        values = {
            "table": table,
            "conditions": list(ServiceCondition),
            "traffic": _by_service(report, table),
            "report": report,
            "words": table.query.words,
            "chosen": table.query.condition,
        }
        return page("services.html", {**_frame(scene, request, "services"), **values})

    def _status_document(self, scene: Scene, request: Request) -> Answer:
        table, report = self._service_page(scene, request), self._report()
        return json_answer(status_document(scene, table, _by_service(report, table), report))

    def _service_page(self, scene: Scene, request: Request) -> ServicePage:
        condition, number = request.query.get("state", ""), request.query.get("page", "1")
        query = Query(
            words=request.query.get("q", "").strip()[:200],
            condition=ServiceCondition(condition) if condition in tuple(ServiceCondition) else None,
            page=int(number) if number.isascii() and number.isdecimal() and len(number) < 7 else 1,
        )
        return self._table.page(scene, query)

    def _service(self, scene: Scene, request: Request, name: ServiceName) -> Answer:
        view, row, report = service_view(scene, name, self._report()), self._table.row(scene, name), self._report()
        if view is None or row is None:
            return _not_found(scene, request)
        values = {"view": view, "row": row, "report": report, "now_s": scene.health.now_s}
        return page("service.html", {**_frame(scene, request, "services"), **values})

    def _service_document(self, scene: Scene, _request: Request, name: ServiceName) -> Answer:
        view, row = service_view(scene, name, self._report()), self._table.row(scene, name)
        if view is None or row is None:
            return json_answer({"error": f"no Service is called {'/'.join(name)}"}, 404)
        return json_answer(service_document(view, row))

    def _graph(self, scene: Scene, request: Request, name: ServiceName) -> Answer:
        row = self._table.row(scene, name)
        if row is None:
            return _not_found(scene, request)
        families = [family for family in scene.families if scene.states[family].get(name)]
        family = _chosen_family(request, families)
        graph = service_graph(scene, name, family) if family else None
        values = {
            "row": row,
            "families": families,
            "family": family,
            "graph": graph if _can_be_drawn(graph) else None,
            "chains": graph.chain_count if graph else 0,
            "most_chains": MAX_CHAINS,
            "sentences": graph_sentences(graph) if graph and _can_be_drawn(graph) else (),
        }
        return page("graph.html", {**_frame(scene, request, "services"), **values})

    def _picture(self, scene: Scene, request: Request, name: ServiceName) -> Answer:
        families = [family for family in scene.families if scene.states[family].get(name)]
        family = _chosen_family(request, families)
        graph = service_graph(scene, name, family) if family else None
        if graph is None or not _can_be_drawn(graph):
            return text_answer("404 there is no picture of that\n", 404)
        headers = {"Content-Security-Policy": guard.PICTURE_POLICY}
        return Answer(body=render_svg(graph).encode(), content_type=_SVG, headers=headers)

    def _trace(self, scene: Scene, request: Request) -> Answer:
        view = trace_view(scene, {name: text[:300] for name, text in request.query.items()})
        return page("trace.html", {**_frame(scene, request, "trace"), "view": view, "protocols": PROTOCOLS})

    def _syncs(self, scene: Scene, request: Request) -> Answer:
        values = {"syncs": scene.syncs[:MOST_SHOWN_SYNCS], "kept": len(scene.syncs)}
        return page("syncs.html", {**_frame(scene, request, "syncs"), **values})

    def _drift(self, scene: Scene, request: Request) -> Answer:
        findings = sorted(scene.findings, key=lambda one: one.severity is not Severity.REJECTED)
        values = {
            "repairs": [one for one in scene.notable if one.repaired],
            "failures": [one for one in scene.notable if one.error],
            "refusals": scene.refusals,
            "now_s": scene.health.now_s,
            "lacking": _lacking(scene),
            "findings": findings[:MOST_SHOWN_FINDINGS],
            "finding_count": len(findings),
        }
        return page("drift.html", {**_frame(scene, request, "drift"), **values})


def _frame(scene: Scene, request: Request, section: str) -> dict[str, object]:
    """What every page shows around itself."""
    return {"scene": scene, "section": section, "path": request.path}


def _not_found(scene: Scene | None, request: Request) -> Answer:
    if scene is None:
        return text_answer("404 page not found\n", 404)
    return page("missing.html", _frame(scene, request, ""), status=404)


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


def _by_service(report: TrafficReport, table: ServicePage) -> Mapping[str, tuple[ServiceTraffic, ...]]:
    """The traffic of the Services of one page, over their ports and families."""
    wanted = {row.text for row in table.rows}
    found: defaultdict[str, list[ServiceTraffic]] = defaultdict(list)
    for one in report.services:
        name = one.service_port.partition(":")[0]
        if name in wanted:
            found[name].append(one)
    return {name: tuple(traffic) for name, traffic in found.items()}


def _chosen_family(request: Request, families: list[Family]) -> Family | None:
    asked = request.query.get("family", "")
    return next((family for family in families if family == asked), families[0] if families else None)


def _can_be_drawn(graph: Graph | None) -> bool:
    return graph is not None and bool(graph.nodes) and graph.chain_count <= MAX_CHAINS


def _lacking(scene: Scene) -> list[dict[str, object]]:
    """What the machine lacks, and how many Services get less for it."""
    found = []
    for family, part in sorted(scene.machine_facts.lacking):
        missing = scene.machine_facts.lacking_in(family)
        known = scene.states.get(family, {}).values()
        services = sum(part in missed_parts(missing, states, scene.node) for states in known)
        found.append({"family": family, "part": part, "fallback": FALLBACKS[part], "services": services})
    return found
