"""A tree sends every packet where the row of rules would send it: recorded cases and worlds at random."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, note, settings

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config, Dispatch, ShapeConfig
from kproxy_ipt.objects.model import Objects
from kproxy_ipt.rules import dispatch_tree
from kproxy_ipt.rules.build import build_ruleset, with_base_chains
from kproxy_ipt.ruleset.model import Ruleset
from kproxy_ipt.state.model import MachineFacts, NodeFacts, Snapshot
from kproxy_ipt.state.snapshot import take_snapshot
from kproxy_ipt.testing.desired import desired_for
from kproxy_ipt.testing.golden_case import load_case
from kproxy_ipt.testing.objects import endpoint_slice, service, service_port
from kproxy_ipt.testing.recorded import INTERFACE_ADDRESSES
from kproxy_ipt.testing.worlds import World, worlds
from kproxy_ipt.trace.equivalence import compare_behaviour
from kproxy_ipt.trace.packet import Host

pytestmark = pytest.mark.usefixtures("small_leaves")

CASES = sorted(path.parent for path in (Path(__file__).parents[1] / "golden").glob("*/case.yaml"))
HOST = Host(addresses=frozenset(INTERFACE_ADDRESSES))


@pytest.fixture(scope="module")
def small_leaves() -> Iterator[None]:
    """So that few Services make trees."""
    patch = pytest.MonkeyPatch()
    patch.setattr(dispatch_tree, "LEAF_RULES", 1)
    yield
    patch.undo()


def _both(snapshot: Snapshot, config: Config, machine: MachineFacts) -> tuple[Ruleset, Ruleset]:
    """As a row and as a tree."""
    row, tree = (
        with_base_chains(build_ruleset(snapshot, _shaped(config, dispatch), machine))
        for dispatch in (Dispatch.LINEAR, Dispatch.TREE)
    )
    return row, tree


def _shaped(config: Config, dispatch: Dispatch) -> Config:
    return msgspec.structs.replace(config, shape=ShapeConfig(dispatch=dispatch))


@pytest.mark.parametrize("family", list(Family))
@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_recorded_cases_act_alike_as_trees(folder: Path, family: Family) -> None:
    """Every recorded situation, both families."""
    case = load_case(folder)
    row, tree = _both(take_snapshot(case.objects, family, case.node), case.config, case.machine)

    assert compare_behaviour(row, tree, HOST).equal


def test_most_recorded_cases_have_branches() -> None:
    """The comparison above compares something."""
    branched = 0
    for folder in CASES:
        case = load_case(folder)
        row, tree = _both(take_snapshot(case.objects, Family.IPV4, case.node), case.config, case.machine)
        branched += len(tree.tables["nat"].chains) + len(tree.tables["filter"].chains) > len(
            row.tables["nat"].chains
        ) + len(row.tables["filter"].chains)

    assert branched > len(CASES) / 3


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(world=worlds())
def test_worlds_at_random_act_alike_as_trees(world: World) -> None:
    """Services of all kinds, policies and families."""
    note(world.as_yaml())
    objects = Objects(services=world.services, endpoint_slices=world.slices)
    snapshot = take_snapshot(objects, world.family, NodeFacts(name="node"))
    row, tree = _both(snapshot, world.config, MachineFacts())

    assert compare_behaviour(row, tree, HOST).equal


def test_external_address_that_is_the_nodes_keeps_its_order_with_node_ports() -> None:
    """A rule for an address and one for a node port can match one packet: dropped or refused, the first one decides."""
    local = service(
        "a",
        service_type="NodePort",
        external_policy="Local",
        ports=(service_port(80, node_port=30080),),
    )
    elsewhere = endpoint_slice(local, ("10.244.9.9",))
    external = service("b", cluster_ip="10.96.0.77", external_ips=("172.31.0.2",), ports=(service_port(30080),))
    for objects in ((local, elsewhere, external), (external,)):
        row, tree = (
            with_base_chains(desired_for(*objects, config=Config(shape=ShapeConfig(dispatch=dispatch))))
            for dispatch in (Dispatch.LINEAR, Dispatch.TREE)
        )
        assert compare_behaviour(row, tree, HOST).equal
