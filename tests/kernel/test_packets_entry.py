"""Every way into a Service, with real packets: who answers."""

from collections.abc import Callable

import msgspec
import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config, IptablesConfig
from kproxy_ipt.daemon.report import RunReport
from kproxy_ipt.objects.model import LoadBalancerIngress
from kproxy_ipt.testing.lab import Lab
from kproxy_ipt.testing.lab_objects import (
    NODE_PORT,
    SECOND_NODE_ADDRESS,
    balancer_ip,
    cluster_ip,
    endpoints,
    open_service,
    stranger,
)
from kproxy_ipt.testing.objects import service, service_port, slice_endpoint
from kproxy_ipt.testing.sockets import Protocol, sctp_available
from kproxy_ipt.testing.topology import CLUSTER_CIDRS
from kproxy_ipt.testing.traffic import Outcome

pytestmark = pytest.mark.kernel

Sync = Callable[..., RunReport]
_DROPPED_S = 0.3
_LOOPBACK = {Family.IPV4: "127.0.0.1", Family.IPV6: "::1"}
_CONFIG = Config(cluster_cidrs=tuple(CLUSTER_CIDRS.values()))
_LOCALHOST_OFF = msgspec.structs.replace(_CONFIG, iptables=IptablesConfig(localhost_node_ports=False))


def _skip_without(protocol: Protocol) -> None:
    if protocol == "sctp" and not sctp_available():
        pytest.skip("this kernel has no SCTP sockets")


@pytest.mark.parametrize("protocol", ["tcp", "udp", "sctp"])
def test_each_protocol_reaches_its_own_endpoint(lab: Lab, sync: Sync, family: Family, protocol: Protocol) -> None:
    """One number in three protocols, as cluster IP and as node port, leads to an endpoint for each protocol."""
    _skip_without(protocol)
    pods = {"TCP": "podB", "UDP": "podC", "SCTP": "podD"}
    services = [
        open_service(family, name, number=10, node_port=NODE_PORT, protocol=name.upper())
        for name in ("tcp", "udp", "sctp")
    ]
    slices = [endpoints(each, family, lab.pod(pods[each.metadata.name.upper()])) for each in services]
    sync(*services, *slices)

    inside = lab.pod("podA").send(cluster_ip(family), 80, protocol=protocol, count=5)
    outside = lab.client.send(lab.node.address(family), NODE_PORT, protocol=protocol, count=5)

    assert inside.names == outside.names == {pods[protocol.upper()]: 5}


def test_unnamed_and_named_ports_of_one_service_lead_to_their_own_targets(lab: Lab, sync: Sync, family: Family) -> None:
    """Port 80 and port 443 of one Service are two service ports; a slice port counts by its name alone."""
    lab.pod("podB").serve(8443, name="tls", addresses=[lab.pod("podB").address(family)])
    web = service(cluster_ip=cluster_ip(family), ports=[service_port(80, name="http"), service_port(443, name="https")])
    plain, secure = (endpoints(web, family, lab.pod("podB")) for _ in range(2))
    ports = secure.ports or ()
    secure = msgspec.structs.replace(
        secure,
        metadata=msgspec.structs.replace(secure.metadata, name="secure"),
        ports=(msgspec.structs.replace(ports[1], port=8443),),
    )
    sync(web, msgspec.structs.replace(plain, ports=ports[:1]), secure)

    assert lab.pod("podA").send(cluster_ip(family), 80).names == {"podB": 1}
    assert lab.pod("podA").send(cluster_ip(family), 443).names == {"tls": 1}


@pytest.mark.parametrize("protocol", ["tcp", "udp"])
def test_node_port_answers_from_everywhere_on_every_node_address(
    lab: Lab, sync: Sync, family: Family, protocol: Protocol
) -> None:
    """Pod, node and client reach a node port on the first and on the second address of the node."""
    web = open_service(family, protocol=protocol.upper())
    sync(web, endpoints(web, family, lab.remote))

    for place in (lab.pod("podA"), lab.node, lab.client):
        for address in (lab.node.address(family), SECOND_NODE_ADDRESS[family]):
            traffic = place.send(address, NODE_PORT, protocol=protocol, count=3)

            assert traffic.names == {"remote": 3}, f"{place.name} to {address}"


