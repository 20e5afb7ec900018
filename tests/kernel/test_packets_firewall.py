"""What is let through and what is not: source ranges, loopback addresses, and policies of the host's own firewall."""

from collections.abc import Callable

import msgspec
import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config, IptablesConfig
from kproxy_ipt.daemon.report import RunReport
from kproxy_ipt.testing.lab import Lab, Place
from kproxy_ipt.testing.lab_objects import (
    NODE_PORT,
    SECOND_NODE_ADDRESS,
    balancer_ip,
    cluster_ip,
    endpoints,
    open_service,
    stranger,
)
from kproxy_ipt.testing.objects import service
from kproxy_ipt.testing.sockets import Protocol
from kproxy_ipt.testing.topology import CLUSTER_CIDRS
from kproxy_ipt.testing.traffic import Outcome

pytestmark = pytest.mark.kernel

Sync = Callable[..., RunReport]
Iptables = Callable[..., str]
_DROPPED_S = 0.3
_ALLOWED = {Family.IPV4: "198.18.0.0/24", Family.IPV6: "2001:db8:18::/120"}
_NODE = {Family.IPV4: "192.0.2.10/32", Family.IPV6: "2001:db8::10/128"}
_BLOCKED_CLIENT = 300
_CONFIG = Config(cluster_cidrs=tuple(CLUSTER_CIDRS.values()))


def _passes(
    place: Place, address: str, port: int = 80, *, source: str = "", protocol: Protocol = "tcp", count: int = 1
) -> bool:
    """Whether one of *count* connections is answered; if not, it must have vanished without a word."""
    traffic = place.send(address, port, sources=[source], protocol=protocol, timeout_s=_DROPPED_S, count=count)
    assert set(traffic.outcomes) <= {Outcome.ANSWERED, Outcome.TIMEOUT}
    return Outcome.ANSWERED in traffic.outcomes


@pytest.mark.parametrize("protocol", ["tcp", "udp"])
@pytest.mark.parametrize("on_node", [False, True], ids=["routed-address", "address-of-the-node"])
def test_source_ranges_guard_the_load_balancer_address_alone(
    fresh: Lab, sync: Sync, family: Family, *, on_node: bool, protocol: Protocol
) -> None:
    """Who is in a range passes; other clients, pods and the node do not, but for the other entries of the Service."""
    vip = balancer_ip(family)
    if on_node:
        fresh.node.run("ip", "address", "add", f"{vip}/{family.bits}", "dev", "lo")
    web = open_service(family, source_ranges=("203.0.113.0/24", *_ALLOWED.values()), protocol=protocol.upper())
    sync(web, endpoints(web, family, fresh.pod("podB")), into=fresh)
    blocked = stranger(family, _BLOCKED_CLIENT)

    assert _passes(fresh.client, vip, source=stranger(family), protocol=protocol)
    assert not _passes(fresh.client, vip, source=blocked, protocol=protocol)
    assert not _passes(fresh.pod("podA"), vip, protocol=protocol)
    assert not _passes(fresh.node, vip, protocol=protocol)
    for address, port in (
        (cluster_ip(family), 80),
        (balancer_ip(family, 28), 80),
        (fresh.node.address(family), NODE_PORT),
    ):
        assert _passes(fresh.client, address, port, source=blocked, protocol=protocol), address


@pytest.mark.parametrize("protocol", ["tcp", "udp"])
def test_blocked_sources_do_not_slip_past_to_the_balancer(
    fresh: Lab, sync: Sync, family: Family, protocol: Protocol
) -> None:
    """Where a balancer really has the address, pods and processes of the node that are in no range do not reach it."""
    vip = balancer_ip(family)
    at_once = ["nodad"] if family is Family.IPV6 else []
    fresh.client.run("ip", "address", "add", f"{vip}/{family.bits}", "dev", "eth0", *at_once)
    fresh.client.serve(80, protocol=protocol, name="balancer", addresses=[vip])
    web = open_service(family, source_ranges=tuple(_ALLOWED.values()), protocol=protocol.upper())
    slices = endpoints(web, family, fresh.pod("podB"))
    # The first datagram may be lost while the neighbour is being looked for.
    assert all(_passes(place, vip, protocol=protocol, count=5) for place in (fresh.pod("podA"), fresh.node))

    sync(web, slices, into=fresh)

    assert not any(_passes(place, vip, protocol=protocol) for place in (fresh.pod("podA"), fresh.node))


@pytest.mark.parametrize("in_range", [True, False])
def test_node_in_a_source_range_may_use_the_balancer_address_itself_as_source(
    fresh: Lab, sync: Sync, family: Family, *, in_range: bool
) -> None:
    """If a range holds the node's address, the node passes with it and with the balancer's; else with neither."""
    vip = balancer_ip(family)
    fresh.node.run("ip", "address", "add", f"{vip}/{family.bits}", "dev", "lo")
    ranges = (*_ALLOWED.values(), *(_NODE.values() if in_range else ()))
    web = open_service(family, source_ranges=ranges)
    sync(web, endpoints(web, family, fresh.pod("podB")), into=fresh)

    for source in (fresh.node.address(family), vip):
        assert _passes(fresh.node, vip, source=source) is in_range, source
    assert not _passes(fresh.node, vip, source=SECOND_NODE_ADDRESS[family])


