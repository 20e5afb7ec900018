"""What `lint` finds by looking at all objects together."""

from collections.abc import Iterable

import msgspec
import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config
from kproxy_ipt.errors import Finding, Severity
from kproxy_ipt.objects.model import (
    SERVICE_PROXY_NAME_LABEL,
    EndpointSlice,
    LoadBalancerIngress,
    Service,
    SessionAffinityConfig,
)
from kproxy_ipt.state.model import MachineFacts
from kproxy_ipt.testing.desired import ApiObject, objects_of, snapshot_of
from kproxy_ipt.testing.objects import endpoint_slice, node, service, service_port, slice_endpoint, slice_port
from kproxy_ipt.trace.lint import lint

_CONFIG = Config(cluster_cidrs=("10.244.0.0/16",))
_NODE = node(zone="a")
_HERE = slice_endpoint("10.244.1.2", node_name="node1")
_THERE = slice_endpoint("10.244.9.9", node_name="node2")
_WARNING, _NOTE = Severity.WARNING, Severity.NOTE


def _lint(
    *found: ApiObject, families: Iterable[Family] = (Family.IPV4,), config: Config = _CONFIG
) -> tuple[Finding, ...]:
    snapshots = {family: snapshot_of(*found, _NODE, family=family) for family in families}
    return lint(objects_of((*found, _NODE)), snapshots, config, MachineFacts())


def _line(found: Finding) -> tuple[Severity, str, str]:
    return (found.severity, found.object.partition(" ")[0], found.field)


def test_clean_objects_have_no_findings() -> None:
    """A dual-stack Service with ready endpoints in both families is nothing to speak of."""
    web = service(cluster_ips=["10.96.0.10", "fd00::10"])

    assert _lint(web, endpoint_slice("web", [_HERE]), endpoint_slice("web", ["fd00::2"]), families=Family) == ()


@pytest.mark.parametrize(
    ("odd", "field"),
    [
        (service(cluster_ip="None"), "spec.clusterIP"),
        (service(cluster_ip=""), "spec.clusterIP"),
        (service(service_type="ExternalName"), "spec.type"),
        (service(labels={SERVICE_PROXY_NAME_LABEL: "x"}), "metadata.labels"),
        (service(ports=[]), "spec.ports"),
    ],
)
def test_service_without_rules_is_a_note(odd: Service, field: str) -> None:
    """It may be meant; so it costs nothing, and says why."""
    (found,) = _lint(odd, endpoint_slice("web"))

    assert _line(found) == (_NOTE, "Service", field)
    assert found.consequence.startswith("no rules: ")


@pytest.mark.parametrize(
    ("slices", "words"),
    [
        ((), "no EndpointSlice of this Service"),
        ((endpoint_slice("web", []),), "no endpoint for service port default/web (IPv4, tcp)"),
        ((endpoint_slice("web", [slice_endpoint("10.244.1.2", ready=False)]),), "1 endpoints, none of them ready"),
    ],
)
def test_service_that_refuses_everybody_is_a_warning(slices: tuple[EndpointSlice, ...], words: str) -> None:
    """No slices, empty ones, none ready: traffic is refused, and which of the three it is stands there."""
    (found,) = _lint(service(), *slices)

    assert (found.severity, found.consequence) == (_WARNING, "traffic to it is refused")
    assert found.found.startswith(words)


def test_terminating_endpoints_alone_are_a_warning() -> None:
    """They serve, but not for long."""
    draining = slice_endpoint("10.244.1.2", ready=False, serving=True, terminating=True)
    (found,) = _lint(service(), endpoint_slice("web", [draining]))

    assert found.found == "only terminating endpoints for service port default/web (IPv4, tcp)"


def test_family_without_slices_is_named_once() -> None:
    """A dual-stack Service with slices of one family refuses the other, whatever the number of ports."""
    web = service(cluster_ips=["10.96.0.10", "fd00::10"], ports=[service_port(name="a"), service_port(81, name="b")])
    slices = endpoint_slice(web, [_HERE])
    (found,) = _lint(web, slices, families=Family)

    assert (_line(found), found.found) == ((_WARNING, "Service", "spec.clusterIPs"), "no slice of IPv6")


