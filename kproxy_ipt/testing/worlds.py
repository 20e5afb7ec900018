"""
Small worlds at random, for hypothesis: Services of all kinds, their endpoints and a configuration, in one family.

Everything fits the lab of `world_lab.py`: every endpoint that is drawn answers there, and every entry address leads to
the node. hypothesis is a dependency of development alone: only tests and soaks import this module.
"""

from ipaddress import ip_network

import msgspec
import yaml
from hypothesis import strategies as st

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config, IptablesConfig
from kproxy_ipt.objects.model import (
    EndpointSlice,
    LoadBalancerIngress,
    Service,
    ServicePortSpec,
    SliceEndpoint,
    SlicePort,
)
from kproxy_ipt.testing import topology
from kproxy_ipt.testing.lab import NODE_NAME, REMOTE_NODE_NAME
from kproxy_ipt.testing.lab_objects import SECOND_NODE_ADDRESS, balancer_ip, cluster_ip, remote_pod
from kproxy_ipt.testing.objects import endpoint_slice, service, service_port, slice_endpoint
from kproxy_ipt.testing.topology import BOTH, CLUSTER_CIDRS, MANY_CLIENTS

PODS = ("podA", "podB")
TARGET_PORTS = (8080, 8081)
"""Where endpoints listen: those of the first port of a Service, and of its second one."""

_MOST_SERVICES, _MOST_ENDPOINTS = 4, 4
_FIRST_NODE_PORT, _FIRST_HEALTH_PORT = 30080, 32080
NODE_PORTS = tuple(_FIRST_NODE_PORT + 10 * number + place for number in range(_MOST_SERVICES) for place in (0, 1))
"""All that any world has."""
SERVICE_PORTS = (80, 81)
_AFFINITY_S = 600
_REMOTE_PODS = (101, 102, 103)
_INNER_CLIENTS = {Family.IPV4: 25, Family.IPV6: 121}
_CONDITIONS = (
    (None, None, None),
    (True, True, False),
    (True, True, False),
    (False, True, True),
    (False, False, True),
    (False, False, False),
)
"""Ready, serving, terminating, as they occur."""


class World(msgspec.Struct, frozen=True, kw_only=True):
    """What rules are made of, in one family."""

    family: Family
    services: tuple[Service, ...]
    slices: tuple[EndpointSlice, ...]
    config: Config

    def as_yaml(self) -> str:
        """For a person who wants to see it again: what is not there, or the default, is left out."""
        shown = msgspec.to_builtins(self)
        shown["config"] = _differing(shown["config"], msgspec.to_builtins(Config()))
        return str(yaml.safe_dump(_present(shown), sort_keys=False))


def _differing(value: dict[str, object], default: dict[str, object]) -> dict[str, object]:
    return {name: each for name, each in value.items() if each != default[name]}


def _present(value: object) -> object:
    if isinstance(value, dict):
        return {name: _present(each) for name, each in value.items() if each is not None}
    return [_present(each) for each in value] if isinstance(value, list | tuple) else value


def pod_addresses(family: Family) -> tuple[str, ...]:
    """The addresses of `PODS`."""
    own = topology.addresses(PODS, (family,))
    return tuple(own[pod][family] for pod in PODS)


def node_address(family: Family) -> str:
    """The address of the node on its link."""
    return topology.addresses((), (family,))["node"][family]


def remote_addresses(family: Family) -> tuple[str, ...]:
    """The addresses of pods on the other node."""
    return tuple(remote_pod(family, number) for number in _REMOTE_PODS)


def service_addresses(family: Family) -> tuple[str, ...]:
    """All addresses that Services of any world have: cluster IPs, load balancer IPs, external IPs."""
    numbers = range(_MOST_SERVICES)
    balancers = (balancer_ip(family, first + number) for first in (8, 28) for number in numbers)
    return (*(cluster_ip(family, 10 + number) for number in numbers), *balancers)


def inner_clients(family: Family) -> str:
    """The prefix of the clients that a source range may allow: the first 128 addresses of `MANY_CLIENTS`."""
    first = ip_network(MANY_CLIENTS[family]).network_address
    return f"{first}/{_INNER_CLIENTS[family]}"


@st.composite
def worlds(draw: st.DrawFn, families: tuple[Family, ...] = BOTH) -> World:
    """One to four Services with none to four endpoints each, and a configuration, in one of *families*."""
    family = draw(st.sampled_from(families))
    services = tuple(draw(_services(family, number)) for number in range(draw(st.integers(1, _MOST_SERVICES))))
    slices = tuple(one for owner in services for one in draw(_slices(owner, family)))
    return World(family=family, services=services, slices=slices, config=draw(_configs(family)))


