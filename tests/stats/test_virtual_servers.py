"""Rules as virtual servers, and what becomes of connections that rules do not know."""

import pytest

from kproxy_ipt.objects.model import Service
from kproxy_ipt.state.flows import Entry
from kproxy_ipt.stats.virtual_servers import Connections, Tally, VirtualServer, virtual_servers, with_connections
from kproxy_ipt.testing.desired import desired_for
from kproxy_ipt.testing.objects import endpoint_slice, service, service_port, slice_endpoint
from kproxy_ipt.trace.service_views import EntryKind

_HERE, _THERE = "10.244.1.11", "10.244.2.21"


def _web(**more: object) -> Service:
    fields: dict[str, object] = {
        "service_type": "LoadBalancer",
        "ports": [service_port(80, node_port=30080)],
        "ingress": ["192.0.2.7"],
        **more,
    }
    return service(**fields)  # type: ignore[arg-type]


def _servers(web: Service, *, tally: Tally | None = None) -> dict[str, VirtualServer]:
    pods = [slice_endpoint(_HERE, node_name="node1"), slice_endpoint(_THERE, node_name="node2")]
    found = virtual_servers(desired_for(web, endpoint_slice(web, pods)).ruleset)
    return {one.kind: one for one in with_connections(found, tally or {})}


def test_every_address_is_a_virtual_server() -> None:
    """Cluster IP, load balancer address and node port, each with both endpoints."""
    found = _servers(_web())

    assert {EntryKind.CLUSTER_IP, EntryKind.LOAD_BALANCER_IP, EntryKind.NODE_PORT} == set(found)
    assert {"random"} == {one.scheduler for one in found.values()}
    assert {2} == {len(one.real_servers) for one in found.values()}
    assert [1, 1] == [one.weight for one in found[EntryKind.CLUSTER_IP].real_servers]
    assert Entry("", 30080, "tcp") == found[EntryKind.NODE_PORT].entry


@pytest.mark.parametrize(
    ("policies", "kind"),
    [({"external_policy": "Local"}, EntryKind.NODE_PORT), ({"internal_policy": "Local"}, EntryKind.CLUSTER_IP)],
)
def test_policy_local_leaves_the_endpoints_of_this_node(policies: dict[str, str], kind: EntryKind) -> None:
    """For the traffic that the policy is about."""
    found = _servers(_web(**policies))[kind]

    assert ("Local", [f"{_HERE}:80"]) == (found.policy, [one.endpoint for one in found.real_servers])


def test_affinity_and_a_single_endpoint_are_told() -> None:
    """`persistent` of IPVS; where there is no choice, there still is a scheduler."""
    web = service(affinity_timeout_s=600)
    (found,) = virtual_servers(desired_for(web, endpoint_slice(web, [_HERE])).ruleset)

    assert (600, "random", 1.0) == (found.affinity_s, found.scheduler, found.real_servers[0].share)


def test_service_without_endpoints_is_a_virtual_server_without_real_ones() -> None:
    """As IPVS lists it."""
    (found,) = virtual_servers(desired_for(service()).ruleset)

    assert (EntryKind.REFUSED, "10.96.0.10", "", ()) == (found.kind, found.address, found.scheduler, found.real_servers)


def test_connections_are_put_where_they_go() -> None:
    """Known endpoints have them, those of another policy get weight 0, and those of none are gone."""
    entry = Entry("10.96.0.10", 80, "tcp")
    tally = {
        entry: {f"{_HERE}:80": Connections(3, 4), f"{_THERE}:80": Connections(1, 0), "10.244.9.9:80": Connections(2)}
    }
    found = _servers(_web(internal_policy="Local"), tally=tally)[EntryKind.CLUSTER_IP]

    assert [(f"{_HERE}:80", 1, 3, 4), (f"{_THERE}:80", 0, 1, 0)] == [
        (one.endpoint, one.weight, one.active, one.inactive) for one in found.real_servers
    ]
    assert [("10.244.9.9:80", 0, 2)] == [(one.endpoint, one.weight, one.active) for one in found.gone]


def test_order_is_that_of_numbers() -> None:
    """10.96.0.9 comes before 10.96.0.10, TCP before UDP, node ports before addresses."""
    objects = [
        service("a", cluster_ip="10.96.0.10"),
        service("b", cluster_ip="10.96.0.9", ports=[service_port(80, node_port=30001)], service_type="NodePort"),
        service("c", cluster_ip="10.96.0.1", ports=[service_port(53, protocol="UDP")]),
    ]
    slices = [endpoint_slice(one, [_HERE]) for one in objects]
    found = virtual_servers(desired_for(*objects, *slices).ruleset)

    assert [("tcp", ""), ("tcp", "10.96.0.9"), ("tcp", "10.96.0.10"), ("udp", "10.96.0.1")] == [
        (one.protocol, one.address) for one in found
    ]