@pytest.mark.parametrize(
    ("port", "words"),
    [
        (slice_port(80, name="web"), 'slice has port name "web", service wants ""'),
        (slice_port(80, protocol="UDP"), "slice has protocol UDP, service wants TCP"),
    ],
)
def test_slice_that_does_not_fit_is_named_with_both_sides(port: object, words: str) -> None:
    """Hand-made slices: the port must have the name and the protocol of the service port."""
    odd = endpoint_slice("web", [_HERE, _THERE], ports=[port])  # type: ignore[list-item]  # a row of the table
    found = next(one for one in _lint(service(), odd) if one.object == "EndpointSlice default/web-ipv4")

    assert (found.severity, found.field, found.found) == (_WARNING, "ports", words)
    assert found.consequence == "its 2 endpoints get no traffic of service port default/web"


def test_slice_for_each_port_is_no_warning() -> None:
    """A port that another slice has is served; what the first one lacks is a note."""
    web = service(ports=[service_port(name="a"), service_port(81, name="b")])
    slices = [endpoint_slice(web, [_HERE], name=f"web-{port}", ports=[slice_port(80, name=port)]) for port in "ab"]
    found = _lint(web, *slices)

    assert [_line(one) for one in found] == [(_NOTE, "EndpointSlice", "ports")] * 2


def test_slice_of_an_unknown_service_is_a_note() -> None:
    """It waits for a Service of that name."""
    (found,) = _lint(endpoint_slice("gone"))

    assert _line(found) == (_NOTE, "EndpointSlice", "metadata.labels[kubernetes.io/service-name]")


def test_address_in_two_slices_is_a_warning() -> None:
    """It counts once; the slice that adds nothing is named."""
    (found,) = _lint(service(), *(endpoint_slice("web", [_HERE], name=name) for name in ("web-a", "web-b")))

    assert (found.object, found.found) == ("EndpointSlice default/web-b", "10.244.1.2:80 again")


@pytest.mark.parametrize(
    ("policies", "field"),
    [
        ({"internal_policy": "Local"}, "spec.internalTrafficPolicy"),
        ({"external_policy": "Local", "health_check_node_port": 32000}, "spec.externalTrafficPolicy"),
    ],
)
def test_policy_local_without_local_endpoint_is_a_note(policies: dict[str, object], field: str) -> None:
    """On other nodes it works; here traffic is dropped."""
    spec = msgspec.structs.replace(service().spec, type="LoadBalancer", ports=(service_port(node_port=30080),))
    changes = {"internal_policy": "internal_traffic_policy", "external_policy": "external_traffic_policy"}
    spec = msgspec.structs.replace(spec, **{changes.get(name, name): value for name, value in policies.items()})
    web = msgspec.structs.replace(service(), spec=spec)
    (found,) = _lint(web, endpoint_slice("web", [_THERE]))

    assert _line(found) == (_NOTE, "Service", field)
    assert "dropped on this node" in found.consequence


def test_policy_local_without_health_check_port_is_a_warning() -> None:
    """The load balancer sends to nodes that drop."""
    (found,) = _lint(service(service_type="LoadBalancer", external_policy="Local"), endpoint_slice("web", [_HERE]))

    assert _line(found) == (_WARNING, "Service", "spec.healthCheckNodePort")


@pytest.mark.parametrize(
    ("address", "severity", "words"),
    [
        ("192.0.2.10", _WARNING, "the address of node node1"),
        ("10.96.0.1", _WARNING, "the cluster IP of Service default/api"),
        ("10.244.1.2", _WARNING, "the address of an endpoint"),
        ("10.244.200.1", _WARNING, "an address in the pod range 10.244.0.0/16"),
        ("127.0.0.1", _WARNING, "a loopback address"),
        ("8.8.8.8", _NOTE, "an address outside of the cluster"),
    ],
)
def test_external_ip_is_named_with_its_class(address: str, severity: Severity, words: str) -> None:
    """Who may write a Service may take the traffic to any address; each claim says whose address it is."""
    api = service("api", cluster_ip="10.96.0.1", ports=[443])
    slices = [endpoint_slice(name, [_HERE]) for name in ("web", "api")]
    (found,) = _lint(service(external_ips=[address]), api, *slices)

    assert (found.severity, found.found) == (severity, f"{address}, {words}")
    assert found.consequence == f"traffic of nodes and pods to {address} port 80 goes to this Service"


