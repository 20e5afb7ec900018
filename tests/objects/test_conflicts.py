"""Services that claim the same thing."""

import random

import pytest

from kproxy_ipt.errors import Severity
from kproxy_ipt.objects.conflicts import service_conflicts
from kproxy_ipt.objects.model import LoadBalancerIngress, Service
from kproxy_ipt.testing.objects import service, service_port


def _node_port(name: str, number: int, protocol: str = "TCP", *, ip: str = "") -> Service:
    """A Service with one node port and a cluster IP of its own."""
    ports = [service_port(80, node_port=number, protocol=protocol)]
    return service(name, cluster_ip=ip or f"10.96.0.{ord(name[0])}", ports=ports, service_type="NodePort")


def _health_check(name: str, number: int, *, policy: str = "Local") -> Service:
    """A load balancer with a health check port and a cluster IP of its own."""
    return service(
        name,
        cluster_ip=f"10.96.1.{ord(name[0])}",
        service_type="LoadBalancer",
        external_policy=policy,
        health_check_node_port=number,
    )


def test_services_that_share_nothing_give_no_finding() -> None:
    """The same numbers on other addresses, and the same address on other ports, are normal."""
    services = [
        service("a", cluster_ip="10.96.0.1", ingress=["192.0.2.1"], ports=[80]),
        service("b", cluster_ip="10.96.0.2", ingress=["192.0.2.1"], ports=[81]),
        service("c", cluster_ip="10.96.0.3", ingress=["192.0.2.1"], external_ips=["192.0.2.1"], ports=[82]),
    ]

    assert service_conflicts(services) == ()


def test_node_port_of_two_services_goes_to_the_first_by_name() -> None:
    """Winner, loser and number are named; another protocol is no conflict."""
    services = [_node_port("b", 30100), _node_port("a", 30100), _node_port("c", 30100, "UDP")]

    (finding,) = service_conflicts(services)

    assert finding.severity is Severity.WARNING
    assert (finding.object, finding.field) == ("Service default/b", "spec.ports[0].nodePort")
    assert finding.found == "30100/TCP, which service port default/a has too"
    assert finding.consequence == "service port default/a gets all traffic to node port 30100"


def test_node_port_twice_in_one_service_is_a_conflict() -> None:
    """Only one of the two ports can have it."""
    ports = [service_port(80, name="b", node_port=30100), service_port(81, name="a", node_port=30100)]

    (finding,) = service_conflicts([service(ports=ports)])

    assert finding.field == "spec.ports[0].nodePort"
    assert "default/web:a" in finding.found


def test_node_ports_of_different_families_do_not_meet() -> None:
    """Rules of IPv4 and IPv6 are apart."""
    services = [_node_port("a", 30100, ip="10.96.0.1"), _node_port("b", 30100, ip="fd00::1")]

    assert service_conflicts(services) == ()


@pytest.mark.parametrize(
    ("loser", "field"),
    [
        (service("b", cluster_ip="192.0.2.1"), "spec.clusterIP"),
        (service("b", cluster_ips=["10.96.0.2", "192.0.2.1"]), "spec.clusterIPs"),
        (service("b", cluster_ip="10.96.0.2", external_ips=["192.0.2.001"]), "spec.externalIPs"),
        (service("b", cluster_ip="10.96.0.2", ingress=["192.0.2.1"]), "status.loadBalancer.ingress"),
    ],
)
def test_address_claimed_by_two_services_goes_to_the_first(loser: Service, field: str) -> None:
    """External, load balancer and cluster addresses are all the same to a packet."""
    winner = service("a", cluster_ip="10.96.0.1", external_ips=["192.0.2.1"])

    (finding,) = service_conflicts([loser, winner])

    assert (finding.object, finding.field) == ("Service default/b", field)
    assert finding.consequence == "Service default/a gets all traffic to 192.0.2.1 port 80/TCP"


def test_first_is_who_has_the_first_rule() -> None:
    """Rules are sorted by namespace, then by name: a shorter one comes before the same with a hyphen and more."""
    by_namespace = [service(namespace="a"), service(namespace="a-b")]
    by_name = [
        service("web", ports=[service_port(name="http")]),
        service("web-1", ports=[service_port(name="http")]),
    ]

    assert [finding.object for finding in service_conflicts(by_namespace)] == ["Service a-b/web"]
    assert [finding.object for finding in service_conflicts(by_name)] == ["Service default/web-1"]


def test_order_of_reading_does_not_matter() -> None:
    """The same services give the same findings, once each."""
    services = [_node_port(name, 30100, ip="10.96.0.1") for name in "abcd"]
    expected = service_conflicts(services)

    for seed in range(20):
        random.Random(seed).shuffle(services)
        assert service_conflicts(services) == expected
    assert len(expected) == 6


@pytest.mark.parametrize(
    "without_rules",
    [
        service("b", cluster_ip="", external_ips=["192.0.2.1"]),
        service("b", cluster_ip="None", external_ips=["192.0.2.1"]),
        service("b", service_type="ExternalName", external_ips=["192.0.2.1"]),
        service("b", labels={"service.kubernetes.io/service-proxy-name": "x"}, external_ips=["192.0.2.1"]),
        service("b", cluster_ip="10.96.0.2", ingress=[LoadBalancerIngress(ip="192.0.2.1", ip_mode="Proxy")]),
    ],
)
def test_services_and_addresses_without_rules_claim_nothing(without_rules: Service) -> None:
    """Who gets no rules takes nothing away."""
    assert service_conflicts([service("a", cluster_ip="10.96.0.1", external_ips=["192.0.2.1"]), without_rules]) == ()


def test_health_check_port_that_is_a_node_port_is_named() -> None:
    """The node port works, the health check does not, whoever is first by name."""
    for health, node_port in (("a", "b"), ("b", "a")):
        (finding,) = service_conflicts([_health_check(health, 30073), _node_port(node_port, 30073)])

        assert finding.object == f"Service default/{health}"
        assert finding.field == "spec.healthCheckNodePort"
        assert f"Service default/{node_port} gets all traffic to 30073" in finding.consequence


def test_health_check_port_of_two_services_goes_to_the_first() -> None:
    """Only one server can listen."""
    (finding,) = service_conflicts([_health_check("b", 30073), _health_check("a", 30073)])

    assert finding.object == "Service default/b"
    assert finding.found == "30073, the health check port of Service default/a"


def test_health_check_port_that_is_not_used_claims_nothing() -> None:
    """Only load balancers of policy Local are checked; a UDP node port is another thing."""
    unused = [_health_check("a", 30073, policy="Cluster"), _node_port("b", 30073)]
    udp = [_health_check("a", 30073), _node_port("b", 30073, "UDP")]

    assert service_conflicts(unused) == ()
    assert service_conflicts(udp) == ()
