"""
What the health check node port of a Service tells an outer load balancer: how many endpoints this node has for it.

Source: `externalTrafficPolicy: Local`, `healthCheckNodePort`; kube-proxy 1.36.
"""

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from kproxy_ipt.state.model import ServiceState

ServiceName: TypeAlias = tuple[str, str]
"""Namespace and name of a Service."""


def health_check_ports(states: Iterable[ServiceState]) -> Mapping[ServiceName, int]:
    """The health check node port of each Service that has one, sorted by namespace and name."""
    found = {_name(state): state.service_port.health_check_node_port for state in states}
    return {name: port for name, port in sorted(found.items()) if port}


def tcp_node_ports(states: Iterable[ServiceState]) -> Mapping[int, ServiceName]:
    """The Service that gets the traffic of each TCP node port: the first of *states* that claims it."""
    owners: dict[int, ServiceName] = {}
    for state in states:
        service_port = state.service_port
        if service_port.node_port and service_port.protocol == "tcp":
            owners.setdefault(service_port.node_port, _name(state))
    return owners


def local_ready_counts(states: Iterable[ServiceState]) -> Mapping[ServiceName, int]:
    """
    Count the local and ready endpoints of each Service with a health check node port.

    Args:
        states: All service ports of one family, in any order.

    Returns:
        The number of distinct addresses over all ports of a Service, 0 where there are none. Terminating endpoints
        that still serve get traffic but do not count: the balancer should turn elsewhere.
    """
    addresses: dict[ServiceName, set[str]] = {}
    for state in states:
        if state.service_port.health_check_node_port:
            found = addresses.setdefault(_name(state), set())
            found.update(endpoint.address for endpoint in state.endpoints if endpoint.is_local and endpoint.ready)
    return {name: len(found) for name, found in addresses.items()}


def _name(state: ServiceState) -> ServiceName:
    return (state.service_port.namespace, state.service_port.name)
