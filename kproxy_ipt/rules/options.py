"""Everything that decides about rules beside the service port itself, gathered once per build."""

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Balance, Config, Dispatch, ExternalIPs, Scheduler
from kproxy_ipt.config.node import expand_node_port_addresses, node_ips
from kproxy_ipt.rules.fallbacks import listed_node_ports, own_addresses
from kproxy_ipt.rules.groups import GROUP_CAPACITY
from kproxy_ipt.selection.local import LocalTraffic, local_traffic
from kproxy_ipt.selection.node_ports import NodePortEntry, node_port_entry
from kproxy_ipt.state.model import MachineFacts, NodeFacts, OptionalPart

LARGE_CLUSTER_ENDPOINTS = 1000
"""With more endpoints than this, over all service ports of a family, rules of endpoints carry no comments."""

INVALID_COUNTER = "ct_state_invalid_dropped_pkts"
LOCALHOST_COUNTER = "localhost_nps_accepted_pkts"
NFACCT_COUNTERS = (INVALID_COUNTER, LOCALHOST_COUNTER)
"""Names of the accounting objects of the kernel that rules count into."""


class RuleOptions(msgspec.Struct, frozen=True, kw_only=True):
    """
    Options that all service ports of one family share.

    Attributes:
        masquerade_mark: The bit that asks for masquerading, as a value; also its own mask.
        local: The test for traffic of local pods, or None.
        node_ip: Address of the node in this family, loopback where nobody knows it.
        node_ports: Which addresses answer node ports.
        external_ips: Which external IPs get rules.
        endpoint_comments: Whether rules that concern one endpoint carry comments.
        drop_invalid: Whether packets of state INVALID are dropped when forwarded.
        dispatch: How packets find the chain of their service port.
        balance: How chains with many endpoints are laid out.
        scheduler: Who gets the next connection, where a Service does not say.
        group_capacity: Endpoints that one group holds.
        lacking: Optional parts that rules have to do without.
        local_addresses: The node's own addresses, where rules must name them for want of addrtype; otherwise None.
    """

    family: Family
    node: NodeFacts
    node_ip: str
    masquerade_mark: int
    masquerade_all: bool
    local: LocalTraffic | None
    node_ports: NodePortEntry
    external_ips: ExternalIPs
    endpoint_comments: bool
    drop_invalid: bool
    nfacct_counters: frozenset[str]
    random_fully: bool
    dispatch: Dispatch
    balance: Balance
    scheduler: Scheduler
    group_capacity: int = GROUP_CAPACITY
    lacking: frozenset[OptionalPart] = frozenset()
    local_addresses: tuple[str, ...] | None = None


def rule_options(
    config: Config, node: NodeFacts, machine: MachineFacts, family: Family, *, endpoint_count: int
) -> RuleOptions:
    """
    Gather the options.

    Args:
        config: The effective configuration.
        node: Facts of the own Node.
        machine: Facts of the machine.
        family: The family that rules are built for.
        endpoint_count: Sum over all service ports of the family, usable or not.
    """
    ips = node_ips(config.bind_address, node.addresses)
    lacking = machine.lacking_in(family)
    node_ports = node_port_entry(
        expand_node_port_addresses(config, ips),
        machine.interface_addresses,
        family,
        localhost_wanted=config.iptables.localhost_node_ports,
    )
    local_addresses = own_addresses(machine, family) if OptionalPart.ADDRTYPE in lacking else None
    return RuleOptions(
        family=family,
        node=node,
        node_ip=ips.ipv4 if family is Family.IPV4 else ips.ipv6,
        masquerade_mark=1 << config.iptables.masquerade_bit,
        masquerade_all=config.iptables.masquerade_all,
        local=local_traffic(config, node, family),
        node_ports=node_ports if local_addresses is None else listed_node_ports(node_ports, local_addresses),
        external_ips=config.external_ips,
        endpoint_comments=endpoint_count <= LARGE_CLUSTER_ENDPOINTS,
        drop_invalid=not machine.tcp_be_liberal,
        nfacct_counters=frozenset() if OptionalPart.NFACCT in lacking else machine.nfacct_counters,
        random_fully=OptionalPart.RANDOM_FULLY not in lacking,
        dispatch=config.shape.dispatch,
        balance=config.shape.balance,
        scheduler=config.shape.scheduler,
        lacking=lacking,
        local_addresses=local_addresses,
    )
