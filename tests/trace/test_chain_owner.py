"""Chain names lead back to the service ports they were computed from."""

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.rules.names import FIXED_CHAINS
from kproxy_ipt.testing.desired import desired_for, snapshot_of
from kproxy_ipt.testing.objects import endpoint_slice, service, service_port
from kproxy_ipt.trace.chain_owner import FIXED_CHAIN_MEANINGS, chain_owners

_OBJECTS = (
    service(
        service_type="LoadBalancer",
        ports=[service_port(node_port=30080)],
        ingress=["192.0.2.201"],
        source_ranges=["192.0.2.0/24"],
    ),
    endpoint_slice("web"),
    service("other", cluster_ip="10.96.0.11"),
)
_SNAPSHOTS = {Family.IPV4: snapshot_of(*_OBJECTS)}


def test_every_chain_that_is_written_leads_back_to_its_service_port() -> None:
    """Without a look at comments, which large clusters do not have."""
    owners = desired_for(*_OBJECTS).owners
    found = {name: chain_owners(name, _SNAPSHOTS) for name in owners}

    assert {name.split("-")[1] for name in owners} == {"SVC", "EXT", "FW", "SEP"}
    assert owners == {name: one[0].service_port for name, one in found.items()}
    assert all(one[0].stands for one in found.values())


def test_endpoint_chain_tells_its_endpoint() -> None:
    """The chain of one endpoint is found by service port and `ip:port` together."""
    name = next(name for name in desired_for(*_OBJECTS).owners if name.startswith("KUBE-SEP-"))

    assert [owner.endpoint for owner in chain_owners(name, _SNAPSHOTS)] == ["10.244.1.2:80"]


def test_chain_that_is_not_written_is_found_and_does_not_stand() -> None:
    """A Service without endpoints has names all the same."""
    with_endpoints = desired_for(_OBJECTS[2], endpoint_slice("other"))
    name = next(name for name in with_endpoints.owners if name.startswith("KUBE-SVC-"))
    (owner,) = chain_owners(name, _SNAPSHOTS)

    assert (owner.service_port, owner.stands) == ("default/other", False)


@pytest.mark.parametrize("name", ["KUBE-SVC-AAAAAAAAAAAAAAAA", "KUBE-SEP-AAAAAAAAAAAAAAAA", "FORWARD", ""])
def test_unknown_name_has_no_owner(name: str) -> None:
    """Nothing is guessed."""
    assert chain_owners(name, _SNAPSHOTS) == ()


def test_every_fixed_chain_has_a_meaning() -> None:
    """A chain that we write without a service is explained too."""
    assert {name for names in FIXED_CHAINS.values() for name in names} <= set(FIXED_CHAIN_MEANINGS)
