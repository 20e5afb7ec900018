"""
Every address by which a service port can be entered: which policy acts on it, which chain, and what happens.

Addresses without rules are listed too, with the reason: those of the other family, of mode Proxy, host names, loopback.

Source: `spec.clusterIP`, `spec.ports[].nodePort`, `spec.externalIPs`, `status.loadBalancer.ingress`; rules as
`rules.dispatch` and `rules.service_chains` write them.
"""

from collections.abc import Iterable, Iterator

import msgspec

from kproxy_ipt.addresses import canonical_address, family_of
from kproxy_ipt.objects.model import LoadBalancerIngress, Service
from kproxy_ipt.rules.options import RuleOptions
from kproxy_ipt.rules.service_chains import ServiceChainNames, has_firewall
from kproxy_ipt.selection.usable import UsableEndpoints, usable_endpoints
from kproxy_ipt.state.model import ServicePort, ServiceState, Snapshot
from kproxy_ipt.trace.explanation import Entry, EntryKind, Fate

EVERY_ADDRESS = "*"
"""In the place of an address: every address of the node."""

_INTERNAL, _EXTERNAL = "spec.internalTrafficPolicy", "spec.externalTrafficPolicy"


class EntryFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What all entries of one service port are judged by."""

    service: Service
    service_port: ServicePort
    usable: UsableEndpoints
    names: ServiceChainNames
    options: RuleOptions


def shared_text(count: int) -> str:
    """`over 5 endpoints, 20 % each`."""
    share = f"{100 / count:.1f}".removesuffix(".0")
    return f"over {count} endpoints, {share} % each" if count > 1 else "over 1 endpoint, 100 %"


def entries(facts: EntryFacts, snapshot: Snapshot) -> tuple[Entry, ...]:
    """All entries: cluster IP, node port, external IPs, load balancer addresses, each in the order of the Service."""
    found = (
        _cluster_ip(facts),
        *_node_ports(facts),
        *_external_ips(facts),
        *_load_balancers(facts),
    )
    return tuple(_with_rival(entry, facts, snapshot) for entry in found)


def _cluster_ip(facts: EntryFacts) -> Entry:
    port = facts.service_port
    chain = facts.names.local if port.internal_local else facts.names.cluster
    return _entry(
        facts, EntryKind.CLUSTER_IP, port.cluster_ip, port.port, chain, is_local=port.internal_local, field=_INTERNAL
    )


def _entry(
    facts: EntryFacts, kind: EntryKind, address: str, port: int, chain: str, *, is_local: bool, field: str
) -> Entry:
    """An entry that has rules; refused and dropped ones are met before any chain of the service port."""
    chosen = facts.usable.local if is_local else facts.usable.cluster
    policy = "Local" if is_local else "Cluster"
    is_external = kind is not EntryKind.CLUSTER_IP
    if not facts.usable.any_usable:
        fate, sentence, chain = Fate.REFUSED, "refused at once: no endpoint on any node can serve", ""
    elif not chosen:
        fate, sentence = Fate.DROPPED, f"dropped: no local endpoints ({field} Local), though other nodes have some"
        chain = chain if is_external else ""
    else:
        fate, sentence = Fate.BALANCED, f"balanced {shared_text(len(chosen))}"
    return Entry(
        kind=kind,
        address=address,
        port=port,
        policy=policy,
        policy_field=field,
        chain=chain,
        fate=fate,
        endpoints=len(chosen) if fate is Fate.BALANCED else 0,
        sentence=sentence,
        notes=tuple(_short_cuts(facts, fate)) if is_external and is_local else (),
    )


def _short_cuts(facts: EntryFacts, fate: Fate) -> Iterator[str]:
    """Policy Local restricts what comes from outside only."""
    if fate is Fate.REFUSED:
        return
    who = "pods of this node and the node itself" if facts.options.local else "the node itself"
    yield f"from {who}: {shared_text(len(facts.usable.cluster))}, whatever the policy ({facts.names.cluster})"


def _external(facts: EntryFacts, kind: EntryKind, address: str, port: int, chain: str = "") -> Entry:
    is_local = facts.service_port.external_local
    return _entry(facts, kind, address, port, chain or facts.names.external, is_local=is_local, field=_EXTERNAL)


def _without_rules(kind: EntryKind, address: str, port: int, why: str) -> Entry:
    return Entry(kind=kind, address=address, port=port, fate=Fate.NO_RULES, sentence=f"no rules: {why}")


def _node_ports(facts: EntryFacts) -> Iterator[Entry]:
    number = facts.service_port.node_port
    if not number:
        return
    answering = facts.options.node_ports
    loopback = "127.0.0.0/8" if facts.options.family.bits == 32 else "::1"
    if answering.all_addresses:
        where = f"also on {loopback}" if answering.localhost else f"not on {loopback}"
        entry = _external(facts, EntryKind.NODE_PORT, EVERY_ADDRESS, number)
        yield msgspec.structs.replace(entry, notes=(f"on every address of the node, {where}", *entry.notes))
        return
    for address in answering.addresses:
        yield _external(facts, EntryKind.NODE_PORT, address, number)
    for address in answering.skipped_loopback:
        yield _without_rules(EntryKind.NODE_PORT, address, number, "node ports do not answer on loopback here")
    if not (answering.addresses or answering.skipped_loopback):
        why = "nodePortAddresses selects no address of this machine"
        yield _without_rules(EntryKind.NODE_PORT, EVERY_ADDRESS, number, why)


def _external_ips(facts: EntryFacts) -> Iterator[Entry]:
    port = facts.service_port
    for text in dict.fromkeys(facts.service.spec.external_ips or ()):
        why = _unusable(text, facts)
        address = canonical_address(text) or text
        if not why and not facts.options.external_ips.permit(address):
            is_off = not facts.options.external_ips.allowed
            why = "feature gate AllowServiceExternalIPs is off" if is_off else "kproxyIpt.externalIPs leaves it out"
        if why:
            yield _without_rules(EntryKind.EXTERNAL_IP, address, port.port, why)
        else:
            yield _external(facts, EntryKind.EXTERNAL_IP, address, port.port)


def _unusable(text: str, facts: EntryFacts) -> str:
    """Why an address cannot have rules in this family, or ""."""
    address = canonical_address(text)
    if address is None:
        return "it is not an IP address"
    if family_of(address) is not facts.service_port.family:
        return f"it is of the other family, these are the rules of {facts.service_port.family.api_name}"
    return ""


def _load_balancers(facts: EntryFacts) -> Iterator[Entry]:
    port = facts.service_port
    is_filtered = has_firewall(port)
    for ingress in ingress_of(facts.service):
        address = canonical_address(ingress.ip or "") or ingress.ip or ingress.hostname or ""
        why = _no_ingress_rules(ingress, facts)
        if why:
            yield _without_rules(EntryKind.LOAD_BALANCER, address, port.port, why)
            continue
        chain = facts.names.firewall if is_filtered else facts.names.external
        entry = _external(facts, EntryKind.LOAD_BALANCER, address, port.port, chain)
        if is_filtered and entry.fate is not Fate.REFUSED:
            note = f"from {', '.join(port.source_ranges)} only, other sources are dropped, nodes and pods too"
            entry = msgspec.structs.replace(entry, notes=(note, *entry.notes))
        yield entry


def ingress_of(service: Service) -> tuple[LoadBalancerIngress, ...]:
    """`status.loadBalancer.ingress`."""
    status = service.status.load_balancer if service.status else None
    return (status.ingress if status else None) or ()


def _no_ingress_rules(ingress: LoadBalancerIngress, facts: EntryFacts) -> str:
    if not ingress.ip:
        return "only a host name is known, and rules need an address"
    if ingress.ip_mode not in (None, "", "VIP"):
        return f"ipMode {ingress.ip_mode}: traffic to it goes to the load balancer itself"
    return _unusable(ingress.ip, facts)


def _with_rival(entry: Entry, facts: EntryFacts, snapshot: Snapshot) -> Entry:
    """Add a note where another service port gets the traffic of *entry*, since its rule comes first."""
    if entry.fate is Fate.NO_RULES:
        return entry
    rivals = [state for state in snapshot.services.values() if _claims(state.service_port, entry, facts)]
    if len(rivals) < 2:
        return entry
    winner = _first_with_rules(rivals, snapshot)
    if winner.text == facts.service_port.text and winner.protocol == facts.service_port.protocol:
        return entry
    note = f"NOT REACHED: service port {winner.text} has the same address and port, and its rules come first"
    return msgspec.structs.replace(entry, notes=(note, *entry.notes))


def _first_with_rules(rivals: Iterable[ServiceState], snapshot: Snapshot) -> ServicePort:
    """In the order of rules: the first that can send traffic somewhere; one that refuses stands after all others."""
    known = list(rivals)
    for state in known:
        if usable_endpoints(state.service_port, state.endpoints, snapshot.node).any_usable:
            return state.service_port
    return known[0].service_port


def _claims(port: ServicePort, entry: Entry, facts: EntryFacts) -> bool:
    if port.protocol != facts.service_port.protocol:
        return False
    if entry.kind is EntryKind.NODE_PORT:
        return port.node_port == entry.port
    external = [address for address in port.external_ips if facts.options.external_ips.permit(address)]
    return port.port == entry.port and entry.address in (port.cluster_ip, *external, *port.load_balancer_ips)
