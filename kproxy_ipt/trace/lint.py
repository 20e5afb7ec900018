"""
Which objects yield no rules, or risky ones, and why: what one object alone cannot tell.

Comes in: everything that was read, with the findings made on the way. Goes out: those, and what a look at all objects
together adds, the costliest first. A note costs nothing but is good to know; a warning names what does not work or is
open to everybody; a rejected object is set aside.
"""

from collections.abc import Iterator, Mapping

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config
from kproxy_ipt.errors import Finding, Severity
from kproxy_ipt.objects.model import Objects, Service
from kproxy_ipt.rules.options import RuleOptions, rule_options
from kproxy_ipt.selection.reasons import Reason
from kproxy_ipt.state.model import MachineFacts, ServiceState, Snapshot
from kproxy_ipt.trace.explain_service import REMEMBERED_CLIENTS, no_rules_reason
from kproxy_ipt.trace.lint_addresses import (
    known_addresses,
    lint_external_ips,
    lint_load_balancer_ips,
    lint_node_ports,
    lint_source_ranges,
)
from kproxy_ipt.trace.lint_endpoints import Owner, lint_endpoints, missing_families, orphans, slices_by_owner
from kproxy_ipt.trace.lint_finding import finding, note

MANY_STICKY_ENDPOINTS = 100
"""Above this, affinity costs a new connection that many look-ups before it is balanced."""

_ORDER = {Severity.REJECTED: 0, Severity.WARNING: 1, Severity.NOTE: 2}
_FIELDS = {
    Reason.HEADLESS: "spec.clusterIP",
    Reason.NO_CLUSTER_IP: "spec.clusterIP",
    Reason.EXTERNAL_NAME: "spec.type",
    Reason.OTHER_PROXY: "metadata.labels",
    Reason.NO_SERVICE_PORTS: "spec.ports",
}


def lint(
    objects: Objects, snapshots: Mapping[Family, Snapshot], config: Config, machine: MachineFacts
) -> tuple[Finding, ...]:
    """
    All findings about *objects*, each once: rejections, warnings, notes; each kind by object and field.

    Args:
        objects: Everything that was read.
        snapshots: Of the same objects, for each family to speak of, one or both.
        config: Decides about external IPs, node ports and pod ranges.
        machine: Its addresses are the node's own, beside those of the Node object.
    """
    found = dict.fromkeys((*objects.findings, *_across(objects, snapshots, config, machine)))
    return tuple(sorted(found, key=lambda one: (_ORDER[one.severity], one.object, one.field, one.found)))


def _across(
    objects: Objects, snapshots: Mapping[Family, Snapshot], config: Config, machine: MachineFacts
) -> Iterator[Finding]:
    node = next(iter(snapshots.values())).node
    known = known_addresses(objects, config, node, machine)
    slices = slices_by_owner(objects)
    states = _states_by_owner(snapshots)
    options = [rule_options(config, node, machine, family, endpoint_count=0) for family in snapshots]
    yield from orphans(objects, slices)
    for service in objects.services:
        owner = (service.metadata.namespace or "", service.metadata.name)
        reason = no_rules_reason(service)
        if reason:
            yield _without_rules(service, reason)
            continue
        own_slices, own_states = slices.get(owner, ()), states.get(owner, ())
        families = {state.service_port.family for state in own_states}
        yield from missing_families(service, own_slices, families)
        yield from lint_endpoints(service, own_slices, own_states, node)
        yield from lint_external_ips(service, known, config.external_ips)
        yield from lint_load_balancer_ips(service, known)
        yield from lint_source_ranges(service)
        yield from lint_node_ports(service)
        yield from _policies(service)
        yield from _affinity(service, own_states)
        yield from _node_ports(service, options)


def _states_by_owner(snapshots: Mapping[Family, Snapshot]) -> Mapping[Owner, list[ServiceState]]:
    found: dict[Owner, list[ServiceState]] = {}
    for snapshot in snapshots.values():
        for state in snapshot.services.values():
            found.setdefault((state.service_port.namespace, state.service_port.name), []).append(state)
    return found


def _without_rules(service: Service, reason: Reason) -> Finding:
    return note(
        service, _FIELDS[reason], reason.value, "nothing else, if this is meant", f"no rules: {reason.sentence}"
    )


def _policies(service: Service) -> Iterator[Finding]:
    """Policy Local behind a load balancer that cannot ask which nodes have endpoints."""
    spec = service.spec
    if spec.type == "LoadBalancer" and spec.external_traffic_policy == "Local" and not spec.health_check_node_port:
        consequence = "the load balancer cannot tell nodes with endpoints from others, which drop its traffic"
        yield finding(
            service, "spec.healthCheckNodePort", "none", "a number, with externalTrafficPolicy Local", consequence
        )


def _affinity(service: Service, states: list[ServiceState] | tuple[ServiceState, ...]) -> Iterator[Finding]:
    spec, field = service.spec, "spec.sessionAffinity"
    if spec.session_affinity != "ClientIP":
        if spec.session_affinity_config and spec.session_affinity_config.client_ip:
            expected = "sessionAffinity ClientIP"
            yield finding(
                service,
                "spec.sessionAffinityConfig",
                f"a timeout with {field} None",
                expected,
                "the timeout is ignored",
            )
        return
    consequence = f"beyond {REMEMBERED_CLIENTS} client addresses an endpoint, the oldest lose their stickiness"
    yield note(service, field, "ClientIP", f"at most {REMEMBERED_CLIENTS} clients an endpoint", consequence)
    if len(spec.ports or ()) > 1:
        consequence = "each port is sticky by itself: a client may have another endpoint at another port"
        yield note(service, field, f"ClientIP with {len(spec.ports or ())} ports", "one port", consequence)
    most = max((len(state.endpoints) for state in states), default=0)
    if most > MANY_STICKY_ENDPOINTS:
        consequence = "every new connection asks the list of each endpoint in turn"
        yield finding(
            service, field, f"ClientIP with {most} endpoints", f"at most {MANY_STICKY_ENDPOINTS}", consequence
        )


def _node_ports(service: Service, options: list[RuleOptions]) -> Iterator[Finding]:
    if not any(port.node_port for port in service.spec.ports or ()):
        return
    for one in options:
        entry = one.node_ports
        if not (entry.all_addresses or entry.addresses):
            found = f"nodePortAddresses selects no {one.family.api_name} address that answers"
            yield finding(
                service,
                "spec.ports",
                found,
                "an address of this machine",
                f"no {one.family.api_name} node port answers",
            )
