"""Checks of EndpointSlices and legacy Endpoints."""

import msgspec
import pytest

from kproxy_ipt.errors import Finding, Severity
from kproxy_ipt.objects.check_endpoints import check_endpoint_slice, check_endpoints
from kproxy_ipt.objects.model import (
    EndpointAddress,
    Endpoints,
    EndpointSlice,
    EndpointSubset,
    ObjectMeta,
    SliceEndpoint,
)
from kproxy_ipt.testing.objects import endpoint_slice, slice_endpoint, slice_port


def _fields(findings: tuple[Finding, ...], severity: Severity) -> list[str]:
    """The fields of findings that must all be of one severity."""
    assert {finding.severity for finding in findings} <= {severity}
    return [finding.field for finding in findings]


@pytest.mark.parametrize(
    "clean",
    [
        endpoint_slice(),
        endpoint_slice("web", ["fd00::1"]),
        endpoint_slice("web", [], ports=[]),
        endpoint_slice(ports=[slice_port(name="http"), slice_port(53, name="dns", protocol="UDP")]),
        endpoint_slice(name="web.example-abc12", labels={"service.kubernetes.io/headless": ""}),
        endpoint_slice(ports=[slice_port(protocol=None)]),
    ],
)
def test_normal_slice_gives_no_finding(clean: EndpointSlice) -> None:
    """What the controllers write is silent."""
    assert check_endpoint_slice(clean) == ()


@pytest.mark.parametrize(
    ("rejected", "field"),
    [
        (endpoint_slice(namespace="a b"), "metadata.namespace"),
        (endpoint_slice(name="a\n"), "metadata.name"),
        (endpoint_slice(name="a" * 254), "metadata.name"),
        (endpoint_slice(address_type="ipv4", name="a"), "addressType"),
        (endpoint_slice(address_type="", name="a"), "addressType"),
        (endpoint_slice(ports=[65536]), "ports[0].port"),
        (endpoint_slice(ports=[-1]), "ports[0].port"),
        (endpoint_slice(ports=[slice_port(name='a"b')]), "ports[0].name"),
        (endpoint_slice(ports=[slice_port(protocol="tcp")]), "ports[0].protocol"),
    ],
)
def test_slice_that_could_spoil_a_rule_is_rejected(rejected: EndpointSlice, field: str) -> None:
    """Names, numbers and words that no rule can hold set the slice aside."""
    findings = check_endpoint_slice(rejected)

    assert field in {finding.field for finding in findings if finding.severity is Severity.REJECTED}


@pytest.mark.parametrize(
    ("odd", "field", "consequence"),
    [
        (endpoint_slice(labels={"kubernetes.io/service-name": ""}), "service-name", "this slice is ignored"),
        (endpoint_slice("web", ["a.example"], address_type="FQDN"), "addressType", "this slice is ignored"),
        (endpoint_slice(ports=[slice_port(name=None)]), "ports[0].name", "this port is ignored"),
        (endpoint_slice(ports=[slice_port(None)]), "ports[0].port", "this port is ignored"),
        (endpoint_slice(ports=[slice_port(0)]), "ports[0].port", "this port is ignored"),
        (endpoint_slice("web", [SliceEndpoint()]), "endpoints[0].addresses", "this endpoint is ignored"),
        (endpoint_slice("web", ["foo"]), "endpoints[0].addresses[0]", "this endpoint is ignored"),
        (endpoint_slice("web", ["10.0.0.1", "::1"], address_type="IPv4"), "endpoints[1]", "this endpoint is ignored"),
        (endpoint_slice("web", ["::ffff:10.0.0.1"], address_type="IPv6"), "endpoints[0]", "this endpoint is ignored"),
        (endpoint_slice("web", ["10.244.001.011"]), "endpoints[0].addresses[0]", "read as 10.244.1.11"),
        (endpoint_slice("web", [slice_endpoint("10.0.0.1", "10.0.0.2")]), "addresses[1]", "only the first address"),
    ],
)
def test_odd_slice_is_kept_with_a_warning(odd: EndpointSlice, field: str, consequence: str) -> None:
    """One bad port or endpoint costs only itself, and the finding says so."""
    (finding,) = check_endpoint_slice(odd)

    assert finding.severity is Severity.WARNING
    assert field in finding.field
    assert consequence in finding.consequence


def _endpoints(*subsets: EndpointSubset, name: str = "web") -> Endpoints:
    """An Endpoints object with these subsets."""
    return Endpoints(metadata=ObjectMeta(name=name, namespace="shop"), subsets=subsets)


def test_normal_endpoints_give_no_finding() -> None:
    """A port without a name is the unnamed port."""
    subset = EndpointSubset(addresses=(EndpointAddress("10.0.0.1"),), ports=(slice_port(name=None),))

    assert check_endpoints(_endpoints(subset)) == ()


def test_odd_addresses_of_endpoints_are_ignored_with_a_warning() -> None:
    """Each address that does not parse is named."""
    subset = EndpointSubset(addresses=(EndpointAddress("foo"),), not_ready_addresses=(EndpointAddress(""),))

    assert _fields(check_endpoints(_endpoints(subset)), Severity.WARNING) == [
        "subsets[0].addresses[0].ip",
        "subsets[0].notReadyAddresses[0].ip",
    ]


def test_more_addresses_than_are_mirrored_give_a_warning() -> None:
    """The mirroring controller stops after 1000 addresses of a subset."""
    many = tuple(EndpointAddress(f"10.0.{number // 250}.{number % 250}") for number in range(1001))

    (finding,) = check_endpoints(_endpoints(EndpointSubset(addresses=many)))

    assert (finding.field, finding.found) == ("subsets[0]", "1001")


def test_bad_port_or_name_of_endpoints_is_rejected() -> None:
    """The same limits as for slices."""
    subset = EndpointSubset(ports=(slice_port(70000),))

    assert _fields(check_endpoints(_endpoints(subset)), Severity.REJECTED) == ["subsets[0].ports[0].port"]
    assert _fields(check_endpoints(_endpoints(name="a b")), Severity.REJECTED) == ["metadata.name"]


def test_missing_label_mapping_is_a_missing_label() -> None:
    """A slice without any label belongs to no Service."""
    plain = endpoint_slice()
    bare = msgspec.structs.replace(plain, metadata=msgspec.structs.replace(plain.metadata, labels=None))

    assert [finding.consequence for finding in check_endpoint_slice(bare)] == ["this slice is ignored"]
