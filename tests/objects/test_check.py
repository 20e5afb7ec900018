"""Checks of Services and Nodes."""

import msgspec
import pytest

from kproxy_ipt.config.model import Scheduler
from kproxy_ipt.errors import Finding, Severity
from kproxy_ipt.objects.check import check_node, check_service
from kproxy_ipt.objects.model import SCHEDULER_ANNOTATION, LoadBalancerIngress, Service
from kproxy_ipt.objects.report import MAX_FINDINGS
from kproxy_ipt.testing.objects import node, service, service_port


def _with_spec(**fields: object) -> Service:
    """A plain Service with other values in its `spec`."""
    plain = service()
    return msgspec.structs.replace(plain, spec=msgspec.structs.replace(plain.spec, **fields))


def _fields(findings: tuple[Finding, ...], severity: Severity) -> list[str]:
    """The fields of findings that must all be of one severity."""
    assert {finding.severity for finding in findings} <= {severity}
    return [finding.field for finding in findings]


@pytest.mark.parametrize(
    "clean",
    [
        service(),
        service(cluster_ip=""),
        service(cluster_ip="None", ports=()),
        service(cluster_ips=["10.96.0.1", "fd00::1"], ports=[service_port(53, name="a", protocol="UDP")]),
        service(
            ports=[
                service_port(53, name="dns", protocol="UDP", node_port=30053),
                service_port(53, name="dns-tcp", protocol="TCP", node_port=30053),
                service_port(53, name="dns-sctp", protocol="SCTP", node_port=30053),
            ]
        ),
        service(service_type="ExternalName", cluster_ip="", external_ips=["odd"], source_ranges=["odd"]),
        service(ingress=[LoadBalancerIngress(hostname="lb.example"), LoadBalancerIngress(ip="odd", ip_mode="Proxy")]),
        service(external_ips=["", " "], ingress=["192.0.2.1"], source_ranges=[" 10.0.0.0/8 ", "", "0.0.0.0/0"]),
        service("a" * 63, namespace="b" * 63, affinity_timeout_s=86400, health_check_node_port=0),
        service(labels={"service.kubernetes.io/service-proxy-name": ""}, external_ips=["odd"]),
    ],
)
def test_normal_service_gives_no_finding(clean: Service) -> None:
    """What Kubernetes writes and people use every day is silent."""
    assert check_service(clean) == ()


@pytest.mark.parametrize(
    "text", ["", "a b", "a\n", 'a"', "a'", "A", "a.b", "-a", "a-", "a" * 64, "ä", "a/b", "\x00", "a\u2028", "١"]
)
def test_odd_name_or_namespace_is_rejected(text: str) -> None:
    """Names that could spoil a rule or a log never get further."""
    assert _fields(check_service(service(text)), Severity.REJECTED) == ["metadata.name"]
    assert _fields(check_service(service(namespace=text)), Severity.REJECTED) == ["metadata.namespace"]


def test_missing_namespace_is_rejected() -> None:
    """A Service without a namespace has no identity."""
    plain = service()
    metadata = msgspec.structs.replace(plain.metadata, namespace=None)

    (finding,) = check_service(msgspec.structs.replace(plain, metadata=metadata))

    assert (finding.object, finding.field, finding.found) == ("Service web", "metadata.namespace", "nothing")


@pytest.mark.parametrize("text", ["a b", 'a"b', "a\nb", "A", "a" * 64, "-"])
def test_odd_port_name_is_rejected(text: str) -> None:
    """Port names are DNS labels."""
    findings = check_service(service(ports=[service_port(name=text)]))

    assert _fields(findings, Severity.REJECTED) == ["spec.ports[0].name"]


@pytest.mark.parametrize(
    ("port", "field"),
    [
        (service_port(0), "port"),
        (service_port(-1), "port"),
        (service_port(65536), "port"),
        (service_port(10**30), "port"),
        (msgspec.structs.replace(service_port(), port=None), "port"),
        (service_port(node_port=-1), "nodePort"),
        (service_port(node_port=65536), "nodePort"),
        (service_port(protocol="tcp"), "protocol"),
        (service_port(protocol="ICMP"), "protocol"),
    ],
)
def test_port_out_of_range_is_rejected(port: object, field: str) -> None:
    """Numbers that no packet can have, and protocols that no Service can have."""
    assert _fields(check_service(_with_spec(ports=(port,))), Severity.REJECTED) == [f"spec.ports[0].{field}"]


