"""
Services and their slices: what keeps endpoints from getting traffic.

What is odd about a slice by itself (bad addresses, ports without number, no label) was said when it was read.
"""

from collections.abc import Iterator, Mapping, Sequence

from kproxy_ipt.addresses import Family
from kproxy_ipt.errors import Finding
from kproxy_ipt.objects.model import SERVICE_NAME_LABEL, EndpointSlice, Objects, Service
from kproxy_ipt.selection.reasons import Reason, TopologyGuard, topology_decision
from kproxy_ipt.selection.usable import UsableEndpoints, usable_endpoints
from kproxy_ipt.state.model import NodeFacts, ServiceState
from kproxy_ipt.trace.explain_slices import endpoint_rows, slice_verdict
from kproxy_ipt.trace.explanation import EndpointRow
from kproxy_ipt.trace.lint_finding import finding, note

Owner = tuple[str, str]
"""Namespace and name of a Service."""

_MISFITS = {
    Reason.PORT_NAME_MISMATCH: "a port of that name, which is what joins a slice to a service port",
    Reason.PROTOCOL_MISMATCH: "the protocol of the service port",
    Reason.NO_PORTS: "the ports of the Service",
}
_DUPLICATES = (Reason.DUPLICATE, Reason.TERMINATING_DUPLICATE)
_TOLD_GUARDS = (TopologyGuard.MISSING_HINT, TopologyGuard.NODE_WITHOUT_ZONE, TopologyGuard.NO_HINT_FOR_ZONE)


def slices_by_owner(objects: Objects) -> Mapping[Owner, Sequence[EndpointSlice]]:
    """Slices by the Service that their label names, whether it exists or not, in the order of names."""
    found: dict[Owner, list[EndpointSlice]] = {}
    for endpoint_slice in objects.endpoint_slices:
        name = (endpoint_slice.metadata.labels or {}).get(SERVICE_NAME_LABEL)
        if name:
            found.setdefault((endpoint_slice.metadata.namespace or "", name), []).append(endpoint_slice)
    return found


def orphans(objects: Objects, slices: Mapping[Owner, Sequence[EndpointSlice]]) -> Iterator[Finding]:
    """Slices of Services that are not there."""
    known = {(service.metadata.namespace or "", service.metadata.name) for service in objects.services}
    for owner, orphaned in slices.items():
        if owner not in known:
            for endpoint_slice in orphaned:
                found = f'"{owner[1]}", and there is no such Service'
                field = f"metadata.labels[{SERVICE_NAME_LABEL}]"
                yield note(endpoint_slice, field, found, "the name of a Service", "this slice plays no part")


def lint_endpoints(
    service: Service, slices: Sequence[EndpointSlice], states: Sequence[ServiceState], node: NodeFacts
) -> Iterator[Finding]:
    """
    Judge the endpoints of one Service.

    Args:
        service: One that gets rules.
        slices: All that name it.
        states: Its service ports, of one family or both.
        node: Of the rules.
    """
    if not slices:
        yield finding(
            service,
            "",
            "no EndpointSlice of this Service",
            f"EndpointSlices with the label {SERVICE_NAME_LABEL}: {service.metadata.name}",
            "traffic to it is refused",
        )
        return
    families = {endpoint_slice.address_type for endpoint_slice in slices}
    for state in states:
        if state.service_port.family.api_name not in families:
            continue  # `missing_families` says so once, for all ports
        usable = usable_endpoints(state.service_port, state.endpoints, node)
        yield from _misfits(slices, state)
        yield from _unused(service, state, usable)
        yield from _duplicates(slices, endpoint_rows(slices, state, usable, node))
        yield from _hints(service, state, node)


def _misfits(slices: Sequence[EndpointSlice], state: ServiceState) -> Iterator[Finding]:
    """Slices with other ports; where other slices have the port, that may be meant: a slice for each port."""
    say = note if state.endpoints else finding
    for endpoint_slice in slices:
        verdict = slice_verdict(endpoint_slice, state.service_port)
        if verdict.reason in _MISFITS:
            count = len(endpoint_slice.endpoints or ())
            consequence = f"its {count} endpoints get no traffic of service port {state.service_port.text}"
            found = verdict.detail or verdict.reason
            yield say(endpoint_slice, "ports", found, _MISFITS[verdict.reason], consequence)


def _unused(service: Service, state: ServiceState, usable: UsableEndpoints) -> Iterator[Finding]:
    """What a service port lacks: endpoints at all, ready ones, local ones."""
    port, count = state.service_port, len(state.endpoints)
    what = f"service port {port.text} ({port.family.api_name}, {port.protocol})"
    if not usable.any_usable:
        found = f"{count} endpoints, none of them ready or serving" if count else "no endpoint"
        yield finding(service, "", f"{found} for {what}", "a ready endpoint", "traffic to it is refused")
        return
    if not any(endpoint.ready for endpoint in usable.reachable) and usable.reachable:
        found = f"only terminating endpoints for {what}"
        yield finding(service, "", found, "a ready endpoint", "it ends when these pods have ended")
    yield from _without_local(service, state, usable, what)


def _without_local(service: Service, state: ServiceState, usable: UsableEndpoints, what: str) -> Iterator[Finding]:
    port = state.service_port
    if usable.local or not port.uses_local_endpoints:
        return
    found = f"no endpoint of {what} on this node"
    if port.internal_local:
        consequence = "traffic to its cluster IP is dropped on this node, and waits for its timeout"
        yield note(service, "spec.internalTrafficPolicy", found, "an endpoint here", consequence)
    if port.external_local and port.externally_accessible:
        answer = f"; its health check port {port.health_check_node_port} says so" if port.health_check_node_port else ""
        consequence = f"traffic from outside is dropped on this node{answer}"
        yield note(service, "spec.externalTrafficPolicy", found, "an endpoint here", consequence)


def _duplicates(slices: Sequence[EndpointSlice], rows: Sequence[EndpointRow]) -> Iterator[Finding]:
    by_name = {endpoint_slice.metadata.name: endpoint_slice for endpoint_slice in slices}
    for row in rows:
        reason = row.cluster or row.local
        if reason in _DUPLICATES:
            consequence = f"it counts once; {row.detail}"
            yield finding(by_name[row.slice], "endpoints", f"{row.text} again", "each address once", consequence)


def _hints(service: Service, state: ServiceState, node: NodeFacts) -> Iterator[Finding]:
    """Hints that somebody asked for but that are not in force."""
    decision = topology_decision(state.service_port, state.endpoints, node)
    if decision.guard in _TOLD_GUARDS:
        what = f"topology hints of service port {state.service_port.text}, {decision.sentence}"
        yield note(service, "", what, "hints in force", "traffic may go to other zones")


def missing_families(service: Service, slices: Sequence[EndpointSlice], families: set[Family]) -> Iterator[Finding]:
    """Cluster IPs of a family in which the Service has no slice at all."""
    found = {endpoint_slice.address_type for endpoint_slice in slices}
    for family in sorted(families):
        if slices and family.api_name not in found:
            expected = f"an EndpointSlice of addressType {family.api_name}"
            consequence = f"traffic to its {family.api_name} addresses is refused"
            yield finding(service, "spec.clusterIPs", f"no slice of {family.api_name}", expected, consequence)
