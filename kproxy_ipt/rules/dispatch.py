"""
Finding the service chain: the rules of one service port in the chains that all service ports share.

Linear: one rule for each address, in the order of service ports.

Source: kube-proxy v1.36, iptables mode.
"""

from collections.abc import Iterator

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.rules.fixed import ACCEPT, DROP, LOCAL_DESTINATION, LOOPBACK, local_addresses
from kproxy_ipt.rules.options import LOCALHOST_COUNTER, RuleOptions
from kproxy_ipt.rules.service_chains import ServiceChainNames, has_firewall, to_service
from kproxy_ipt.ruleset.matches import Comment, Nfacct, PortMatch
from kproxy_ipt.ruleset.model import Rule
from kproxy_ipt.ruleset.targets import Jump, Reject, Target
from kproxy_ipt.selection.usable import UsableEndpoints
from kproxy_ipt.state.model import ServicePort

REJECT = {Family.IPV4: Reject("icmp-port-unreachable"), Family.IPV6: Reject("icmp6-port-unreachable")}
"""The kernel's default for each family, also for TCP."""


class DispatchRules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of one service port, by the chain that they go into."""

    nat_services: tuple[Rule, ...] = ()
    nat_node_ports: tuple[Rule, ...] = ()
    filter_services: tuple[Rule, ...] = ()
    filter_external: tuple[Rule, ...] = ()
    filter_node_ports: tuple[Rule, ...] = ()
    filter_firewall: tuple[Rule, ...] = ()


def dispatch_rules(
    service_port: ServicePort, usable: UsableEndpoints, names: ServiceChainNames, options: RuleOptions
) -> DispatchRules:
    """All rules of *service_port* in shared chains, each tuple in the order of kube-proxy."""
    return DispatchRules(
        nat_services=tuple(_nat_services(service_port, usable, names, options)),
        nat_node_ports=tuple(_nat_node_ports(service_port, usable, names, options)),
        filter_services=tuple(_filter_services(service_port, usable)),
        filter_external=tuple(_filter_external(service_port, usable, options)),
        filter_node_ports=tuple(_health_check(service_port)),
        filter_firewall=tuple(_filter_firewall(service_port, usable, names)),
    )


def _external_ips(service_port: ServicePort, options: RuleOptions) -> tuple[str, ...]:
    return tuple(address for address in service_port.external_ips if options.external_ips.permit(address))


def _nat_services(
    service_port: ServicePort, usable: UsableEndpoints, names: ServiceChainNames, options: RuleOptions
) -> Iterator[Rule]:
    text = service_port.text
    internal = usable.local if service_port.internal_local else usable.cluster
    if internal:
        target = Jump(names.local if service_port.internal_local else names.cluster)
        yield to_service(service_port, service_port.cluster_ip, Comment(f"{text} cluster IP"), target)
    if not usable.any_usable:
        return
    for address in _external_ips(service_port, options):
        yield to_service(service_port, address, Comment(f"{text} external IP"), Jump(names.external))
    target = Jump(names.firewall if has_firewall(service_port) else names.external)
    for address in service_port.load_balancer_ips:
        yield to_service(service_port, address, Comment(f"{text} loadbalancer IP"), target)


def _nat_node_ports(
    service_port: ServicePort, usable: UsableEndpoints, names: ServiceChainNames, options: RuleOptions
) -> Iterator[Rule]:
    """The counting rule for localhost comes first: after the general one it would never be reached."""
    if not (service_port.node_port and usable.any_usable):
        return
    matches = (Comment(service_port.text), _node_port_match(service_port))
    target = Jump(names.external)
    if options.node_ports.localhost and LOCALHOST_COUNTER in options.nfacct_counters:
        yield Rule(
            destination=LOOPBACK[Family.IPV4],
            protocol=service_port.protocol,
            matches=(*matches, Nfacct(LOCALHOST_COUNTER)),
            target=target,
        )
    yield Rule(protocol=service_port.protocol, matches=matches, target=target)


def _node_port_match(service_port: ServicePort) -> PortMatch:
    return PortMatch(service_port.protocol, (service_port.node_port, service_port.node_port))


def _filter_services(service_port: ServicePort, usable: UsableEndpoints) -> Iterator[Rule]:
    if not usable.any_usable:
        yield _without_endpoints(service_port)
    elif service_port.internal_local and not usable.local:
        comment = Comment(f"{service_port.text} has no local endpoints")
        yield to_service(service_port, service_port.cluster_ip, comment, DROP)


def _without_endpoints(service_port: ServicePort) -> Rule:
    comment = Comment(f"{service_port.text} has no endpoints")
    return to_service(service_port, service_port.cluster_ip, comment, REJECT[service_port.family])


def _filter_external(service_port: ServicePort, usable: UsableEndpoints, options: RuleOptions) -> Iterator[Rule]:
    target: Target
    if not usable.any_usable:
        comment, target = Comment(f"{service_port.text} has no endpoints"), REJECT[service_port.family]
    elif service_port.external_local and not usable.local:
        comment, target = Comment(f"{service_port.text} has no local endpoints"), DROP
    else:
        return
    for address in (*_external_ips(service_port, options), *service_port.load_balancer_ips):
        yield to_service(service_port, address, comment, target)
    if service_port.node_port:
        for prefix, is_local in local_addresses(LOCAL_DESTINATION, options):
            yield Rule(
                destination=prefix,
                protocol=service_port.protocol,
                matches=(comment, *is_local, _node_port_match(service_port)),
                target=target,
            )


def _health_check(service_port: ServicePort) -> Iterator[Rule]:
    """Opens the health check port where the policy of INPUT is DROP, for every address of the node."""
    port = service_port.health_check_node_port
    if port:
        comment = Comment(f"{service_port.text} health check node port")
        yield Rule(protocol="tcp", matches=(comment, PortMatch("tcp", (port, port))), target=ACCEPT)


def _filter_firewall(service_port: ServicePort, usable: UsableEndpoints, names: ServiceChainNames) -> Iterator[Rule]:
    """Drops what KUBE-FW did not send on: such packets still carry the load balancer address."""
    if not (usable.any_usable and has_firewall(service_port)):
        return
    comment = Comment(f"{service_port.text} traffic not accepted by {names.firewall}")
    for address in service_port.load_balancer_ips:
        yield to_service(service_port, address, comment, DROP)
