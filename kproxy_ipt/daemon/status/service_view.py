"""
One Service as its page shows it: what was decided, why, and what became of it.

Nothing is decided here: reasons come from `trace.explain_service`, counts from `stats`.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from kproxy_ipt.addresses import Family, canonical_address
from kproxy_ipt.daemon.quarantine import Refusal
from kproxy_ipt.daemon.status.scene import Scene, snapshot_of
from kproxy_ipt.objects.model import Objects
from kproxy_ipt.rules.build import build_ruleset, with_base_chains
from kproxy_ipt.state.tracker import ServiceName
from kproxy_ipt.stats.model import EndpointTraffic, ServiceTraffic, TrafficReport
from kproxy_ipt.stats.observed import unlike_words
from kproxy_ipt.trace.explain_service import explain_service
from kproxy_ipt.trace.explanation import EndpointRow, PortExplanation, ServiceExplanation
from kproxy_ipt.trace.graph import Graph, build_graph

MOST_ENDPOINTS = 300
"""Endpoints of one service port that a page shows; JSON has all."""

_NO_TRAFFIC = EndpointTraffic(endpoint="", connections=0)


class EndpointLine(msgspec.Struct, frozen=True, kw_only=True):
    """
    One entry of a slice.

    Attributes:
        is_in: Whether any policy sends to it.
        reason: Why it is in or out, in few words.
        because: The same as a sentence; "" where the words say all.
        expected: Its part of those connections that came, 0 to 1, by both policies together; where none came, of new
            ones by policy Cluster, or Local where that is the only one.
        traffic: What was counted, None where nothing is known.
    """

    row: EndpointRow
    is_in: bool
    reason: str
    because: str
    expected: float
    traffic: EndpointTraffic | None


class PortView(msgspec.Struct, frozen=True, kw_only=True):
    """
    One service port in one family.

    Attributes:
        key: For links within the page.
        lines: At most `MOST_ENDPOINTS`; if there are more, those that are out come first.
        hidden: How many are left out.
        scale: The largest part of any line: what a full bar means.
        others: Endpoints that were counted and are none of the lines: gone, or in the kernel's rules alone.
        unlike: How rules that were read after the last change differ from what is wanted; "" if they do not.
    """

    key: str
    port: PortExplanation
    lines: tuple[EndpointLine, ...]
    hidden: int
    scale: float
    traffic: ServiceTraffic | None
    others: tuple[EndpointTraffic, ...]
    unlike: str


class ServiceView(msgspec.Struct, frozen=True, kw_only=True):
    """A Service with everything that its page shows."""

    explanation: ServiceExplanation
    ports: tuple[PortView, ...]
    refusals: tuple[Refusal, ...]
    changed_unix_s: float | None


def explain(scene: Scene, name: ServiceName) -> ServiceExplanation | None:
    """What was decided about a Service; None if there is none of that name."""
    service = scene.services.get(name)
    if service is None:
        return None
    namespace = name[0]
    objects = Objects(
        services=tuple(one for known, one in scene.services.items() if known[0] == namespace),
        endpoint_slices=tuple(one for one in scene.endpoint_slices if (one.metadata.namespace or "") == namespace),
    )
    snapshots = {family: snapshot_of(scene, family) for family in scene.families}
    return explain_service(service, objects, snapshots, scene.config, scene.machine_facts)


def service_view(scene: Scene, name: ServiceName, report: TrafficReport) -> ServiceView | None:
    """The page of a Service; None if there is none of that name."""
    explanation = explain(scene, name)
    if explanation is None:
        return None
    traffic = {(one.family, one.service_port, one.protocol): one for one in report.services}
    changed_unix_s = scene.changed_unix_s.get(name)
    is_settled = changed_unix_s is not None and report.unix_time_s > changed_unix_s and name not in scene.unwritten
    return ServiceView(
        explanation=explanation,
        ports=tuple(
            _port_view(port, traffic.get((port.family, port.text, port.protocol)), is_settled=is_settled)
            for port in explanation.ports
        ),
        refusals=tuple(refusal for refusal in scene.refusals if refusal.service == name),
        changed_unix_s=changed_unix_s,
    )


def _port_view(port: PortExplanation, traffic: ServiceTraffic | None, *, is_settled: bool) -> PortView:
    counted = {one.endpoint: one for one in traffic.endpoints} if traffic else {}
    lines = [_line(row, counted.get(row.text)) for row in port.shown_endpoints]
    told = {line.row.text for line in lines if line.is_in or line.traffic}
    shown = lines if len(lines) <= MOST_ENDPOINTS else sorted(lines, key=lambda line: line.is_in)[:MOST_ENDPOINTS]
    parts = [part for line in lines for part in (line.expected, (line.traffic or _NO_TRAFFIC).observed or 0.0)]
    return PortView(
        key=f"{port.family}-{port.protocol}-{port.port}",
        port=port,
        lines=tuple(shown),
        hidden=len(lines) - len(shown),
        scale=max(parts, default=0.0) or 1.0,
        traffic=traffic,
        others=tuple(one for one in counted.values() if one.endpoint not in told),
        unlike=unlike_words(port, traffic) if traffic and is_settled else "",
    )


def _line(row: EndpointRow, traffic: EndpointTraffic | None) -> EndpointLine:
    reasons = {word: reason for word, reason in (("Cluster", row.cluster), ("Local", row.local)) if reason}
    distinct = dict.fromkeys(reasons.values())
    is_in = any(reason.is_in for reason in distinct)
    if len(distinct) == 1:
        words = next(iter(distinct)).value
    else:
        words = ", ".join(f"{word}: {reason.value}" for word, reason in reasons.items())
    share = row.cluster_share if row.cluster is not None else row.local_share
    return EndpointLine(
        row=row,
        is_in=is_in,
        reason=words,
        because=row.detail or "; ".join(reason.sentence for reason in distinct if not reason.is_in),
        expected=share if traffic is None or traffic.expected is None else traffic.expected,
        traffic=traffic if is_in or (traffic and not traffic.is_gone) else None,
    )


def service_graph(scene: Scene, name: ServiceName, family: Family) -> Graph:
    """
    The chains of a Service as the daemon wants them, whatever the kernel has; without nodes where there are none.

    Other Services do not matter to it, so only its own rules are built: a row where the kernel may have a tree.
    """
    snapshot = snapshot_of(scene, family, only=name)
    ruleset = with_base_chains(build_ruleset(snapshot, scene.config, scene.machine_facts))
    return build_graph(ruleset, "/".join(name), _node_names(scene, name))


def _node_names(scene: Scene, name: ServiceName) -> Mapping[str, str]:
    return dict(_nodes_of_endpoints(scene, name[0]))


def _nodes_of_endpoints(scene: Scene, namespace: str) -> Iterator[tuple[str, str]]:
    """On which node each endpoint of a namespace is."""
    for one in scene.endpoint_slices:
        for endpoint in (one.endpoints or ()) if (one.metadata.namespace or "") == namespace else ():
            for text in (endpoint.addresses or ()) if endpoint.node_name else ():
                address = canonical_address(text)
                if address:
                    yield address, f"on node {endpoint.node_name}"


def graph_sentences(graph: Graph) -> Sequence[str]:
    """The edges of a graph, one sentence each, for those who do not look at pictures."""
    names = {node.key: node.lines[0] for node in graph.nodes}
    return tuple(
        f"{names[edge.source]} → {names[edge.target]}{': ' + ' '.join(edge.lines) if edge.lines else ''}"
        for edge in graph.edges
    )
