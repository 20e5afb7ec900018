"""Grouped balancing acts as one row does, and those who read rules understand it."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Balance, Config, Scheduler, ShapeConfig
from kproxy_ipt.rules.build import assemble, service_port_rules, with_base_chains
from kproxy_ipt.rules.options import rule_options
from kproxy_ipt.ruleset.model import Chain, Ruleset, Table
from kproxy_ipt.state.model import MachineFacts, Snapshot
from kproxy_ipt.state.snapshot import node_facts, take_snapshot
from kproxy_ipt.testing.desired import snapshot_of
from kproxy_ipt.testing.objects import endpoint_slice, service, service_port, slice_endpoint
from kproxy_ipt.testing.recorded import INTERFACE_ADDRESSES, recorded_case
from kproxy_ipt.trace.chain_owner import chain_owners
from kproxy_ipt.trace.compare import compare
from kproxy_ipt.trace.conditions import share_words
from kproxy_ipt.trace.equivalence import compare_behaviour
from kproxy_ipt.trace.graph import build_graph
from kproxy_ipt.trace.packet import Host
from kproxy_ipt.trace.service_reading import read_ruleset

GOLDEN = Path(__file__).parents[1] / "golden"
CASES = sorted(path.parent for path in GOLDEN.glob("*/case.yaml"))
HOST = Host(addresses=frozenset(INTERFACE_ADDRESSES))
LINEAR, GROUPED = ShapeConfig(balance=Balance.LINEAR), ShapeConfig(balance=Balance.GROUPED)


def _rules(
    snapshot: Snapshot,
    shape: ShapeConfig,
    *,
    config: Config | None = None,
    machine: MachineFacts | None = None,
    capacity: int = 24,
) -> Ruleset:
    """The rules of *snapshot* in one shape, with groups of at most *capacity* endpoints."""
    shaped = msgspec.structs.replace(config or Config(cluster_cidrs=("10.244.0.0/16",)), shape=shape)
    count = sum(len(state.endpoints) for state in snapshot.services.values())
    options = rule_options(shaped, snapshot.node, machine or MachineFacts(), snapshot.family, endpoint_count=count)
    options = msgspec.structs.replace(options, group_capacity=capacity)
    parts = [service_port_rules(state, snapshot.node, options) for state in snapshot.services.values()]
    return with_base_chains(assemble(parts, options, endpoint_count=count))


def _web(count: int, *, timeout_s: int | None = None, local: int = 0) -> Snapshot:
    web = service(
        service_type="NodePort",
        ports=[service_port(80, node_port=30080)],
        affinity_timeout_s=timeout_s,
        external_policy="Local" if local else "Cluster",
    )
    entries = [
        slice_endpoint(
            f"10.{200 + one // 60000}.{one // 250 % 240}.{one % 250 + 1}", node_name=f"node{int(one >= local)}"
        )
        for one in range(count)
    ]
    return snapshot_of(web, endpoint_slice(web, entries), node_name="node0")


@pytest.mark.parametrize("timeout_s", [None, 60])
@pytest.mark.parametrize(("count", "local"), [(25, 0), (100, 30), (384, 100), (1000, 0), (1501, 0)])
def test_groups_treat_every_packet_as_one_row_does(count: int, local: int, timeout_s: int | None) -> None:
    """Known clients and new ones, under both policies."""
    snapshot = _web(count, timeout_s=timeout_s, local=local)
    report = compare_behaviour(_rules(snapshot, LINEAR), _rules(snapshot, GROUPED), HOST, tolerance=1e-8)

    assert (report.equal, report.differences, report.undecided) == (True, (), ())


@pytest.mark.parametrize("family", list(Family))
@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_recorded_cases_act_alike_in_groups_of_one(folder: Path, family: Family) -> None:
    """Groups of at most one endpoint: as soon as there are two, there are groups."""
    case = recorded_case(folder)
    snapshot = take_snapshot(case.objects, family, node_facts(case.objects.nodes, case.node_name))
    linear = _rules(snapshot, LINEAR, config=case.config, machine=case.machine)
    grouped = _rules(snapshot, GROUPED, config=case.config, machine=case.machine, capacity=1)
    report = compare_behaviour(linear, grouped, HOST)

    assert (report.equal, report.differences) == (True, ())


@given(
    st.sets(st.integers(0, 3000), max_size=40),
    st.sampled_from([1, 2, 5]),
    st.sampled_from([None, 60]),
    st.sampled_from(["Cluster", "Local"]),
)
@settings(max_examples=60, deadline=None)
def test_any_set_in_groups_of_any_size_acts_as_one_row(
    numbers: set[int], capacity: int, timeout_s: int | None, policy: str
) -> None:
    """With endpoints on this node and on another one."""
    web = service(
        service_type="NodePort",
        ports=[service_port(80, node_port=30080)],
        affinity_timeout_s=timeout_s,
        external_policy=policy,
        internal_policy=policy,
    )
    entries = [slice_endpoint(f"10.1.{one // 250}.{one % 250 + 1}", node_name=f"node{one % 2}") for one in numbers]
    snapshot = snapshot_of(web, endpoint_slice(web, entries, address_type="IPv4"), node_name="node0")
    grouped = _rules(snapshot, GROUPED, capacity=capacity)

    assert compare_behaviour(_rules(snapshot, LINEAR), grouped, HOST).equal
    assert read_ruleset(grouped).orphans == ()


def test_group_that_lacks_a_rule_is_noticed() -> None:
    """The comparison can fail: an endpoint less in one of the groups."""
    snapshot = _web(100)
    grouped = _rules(snapshot, GROUPED)
    (view,) = read_ruleset(grouped).services.values()
    chains = dict(grouped.tables["nat"].chains)
    name = sorted(view.groups)[0]
    chains[name] = Chain(name, chains[name].rules[1:])
    broken = Ruleset(grouped.family, {**grouped.tables, "nat": Table("nat", chains)})

    assert not compare_behaviour(_rules(snapshot, LINEAR), broken, HOST).equal
    assert compare(grouped, broken).services


@pytest.mark.parametrize(("count", "local"), [(25, 0), (400, 30), (5000, 0)])
def test_grouped_service_is_read_with_equal_shares(count: int, local: int) -> None:
    """All endpoints, nothing unread, no chain left over."""
    reading = read_ruleset(_rules(_web(count, local=local), GROUPED))
    (view,) = reading.services.values()

    assert (view.unread, reading.orphans, view.scheduler) == ((), (), "random")
    assert {share_words(one.share) for one in view.endpoints} == {f"1/{count}"}
    assert (len(view.endpoints), len(view.local_endpoints)) == (count, local)
    assert len(view.groups) > 8


def test_shape_alone_is_no_difference() -> None:
    """Endpoints, shares and policies are the same."""
    snapshot = _web(400, local=30, timeout_s=60)

    assert compare(_rules(snapshot, LINEAR), _rules(snapshot, GROUPED)).services == ()


def test_missing_group_is_told() -> None:
    """As the connections that reach no endpoint."""
    grouped = _rules(_web(30), GROUPED)
    (view,) = read_ruleset(grouped).services.values()
    chains = {name: one for name, one in grouped.tables["nat"].chains.items() if name != sorted(view.groups)[0]}
    broken = Ruleset(grouped.family, {**grouped.tables, "nat": Table("nat", chains)})
    (after,) = read_ruleset(broken).services.values()

    assert any("of connections reach no endpoint" in line for line in after.unread)


def test_another_scheduler_is_told() -> None:
    """Shares are the same, so it has to be said."""
    snapshot = _web(3)
    rotating = _rules(snapshot, ShapeConfig(scheduler=Scheduler.RR))
    (change,) = compare(_rules(snapshot, LINEAR), rotating).services
    (view,) = read_ruleset(rotating).services.values()

    assert change.words == ("scheduler random -> rr",)
    assert {share_words(one.share) for one in view.endpoints} == {"1/3"}


def test_one_endpoint_has_no_scheduler_to_change() -> None:
    """The rules are the same."""
    snapshot = _web(1)

    assert compare(_rules(snapshot, LINEAR), _rules(snapshot, ShapeConfig(scheduler=Scheduler.RR))).services == ()


def test_graph_names_groups_and_their_shares() -> None:
    """A picture of 30 endpoints: each way into a group has its part of the connections."""
    graph = build_graph(_rules(_web(30), GROUPED), "default/web")
    groups = {node.key for node in graph.nodes if "group of endpoints" in node.lines}
    into = [edge.lines for edge in graph.edges if edge.target in groups]

    assert len(groups) > 8
    assert len(into) == len(groups)
    assert all(len(lines) == 1 and lines[0].startswith("share ") for lines in into)


def test_group_chains_lead_back_to_their_service_port() -> None:
    """Without a look at rules; whether they stand follows from the configuration."""
    snapshot = _web(400, local=30)
    (view,) = read_ruleset(_rules(snapshot, GROUPED)).services.values()
    found = [chain_owners(name, {Family.IPV4: snapshot}, GROUPED) for name in view.groups]

    assert {(one[0].service_port, one[0].stands) for one in found} == {("default/web", True)}
    assert all(not chain_owners(name, {Family.IPV4: snapshot})[0].stands for name in view.groups)
    assert all(one[0].meaning.startswith("balances over a group of ") for one in found)