@pytest.mark.parametrize("kind", ["other family", "zero"])
def test_ranges_that_leave_none_of_the_family_leave_the_address_open(
    lab: Lab, sync: Sync, family: Family, kind: str
) -> None:
    """Ranges of the other family alone, or one of length zero, restrict nobody of this family."""
    other = Family.IPV6 if family is Family.IPV4 else Family.IPV4
    zero = "0.0.0.0/0" if family is Family.IPV4 else "::/0"
    ranges = (_ALLOWED[other],) if kind == "other family" else (_NODE[family], zero)
    web = open_service(family, source_ranges=ranges)
    sync(web, endpoints(web, family, lab.pod("podB")))

    assert _passes(lab.client, balancer_ip(family), source=stranger(family, _BLOCKED_CLIENT))
    assert _passes(lab.pod("podA"), balancer_ip(family))


def test_ranges_of_both_families_restrict_each_by_its_own(lab: Lab, sync: Sync, family: Family) -> None:
    """A dual-stack list is split: the range of the own family is in force, that of the other one does no harm."""
    web = open_service(family, source_ranges=tuple(_ALLOWED.values()))
    sync(web, endpoints(web, family, lab.pod("podB")))

    assert _passes(lab.client, balancer_ip(family), source=stranger(family))
    assert not _passes(lab.client, balancer_ip(family), source=stranger(family, _BLOCKED_CLIENT))


def _reroute_loopback(place: Place) -> None:
    """Send what is for 127.0.0.1 to the node, as a bad neighbour does."""
    place.run("ip", "address", "delete", "127.0.0.1/8", "dev", "lo")
    place.write_sysctl("ipv4/conf/all/route_localnet", "1")


@pytest.mark.parametrize("family", [Family.IPV4], ids=str)
@pytest.mark.parametrize("localhost", [True, False], ids=["localhost-on", "localhost-off"])
def test_neighbours_do_not_reach_the_loopback_address_of_the_node(
    fresh: Lab, sync: Sync, family: Family, *, localhost: bool
) -> None:
    """What a neighbour or a pod sends to 127.0.0.1 of the node reaches no server there, whatever node ports need."""
    intruders = (fresh.client, fresh.pod("podA"))
    for protocol in ("tcp", "udp"):
        fresh.node.serve(10248, protocol=protocol, name="kubelet", addresses=["127.0.0.1"])
    for place in intruders:
        _reroute_loopback(place)
    fresh.node.write_sysctl("ipv4/conf/all/route_localnet", "1")
    assert all(_passes(place, "127.0.0.1", 10248, protocol="udp") for place in intruders), "the attack itself works"
    fresh.node.write_sysctl("ipv4/conf/all/route_localnet", "0")
    web = open_service(family)
    config = msgspec.structs.replace(_CONFIG, iptables=IptablesConfig(localhost_node_ports=localhost))

    sync(web, endpoints(web, family, fresh.pod("podB")), config=config, into=fresh)

    for place in intruders:
        assert not _passes(place, "127.0.0.1", 10248), place.name
        assert not _passes(place, "127.0.0.1", 10248, protocol="udp"), place.name
    assert fresh.node.send("127.0.0.1", NODE_PORT).names == ({"podB": 1} if localhost else {})


def test_forward_policy_drop_lets_service_traffic_through(
    fresh: Lab, sync: Sync, iptables: Iptables, family: Family
) -> None:
    """With policy DROP a client reaches a remote endpoint through node port and balancer; all else is dropped."""
    web = open_service(family)
    sync(web, endpoints(web, family, fresh.remote), into=fresh)
    iptables(fresh, "-P", "FORWARD", "DROP")

    assert _passes(fresh.client, fresh.node.address(family), NODE_PORT)
    assert _passes(fresh.client, balancer_ip(family))
    assert _passes(fresh.pod("podA"), fresh.node.address(family), NODE_PORT)
    assert not _passes(fresh.pod("podA"), fresh.remote.address(family), 8080)


def test_health_check_node_port_passes_input_policy_drop(
    fresh: Lab, sync: Sync, iptables: Iptables, family: Family
) -> None:
    """With policy DROP for INPUT the health check node port is open, over TCP alone, while the Service is there."""
    fresh.node.serve(32000, name="health")
    fresh.node.serve(32000, protocol="udp", name="health")
    fresh.node.serve(32001, name="other")
    iptables(fresh, "-P", "INPUT", "DROP")
    iptables(fresh, "-A", "INPUT", "-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED", "-j", "ACCEPT")
    if family is Family.IPV6:
        iptables(fresh, "-A", "INPUT", "-p", "ipv6-icmp", "-j", "ACCEPT")
    web = service(
        service_type="LoadBalancer",
        cluster_ip=cluster_ip(family),
        external_policy="Local",
        health_check_node_port=32000,
    )
    sync(web, endpoints(web, family, fresh.remote), into=fresh)
    node = fresh.node.address(family)

    assert _passes(fresh.client, node, 32000)
    assert not _passes(fresh.client, node, 32000, protocol="udp")
    assert not _passes(fresh.client, node, 32001)
    sync(into=fresh)
    assert not _passes(fresh.client, node, 32000)
