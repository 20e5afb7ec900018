"""Which service ports a Service has in each family, and what they say."""

import msgspec
import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.objects.model import LoadBalancerIngress, Service, ServiceSpec, SessionAffinityConfig
from kproxy_ipt.state.model import ServicePort
from kproxy_ipt.state.services import service_port_text, service_ports, source_ranges
from kproxy_ipt.testing.objects import service, service_port

V4, V6 = Family.IPV4, Family.IPV6


def _first(of: Service, family: Family = V4) -> ServicePort:
    return service_ports(of, family)[0]


def _with_spec(of: Service, **changes: object) -> Service:
    return msgspec.structs.replace(of, spec=msgspec.structs.replace(of.spec, **changes))


def test_each_port_of_a_service_is_a_service_port() -> None:
    """Port name, protocol and numbers come from the entry, the order is that of `spec.ports`."""
    of = service(ports=(service_port(53, name="dns", protocol="UDP"), service_port(80, name="web", node_port=30080)))

    ports = service_ports(of, V4)

    assert [(port.text, port.protocol, port.port, port.node_port) for port in ports] == [
        ("default/web:dns", "udp", 53, 0),
        ("default/web:web", "tcp", 80, 30080),
    ]


@pytest.mark.parametrize(("port_name", "text"), [("", "ns/web"), ("http", "ns/web:http"), ("a--b", "ns/web:a--b")])
def test_text_of_an_unnamed_port_has_no_colon(port_name: str, text: str) -> None:
    """The text is the name of the Service, with the port name behind a colon if there is one."""
    assert text == service_port_text("ns", "web", port_name)


@pytest.mark.parametrize(
    "of",
    [
        service(cluster_ip="None"),
        service(cluster_ip=""),
        service(cluster_ip="None", external_ips=("192.0.2.1",), ports=(service_port(53, protocol="SCTP"),)),
        service(service_type="ExternalName"),
        service(labels={"service.kubernetes.io/service-proxy-name": ""}),
        service(labels={"service.kubernetes.io/service-proxy-name": "other"}),
        service(ports=()),
        _with_spec(service(), cluster_ip=None, cluster_ips=("10.96.0.10",)),
        service(cluster_ip="10.96.0.300"),
    ],
)
def test_service_without_a_usable_cluster_ip_has_no_service_ports(of: Service) -> None:
    """Headless, unallocated, ExternalName, foreign-proxied Services and ones without ports make no rules."""
    assert service_ports(of, V4) == ()
    assert service_ports(of, V6) == ()


def test_type_change_from_external_name_brings_and_takes_service_ports() -> None:
    """Only the present type counts, leftovers of a former one do not."""
    kinds = ("ExternalName", "ClusterIP", "ExternalName")

    assert [len(service_ports(service(service_type=kind), V4)) for kind in kinds] == [0, 1, 0]


@pytest.mark.parametrize("cluster_ips", [("10.0.0.10", "2000::1"), ("2000::1", "10.0.0.10")])
def test_each_family_of_a_dual_stack_service_gets_its_own_cluster_ip(cluster_ips: tuple[str, str]) -> None:
    """The order of the families does not matter."""
    of = service(cluster_ips=cluster_ips)

    assert _first(of).cluster_ip == "10.0.0.10"
    assert _first(of, V6).cluster_ip == "2000::1"


@pytest.mark.parametrize(("cluster_ip", "own", "other"), [("10.0.0.10", V4, V6), ("2000::1", V6, V4)])
@pytest.mark.parametrize("with_families", [True, False])
def test_single_stack_service_exists_in_one_family_only(
    cluster_ip: str, own: Family, other: Family, *, with_families: bool
) -> None:
    """With `ipFamilies` or without, the other family has nothing."""
    of = service(cluster_ips=(cluster_ip,)) if with_families else service(cluster_ip=cluster_ip)

    assert cluster_ip == _first(of, own).cluster_ip
    assert service_ports(of, other) == ()


def test_family_without_an_entry_in_cluster_ips_has_no_service_ports() -> None:
    """A family that is promised but not allocated yet is skipped, the other one goes on."""
    of = _with_spec(service(cluster_ips=("10.0.0.10",)), ip_families=("IPv4", "IPv6"))

    assert len(service_ports(of, V4)) == 1
    assert service_ports(of, V6) == ()


