"""
What was decided about one Service on one node, and why: the same decisions that the rules come from, in words.

Nothing is decided here. Chains, endpoints and policies are asked of `rules` and `selection`, so that an explanation
cannot say another thing than the rules do.

Source: KEP-1669, KEP-2086, KEP-2433; xt_recent for the limits of affinity.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from kproxy_ipt.addresses import Family, canonical_address, canonical_prefix, family_of, is_zero_prefix
from kproxy_ipt.config.model import Config, Scheduler
from kproxy_ipt.objects.model import SERVICE_PROXY_NAME_LABEL, EndpointSlice, Objects, Service
from kproxy_ipt.rules.groups import GROUP_CAPACITY
from kproxy_ipt.rules.options import RuleOptions, rule_options
from kproxy_ipt.rules.service_chains import ServiceChainNames, chain_names, has_firewall
from kproxy_ipt.rules.shape import is_grouped, scheduler_of
from kproxy_ipt.selection.reasons import Reason, topology_decision
from kproxy_ipt.selection.usable import UsableEndpoints, usable_endpoints
from kproxy_ipt.state.health_counts import local_ready_counts
from kproxy_ipt.state.model import MachineFacts, ServicePort, ServiceState, Snapshot
from kproxy_ipt.trace.explain_entries import EntryFacts, entries, ingress_of
from kproxy_ipt.trace.explain_slices import endpoint_rows, slices_of
from kproxy_ipt.trace.explanation import (
    AffinityExplanation,
    FamilyOut,
    PortExplanation,
    RangesExplanation,
    ServiceExplanation,
)

REMEMBERED_CLIENTS = 100
"""`ip_list_tot` of the kernel module xt_recent, unless it was loaded with another number."""


def explain_service(
    service: Service, objects: Objects, snapshots: Mapping[Family, Snapshot], config: Config, machine: MachineFacts
) -> ServiceExplanation:
    """
    Explain *service*.

    Args:
        service: One of *objects*.
        objects: All of them: slices and rivals for an address are looked for there.
        snapshots: Of the same objects, for each family to speak of, one or both.
        config: Decides about node ports, external IPs and local traffic.
        machine: Its addresses decide which node ports answer if `nodePortAddresses` is set.
    """
    name = f"{service.metadata.namespace or ''}/{service.metadata.name}"
    node = next(iter(snapshots.values())).node
    reason = no_rules_reason(service)
    slices = slices_of(service, objects.endpoint_slices, objects.services)
    families = [] if reason else list(snapshots.values())
    by_family = {
        snapshot.family: [
            _explain_port(service, state, snapshot, _options(config, snapshot, machine), slices)
            for state in _states_of(service, snapshot)
        ]
        for snapshot in families
    }
    return ServiceExplanation(
        service=name,
        type=service.spec.type or "ClusterIP",
        node=node.name,
        zone=node.zone,
        reason=reason,
        sentence=reason.sentence if reason else "",
        families_out=tuple(_family_out(service, family) for family, found in by_family.items() if not found),
        ports=_in_order(service, (port for found in by_family.values() for port in found)),
    )


def no_rules_reason(service: Service) -> Reason | None:
    """Why *service* gets no rules in any family, or None."""
    spec = service.spec
    if SERVICE_PROXY_NAME_LABEL in (service.metadata.labels or ()):
        return Reason.OTHER_PROXY
    if spec.type == "ExternalName":
        return Reason.EXTERNAL_NAME
    if spec.cluster_ip == "None":
        return Reason.HEADLESS
    if not spec.cluster_ip:
        return Reason.NO_CLUSTER_IP
    return None if spec.ports else Reason.NO_SERVICE_PORTS


def _options(config: Config, snapshot: Snapshot, machine: MachineFacts) -> RuleOptions:
    return rule_options(config, snapshot.node, machine, snapshot.family, endpoint_count=0)


def _states_of(service: Service, snapshot: Snapshot) -> list[ServiceState]:
    owner = (service.metadata.namespace or "", service.metadata.name)
    states = snapshot.services.values()
    return [state for state in states if (state.service_port.namespace, state.service_port.name) == owner]


def _in_order(service: Service, ports: Iterable[PortExplanation]) -> tuple[PortExplanation, ...]:
    """Sort by place in `spec.ports`, then by family."""
    specs = service.spec.ports or ()
    order = {(spec.name or "", (spec.protocol or "TCP").lower()): index for index, spec in enumerate(specs)}

    def place(port: PortExplanation) -> tuple[int, str]:
        return (order.get((port.text.partition(":")[2], port.protocol), len(order)), port.family)

    return tuple(sorted(ports, key=place))


def _family_out(service: Service, family: Family) -> FamilyOut:
    texts = (service.spec.cluster_ip or "", *(service.spec.cluster_ips or ()))
    known = ", ".join(dict.fromkeys(address for text in texts if (address := canonical_address(text))))
    reason = Reason.NO_CLUSTER_IP_OF_FAMILY
    return FamilyOut(family, reason, f"no {family.api_name} rules: its cluster IPs are {known}")


def _explain_port(
    service: Service, state: ServiceState, snapshot: Snapshot, options: RuleOptions, slices: Sequence[EndpointSlice]
) -> PortExplanation:
    port = state.service_port
    usable = usable_endpoints(port, state.endpoints, snapshot.node)
    names = chain_names(port)
    facts = EntryFacts(service=service, service_port=port, usable=usable, names=names, options=options)
    return PortExplanation(
        text=port.text,
        protocol=port.protocol,
        family=port.family,
        port=port.port,
        chains=tuple(standing_chains(port, usable, names)),
        entries=entries(facts, snapshot),
        endpoints=endpoint_rows(slices, state, usable, snapshot.node),
        cluster_endpoints=len(usable.cluster) if port.uses_cluster_endpoints else None,
        local_endpoints=len(usable.local) if port.uses_local_endpoints else None,
        topology=topology_decision(port, state.endpoints, snapshot.node),
        affinity=_affinity(service, port),
        source_ranges=_source_ranges(service, port),
        health_check=_health_check(service, snapshot, port),
        balancing=balancing_words(port, usable, options),
    )


def standing_chains(port: ServicePort, usable: UsableEndpoints, names: ServiceChainNames) -> Iterator[str]:
    """The names of those chains of a service port that are written, chains of endpoints left out."""
    if not usable.any_usable:
        return
    if usable.cluster:
        yield names.cluster
    if usable.local:
        yield names.local
    if port.externally_accessible:
        yield names.external
    if has_firewall(port):
        yield names.firewall


def balancing_words(port: ServicePort, usable: UsableEndpoints, options: RuleOptions) -> str:
    """How connections of a service port are spread, "" where it is by one row of dices as kube-proxy has it."""
    if scheduler_of(port, options.scheduler) is Scheduler.RR:
        source = "the annotation of the Service" if port.scheduler else "the configuration"
        return f"rr by {source}: endpoints take turns, counted by the kernel since the chain was written"
    most = max(len(usable.cluster), len(usable.local))
    grouped = is_grouped(Scheduler.RANDOM, most, options.balance) and most > GROUP_CAPACITY
    return "random, by groups of endpoints with equal shares for each endpoint" if grouped else ""


def _affinity(service: Service, port: ServicePort) -> AffinityExplanation | None:
    if not port.affinity_timeout_s:
        return None
    scope = "for this service port alone"
    if len(service.spec.ports or ()) > 1:
        scope += ": the same client may have another endpoint at another port of the Service"
    sentence = (
        f"ClientIP: a client address keeps its endpoint until it makes no new connection for {port.affinity_timeout_s} "
        f"s, {scope}; the kernel remembers the last {REMEMBERED_CLIENTS} client addresses of each endpoint "
        "(/sys/module/xt_recent/parameters/ip_list_tot), older ones are balanced anew"
    )
    return AffinityExplanation(
        timeout_s=port.affinity_timeout_s, remembered_clients=REMEMBERED_CLIENTS, sentence=sentence
    )


def _source_ranges(service: Service, port: ServicePort) -> RangesExplanation | None:
    if not service.spec.load_balancer_source_ranges:
        return None
    if has_firewall(port):
        sentence = (
            f"enforced here for {', '.join(port.load_balancer_ips)}: only {', '.join(port.source_ranges)} may enter; "
            "cluster IP, external IPs and node port are not restricted"
        )
        return RangesExplanation(enforced=True, ranges=port.source_ranges, sentence=sentence)
    why = _open_ranges(service, port) or _no_restricted_address(service, port)
    return RangesExplanation(enforced=False, ranges=port.source_ranges, sentence=f"ranges not enforced here: {why}")


def _open_ranges(service: Service, port: ServicePort) -> str:
    """What makes the list of ranges mean "everybody" in this family, or ""."""
    texts = service.spec.load_balancer_source_ranges or ()
    prefixes = [prefix for text in texts if (prefix := canonical_prefix(text.strip()))]
    own = [prefix for prefix in prefixes if family_of(prefix) is port.family]
    if not own:
        return f"none of them is a range of {port.family.api_name}, so every source may enter"
    zero = next((prefix for prefix in own if is_zero_prefix(prefix)), None)
    return f"{zero} is among them, so every source may enter" if zero else ""


def _no_restricted_address(service: Service, port: ServicePort) -> str:
    """Which load balancer addresses there are, where none of them has rules."""
    ingress = ingress_of(service)
    if not ingress:
        return "the load balancer has no address yet (status.loadBalancer.ingress is empty)"
    with_ip = [entry for entry in ingress if entry.ip]
    if not with_ip:
        return "the load balancer has only a host name, no address; whoever stands there has to enforce them"
    if all(entry.ip_mode not in (None, "", "VIP") for entry in with_ip):
        return "ipMode Proxy: traffic goes to the load balancer itself, which has to enforce them"
    return f"the load balancer has no {port.family.api_name} address"


def _health_check(service: Service, snapshot: Snapshot, port: ServicePort) -> str:
    number = port.health_check_node_port
    if not number:
        return ""
    count = local_ready_counts(_states_of(service, snapshot)).get((port.namespace, port.name), 0)
    answer = f"200: {count} ready on this node" if count else "503: none is ready on this node"
    return f"port {number} answers {answer}"