def test_external_ip_outside_of_the_list_is_a_warning() -> None:
    """Somebody asked for traffic and gets none: the list says which addresses would."""
    config = Config(external_ip_ranges=("192.0.2.0/28", "2001:db8::/64"))
    slices = endpoint_slice("web", [_HERE])
    (found,) = _lint(service(external_ips=["192.0.2.11", "192.0.2.16"]), slices, config=config)[:1]

    assert (found.severity, found.field, found.found) == (_WARNING, "spec.externalIPs[1]", "192.0.2.16")
    assert found.expected == "an address in kproxyIpt.externalIPs: 192.0.2.0/28, 2001:db8::/64"


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("192.0.2.10", "the address of node node1"),
        ("10.96.0.1", "the cluster IP of Service default/api"),
        ("10.244.1.2", "the address of an endpoint"),
        ("0.0.0.0", "the unspecified address"),
        ("127.0.0.1", "a loopback address"),
        ("169.254.169.254", "a link-local address"),
        ("224.0.0.1", "a multicast address"),
        ("255.255.255.255", "the broadcast address"),
        ("::", "the unspecified address"),
    ],
)
def test_load_balancer_address_of_somebody_else_is_a_warning(address: str, words: str) -> None:
    """It comes from a status, which a user may be allowed to write."""
    api = service("api", cluster_ip="10.96.0.1", ports=[443])
    slices = [endpoint_slice(name, [_HERE]) for name in ("web", "api")]
    (found,) = _lint(service(service_type="LoadBalancer", ingress=[address]), api, *slices)

    assert _line(found) == (_WARNING, "Service", "status.loadBalancer.ingress[0].ip")
    assert found.found == f"{address}, {words}"


@pytest.mark.parametrize("entry", [LoadBalancerIngress(ip="127.0.0.1", ip_mode="Proxy"), "192.0.2.201"])
def test_other_load_balancer_addresses_are_nothing_to_speak_of(entry: LoadBalancerIngress | str) -> None:
    """One of mode Proxy has no rules."""
    assert _lint(service(service_type="LoadBalancer", ingress=[entry]), endpoint_slice("web", [_HERE])) == ()


@pytest.mark.parametrize(("number", "count"), [(30080, 0), (32767, 0), (32768, 1), (60999, 1), (61000, 0)])
def test_node_port_that_the_kernel_may_give_away_is_a_note(number: int, count: int) -> None:
    """The usual range of source ports begins where that of node ports ends."""
    web = service(service_type="NodePort", ports=[service_port(node_port=number)])
    found = _lint(web, endpoint_slice("web", [_HERE]))

    assert [_line(one) for one in found] == count * [(_NOTE, "Service", "spec.ports[0].nodePort")]


def test_external_ip_without_rules_is_a_note() -> None:
    """Where the gate is off nothing is diverted."""
    config = Config(feature_gates={"AllowServiceExternalIPs": False})
    (found,) = _lint(service(external_ips=["192.0.2.10"]), endpoint_slice("web", [_HERE]), config=config)

    assert found.severity is _NOTE


