"""What counts as traffic from pods of the node."""

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config, DetectLocalMode
from kproxy_ipt.selection.local import LocalTraffic, local_traffic
from kproxy_ipt.state.model import NodeFacts

V4, V6 = Family.IPV4, Family.IPV6
PAIR = ("10.244.0.0/16", "fd00:10:244::/64")
NODE = NodeFacts(name="n", pod_cidrs=("10.244.1.0/24", "fd00:10:244:1::/64"))


@pytest.mark.parametrize("cluster_cidrs", [PAIR, PAIR[::-1]])
def test_pair_of_cluster_cidrs_is_split_by_family(cluster_cidrs: tuple[str, str]) -> None:
    """Each family gets its half, whatever the order."""
    config = Config(cluster_cidrs=cluster_cidrs)

    assert LocalTraffic(source="10.244.0.0/16") == local_traffic(config, NODE, V4)
    assert LocalTraffic(source="fd00:10:244::/64") == local_traffic(config, NODE, V6)


def test_family_without_a_cluster_cidr_has_no_test() -> None:
    """A range of the other family says nothing, and without any range no family has a test."""
    assert local_traffic(Config(cluster_cidrs=PAIR[:1]), NODE, V6) is None
    assert local_traffic(Config(), NODE, V4) is None


def test_node_cidr_is_that_of_the_node_object() -> None:
    """The cluster CIDR plays no part in this mode."""
    config = Config(detect_local_mode=DetectLocalMode.NODE_CIDR, cluster_cidrs=PAIR)

    assert LocalTraffic(source="10.244.1.0/24") == local_traffic(config, NODE, V4)
    assert LocalTraffic(source="fd00:10:244:1::/64") == local_traffic(config, NODE, V6)
    assert local_traffic(config, NodeFacts(name="n"), V4) is None


@pytest.mark.parametrize("family", list(Family))
def test_bridge_interface_is_the_test_of_both_families(family: Family) -> None:
    """Packets that come in by the bridge are local."""
    config = Config(detect_local_mode=DetectLocalMode.BRIDGE_INTERFACE, bridge_interface="cbr0")

    assert LocalTraffic(in_interface="cbr0") == local_traffic(config, NODE, family)


@pytest.mark.parametrize("family", list(Family))
def test_interface_prefix_ends_in_a_plus(family: Family) -> None:
    """The plus is iptables' way to say "begins with"."""
    config = Config(detect_local_mode=DetectLocalMode.INTERFACE_NAME_PREFIX, interface_name_prefix="eth")

    assert LocalTraffic(in_interface="eth+") == local_traffic(config, NODE, family)
