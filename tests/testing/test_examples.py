"""The example manifests: they are read without a word of complaint, and their addresses exist in the lab."""

from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from kproxy_ipt.objects.decode import Decoded, decode_documents
from kproxy_ipt.testing import topology
from kproxy_ipt.testing.demo import EXAMPLES, PODS, SCENARIOS

_FILES = sorted(EXAMPLES.glob("*.yaml"))


def _decoded(path: Path) -> tuple[Decoded, ...]:
    return tuple(decode_documents(path.read_bytes(), path.name))


def test_examples_exist_for_every_kind_of_service() -> None:
    """The examples are those that the documentation names."""
    names = {path.stem for path in _FILES}

    assert names == {"dns", "node", "public", "sticky", "web", "web-local", "web-node-port"}


@pytest.mark.parametrize("path", _FILES, ids=lambda path: path.stem)
def test_example_is_read_without_a_finding(path: Path) -> None:
    """Nothing in an example is odd, ignored or set aside."""
    documents = _decoded(path)

    assert [each.findings for each in documents] == [()] * len(documents)
    assert [dict(each.ignored) for each in documents] == [{}] * len(documents)


@pytest.mark.parametrize("path", _FILES, ids=lambda path: path.stem)
def test_example_begins_with_a_comment_that_teaches(path: Path) -> None:
    """The first line says what the example shows."""
    assert path.read_text(encoding="utf-8").startswith("# ")


def test_ready_local_endpoints_are_pods_of_the_demo() -> None:
    """Each endpoint on node n1 is the address of a pod of the lab; the others are in the range of the remote node."""
    lab = {address for own in topology.addresses(PODS, topology.BOTH).values() for address in own.values()}
    slices = [each for path in _FILES for document in _decoded(path) for each in document.endpoint_slices]
    endpoints = [endpoint for each in slices for endpoint in each.endpoints or ()]

    local = {address for each in endpoints if each.node_name == "n1" for address in each.addresses or ()}
    remote = {address for each in endpoints if each.node_name == "n2" for address in each.addresses or ()}
    assert local
    assert local <= lab
    assert {address.split(".")[2] for address in remote if "." in address} == {"2"}


def test_service_addresses_are_distinct_and_in_the_service_range() -> None:
    """No two examples claim one cluster address, and all lie in the ranges that the lab routes."""
    services = [each for path in _FILES for document in _decoded(path) for each in document.services]
    claimed = [ip for each in services for ip in each.spec.cluster_ips or (each.spec.cluster_ip or "",)]
    ranges = [ip_network(prefix) for prefix in topology.SERVICE_CIDRS.values()]

    assert len(set(claimed)) == len(claimed) == 7
    assert all(any(ip_address(ip) in prefix for prefix in ranges) for ip in claimed)


def test_demo_visits_every_service_of_the_examples() -> None:
    """Each example Service has a scenario that connects to its name port or one of its addresses."""
    visited = {(scenario.address, scenario.port) for scenario in SCENARIOS}
    services = [each for path in _FILES for document in _decoded(path) for each in document.services]

    for service in services:
        port = (service.spec.ports or ())[0]
        balancer = service.status.load_balancer.ingress or () if service.status and service.status.load_balancer else ()
        ways = {(service.spec.cluster_ip, port.port), ("192.0.2.10", port.node_port)}
        ways |= {(each.ip, port.port) for each in balancer}
        assert ways & visited, service.metadata.name
