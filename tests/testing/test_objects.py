"""Builders of API objects give what decoding a manifest gives."""

import json

import msgspec
import pytest

from kproxy_ipt.objects.check import check_node, check_service
from kproxy_ipt.objects.check_endpoints import check_endpoint_slice
from kproxy_ipt.objects.model import EndpointSlice, Node, Service, SlicePort
from kproxy_ipt.testing.objects import endpoint_slice, node, service, service_port, slice_endpoint, slice_port


@pytest.mark.parametrize(
    "built",
    [
        service(),
        service(cluster_ips=["10.96.0.1", "fd00::1"], affinity_timeout_s=60, ingress=["192.0.2.1"]),
        endpoint_slice("web", [slice_endpoint("10.0.0.1", node_name="node1", ready=False, zone_hints=["a"])]),
        node(zone="a"),
    ],
)
def test_built_objects_survive_the_wire(built: Service | EndpointSlice | Node) -> None:
    """Written as JSON and read again, a built object is the same."""
    assert msgspec.json.decode(msgspec.json.encode(built), type=type(built)) == built


def test_defaults_are_clean() -> None:
    """What a test does not name gives no finding."""
    assert check_service(service()) == ()
    assert check_endpoint_slice(endpoint_slice()) == ()
    assert check_node(node()) == ()


def test_dual_stack_service_follows_from_its_addresses() -> None:
    """Families and the first address need not be said."""
    spec = service(cluster_ips=["fd00::1", "10.96.0.1"]).spec

    assert (spec.cluster_ip, spec.ip_families) == ("fd00::1", ("IPv6", "IPv4"))


def test_slice_of_a_service_has_its_namespace_and_ports() -> None:
    """A numeric target port is the port of the slice; names are kept."""
    owner = service("api", namespace="shop", ports=[service_port(80, name="http", target_port=8080)])

    built = endpoint_slice(owner, ["fd00::1"])

    assert built.metadata.namespace == "shop"
    assert built.address_type == "IPv6"
    assert built.ports == (SlicePort(name="http", protocol="TCP", port=8080),)


def test_ports_of_a_slice_can_be_odd() -> None:
    """Builders check nothing."""
    assert json.loads(msgspec.json.encode(slice_port(None, name=None))) == {
        "name": None,
        "port": None,
        "protocol": "TCP",
    }
