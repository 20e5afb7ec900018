"""What decides about rules beside the service ports, gathered from configuration, node and machine."""

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Balance, Config, Dispatch, IptablesConfig, Scheduler, ShapeConfig
from kproxy_ipt.rules.options import RuleOptions, rule_options
from kproxy_ipt.selection.local import LocalTraffic
from kproxy_ipt.selection.node_ports import NodePortEntry
from kproxy_ipt.state.model import MachineFacts, NodeFacts, OptionalPart

_NODE = NodeFacts(name="node1", zone="a", addresses=("192.0.2.10", "2001:db8::10"))
_CONFIG = Config(
    cluster_cidrs=("10.0.0.0/8", "fd00::/8"),
    feature_gates={"AllowServiceExternalIPs": False},
    iptables=IptablesConfig(masquerade_bit=3, masquerade_all=True, localhost_node_ports=False),
    node_port_addresses=("192.0.2.0/24", "2001:db8::/64"),
    shape=ShapeConfig(dispatch=Dispatch.TREE, balance=Balance.GROUPED, scheduler=Scheduler.RR),
)
_MACHINE = MachineFacts(
    interface_addresses=("127.0.0.1", "192.0.2.10", "::1", "2001:db8::10"),
    nfacct_counters=frozenset({"ct_state_invalid_dropped_pkts"}),
)


@pytest.mark.parametrize(
    ("family", "node_ip", "cluster_cidr"),
    [(Family.IPV4, "192.0.2.10", "10.0.0.0/8"), (Family.IPV6, "2001:db8::10", "fd00::/8")],
)
def test_options_are_those_of_configuration_node_and_machine(family: Family, node_ip: str, cluster_cidr: str) -> None:
    """Each family has its own node address, range of pods and node port addresses; the rest is the same."""
    assert rule_options(_CONFIG, _NODE, _MACHINE, family, endpoint_count=1001) == RuleOptions(
        family=family,
        node=_NODE,
        node_ip=node_ip,
        masquerade_mark=8,
        masquerade_all=True,
        local=LocalTraffic(source=cluster_cidr),
        node_ports=NodePortEntry(all_addresses=False, addresses=(node_ip,), localhost=False),
        external_ips=_CONFIG.external_ips,
        endpoint_comments=False,
        drop_invalid=True,
        nfacct_counters=frozenset({"ct_state_invalid_dropped_pkts"}),
        random_fully=True,
        dispatch=Dispatch.TREE,
        balance=Balance.GROUPED,
        scheduler=Scheduler.RR,
    )


def test_what_a_family_lacks_is_known_to_its_options_alone() -> None:
    """Counters, random ports and the test for own addresses go; all addresses of the node are named instead."""
    lacking = frozenset({OptionalPart.NFACCT, OptionalPart.RANDOM_FULLY, OptionalPart.ADDRTYPE})
    machine = MachineFacts(
        interface_addresses=_MACHINE.interface_addresses,
        tcp_be_liberal=True,
        lacking=frozenset((Family.IPV4, part) for part in lacking),
    )
    v4, v6 = (rule_options(Config(), _NODE, machine, family, endpoint_count=1000) for family in Family)

    assert (v4.lacking, v6.lacking) == (lacking, frozenset())
    assert (v4.nfacct_counters, v6.nfacct_counters) == (frozenset(), machine.nfacct_counters)
    assert (v4.random_fully, v6.random_fully) == (False, True)
    assert (v4.local_addresses, v6.local_addresses) == (("127.0.0.1", "192.0.2.10"), None)
    assert v4.node_ports == NodePortEntry(all_addresses=False, addresses=("127.0.0.1", "192.0.2.10"), localhost=True)
    assert v6.node_ports == NodePortEntry(all_addresses=True, localhost=False)
    assert (v4.endpoint_comments, v4.drop_invalid) == (True, False)
