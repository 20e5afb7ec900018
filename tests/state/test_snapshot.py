"""The state of one family at one moment."""

import random

import msgspec
import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.objects.model import Node, NodeAddress, NodeSpec, NodeStatus, ObjectMeta
from kproxy_ipt.state.model import NodeFacts
from kproxy_ipt.state.snapshot import node_facts
from kproxy_ipt.testing.desired import snapshot_of
from kproxy_ipt.testing.objects import endpoint_slice, node, service, service_port, slice_port


def test_service_port_meets_its_endpoints() -> None:
    """Slices are joined to service ports by namespace, Service, port name and protocol."""
    web = service(ports=(service_port(443, name="https"),))
    behind = endpoint_slice(web, ports=(slice_port(8443, name="https"),))

    state = snapshot_of(web, behind).services["default/web:https", "tcp"]

    assert state.service_port.port == 443
    assert [endpoint.text for endpoint in state.endpoints] == ["10.244.1.2:8443"]


def test_service_without_slices_has_no_endpoints() -> None:
    """A service port is there even if nothing is behind it; a slice without Service is not."""
    snapshot = snapshot_of(service(), endpoint_slice("nobody"))

    assert list(snapshot.services) == [("default/web", "tcp")]
    assert snapshot.services["default/web", "tcp"].endpoints == ()


def test_service_ports_stand_in_the_order_of_namespace_name_port_and_protocol() -> None:
    """Not in the order of arrival nor of `spec.ports`: conflicts end the same on every node."""
    both = (service_port(53, protocol="UDP"), service_port(53, protocol="TCP"))
    objects = [service("b", namespace="a"), service("a", namespace="b", ports=both), service("a", namespace="a")]
    expected = [("a/a", "tcp"), ("a/b", "tcp"), ("b/a", "tcp"), ("b/a", "udp")]

    for seed in range(5):
        random.Random(seed).shuffle(objects)
        assert expected == list(snapshot_of(*objects).services)


@pytest.mark.parametrize(("family", "address"), [(Family.IPV4, "10.244.1.2"), (Family.IPV6, "fd00::2")])
def test_each_family_sees_its_half_of_a_dual_stack_service(family: Family, address: str) -> None:
    """Slices of the other family do not count."""
    web = service(cluster_ips=("10.0.0.1", "fd00:1::1"))
    slices = (endpoint_slice(web), endpoint_slice(web, ("fd00::2",)))

    state = snapshot_of(web, *slices, family=family).services["default/web", "tcp"]

    assert [address] == [endpoint.address for endpoint in state.endpoints]


def test_objects_handed_in_are_not_changed() -> None:
    """The same objects give the same state a second time."""
    web = service()
    behind = endpoint_slice(web)
    before = msgspec.json.encode((web, behind))

    assert snapshot_of(web, behind) == snapshot_of(web, behind)
    assert before == msgspec.json.encode((web, behind))


def test_facts_of_a_known_node() -> None:
    """Zone, addresses and pod ranges come from the Node object, canonical."""
    own = node("node1", addresses=("192.000.2.10", "fd00::00A"), zone="a", pod_cidrs=("10.244.1.0/24", "FD00:1::/64"))
    expected = NodeFacts(
        name="node1",
        known=True,
        zone="a",
        addresses=("192.0.2.10", "fd00::a"),
        pod_cidrs=("10.244.1.0/24", "fd00:1::/64"),
    )

    assert expected == node_facts((node("other"), own), "node1")


@pytest.mark.parametrize("name", ["node2", ""])
def test_facts_of_an_unknown_node_are_its_name_alone(name: str) -> None:
    """A node that nobody described has no zone and no addresses, and a node without a name is never known."""
    assert NodeFacts(name=name) == node_facts((node("node1"), node("")), name)


def test_internal_addresses_of_a_node_come_before_external_ones() -> None:
    """Hostnames and what does not parse are no addresses."""
    entries = (
        ("ExternalIP", "198.51.100.1"),
        ("Hostname", "10.0.0.9"),
        ("InternalIP", "x"),
        ("InternalIP", "10.0.0.1"),
    )
    status = NodeStatus(addresses=tuple(NodeAddress(type=kind, address=text) for kind, text in entries))
    own = Node(metadata=ObjectMeta(name="node1"), status=status)

    assert node_facts((own,), "node1").addresses == ("10.0.0.1", "198.51.100.1")


def test_single_pod_range_stands_in_for_the_list() -> None:
    """`podCIDR` alone is as good as `podCIDRs`; a Node without both has none."""
    single = Node(metadata=ObjectMeta(name="a"), spec=NodeSpec(pod_cidr="10.244.7.0/24"))
    bare = Node(metadata=ObjectMeta(name="b"), spec=NodeSpec())

    assert node_facts((single, bare), "a").pod_cidrs == ("10.244.7.0/24",)
    assert node_facts((single, bare), "b").pod_cidrs == ()
