"""How many endpoints a node has for the health check node port of a Service."""

from collections.abc import Iterable

from kproxy_ipt.addresses import Family
from kproxy_ipt.state.health_counts import health_check_ports, local_ready_counts, tcp_node_ports
from kproxy_ipt.state.model import Endpoint, ServicePort, ServiceState


def _state(
    endpoints: Iterable[Endpoint] = (),
    *,
    name: str = "web",
    port_name: str = "",
    protocol: str = "tcp",
    node_port: int = 0,
    health_check_node_port: int = 30000,
) -> ServiceState:
    service_port = ServicePort(
        namespace="shop",
        name=name,
        port_name=port_name,
        text=f"shop/{name}:{port_name}",
        protocol=protocol,
        family=Family.IPV4,
        cluster_ip="10.96.0.10",
        port=80,
        node_port=node_port,
        external_local=True,
        health_check_node_port=health_check_node_port,
    )
    return ServiceState(service_port, tuple(endpoints))


def _endpoint(address: str, *, local: bool = True, ready: bool = True, terminating: bool = False) -> Endpoint:
    return Endpoint(
        address=address, port=80, text=f"{address}:80", is_local=local, ready=ready, terminating=terminating
    )


def test_only_ready_endpoints_of_this_node_count() -> None:
    """Three local ready ones beside a local one that is not ready and a remote one."""
    ready = [_endpoint(f"10.0.0.{number}") for number in (1, 2, 3)]
    others = [_endpoint("10.0.0.4", ready=False), _endpoint("10.0.9.1", local=False)]

    assert {("shop", "web"): 3} == local_ready_counts([_state([*ready, *others])])


def test_terminating_endpoints_do_not_count() -> None:
    """They may still get traffic, but the balancer should turn elsewhere."""
    endpoints = [_endpoint("10.0.0.1", ready=False, terminating=True)]

    assert {("shop", "web"): 0} == local_ready_counts([_state(endpoints)])


def test_an_address_behind_several_ports_counts_once() -> None:
    """The number is one of addresses, over all ports of the Service."""
    both = [_state([_endpoint("10.0.0.1")], port_name="http"), _state([_endpoint("10.0.0.1")], port_name="https")]

    assert {("shop", "web"): 1} == local_ready_counts(both)


def test_local_endpoint_of_one_port_counts_though_others_are_remote() -> None:
    """A Service whose ports have different endpoints has what is local under any of them."""
    local, remote = _endpoint("10.0.0.1"), _endpoint("10.0.9.1", local=False)

    assert {("shop", "web"): 1} == local_ready_counts(
        [_state([remote], port_name="a"), _state([local], port_name="b"), _state([remote], port_name="c")]
    )


def test_services_without_a_health_check_node_port_are_left_out() -> None:
    """Policy Cluster has no such port; nothing is counted and nothing is opened."""
    states = [_state([_endpoint("10.0.0.1")], health_check_node_port=0)]

    assert {} == local_ready_counts(states) == health_check_ports(states)


def test_ports_are_told_once_for_each_service_in_order() -> None:
    """Sorted by namespace and name, whatever the number of service ports."""
    states = [_state(name="zoo"), _state(name="web", port_name="a"), _state(name="web", port_name="b")]

    assert [(("shop", "web"), 30000), (("shop", "zoo"), 30000)] == list(health_check_ports(states).items())


def test_first_service_owns_a_tcp_node_port() -> None:
    """A health check is TCP, so only TCP node ports are in its way."""
    states = [
        _state(name="a", node_port=30073),
        _state(name="b", node_port=30073),
        _state(name="c", node_port=30074, protocol="udp"),
    ]

    assert {30073: ("shop", "a")} == tcp_node_ports(states)