@pytest.mark.parametrize(
    ("service_type", "ingress", "ranges", "severity", "words"),
    [
        ("ClusterIP", [], ["192.0.2.0/24"], _WARNING, "NOTHING IS RESTRICTED: the ranges are not looked at"),
        ("LoadBalancer", ["192.0.2.201"], ["0.0.0.0/0"], _WARNING, "NOTHING IS RESTRICTED in this family"),
        ("LoadBalancer", ["192.0.2.201"], [" 0.0.0.0/0 "], _WARNING, "NOTHING IS RESTRICTED in this family"),
        ("LoadBalancer", [], ["192.0.2.0/24"], _NOTE, "ranges are not enforced here"),
        ("LoadBalancer", [LoadBalancerIngress(hostname="x")], ["192.0.2.0/24"], _NOTE, "ranges are not enforced here"),
    ],
)
def test_ranges_that_restrict_nothing_are_named(
    service_type: str, ingress: list[str], ranges: list[str], severity: Severity, words: str
) -> None:
    """Open to everybody by mistake is a warning; left to the load balancer is a note."""
    web = service(service_type=service_type, ingress=ingress, source_ranges=ranges)
    (found,) = _lint(web, endpoint_slice("web", [_HERE]))

    assert _line(found) == (severity, "Service", "spec.loadBalancerSourceRanges")
    assert found.consequence.startswith(words)


def test_node_port_beside_ranges_is_a_note() -> None:
    """Ranges guard the load balancer address alone."""
    ports = [service_port(node_port=30080)]
    web = service(service_type="LoadBalancer", ports=ports, ingress=["192.0.2.201"], source_ranges=["192.0.2.0/24"])
    (found,) = _lint(web, endpoint_slice("web", [_HERE]))

    assert (found.severity, found.consequence) == (_NOTE, "node port 30080 of every node is open to all sources")


def test_affinity_tells_its_limits() -> None:
    """The kernel's limit, the scope with several ports, and the price of many endpoints."""
    web = service(ports=[service_port(name="a"), service_port(81, name="b")], affinity_timeout_s=60)
    many = endpoint_slice(web, [f"10.244.1.{number}" for number in range(1, 102)])
    found = [(one.severity, one.found) for one in _lint(web, many)]

    assert found == [
        (_WARNING, "ClientIP with 101 endpoints"),
        (_NOTE, "ClientIP"),
        (_NOTE, "ClientIP with 2 ports"),
    ]


def test_affinity_timeout_without_affinity_is_a_warning() -> None:
    """The timeout alone does nothing."""
    sticky = service(affinity_timeout_s=60)
    spec = msgspec.structs.replace(sticky.spec, session_affinity="None")
    (found,) = _lint(msgspec.structs.replace(sticky, spec=spec), endpoint_slice("web", [_HERE]))

    assert isinstance(spec.session_affinity_config, SessionAffinityConfig)
    assert (found.severity, found.consequence) == (_WARNING, "the timeout is ignored")


def test_hints_that_a_guard_turned_off_are_a_note() -> None:
    """One endpoint without a hint is enough."""
    entries = [slice_endpoint("10.244.1.2", zone_hints=["a"]), slice_endpoint("10.244.1.3")]
    (found,) = _lint(service(), endpoint_slice("web", entries))

    assert "off: endpoint 10.244.1.3:80 has no hint" in found.found


def test_node_port_that_answers_nowhere_is_a_warning() -> None:
    """`nodePortAddresses` selects no address of this machine."""
    web = service(service_type="NodePort", ports=[service_port(node_port=30080)])
    (found,) = _lint(web, endpoint_slice("web", [_HERE]), config=Config(node_port_addresses=("198.51.100.0/24",)))

    assert (found.severity, found.consequence) == (_WARNING, "no IPv4 node port answers")


def test_findings_of_reading_come_along_the_costliest_first() -> None:
    """Rejections, warnings, notes; each finding once."""
    values = {"object": "Service a/b", "field": "", "found": "x", "expected": "y", "consequence": "z"}
    read = tuple(Finding(severity=severity, **values) for severity in (_WARNING, Severity.REJECTED, _WARNING))
    objects = msgspec.structs.replace(objects_of((service(cluster_ip="None"),)), findings=read)
    found = lint(objects, {Family.IPV4: snapshot_of()}, Config(), MachineFacts())

    assert [one.severity for one in found] == [Severity.REJECTED, _WARNING, _NOTE]
