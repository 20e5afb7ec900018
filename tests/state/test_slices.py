"""How slices become the endpoints of service ports."""

from itertools import permutations

import msgspec
import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.objects.model import EndpointSlice, SliceEndpoint
from kproxy_ipt.state.model import Endpoint
from kproxy_ipt.state.slices import endpoints_by_port
from kproxy_ipt.testing.objects import endpoint_slice, slice_endpoint, slice_port

KEY = ("default", "web", "", "tcp")


def _endpoints(*slices: EndpointSlice, family: Family = Family.IPV4, node_name: str = "node1") -> tuple[Endpoint, ...]:
    return endpoints_by_port(slices, family, node_name).get(KEY, ())


def _texts(*slices: EndpointSlice) -> list[str]:
    return [endpoint.text for endpoint in _endpoints(*slices)]


def test_endpoints_are_sorted_by_the_bytes_of_their_text() -> None:
    """Digits stand before the colon, so the longer address comes first."""
    assert _texts(endpoint_slice(addresses=("10.2.2.2", "10.2.2.22"))) == ["10.2.2.22:80", "10.2.2.2:80"]


def test_slices_of_one_service_are_joined() -> None:
    """Disjoint slices add up, also if one of them is empty."""
    slices = [endpoint_slice(name=f"s{i}", addresses=(f"10.0.{i}.1", f"10.0.{i}.2")) for i in range(3)]

    assert len(_texts(*slices, endpoint_slice(name="empty", addresses=()))) == 6


def test_endpoint_in_two_slices_counts_once() -> None:
    """Slices that overlap in an address make no second endpoint."""
    first = endpoint_slice(name="a", addresses=("10.0.0.1", "10.0.0.2", "10.0.0.3"))
    second = endpoint_slice(name="b", addresses=("10.0.0.2", "10.0.0.3", "10.0.0.4"))

    assert len(_texts(first, second)) == 4


def test_slices_may_map_one_port_name_to_different_numbers() -> None:
    """All numbers are used."""
    first, second = endpoint_slice(name="a", ports=(80,)), endpoint_slice(name="b", ports=(8080,))

    assert _texts(first, second) == ["10.244.1.2:80", "10.244.1.2:8080"]


def test_other_service_namespace_and_protocol_are_not_mixed() -> None:
    """Namespace, Service, port name and protocol together are the key."""
    found = endpoints_by_port(
        [
            endpoint_slice("web"),
            endpoint_slice("other"),
            endpoint_slice("web", namespace="elsewhere"),
            endpoint_slice("web", name="u", ports=(slice_port(53, protocol="UDP"), slice_port(80, name="p"))),
        ],
        Family.IPV4,
        "",
    )

    assert {
        KEY,
        ("default", "other", "", "tcp"),
        ("elsewhere", "web", "", "tcp"),
        ("default", "web", "", "udp"),
        ("default", "web", "p", "tcp"),
    } == set(found)
    assert all(len(endpoints) == 1 for endpoints in found.values())


DEAD = slice_endpoint("172.30.4.119", ready=False, serving=False, terminating=True)
ALIVE = slice_endpoint("172.30.4.119", ready=True)


@pytest.mark.parametrize("entries", list(permutations((DEAD, ALIVE))))
@pytest.mark.parametrize("in_two_slices", [False, True])
def test_usable_endpoint_wins_over_a_terminating_one_with_its_address(
    entries: tuple[SliceEndpoint, SliceEndpoint], *, in_two_slices: bool
) -> None:
    """A new pod that got the address of a stuck one counts, in every layout, and once."""
    groups = [(entry,) for entry in entries] if in_two_slices else [entries]
    slices = [endpoint_slice(name=f"s{i}", addresses=group) for i, group in enumerate(groups)]

    (endpoint,) = _endpoints(*slices)

    assert endpoint.ready
    assert not endpoint.terminating


def test_first_of_equal_duplicates_wins() -> None:
    """Where kube-proxy leaves it to chance, the order of the slices decides."""
    ready, unready = slice_endpoint("10.0.0.1", ready=True), slice_endpoint("10.0.0.1", ready=False)

    assert _endpoints(endpoint_slice(addresses=(ready, unready)))[0].ready
    assert not _endpoints(endpoint_slice(addresses=(unready, ready)))[0].ready


def test_absent_conditions_mean_ready_and_serving() -> None:
    """Nothing said is nothing wrong."""
    bare = SliceEndpoint(addresses=("10.0.0.1",))

    (endpoint,) = _endpoints(endpoint_slice(addresses=(bare,)))

    assert (endpoint.ready, endpoint.serving, endpoint.terminating) == (True, True, False)