@pytest.mark.parametrize(
    ("first", "second", "fields"),
    [
        (service_port(80, name="a"), service_port(81, name="a"), ["name"]),
        (service_port(80, name="a"), service_port(80, name="b"), ["port"]),
        (service_port(80, name="a"), service_port(81), ["name"]),
        (service_port(80, name="a"), service_port(80, name="a"), ["name", "port"]),
    ],
)
def test_ports_that_cannot_be_told_apart_are_rejected(first: object, second: object, fields: list[str]) -> None:
    """Several ports need distinct names, and distinct numbers for one protocol."""
    findings = check_service(_with_spec(ports=(first, second)))

    assert _fields(findings, Severity.REJECTED) == [f"spec.ports[1].{field}" for field in fields]


@pytest.mark.parametrize(
    ("fields", "rejected"),
    [
        ({"type": "clusterip"}, "spec.type"),
        ({"session_affinity": "Client"}, "spec.sessionAffinity"),
        ({"external_traffic_policy": "local"}, "spec.externalTrafficPolicy"),
        ({"internal_traffic_policy": "Global"}, "spec.internalTrafficPolicy"),
        ({"health_check_node_port": 65536}, "spec.healthCheckNodePort"),
        ({"health_check_node_port": -1}, "spec.healthCheckNodePort"),
        ({"cluster_ip": "10.0.0"}, "spec.clusterIP"),
        ({"cluster_ip": "none"}, "spec.clusterIP"),
        ({"cluster_ips": ("10.96.0.10", "x")}, "spec.clusterIPs[1]"),
        ({"cluster_ips": ("10.96.0.10",), "ip_families": ("IPv6",)}, "spec.clusterIPs[0]"),
        ({"ip_families": ("ipv4",)}, "spec.ipFamilies[0]"),
    ],
)
def test_unknown_word_or_address_is_rejected(fields: dict[str, object], rejected: str) -> None:
    """Fields that rules depend on hold what the API allows, or the Service is set aside."""
    assert _fields(check_service(_with_spec(**fields)), Severity.REJECTED) == [rejected]


@pytest.mark.parametrize("timeout_s", [0, -1, 86401])
def test_affinity_timeout_out_of_range_is_rejected(timeout_s: int) -> None:
    """The kernel module has its limits, and so has the API."""
    findings = check_service(service(affinity_timeout_s=timeout_s))

    assert _fields(findings, Severity.REJECTED) == ["spec.sessionAffinityConfig.clientIP.timeoutSeconds"]


def test_zero_padded_addresses_are_read_as_decimal_with_a_warning() -> None:
    """The warning names the address that is used."""
    padded = service(cluster_ip="10.96.011.012", external_ips=["192.0.2.010"], source_ranges=["010.0.0.0/08"])

    findings = check_service(padded)

    assert _fields(findings, Severity.WARNING) == [
        "spec.clusterIP",
        "spec.externalIPs[0]",
        "spec.loadBalancerSourceRanges[0]",
    ]
    assert [finding.consequence.rpartition(" ")[2] for finding in findings] == [
        "10.96.11.12",
        "192.0.2.10",
        "10.0.0.0/8",
    ]


@pytest.mark.parametrize("text", ["FD00::00A", "fd00:0::1", "::ffff:1.2.3.4"])
def test_other_spellings_of_ipv6_are_silent(text: str) -> None:
    """Leading zeros of hexadecimal groups mean nothing else to anybody."""
    assert check_service(service(cluster_ip=text)) == ()


def test_unparsable_outer_addresses_are_ignored_with_a_warning() -> None:
    """One bad entry costs only itself."""
    findings = check_service(service(external_ips=["192.0.2.1", "foo"], ingress=["bar", "192.0.2.2"]))

    assert _fields(findings, Severity.WARNING) == ["spec.externalIPs[1]", "status.loadBalancer.ingress[0].ip"]


def test_bad_source_ranges_are_ignored_with_a_warning_each() -> None:
    """Trimmed and blank entries are fine; what is no prefix is named."""
    ranges = ["10.0.0.0/8", "foo", "", " 192.0.2.0/24 ", "10.0.0.1"]

    findings = check_service(service(source_ranges=ranges))

    assert _fields(findings, Severity.WARNING) == [f"spec.loadBalancerSourceRanges[{index}]" for index in (1, 4)]


@pytest.mark.parametrize("ranges", [["foo"], [""], ["10.0.0.1", "10.0.0.0/33"]])
def test_source_ranges_without_valid_entry_warn_that_the_address_is_open(ranges: list[str]) -> None:
    """Nobody should believe in a restriction that is none."""
    finding = check_service(service(source_ranges=ranges))[-1]

    assert finding.severity is Severity.WARNING
    assert finding.field == "spec.loadBalancerSourceRanges"
    assert "open to everybody" in finding.consequence