def test_padded_addresses_are_read_as_decimal() -> None:
    """Cluster IP, external IP, ingress and range all lose their padding."""
    of = service(
        cluster_ip="10.96.011.012",
        external_ips=("192.168.099.022",),
        ingress=("1.2.3.004",),
        source_ranges=("203.0.113.000/025", "010.0.0.0/8"),
    )

    port = _first(of)

    assert port.cluster_ip == "10.96.11.12"
    assert (port.external_ips, port.load_balancer_ips) == (("192.168.99.22",), ("1.2.3.4",))
    assert port.source_ranges == ("203.0.113.0/25", "10.0.0.0/8")


def test_each_family_keeps_only_its_addresses_and_ranges() -> None:
    """External IPs, ingress addresses and ranges of a dual-stack Service are told apart by their text."""
    of = service(
        cluster_ips=("10.0.0.10", "2000::1"),
        external_ips=("50.0.0.1", "2001::50"),
        ingress=("60.0.0.1", "2001::60"),
        source_ranges=("70.0.0.0/8", "2001:70::/32"),
    )
    v4, v6 = _first(of), _first(of, V6)

    assert (v4.external_ips, v4.load_balancer_ips, v4.source_ranges) == (("50.0.0.1",), ("60.0.0.1",), ("70.0.0.0/8",))
    assert (v6.external_ips, v6.load_balancer_ips, v6.source_ranges) == (
        ("2001::50",),
        ("2001::60",),
        ("2001:70::/32",),
    )


def test_cluster_ip_type_keeps_external_and_ingress_addresses() -> None:
    """The type of a Service does not decide about its addresses."""
    port = _first(service(external_ips=("192.0.2.1",), ingress=("192.0.2.2",)))

    assert (port.external_ips, port.load_balancer_ips) == (("192.0.2.1",), ("192.0.2.2",))
    assert port.externally_accessible


def test_unreadable_external_ips_are_left_out() -> None:
    """What does not parse or is blank costs the other entries nothing; a repeated entry stays, as with kube-proxy."""
    of = service(external_ips=("", "x", "1.2.3", "192.0.2.1", "192.000.2.1"))

    assert _first(of).external_ips == ("192.0.2.1", "192.0.2.1")


@pytest.mark.parametrize(
    ("ip_mode", "kept"), [(None, True), ("VIP", True), ("Proxy", False), ("Other", False), ("vip", False)]
)
def test_only_ingress_addresses_of_mode_vip_count(ip_mode: str | None, *, kept: bool) -> None:
    """A balancer of mode Proxy wants to see the traffic itself; absent means VIP."""
    of = service(service_type="LoadBalancer", ingress=(LoadBalancerIngress(ip="192.0.2.201", ip_mode=ip_mode),))

    assert (("192.0.2.201",) if kept else ()) == _first(of).load_balancer_ips


def test_ingress_with_a_hostname_only_is_no_address() -> None:
    """A hostname is left to the client's resolver."""
    entries = (LoadBalancerIngress(hostname="x"), LoadBalancerIngress(ip=""), LoadBalancerIngress(ip="192.0.2.202"))

    assert _first(service(ingress=entries)).load_balancer_ips == ("192.0.2.202",)


@pytest.mark.parametrize(
    ("texts", "ranges"),
    [
        ((" 10.1.2.0/28",), ("10.1.2.0/28",)),
        (("10.0.0.0/8", "foo", "", " 192.0.2.0/24 ", "10.0.0.1"), ("10.0.0.0/8", "192.0.2.0/24")),
        (("10.0.0.5/8",), ("10.0.0.0/8",)),
        (("198.51.100.0/24", "4700::/32"), ("198.51.100.0/24",)),
        (("4700::/32",), ()),
        (("10.0.0.0/8", "0.0.0.0/0"), ()),
        (("10.0.0.0/8", "::/0"), ("10.0.0.0/8",)),
        (("10.0.0.0/8", "10.0.0.1/8", "10.0.0.0/9"), ("10.0.0.0/8", "10.0.0.0/8", "10.0.0.0/9")),
        (("foo", "bar"), ()),
        ((), ()),
    ],
)
def test_source_ranges_of_a_family_keep_their_order(texts: tuple[str, ...], ranges: tuple[str, ...]) -> None:
    """Trimmed, masked, own family only; a range that covers the family means that all may come."""
    assert ranges == source_ranges(texts, V4)


@pytest.mark.parametrize(("configured", "timeout_s"), [(1, 1), (86400, 86400), (10800, 10800)])
def test_affinity_timeout_is_in_seconds(configured: int, timeout_s: int) -> None:
    """The number of the API goes through unchanged."""
    assert timeout_s == _first(service(affinity_timeout_s=configured)).affinity_timeout_s


