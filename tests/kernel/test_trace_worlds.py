"""The walk and the kernel agree in worlds that nobody thought of; `make soak` has more of them, others each time."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, given, note, settings

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config
from kproxy_ipt.daemon.machine import BackendWish
from kproxy_ipt.testing.lab_objects import cluster_ip
from kproxy_ipt.testing.objects import endpoint_slice, service
from kproxy_ipt.testing.topology import CLUSTER_CIDRS
from kproxy_ipt.testing.world_lab import Comparison, WorldLab, world_lab
from kproxy_ipt.testing.worlds import TARGET_PORTS, World, pod_addresses, remote_addresses, worlds

pytestmark = pytest.mark.kernel


@pytest.fixture(scope="module")
def made_for_worlds(backend: BackendWish) -> Iterator[WorldLab]:
    """One lab for all worlds: each of them replaces the Services of the one before."""
    with world_lab(backend) as made:
        yield made


@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.generate,),  # a world that disagrees is small enough to be read as it is
    suppress_health_check=[HealthCheck.too_slow],
)
@given(world=worlds())
def test_packets_of_generated_worlds_end_where_the_walk_says(made_for_worlds: WorldLab, world: World) -> None:
    """Verdict, endpoints, source address and shares, for Services of all kinds, policies and families."""
    note(world.as_yaml())

    assert made_for_worlds.compare(world).disagreements == ()


def _balanced(family: Family) -> World:
    """One Service before a pod and a pod elsewhere."""
    web = service(cluster_ip=cluster_ip(family))
    addresses = [pod_addresses(family)[0], remote_addresses(family)[0]]
    entries = endpoint_slice(web, addresses, ports=TARGET_PORTS[:1])
    config = Config(cluster_cidrs=tuple(CLUSTER_CIDRS.values()))
    return World(family=family, services=(web,), slices=(entries,), config=config)


def _compared(family: Family, *rule_of_pod: str) -> Comparison:
    """With a rule in the pod, which the walk does not know of."""
    with world_lab("nft") as made:
        made.lab.pod("podA").run(f"{'ip6tables' if family is Family.IPV6 else 'iptables'}-nft", *rule_of_pod)
        return made.compare(_balanced(family))


def test_an_endpoint_that_refuses_by_itself_is_a_disagreement(family: Family) -> None:
    """The comparison sees outcomes and shares: one of two endpoints is behind a rule of its own."""
    found = _compared(
        family, "-A", "INPUT", "-p", "tcp", "--dport", "8080", "-j", "REJECT", "--reject-with", "tcp-reset"
    )

    assert len(found.disagreements) == found.probes["answered"] + found.shares
    assert found.shares


def test_a_source_that_somebody_else_translates_is_a_disagreement(family: Family) -> None:
    """The comparison sees source addresses as the endpoint does."""
    stranger = {Family.IPV4: "203.0.113.9", Family.IPV6: "2001:db8:cafe::9"}[family]
    found = _compared(family, "-t", "nat", "-A", "INPUT", "-p", "tcp", "-j", "SNAT", "--to-source", stranger)

    assert all("from one of" in line for line in found.disagreements)
    assert len(found.disagreements) == found.probes["answered"] > 0
