"""
KUBE-SVC, KUBE-SVL, KUBE-EXT and KUBE-FW: the chains of one service port.

::

    KUBE-FW ──ranges──> KUBE-EXT ──masquerade──> KUBE-SVC ──dice──> KUBE-SEP
                                 └──policy Local──> KUBE-SVL ──dice──> KUBE-SEP

With many endpoints there are groups between the dices and KUBE-SEP: see `groups.py`.

Source: kube-proxy v1.36, iptables mode.
"""

from collections.abc import Iterator

import msgspec

from kproxy_ipt.addresses import prefix_contains
from kproxy_ipt.rules.balance import affinity_rules, endpoint_rules
from kproxy_ipt.rules.endpoint_chain import endpoint_chain
from kproxy_ipt.rules.fixed import LOCAL_SOURCE, MARK_MASQ, local_addresses
from kproxy_ipt.rules.groups import GroupWriter, groups_of
from kproxy_ipt.rules.names import endpoint_chain_name, service_suffix
from kproxy_ipt.rules.options import RuleOptions
from kproxy_ipt.rules.shape import is_grouped, scheduler_of
from kproxy_ipt.ruleset.matches import Comment, Match, PortMatch
from kproxy_ipt.ruleset.model import Chain, Rule
from kproxy_ipt.ruleset.targets import Jump, Target
from kproxy_ipt.selection.usable import UsableEndpoints
from kproxy_ipt.state.model import Endpoint, ServicePort


class ServiceChainNames(msgspec.Struct, frozen=True):
    """Names of the chains that a service port may have; they share one suffix."""

    cluster: str
    local: str
    external: str
    firewall: str


def chain_names(service_port: ServicePort) -> ServiceChainNames:
    """The names for *service_port*; both families have the same ones, in tables of their own."""
    suffix = service_suffix(service_port.text, service_port.protocol)
    return ServiceChainNames(f"KUBE-SVC-{suffix}", f"KUBE-SVL-{suffix}", f"KUBE-EXT-{suffix}", f"KUBE-FW-{suffix}")


def to_service(service_port: ServicePort, address: str, comment: Match, target: Target) -> Rule:
    """A rule that picks packets to *address* and the port of *service_port*."""
    return Rule(
        destination=f"{address}/{service_port.family.bits}",
        protocol=service_port.protocol,
        matches=(comment, PortMatch(service_port.protocol, (service_port.port, service_port.port))),
        target=target,
    )


def service_chains(
    service_port: ServicePort, usable: UsableEndpoints, names: ServiceChainNames, options: RuleOptions
) -> Iterator[Chain]:
    """
    The nat chains of one service port; none without a usable endpoint anywhere.

    Yields:
        Chains such that each is only jumped to by a later one: endpoint chains first, groups of endpoints after them.
    """
    if not usable.any_usable:
        return
    text, protocol = service_port.text, service_port.protocol
    chains = {endpoint.text: endpoint_chain_name(text, protocol, endpoint.text) for endpoint in usable.reachable}
    comment: tuple[Match, ...] = (Comment(text),) if options.endpoint_comments else ()
    for endpoint in usable.reachable:
        yield endpoint_chain(chains[endpoint.text], service_port, endpoint, comment)
    for name, endpoints, is_internal in (
        (names.cluster, usable.cluster, not service_port.internal_local),
        (names.local, usable.local, service_port.internal_local),
    ):
        if endpoints:
            spread = _spread(name, service_port, [(one, chains[one.text]) for one in endpoints], options)
            masquerade = _masquerade_rules(service_port, options) if is_internal else ()
            yield from spread.groups
            yield Chain(name, (*masquerade, *spread.rules))
    if service_port.externally_accessible:
        yield Chain(names.external, tuple(_external_rules(service_port, usable, names, options)))
    if has_firewall(service_port):
        yield Chain(names.firewall, tuple(_firewall_rules(service_port, names, options)))


def has_firewall(service_port: ServicePort) -> bool:
    """Whether source ranges restrict the load balancer addresses of *service_port*."""
    return bool(service_port.load_balancer_ips and service_port.source_ranges)


