"""Rules that become text service port by service port are those that are built as values."""

from pathlib import Path

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config
from kproxy_ipt.plan.wanted import wanted_of
from kproxy_ipt.plan.wanted_snapshot import wanted_snapshot
from kproxy_ipt.rules.build import build_ruleset
from kproxy_ipt.rules.shared_chains import PLACES
from kproxy_ipt.state.model import MachineFacts
from kproxy_ipt.state.snapshot import node_facts, take_snapshot
from kproxy_ipt.testing.desired import snapshot_of
from kproxy_ipt.testing.objects import endpoint_slice, service, service_port, slice_endpoint
from kproxy_ipt.testing.recorded import recorded_case

CASES = sorted(path.parent for path in (Path(__file__).parents[1] / "golden").glob("*/case.yaml"))


@pytest.mark.parametrize("family", list(Family))
@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_text_is_that_of_the_rules_built_as_values(folder: Path, family: Family) -> None:
    """Same chains in the same order, same lines, owners, jumps and counts."""
    case = recorded_case(folder)
    snapshot = take_snapshot(case.objects, family, node_facts(case.objects.nodes, case.node_name))
    desired = build_ruleset(snapshot, case.config, case.machine)
    built = wanted_snapshot(snapshot, case.config, case.machine)

    assert built.wanted == wanted_of(desired)
    assert [[*chains] for chains in built.wanted.tables.values()] == [
        [*table.chains] for table in desired.ruleset.tables.values()
    ]
    assert (built.service_count, built.service_port_count, built.endpoint_count) == (
        desired.service_count,
        desired.service_port_count,
        desired.endpoint_count,
    )


def test_tree_of_the_kernel_stays_one_between_the_bounds() -> None:
    """As with rules built as values; and it is told which chains stay what they are."""
    names = [f"s{number:03}" for number in range(900)]
    refused = [service(name, cluster_ip=f"10.96.{at // 250}.{at % 250 + 1}") for at, name in enumerate(names)]
    snapshot, place = snapshot_of(*refused), PLACES["filter_services"]
    row, tree = (wanted_snapshot(snapshot, Config(), MachineFacts(), frozenset(known)) for known in ([], [place]))

    assert row.wanted == wanted_of(build_ruleset(snapshot, Config(), MachineFacts()))
    assert tree.wanted == wanted_of(build_ruleset(snapshot, Config(), MachineFacts(), frozenset({place})))
    assert row.chain_count < tree.chain_count
    assert row.keeping == tree.keeping == {place}


def test_chains_and_rules_are_counted_over_both_tables() -> None:
    """One Service of two endpoints adds three chains, and a rule to KUBE-SERVICES."""
    web = service("web", cluster_ip="10.96.0.1", ports=[service_port(80, name="http")])
    entries = [slice_endpoint("10.0.0.1"), slice_endpoint("10.0.0.2")]
    snapshots = (snapshot_of(), snapshot_of(web, endpoint_slice(web, entries)))
    none, one = (wanted_snapshot(snapshot, Config(), MachineFacts()) for snapshot in snapshots)

    assert one.chain_count - none.chain_count == 3
    assert one.rule_count - none.rule_count == 1 + 2 + 2 * 2
