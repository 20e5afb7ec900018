"""
Addresses and API objects that fit the lab of `lab.py`, in either family.

A test that sends packets wants "a Service that can be entered in every way" and "an endpoint on this node" without
spelling out addresses twice. Everything here is a value; nothing touches a namespace.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ipaddress import ip_network

from kproxy_ipt.addresses import Family
from kproxy_ipt.objects.model import EndpointSlice, Node, Service, ServicePortSpec, SliceEndpoint, SlicePort
from kproxy_ipt.testing.lab import NODE_NAME, REMOTE_NODE_NAME, Lab, Place
from kproxy_ipt.testing.objects import endpoint_slice, node, service, service_port, slice_endpoint, slice_port
from kproxy_ipt.testing.topology import LOAD_BALANCER_CIDRS, MANY_CLIENTS, SERVICE_CIDRS

SECOND_NODE_ADDRESS: Mapping[Family, str] = {Family.IPV4: "198.51.100.10", Family.IPV6: "2001:db8:51::10"}
"""Another address of the node, on its loopback interface: a source that masquerading does not choose by itself."""
NODE_PORT = 30080
TARGET_PORT = 8080
"""Where all endpoints listen."""

_REMOTE_PODS = {Family.IPV4: "10.244.2.0/24", Family.IPV6: "fd00:10:244:2::/64"}


def cluster_ip(family: Family, number: int = 10) -> str:
    """An address of the service range, as 10.96.0.10."""
    return str(ip_network(SERVICE_CIDRS[family])[number])


def balancer_ip(family: Family, number: int = 8) -> str:
    """An address that no interface has and that the client sends to the node, as 192.0.2.200; below 64."""
    return str(ip_network(LOAD_BALANCER_CIDRS[family])[number])


def stranger(family: Family, number: int = 1) -> str:
    """A source address of the client whose answers pass the node even if nothing is masqueraded, as 198.18.0.1."""
    return str(ip_network(MANY_CLIENTS[family])[number])


def remote_pod(family: Family, number: int) -> str:
    """An address of the remote namespace, as 10.244.2.101; `Place.serve` must be told of it."""
    return str(ip_network(_REMOTE_PODS[family])[number])


def own_node() -> Node:
    """The Node object of the node under test."""
    return node(NODE_NAME, addresses=("192.0.2.10", "2001:db8::10"), pod_cidrs=("10.244.1.0/24", "fd00:10:244:1::/64"))


def open_service(
    family: Family,
    name: str = "web",
    *,
    number: int = 10,
    node_port: int = NODE_PORT,
    protocol: str = "TCP",
    source_ranges: tuple[str, ...] = (),
    external_policy: str | None = None,
    internal_policy: str | None = None,
) -> Service:
    """
    Build a LoadBalancer Service that can be entered in every way, on port 80.

    Args:
        family: The family of its addresses.
        name: Of the Service.
        number: Its cluster IP is `cluster_ip(family, number)`; its load balancer IP and its external IP are
            `balancer_ip` of *number* - 2 and *number* + 18.
        node_port: Of its only port.
        protocol: Of its only port.
        source_ranges: `spec.loadBalancerSourceRanges`.
        external_policy: `spec.externalTrafficPolicy`.
        internal_policy: `spec.internalTrafficPolicy`.
    """
    return service(
        name,
        service_type="LoadBalancer",
        cluster_ip=cluster_ip(family, number),
        ports=[service_port(80, node_port=node_port, protocol=protocol)],
        ingress=[balancer_ip(family, number - 2)],
        external_ips=[balancer_ip(family, number + 18)],
        source_ranges=source_ranges,
        external_policy=external_policy,
        internal_policy=internal_policy,
    )


def endpoint(address: Place | str, family: Family, *, ready: bool = True, serving: bool = True) -> SliceEndpoint:
    """
    An endpoint at a place of the lab, or on the other node at an address.

    Pods are on the node under test, all else on the other one. An endpoint that is not ready is terminating.
    """
    if isinstance(address, str):
        return slice_endpoint(address, node_name=REMOTE_NODE_NAME)
    node_name = REMOTE_NODE_NAME if address.name == "remote" else NODE_NAME
    return slice_endpoint(
        address.address(family), node_name=node_name, ready=ready, serving=serving, terminating=not ready
    )


def endpoints(of: Service, family: Family, *places: Place | str | SliceEndpoint) -> EndpointSlice:
    """
    Build the slice behind *of*: every port leads to `TARGET_PORT` of each of *places*.

    Args:
        of: The Service.
        family: The family of the slice.
        places: Where the endpoints are, see `endpoint`; none at all make an empty slice.
    """
    entries = [place if isinstance(place, SliceEndpoint) else endpoint(place, family) for place in places]
    return endpoint_slice(
        of,
        entries,
        name=f"{of.metadata.name}-{family.value}",
        address_type=family.api_name,
        ports=[_port_behind(port) for port in of.spec.ports or ()],
    )


def _port_behind(port: ServicePortSpec) -> SlicePort:
    return slice_port(TARGET_PORT, name=port.name or "", protocol=port.protocol or "TCP")


@contextmanager
def answering_lab() -> Iterator[Lab]:
    """A lab whose pods answer on `TARGET_PORT`, by TCP."""
    with Lab() as made:
        for pod in made.pods:
            pod.serve(TARGET_PORT)
        yield made