def test_endpoints_that_are_not_ready_are_kept() -> None:
    """Which of them are used is decided later."""
    unready = slice_endpoint("10.0.0.1", ready=False, serving=False)

    (endpoint,) = _endpoints(endpoint_slice(addresses=(unready,)))

    assert (endpoint.ready, endpoint.serving, endpoint.terminating) == (False, False, False)


@pytest.mark.parametrize(
    "odd",
    [
        endpoint_slice(ports=()),
        endpoint_slice(ports=(slice_port(None),)),
        endpoint_slice(ports=(slice_port(0),)),
        endpoint_slice(ports=(slice_port(80, name=None),)),
        endpoint_slice(addresses=()),
        endpoint_slice(addresses=(SliceEndpoint(addresses=()),)),
        endpoint_slice(addresses=(SliceEndpoint(),)),
        endpoint_slice(addresses=("x.example.com",), address_type="FQDN"),
        endpoint_slice(addresses=("10.0.0.256",)),
        endpoint_slice(addresses=("fd00::1",), address_type="IPv4"),
        endpoint_slice(addresses=("10.0.0.1",), address_type="IPv6"),
        endpoint_slice(of=""),
        endpoint_slice(labels={"service.kubernetes.io/headless": ""}),
        msgspec.structs.replace(endpoint_slice(), ports=None),
        msgspec.structs.replace(endpoint_slice(), endpoints=None),
    ],
)
def test_odd_slice_gives_no_endpoint_and_harms_no_other(odd: EndpointSlice) -> None:
    """A slice without label, ports, numbers or addresses is skipped; the good one next to it counts."""
    good = endpoint_slice(name="good", addresses=("10.0.0.9",))

    assert _texts(odd) == []
    assert _texts(odd, good) == ["10.0.0.9:80"]


def test_slice_without_labels_is_skipped() -> None:
    """A slice that names no Service belongs to none."""
    plain = endpoint_slice()
    unlabelled = msgspec.structs.replace(plain, metadata=msgspec.structs.replace(plain.metadata, labels=None))

    assert endpoints_by_port([unlabelled], Family.IPV4, "") == {}


def test_only_the_first_address_of_an_entry_counts() -> None:
    """By contract of the API, further addresses are alternatives for the same endpoint."""
    assert _texts(endpoint_slice(addresses=(slice_endpoint("10.244.2.21", "10.244.2.22"),))) == ["10.244.2.21:80"]


def test_padded_address_is_canonical_in_the_text() -> None:
    """The identity of an endpoint is made of the canonical address."""
    assert _texts(endpoint_slice(addresses=("10.244.001.011", "10.244.1.11"))) == ["10.244.1.11:80"]


def test_ipv6_endpoint_has_brackets() -> None:
    """An IPv6 address and its port are told apart by brackets."""
    (endpoint,) = _endpoints(endpoint_slice(addresses=("FD00::00A",)), family=Family.IPV6)

    assert (endpoint.address, endpoint.text) == ("fd00::a", "[fd00::a]:80")


@pytest.mark.parametrize(
    ("entry_node", "own_node", "is_local"),
    [("node1", "node1", True), ("node2", "node1", False), (None, "node1", False), ("", "", False), (None, "", False)],
)
def test_endpoint_is_local_if_it_names_this_node(entry_node: str | None, own_node: str, *, is_local: bool) -> None:
    """Without an own name nothing is local."""
    slices = (endpoint_slice(addresses=(slice_endpoint("10.0.0.1", node_name=entry_node),)),)

    assert is_local is _endpoints(*slices, node_name=own_node)[0].is_local


def test_hints_are_carried_over() -> None:
    """Names of zones and of nodes, each in the order of the slice."""
    hinted = slice_endpoint("10.0.0.1", zone_hints=("b", "a"), node_hints=("n",))

    (endpoint,) = _endpoints(endpoint_slice(addresses=(hinted,)))

    assert (endpoint.zone_hints, endpoint.node_hints) == (("b", "a"), ("n",))


def test_absent_protocol_is_tcp() -> None:
    """The default of the API holds for hand-made slices, too."""
    assert _texts(endpoint_slice(ports=(slice_port(80, protocol=None),))) == ["10.244.1.2:80"]


@pytest.mark.parametrize(
    ("service_port_name", "slice_port_name", "matches"),
    [("", "web", False), ("", "", True), ("web", "web", True), ("web", "", False), ("a", "b", False)],
)
def test_ports_of_slices_match_by_name_only(service_port_name: str, slice_port_name: str, *, matches: bool) -> None:
    """The empty name is that of the unnamed port; numbers are not compared."""
    found = endpoints_by_port([endpoint_slice(ports=(slice_port(1234, name=slice_port_name),))], Family.IPV4, "")

    assert matches is (("default", "web", service_port_name, "tcp") in found)
