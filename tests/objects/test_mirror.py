"""Legacy Endpoints become slices."""

from collections.abc import Mapping

import pytest

from kproxy_ipt.objects.check_endpoints import check_endpoint_slice
from kproxy_ipt.objects.mirror import LEADER_ANNOTATION, SKIP_MIRROR_LABEL, mirror_endpoints
from kproxy_ipt.objects.model import EndpointAddress, Endpoints, EndpointSubset, ObjectMeta, SlicePort
from kproxy_ipt.testing.objects import slice_port


def _addresses(*texts: str) -> tuple[EndpointAddress, ...]:
    """Addresses of a subset."""
    return tuple(EndpointAddress(text) for text in texts)


def _endpoints(
    *subsets: EndpointSubset,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Endpoints:
    """The Endpoints object `shop/web` with these subsets."""
    metadata = ObjectMeta(name="web", namespace="shop", labels=labels, annotations=annotations)
    return Endpoints(metadata=metadata, subsets=subsets)


def test_mirrored_slice_belongs_to_the_service_of_the_same_name() -> None:
    """Labels are kept, the label that names the Service is added."""
    subset = EndpointSubset(addresses=_addresses("10.0.0.1"), ports=(slice_port(8080, name="http"),))

    (mirrored,) = mirror_endpoints(_endpoints(subset, labels={"a": "b"}))

    assert mirrored.metadata.namespace == "shop"
    assert mirrored.metadata.labels == {"a": "b", "kubernetes.io/service-name": "web"}
    assert mirrored.ports == (slice_port(8080, name="http"),)
    assert check_endpoint_slice(mirrored) == ()


def test_not_ready_addresses_are_not_ready_endpoints() -> None:
    """Nothing else is known about the condition of an address; its node is kept."""
    subset = EndpointSubset(
        addresses=(EndpointAddress("10.0.0.1", node_name="node1"),), not_ready_addresses=_addresses("10.0.0.2")
    )

    (mirrored,) = mirror_endpoints(_endpoints(subset))
    endpoints = mirrored.endpoints or ()
    conditions = [endpoint.conditions for endpoint in endpoints]

    assert [endpoint.addresses for endpoint in endpoints] == [("10.0.0.1",), ("10.0.0.2",)]
    assert [condition.ready for condition in conditions if condition] == [True, False]
    assert [endpoint.node_name for endpoint in endpoints] == ["node1", None]


def test_families_become_slices_of_their_own() -> None:
    """A slice has one address type."""
    mirrored = mirror_endpoints(_endpoints(EndpointSubset(addresses=_addresses("fd00::1", "10.0.0.1"))))

    assert [(found.metadata.name, found.address_type) for found in mirrored] == [
        ("web-ipv4-1", "IPv4"),
        ("web-ipv6-2", "IPv6"),
    ]


def test_subsets_with_the_same_ports_are_joined() -> None:
    """The order of the ports does not matter."""
    first, second = slice_port(1, name="a"), slice_port(2, name="b")
    subsets = (
        EndpointSubset(addresses=_addresses("10.0.0.1"), ports=(first, second)),
        EndpointSubset(addresses=_addresses("10.0.0.2"), ports=(second, first)),
        EndpointSubset(addresses=_addresses("10.0.0.3"), ports=(first,)),
    )

    mirrored = mirror_endpoints(_endpoints(*subsets))

    assert [len(found.endpoints or ()) for found in mirrored] == [2, 1]


def test_port_without_name_is_the_unnamed_port() -> None:
    """Endpoints leave out the empty name, slices must not."""
    subset = EndpointSubset(addresses=_addresses("10.0.0.1"), ports=(SlicePort(port=80),))

    (mirrored,) = mirror_endpoints(_endpoints(subset))

    assert mirrored.ports == (SlicePort(name="", protocol="TCP", port=80),)


def test_address_that_is_ready_somewhere_is_one_endpoint() -> None:
    """Repeated addresses of one slice count once, the first time."""
    subset = EndpointSubset(addresses=_addresses("10.0.0.1"), not_ready_addresses=_addresses("10.0.0.1", "10.0.0.01"))

    (mirrored,) = mirror_endpoints(_endpoints(subset))

    assert len(mirrored.endpoints or ()) == 1


def test_addresses_that_do_not_parse_are_left_out() -> None:
    """They have no family, so no slice can hold them."""
    assert mirror_endpoints(_endpoints(EndpointSubset(addresses=_addresses("foo", "")))) == ()


def test_only_the_first_thousand_addresses_of_a_subset_are_mirrored() -> None:
    """Ready ones come first."""
    ready = _addresses(*(f"10.0.{number // 250}.{number % 250}" for number in range(999)))
    subset = EndpointSubset(addresses=ready, not_ready_addresses=_addresses("10.1.0.1", "10.1.0.2"))

    (mirrored,) = mirror_endpoints(_endpoints(subset))
    endpoints = mirrored.endpoints or ()

    assert len(endpoints) == 1000
    assert endpoints[-1].addresses == ("10.1.0.1",)


@pytest.mark.parametrize(
    ("labels", "annotations", "count"),
    [
        ({SKIP_MIRROR_LABEL: "true"}, {}, 0),
        ({SKIP_MIRROR_LABEL: "false"}, {}, 1),
        ({}, {LEADER_ANNOTATION: "{}"}, 0),
    ],
)
def test_objects_that_ask_not_to_be_mirrored_are_not(
    labels: Mapping[str, str], annotations: Mapping[str, str], count: int
) -> None:
    """A label says so, and leader election records are no endpoints."""
    subset = EndpointSubset(addresses=_addresses("10.0.0.1"))

    assert len(mirror_endpoints(_endpoints(subset, labels=labels, annotations=annotations))) == count