def test_affinity_without_a_timeout_lasts_three_hours() -> None:
    """The API server would have written 10800; the absence of the field or of its parents is no failure."""
    bare = _with_spec(service(), session_affinity="ClientIP")
    empty = _with_spec(bare, session_affinity_config=SessionAffinityConfig())

    assert (_first(bare).affinity_timeout_s, _first(empty).affinity_timeout_s) == (10800, 10800)


def test_timeout_without_client_ip_affinity_is_ignored() -> None:
    """A leftover timeout does not turn affinity on."""
    of = _with_spec(service(affinity_timeout_s=60), session_affinity="None")

    assert _first(of).affinity_timeout_s == 0


@pytest.mark.parametrize(
    ("service_type", "external_ips", "is_local"),
    [
        ("LoadBalancer", (), True),
        ("NodePort", (), True),
        ("ClusterIP", ("192.0.2.1",), True),
        ("ClusterIP", ("2001:db8::1",), True),
        ("ClusterIP", (), False),
    ],
)
def test_external_policy_local_counts_where_traffic_can_come_from_outside(
    service_type: str, external_ips: tuple[str, ...], *, is_local: bool
) -> None:
    """For a ClusterIP Service it counts only with an external IP, of whatever family."""
    of = service(service_type=service_type, external_ips=external_ips, external_policy="Local")

    assert is_local is _first(of).external_local


@pytest.mark.parametrize(
    ("service_type", "policy", "node_port"),
    [
        ("LoadBalancer", "Local", 345),
        ("LoadBalancer", "Cluster", 0),
        ("NodePort", "Local", 0),
        ("ClusterIP", "Local", 0),
    ],
)
def test_health_check_node_port_needs_load_balancer_and_policy_local(
    service_type: str, policy: str, node_port: int
) -> None:
    """Other Services never open that port, whatever the field says."""
    of = service(service_type=service_type, external_policy=policy, health_check_node_port=345)

    assert node_port == _first(of).health_check_node_port


def test_internal_policy_is_cluster_unless_it_says_local() -> None:
    """An absent policy is Cluster."""
    policies = (None, "Cluster", "Local")

    assert [_first(service(internal_policy=policy)).internal_local for policy in policies] == [False, False, True]


def test_one_number_for_three_protocols_makes_three_service_ports() -> None:
    """The protocol is part of the identity of a service port."""
    ports = tuple(service_port(53, protocol=protocol, node_port=30053) for protocol in ("TCP", "UDP", "SCTP"))

    assert {"tcp", "udp", "sctp"} == {port.protocol for port in service_ports(service(ports=ports), V4)}


def test_target_port_is_not_looked_at() -> None:
    """The slices carry the real port; `targetPort` may say anything."""
    plain, odd = service(ports=(service_port(80),)), service(ports=(service_port(80, target_port="no-such-name"),))

    assert service_ports(plain, V4) == service_ports(odd, V4)


def test_annotations_and_labels_change_no_service_port() -> None:
    """The old annotation for source ranges is not read either."""
    annotations = {"service.beta.kubernetes.io/load-balancer-source-ranges": "10.0.0.0/8"}
    marked = service(labels={"a": "b"}, annotations=annotations, ingress=("1.2.3.4",))

    assert service_ports(service(ingress=("1.2.3.4",)), V4) == service_ports(marked, V4)


@pytest.mark.parametrize(
    ("node_port", "internal", "external", "uses_cluster", "uses_local"),
    [
        (0, None, None, True, False),
        (0, "Local", None, False, True),
        (30000, "Local", None, True, True),
        (30000, None, "Local", True, True),
        (30000, "Local", "Local", True, True),
        (0, None, "Local", True, False),
    ],
)
def test_policies_decide_which_lists_are_used(
    node_port: int, internal: str | None, external: str | None, *, uses_cluster: bool, uses_local: bool
) -> None:
    """The short cut of local traffic needs the cluster list even where both policies are Local."""
    ports = (service_port(80, node_port=node_port),)
    of = service(service_type="NodePort", ports=ports, internal_policy=internal, external_policy=external)
    port = _first(of)

    assert (uses_cluster, uses_local) == (port.uses_cluster_endpoints, port.uses_local_endpoints)


def test_empty_spec_is_no_service_port() -> None:
    """A Service of which nothing is known yet makes nothing and breaks nothing."""
    bare = msgspec.structs.replace(service(), spec=ServiceSpec())

    assert service_ports(bare, V4) == ()