@st.composite
def _services(draw: st.DrawFn, family: Family, number: int) -> Service:
    kind = draw(st.sampled_from(("ClusterIP", "NodePort", "LoadBalancer")))
    balanced = kind == "LoadBalancer"
    externals = draw(st.sampled_from(((), (balancer_ip(family, 28 + number),))))
    policies = st.sampled_from((None, "Cluster", "Local"))
    return service(
        f"s{number}",
        service_type=kind,
        cluster_ip=cluster_ip(family, 10 + number),
        ports=draw(_ports(number, has_node_ports=kind != "ClusterIP")),
        ingress=draw(_ingress(family, number)) if balanced else (),
        external_ips=externals,
        source_ranges=draw(_source_ranges(family)) if balanced else (),
        external_policy=draw(policies) if externals or kind != "ClusterIP" else None,
        internal_policy=draw(policies),
        affinity_timeout_s=draw(st.sampled_from((None, None, _AFFINITY_S))),
        health_check_node_port=_FIRST_HEALTH_PORT + number if balanced else None,
    )


@st.composite
def _ports(draw: st.DrawFn, number: int, *, has_node_ports: bool) -> tuple[ServicePortSpec, ...]:
    protocols = draw(st.lists(st.sampled_from(("TCP", "UDP")), min_size=1, max_size=len(TARGET_PORTS)))
    # Two ports may have one number if their protocols differ, as those of DNS have.
    step = 0 if len(set(protocols)) > 1 and draw(st.booleans()) else 1
    return tuple(
        service_port(
            80 + step * place,
            name=f"p{place}" if len(protocols) > 1 else None,
            protocol=protocol,
            node_port=_FIRST_NODE_PORT + 10 * number + step * place if has_node_ports else None,
        )
        for place, protocol in enumerate(protocols)
    )


def _ingress(family: Family, number: int) -> st.SearchStrategy[tuple[LoadBalancerIngress, ...]]:
    modes = st.sampled_from((None, "VIP", "Proxy"))
    address = balancer_ip(family, 8 + number)
    return st.lists(modes, max_size=1).map(
        lambda drawn: tuple(LoadBalancerIngress(ip=address, ip_mode=mode) for mode in drawn)
    )


def _source_ranges(family: Family) -> st.SearchStrategy[list[str]]:
    single = [f"{address}/{family.bits}" for address in (*pod_addresses(family), node_address(family))]
    return st.lists(st.sampled_from((inner_clients(family), *single)), max_size=2, unique=True)


@st.composite
def _slices(draw: st.DrawFn, of: Service, family: Family) -> tuple[EndpointSlice, ...]:
    """The endpoints behind a Service, in one slice or two."""
    addresses = (*pod_addresses(family), *remote_addresses(family), node_address(family))
    fewest = draw(st.sampled_from((0, 1, 2, 3)))  # by itself hypothesis likes short lists
    chosen = draw(st.lists(st.sampled_from(addresses), min_size=fewest, max_size=_MOST_ENDPOINTS, unique=True))
    entries = [draw(_endpoints(address)) for address in chosen]
    cut = draw(st.integers(0, len(entries)))
    ports = [
        SlicePort(name=port.name or "", protocol=port.protocol, port=target)
        for port, target in zip(of.spec.ports or (), TARGET_PORTS, strict=False)
    ]
    return tuple(
        endpoint_slice(of, part, name=f"{of.metadata.name}-{place}", address_type=family.api_name, ports=ports)
        for place, part in enumerate((entries[:cut], entries[cut:]))
        if part
    )


@st.composite
def _endpoints(draw: st.DrawFn, address: str) -> SliceEndpoint:
    """With conditions; the node that it names need not be the true one, since rules cannot know that."""
    ready, serving, terminating = draw(st.sampled_from(_CONDITIONS))
    node_name = draw(st.sampled_from((NODE_NAME, REMOTE_NODE_NAME, None)))
    return slice_endpoint(address, node_name=node_name, ready=ready, serving=serving, terminating=terminating)


@st.composite
def _configs(draw: st.DrawFn, family: Family) -> Config:
    first, second = (f"{address}/{family.bits}" for address in (node_address(family), SECOND_NODE_ADDRESS[family]))
    return Config(
        cluster_cidrs=draw(st.sampled_from((tuple(CLUSTER_CIDRS.values()), ()))),
        node_port_addresses=draw(st.sampled_from(((), (), ("primary",), (first,), (second,), (first, second)))),
        iptables=IptablesConfig(
            masquerade_all=draw(st.booleans()),
            masquerade_bit=draw(st.sampled_from((14, 3))),
            localhost_node_ports=draw(st.booleans()),
        ),
    )