class _Spread(msgspec.Struct, frozen=True):
    """How a chain spreads connections: its own rules, and chains of groups that they lead to."""

    rules: tuple[Rule, ...]
    groups: tuple[Chain, ...] = ()


def _spread(
    name: str, service_port: ServicePort, endpoints: list[tuple[Endpoint, str]], options: RuleOptions
) -> _Spread:
    """Known clients are asked for before anything is chosen, all in one row: any group may know a client."""
    text, with_comments, timeout_s = service_port.text, options.endpoint_comments, service_port.affinity_timeout_s
    known = affinity_rules(
        text, endpoints, family=service_port.family, timeout_s=timeout_s, with_comments=with_comments
    )
    before = tuple(known) if timeout_s else ()
    scheduler = scheduler_of(service_port, options.scheduler)
    is_split = is_grouped(scheduler, len(endpoints), options.balance)
    groups = groups_of(endpoints, options.group_capacity) if is_split else ()
    if groups:
        writer = GroupWriter(name, text, service_port.protocol, with_comments)
        return _Spread((*before, *writer.row(groups)), tuple(writer.chains(groups)))
    chosen = endpoint_rules(text, endpoints, scheduler=scheduler, with_comments=with_comments)
    return _Spread((*before, *chosen))


def _masquerade_rules(service_port: ServicePort, options: RuleOptions) -> Iterator[Rule]:
    """Traffic to the cluster IP that is not from a local pod needs the node's address to find back."""
    rule = to_service(
        service_port, service_port.cluster_ip, Comment(f"{service_port.text} cluster IP"), target=MARK_MASQ
    )
    if options.masquerade_all:
        yield rule
    elif options.local:
        local = options.local
        yield msgspec.structs.replace(
            rule,
            source=local.source,
            source_negated=bool(local.source),
            in_interface=local.in_interface,
            in_interface_negated=bool(local.in_interface),
        )


def _external_rules(
    service_port: ServicePort, usable: UsableEndpoints, names: ServiceChainNames, options: RuleOptions
) -> Iterator[Rule]:
    """KUBE-EXT: what entered by an address other than the cluster IP."""
    text = service_port.text
    cluster = Jump(names.cluster)
    if not service_port.external_local:
        comment = Comment(f"masquerade traffic for {text} external destinations")
        yield Rule(matches=(comment,), target=MARK_MASQ)
        if usable.cluster:
            yield Rule(target=cluster)
        return
    if options.local:
        comment = Comment(f"pod traffic for {text} external destinations")
        yield Rule(
            source=options.local.source, in_interface=options.local.in_interface, matches=(comment,), target=cluster
        )
    comment = Comment(f"masquerade LOCAL traffic for {text} external destinations")
    for prefix, is_local in local_addresses(LOCAL_SOURCE, options):
        yield Rule(source=prefix, matches=(comment, *is_local), target=MARK_MASQ)
    comment = Comment(f"route LOCAL traffic for {text} external destinations")
    for prefix, is_local in local_addresses(LOCAL_SOURCE, options):
        yield Rule(source=prefix, matches=(comment, *is_local), target=cluster)
    if usable.local:
        yield Rule(target=Jump(names.local))


def _firewall_rules(service_port: ServicePort, names: ServiceChainNames, options: RuleOptions) -> Iterator[Rule]:
    """
    KUBE-FW: only sources in the ranges go on.

    Where the node itself is in a range, its traffic to a load balancer address may carry that address as source.
    """
    comment = Comment(f"{service_port.text} loadbalancer IP")
    external = Jump(names.external)
    sources = list(service_port.source_ranges)
    if any(prefix_contains(prefix, options.node_ip) for prefix in sources):
        sources.extend(f"{address}/{service_port.family.bits}" for address in service_port.load_balancer_ips)
    for source in sources:
        yield Rule(source=source, matches=(comment,), target=external)
    yield Rule(matches=(Comment(f"other traffic to {service_port.text} will be dropped by KUBE-PROXY-FIREWALL"),))