@pytest.mark.parametrize("config", [_CONFIG, _LOCALHOST_OFF], ids=["on", "off"])
def test_node_port_on_localhost_works_over_ipv4_where_it_is_on(
    fresh: Lab, sync: Sync, family: Family, config: Config
) -> None:
    """The node reaches a node port on 127.0.0.1 if that is on; never on ::1, where its own server is."""
    fresh.node.serve(NODE_PORT, name="host", addresses=[_LOOPBACK[family]])
    web = open_service(family)
    sync(web, endpoints(web, family, fresh.pod("podB"), fresh.remote), config=config, into=fresh)

    on_loopback = fresh.node.send(_LOOPBACK[family], NODE_PORT, count=48)
    on_address = fresh.node.send(fresh.node.address(family), NODE_PORT, count=48)

    expected = {"podB", "remote"} if config is _CONFIG and family is Family.IPV4 else {"host"}
    assert set(on_loopback.names) == expected
    assert set(on_address.names) == {"podB", "remote"}


@pytest.mark.parametrize("family", [Family.IPV6], ids=str)
def test_closed_node_port_on_ipv6_loopback_is_refused(lab: Lab, sync: Sync, family: Family) -> None:
    """On ::1 nothing is translated: without a server of the host the connection is refused at once."""
    web = open_service(family)
    sync(web, endpoints(web, family, lab.pod("podB")))

    assert lab.node.send("::1", NODE_PORT).outcomes == {Outcome.REFUSED: 1}


def test_restricted_node_port_addresses_leave_the_others_to_the_host(fresh: Lab, sync: Sync, family: Family) -> None:
    """With nodePortAddresses a node port is taken on the listed address alone; host servers answer on the others."""
    others = [SECOND_NODE_ADDRESS[family], _LOOPBACK[family]]
    fresh.node.serve(NODE_PORT, name="host", addresses=others)
    config = msgspec.structs.replace(_CONFIG, node_port_addresses=("192.0.2.0/24", "2001:db8::/64"))
    web = open_service(family)
    sync(web, endpoints(web, family, fresh.pod("podB")), config=config, into=fresh)

    assert fresh.client.send(fresh.node.address(family), NODE_PORT).names == {"podB": 1}
    assert fresh.client.send(others[0], NODE_PORT).names == {"host": 1}
    assert [fresh.node.send(address, NODE_PORT).names for address in others] == [{"host": 1}] * 2


def test_node_port_addresses_of_one_family_leave_the_other_open(lab: Lab, sync: Sync, family: Family) -> None:
    """A list with prefixes of the other family alone restricts nothing."""
    foreign = "2001:db8::/64" if family is Family.IPV4 else "192.0.2.0/24"
    web = open_service(family)
    slices = endpoints(web, family, lab.pod("podB"))
    sync(web, slices, config=msgspec.structs.replace(_CONFIG, node_port_addresses=(foreign,)))

    assert lab.client.send(SECOND_NODE_ADDRESS[family], NODE_PORT).names == {"podB": 1}


@pytest.mark.parametrize("protocol", ["tcp", "udp"])
@pytest.mark.parametrize("number", [8, 28], ids=["load-balancer", "external"])
def test_external_addresses_answer_from_everywhere(
    lab: Lab, sync: Sync, family: Family, number: int, protocol: Protocol
) -> None:
    """Load balancer IP and external IP, which no interface has, answer pod, node and client."""
    web = open_service(family, protocol=protocol.upper())
    sync(web, endpoints(web, family, lab.pod("podB")))

    for place in (lab.pod("podA"), lab.node, lab.client):
        traffic = place.send(balancer_ip(family, number), 80, protocol=protocol, count=3)

        assert traffic.names == {"podB": 3}, place.name


