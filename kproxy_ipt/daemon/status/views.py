"""Scene -> page: what each template is given. Made in the thread of the desk; only the trace waits for a program."""

from collections import defaultdict
from collections.abc import Mapping

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.answers import Answer, Request, json_answer, text_answer
from kproxy_ipt.daemon.status import guard
from kproxy_ipt.daemon.status.documents import service_document, status_document
from kproxy_ipt.daemon.status.render import page
from kproxy_ipt.daemon.status.scene import Scene
from kproxy_ipt.daemon.status.service_rows import Query, ServiceCondition, ServicePage, ServiceRow
from kproxy_ipt.daemon.status.service_view import graph_sentences, service_graph, service_view
from kproxy_ipt.daemon.status.trace_view import PROTOCOLS, trace_view
from kproxy_ipt.errors import Severity
from kproxy_ipt.objects.conflicts import service_conflicts
from kproxy_ipt.rules.fallbacks import FALLBACKS, Fallback, missed_parts
from kproxy_ipt.state.model import OptionalPart
from kproxy_ipt.state.tracker import ServiceName
from kproxy_ipt.stats.model import ServiceTraffic, TrafficReport
from kproxy_ipt.trace.graph import MAX_CHAINS, Graph
from kproxy_ipt.trace.graph_svg import render_svg

MOST_SHOWN_SYNCS = 200
MOST_SHOWN_FINDINGS = 200
_LONGEST_FIELD = 300
_SVG = "image/svg+xml"


class LackingPart(msgspec.Struct, frozen=True):
    """A part that the machine lacks in a family, and how many Services get less for it."""

    family: Family
    part: OptionalPart
    fallback: Fallback
    services: int


def query_of(request: Request) -> Query:
    """Which Services are asked for; what makes no sense is as if it was not said."""
    condition, number = request.query.get("state", ""), request.query.get("page", "1")
    return Query(
        words=request.query.get("q", "").strip()[:_LONGEST_FIELD],
        condition=ServiceCondition(condition) if condition in tuple(ServiceCondition) else None,
        page=int(number) if number.isascii() and number.isdecimal() and len(number) < 7 else 1,
    )


def services_page(scene: Scene, table: ServicePage, report: TrafficReport) -> Answer:
    """The list of Services."""
    values = {
        "table": table,
        "conditions": list(ServiceCondition),
        "traffic": _by_service(report),
        "report": report,
        "words": table.query.words,
        "chosen": table.query.condition,
    }
    return _page("services.html", scene, "services", values)


def status_json(scene: Scene, table: ServicePage, report: TrafficReport) -> Answer:
    """The same for tools."""
    return json_answer(status_document(scene, table, _by_service(report), report))


def service_page(scene: Scene, request: Request, row: ServiceRow | None, report: TrafficReport) -> Answer:
    """One Service; None for *row*: there is none of that name."""
    view = service_view(scene, (row.namespace, row.name), report) if row else None
    if view is None:
        return missing_page(scene, request)
    return _page("service.html", scene, "services", {"view": view, "row": row, "now_s": scene.health.now_s})


def service_json(scene: Scene, request: Request, row: ServiceRow | None, report: TrafficReport) -> Answer:
    """The same for tools."""
    view = service_view(scene, (row.namespace, row.name), report) if row else None
    if row is None or view is None:
        return json_answer({"error": f"there is nothing at {request.path}"}, 404)
    return json_answer(service_document(view, row))


def graph_page(scene: Scene, request: Request, row: ServiceRow | None) -> Answer:
    """The picture of a Service, and what it says in words."""
    if row is None:
        return missing_page(scene, request)
    name = (row.namespace, row.name)
    family = _chosen_family(scene, request, name)
    graph = service_graph(scene, name, family) if family else None
    drawn = graph if graph is not None and _can_be_drawn(graph) else None
    values = {
        "row": row,
        "families": _families(scene, name),
        "family": family,
        "graph": drawn,
        "chains": graph.chain_count if graph else 0,
        "most_chains": MAX_CHAINS,
        "sentences": graph_sentences(drawn) if drawn else (),
    }
    return _page("graph.html", scene, "services", values)


def picture(scene: Scene, request: Request, row: ServiceRow | None) -> Answer:
    """The picture itself, as SVG."""
    name = (row.namespace, row.name) if row else ("", "")
    family = _chosen_family(scene, request, name)
    graph = service_graph(scene, name, family) if family else None
    if graph is None or not _can_be_drawn(graph):
        return text_answer("404 there is no picture of that\n", 404)
    headers = {"Content-Security-Policy": guard.PICTURE_POLICY}
    return Answer(body=render_svg(graph).encode(), content_type=_SVG, headers=headers)


def trace_page(scene: Scene, request: Request) -> Answer:
    """The trace form with its answer."""
    view = trace_view(scene, {name: text[:_LONGEST_FIELD] for name, text in request.query.items()})
    return _page("trace.html", scene, "trace", {"view": view, "protocols": PROTOCOLS})


def syncs_page(scene: Scene, _request: Request) -> Answer:
    """The last syncs."""
    return _page("syncs.html", scene, "syncs", {"syncs": scene.syncs[:MOST_SHOWN_SYNCS], "kept": len(scene.syncs)})


def drift_page(scene: Scene, _request: Request) -> Answer:
    """What was repaired, refused, failed, done without, and is odd."""
    findings = {*scene.findings, *service_conflicts(scene.services.values())}
    shown = sorted(findings, key=lambda one: (one.severity is not Severity.REJECTED, one))
    values = {
        "repairs": [one for one in scene.notable if one.repaired],
        "failures": [one for one in scene.notable if one.error],
        "refusals": scene.refusals,
        "now_s": scene.health.now_s,
        "lacking": _lacking(scene),
        "findings": shown[:MOST_SHOWN_FINDINGS],
        "finding_count": len(findings),
    }
    return _page("drift.html", scene, "drift", values)


def missing_page(scene: Scene, request: Request) -> Answer:
    """There is nothing at that address."""
    return _page("missing.html", scene, "", {"path": request.path}, status=404)


def _page(template: str, scene: Scene, section: str, values: Mapping[str, object], *, status: int = 200) -> Answer:
    return page(template, {"scene": scene, "section": section, **values}, status=status)


def _by_service(report: TrafficReport) -> Mapping[str, tuple[ServiceTraffic, ...]]:
    """Traffic over ports and families, by `namespace/name`."""
    found: defaultdict[str, list[ServiceTraffic]] = defaultdict(list)
    for one in report.services:
        found[one.service_port.partition(":")[0]].append(one)
    return {name: tuple(traffic) for name, traffic in found.items()}


def _families(scene: Scene, name: ServiceName) -> list[Family]:
    return [family for family in scene.families if scene.states[family].get(name)]


def _chosen_family(scene: Scene, request: Request, name: ServiceName) -> Family | None:
    families = _families(scene, name)
    asked = request.query.get("family", "")
    return next((family for family in families if family == asked), families[0] if families else None)


def _can_be_drawn(graph: Graph) -> bool:
    return bool(graph.nodes) and graph.chain_count <= MAX_CHAINS


def _lacking(scene: Scene) -> list[LackingPart]:
    found = []
    for family, part in sorted(scene.machine_facts.lacking):
        missing = scene.machine_facts.lacking_in(family)
        known = scene.states.get(family, {}).values()
        services = sum(part in missed_parts(missing, states, scene.node) for states in known)
        found.append(LackingPart(family, part, FALLBACKS[part], services))
    return found