@pytest.mark.parametrize(
    ("ranges", "ingress", "cluster_ips", "open_families"),
    [
        (["4700::/32"], (), ["10.96.0.1"], ["IPv4"]),
        (["198.51.100.0/24"], (), ["10.96.0.1", "fd00::1"], ["IPv6"]),
        (["198.51.100.0/24"], ["192.0.2.1"], ["10.96.0.1", "fd00::1"], []),
        (["198.51.100.0/24"], ["192.0.2.1", "2001:db8::1"], ["10.96.0.1"], ["IPv6"]),
        (["198.51.100.0/24", "4700::/32"], (), ["10.96.0.1"], []),
    ],
)
def test_source_ranges_of_the_other_family_only_warn_that_a_family_is_open(
    ranges: list[str], ingress: list[str], cluster_ips: list[str], open_families: list[str]
) -> None:
    """A family without any range of its own is not restricted."""
    findings = check_service(service(source_ranges=ranges, ingress=ingress, cluster_ips=cluster_ips))

    ranges_alone = (finding for finding in findings if finding.field == "spec.loadBalancerSourceRanges")
    assert [finding.consequence.split()[1] for finding in ranges_alone] == open_families


def test_address_of_a_family_without_a_cluster_ip_is_named() -> None:
    """Rules of IPv6 are made for Services with an IPv6 cluster IP alone, whatever their other addresses are."""
    findings = check_service(service(ingress=["192.0.2.1", "2001:db8::1"], cluster_ips=["10.96.0.1"]))

    assert [(finding.field, finding.found) for finding in findings] == [
        ("status.loadBalancer.ingress[1].ip", '"2001:db8::1"')
    ]


def test_headless_service_with_external_ips_is_told_that_they_do_not_work() -> None:
    """No rules, no error, a note."""
    (finding,) = check_service(service(cluster_ip="None", external_ips=["192.0.2.1"]))

    assert (finding.severity, finding.field) == (Severity.WARNING, "spec.externalIPs")
    assert "headless" in finding.consequence


def test_findings_of_one_object_are_bounded() -> None:
    """A thousand bad addresses do not flood a log; their number is told."""
    findings = check_service(service(external_ips=["odd"] * 1000))

    assert len(findings) == MAX_FINDINGS + 1
    assert findings[-1].found == f"{1000 - MAX_FINDINGS} more oddities"


def test_rejection_is_not_lost_among_warnings() -> None:
    """The bound counts warnings and rejections apart."""
    crowded = service(external_ips=["odd"] * 1000, health_check_node_port=-1, ports=())

    assert Severity.REJECTED in {finding.severity for finding in check_service(crowded)}


def test_odd_values_are_printed_on_one_line() -> None:
    """Control characters and length of a value cannot break a log."""
    (finding,) = check_service(service("a\nb\x7f\u202e" + "c" * 500))

    assert str(finding).isprintable()
    assert len(finding.found) < 100


def test_node_with_odd_addresses_is_kept_with_warnings() -> None:
    """Addresses and prefixes that do not parse are ignored; a hostname is normal."""
    assert check_node(node(zone="a")) == ()
    findings = check_node(node(addresses=["foo", "192.0.2.010"], pod_cidrs=["10.244.1.0"]))

    assert _fields(findings, Severity.WARNING) == [
        "status.addresses[0].address",
        "status.addresses[1].address",
        "spec.podCIDRs[0]",
    ]


def test_node_without_usable_name_is_rejected() -> None:
    """A node is known by its name."""
    assert check_node(node("node-1.example.org")) == ()
    assert _fields(check_node(node("node 1")), Severity.REJECTED) == ["metadata.name"]


@pytest.mark.parametrize("known", [*Scheduler])
def test_annotation_with_a_known_scheduler_is_silent(known: str) -> None:
    """Whatever the configuration knows, an annotation may say."""
    assert check_service(service(annotations={SCHEDULER_ANNOTATION: known})) == ()


@pytest.mark.parametrize("unknown", ["sh", "RR", "", "wlc"])
def test_annotation_with_an_unknown_scheduler_is_named(unknown: str) -> None:
    """Object, field, what was found, what was expected, and what happens."""
    (finding,) = check_service(service(annotations={SCHEDULER_ANNOTATION: unknown}))

    assert (finding.object, finding.field) == ("Service default/web", "metadata.annotations[kproxy-ipt/scheduler]")
    assert (finding.found, finding.expected) == (f'"{unknown}"', "random or rr")
    assert finding.consequence == "the scheduler of the configuration counts"
    assert finding.severity is Severity.WARNING