def test_address_of_mode_proxy_is_left_to_the_balancer(lab: Lab, sync: Sync, family: Family) -> None:
    """With ipMode Proxy a pod reaches the real balancer, source ranges or not; the address of mode VIP is short-cut."""
    proxy, vip = balancer_ip(family, 20), balancer_ip(family, 21)
    lab.client.run("ip", "address", "replace", f"{proxy}/{family.bits}", "dev", "eth0")
    lab.client.serve(80, name=f"balancer-{family.value}", addresses=[proxy])
    ingress = [
        LoadBalancerIngress(ip=proxy, ip_mode="Proxy"),
        LoadBalancerIngress(ip=vip, ip_mode="VIP"),
        LoadBalancerIngress(hostname="lb.example"),
    ]
    ranges = ["10.244.0.0/16", "fd00:10:244::/56"]
    web = service(service_type="LoadBalancer", cluster_ip=cluster_ip(family), ingress=ingress, source_ranges=ranges)
    sync(web, endpoints(web, family, lab.pod("podB")))

    assert lab.pod("podA").send(proxy, 80).names == {f"balancer-{family.value}": 1}
    assert lab.pod("podA").send(vip, 80).names == {"podB": 1}


@pytest.mark.parametrize("family", [Family.IPV4], ids=str)
def test_zero_padded_addresses_are_decimal(lab: Lab, sync: Sync, family: Family) -> None:
    """Cluster IP, endpoint and source range with leading zeros are read as decimal (in IPv6 they have one reading)."""
    web = service(
        service_type="LoadBalancer",
        cluster_ip="10.96.011.012",
        ingress=["192.000.002.200"],
        source_ranges=["198.018.000.000/024"],
    )
    sync(web, endpoints(web, family, slice_endpoint("10.244.001.011", node_name="n1")))

    assert lab.pod("podB").send("10.96.11.12", 80).names == {"podA": 1}
    assert lab.client.send("192.0.2.200", 80, sources=["198.18.0.9"]).names == {"podA": 1}
    blocked = lab.client.send("192.0.2.200", 80, sources=["198.18.1.9"], timeout_s=_DROPPED_S)
    assert blocked.outcomes == {Outcome.TIMEOUT: 1}


def test_addresses_of_the_other_family_are_left_out(lab: Lab, sync: Sync, family: Family) -> None:
    """Ingress IPs and external IPs of both families in one Service do no harm: those of the own family work."""
    other = Family.IPV6 if family is Family.IPV4 else Family.IPV4
    web = service(
        service_type="LoadBalancer",
        cluster_ip=cluster_ip(family),
        ingress=[balancer_ip(other), balancer_ip(family)],
        external_ips=[balancer_ip(other, 28), balancer_ip(family, 28)],
    )
    neighbour = service("neighbour", cluster_ip=cluster_ip(family, 11))
    slices = [endpoints(each, family, lab.pod("podB")) for each in (web, neighbour)]
    sync(web, neighbour, *slices)

    for address in (balancer_ip(family), balancer_ip(family, 28), cluster_ip(family, 11)):
        assert lab.client.send(address, 80, sources=[stranger(family)]).names == {"podB": 1}


@pytest.mark.parametrize("step", [1, -1], ids=["in-order", "reversed"])
def test_node_port_claimed_twice_has_a_stable_winner(lab: Lab, sync: Sync, family: Family, step: int) -> None:
    """In every order of reading the first by namespace and name wins; the loser keeps its cluster IP."""
    first, second = (
        service(
            "app",
            namespace=namespace,
            service_type="NodePort",
            cluster_ip=cluster_ip(family, number),
            ports=[service_port(80, node_port=NODE_PORT)],
        )
        for namespace, number in (("a", 10), ("b", 11))
    )
    datagrams = open_service(family, "dns", number=12, protocol="UDP")
    slices = [
        endpoints(first, family, lab.pod("podB")),
        endpoints(second, family, lab.pod("podC")),
        endpoints(datagrams, family, lab.pod("podD")),
    ]
    sync(*[first, second, datagrams][::step], *slices)

    node = lab.node.address(family)
    assert lab.client.send(node, NODE_PORT, count=5).names == {"podB": 5}
    assert lab.client.send(node, NODE_PORT, protocol="udp", count=5).names == {"podD": 5}
    assert lab.pod("podA").send(cluster_ip(family, 11), 80, count=5).names == {"podC": 5}
