"""Rules that a Service has in the kernel: read back from what a real kube-proxy wrote, and from our own."""

from pathlib import Path

import msgspec
import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config, Dispatch
from kproxy_ipt.plan.contribution import NOTHING, Contribution, contribution_of
from kproxy_ipt.plan.family_rules import FamilyRules
from kproxy_ipt.plan.last_good import standing_rules, stands, still_serving
from kproxy_ipt.rules.options import rule_options
from kproxy_ipt.ruleset.canonical import UNORDERED
from kproxy_ipt.ruleset.edits import WriteChain
from kproxy_ipt.state.model import MachineFacts, NodeFacts, ServiceState, Snapshot
from kproxy_ipt.testing.desired import ApiObject, snapshot_of
from kproxy_ipt.testing.fake_kernel import FakeKernel
from kproxy_ipt.testing.objects import endpoint_slice, service, service_port
from kproxy_ipt.testing.recorded import recorded_case

V4 = Family.IPV4
CASES = sorted(path.parent for path in (Path(__file__).parents[1] / "golden").glob("*/case.yaml"))
OPTIONS = rule_options(Config(), NodeFacts(name="node1"), MachineFacts(), V4, endpoint_count=0)
WEB = service("web", ports=[service_port(80, name="http"), service_port(81, name="admin")])


def _states(snapshot: Snapshot) -> dict[tuple[str, str], tuple[ServiceState, ...]]:
    found: dict[tuple[str, str], tuple[ServiceState, ...]] = {}
    for state in snapshot.services.values():
        name = (state.service_port.namespace, state.service_port.name)
        found[name] = (*found.get(name, ()), state)
    return found


def _wanted(*objects: ApiObject) -> Contribution:
    [states] = _states(snapshot_of(*objects)).values()
    return contribution_of(states, OPTIONS)


@pytest.mark.parametrize("dispatch", [Dispatch.LINEAR, Dispatch.TREE])
@pytest.mark.parametrize("family", list(Family))
@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_services_that_are_held_lose_nothing_of_what_stands(folder: Path, family: Family, dispatch: Dispatch) -> None:
    """Whoever wrote it: at most chains whose order was left to chance are written, and nothing is deleted."""
    case = recorded_case(folder)
    objects: tuple[ApiObject, ...] = (*case.objects.services, *case.objects.endpoint_slices, *case.objects.nodes)
    snapshot = snapshot_of(*objects, family=family, node_name=case.node_name)
    options = rule_options(case.config, snapshot.node, case.machine, family, endpoint_count=0)
    rules, kernel, states = FamilyRules(), FakeKernel(case.canonical[family]), _states(snapshot)
    rules.set_options(msgspec.structs.replace(options, dispatch=dispatch))
    rules.update(states)
    if dispatch is Dispatch.TREE:
        kernel.apply(rules.plan_full(kernel.saved(), staged=True))
    suspects = rules.suspects(kernel.saved())
    rules.hold(states, kernel.saved())
    plan = rules.plan_full(kernel.saved(), staged=True)

    edits = [(transaction.table, edit) for transaction in plan.transactions for edit in transaction.edits]
    assert [edit for _, edit in edits if not isinstance(edit, WriteChain)] == []
    assert all(edit.name in UNORDERED[table] for table, edit in edits if isinstance(edit, WriteChain))
    assert suspects == ()


def test_chains_that_nothing_leads_to_do_not_stand() -> None:
    """The kernel took them, but it did not look at what becomes of packets there."""
    rules, kernel = FamilyRules(), FakeKernel()
    rules.set_options(OPTIONS)
    rules.update(_states(snapshot_of(WEB, endpoint_slice(WEB))))
    kernel.apply(rules.plan_full(kernel.saved(), staged=True))
    name, wanted = ("default", "web"), _wanted(WEB, endpoint_slice(WEB))
    before = standing_rules(kernel.saved(), [name], V4)[name]
    kernel.restore("*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-NODEPORTS - [0:0]\nCOMMIT\n")

    assert stands(wanted, before, V4)
    assert standing_rules(kernel.saved(), [name], V4) == {}
    assert rules.suspects(kernel.saved()) == (name,)


def test_rules_serve_while_one_endpoint_is_still_one() -> None:
    """All of them stay then; none does when no endpoint is left."""
    standing = _wanted(WEB, endpoint_slice(WEB, ["10.244.1.2", "10.244.1.3"]))

    assert still_serving(standing, _wanted(WEB, endpoint_slice(WEB, ["10.244.1.3", "10.244.1.4"]))) == standing
    assert still_serving(standing, _wanted(WEB, endpoint_slice(WEB, ["10.244.1.4"]))) is NOTHING


def test_lines_for_ports_that_were_given_up_do_not_serve() -> None:
    """Of two ports one is left, with all its chains."""
    standing = _wanted(WEB, endpoint_slice(WEB, ["10.244.1.2"]))
    half = service("web", ports=[service_port(80, name="http")])
    kept = still_serving(standing, _wanted(half, endpoint_slice(WEB, ["10.244.1.2"])))

    lines = [line.text for shared in kept.shared.values() for line in shared]
    assert [("default/web:http" in line, "default/web:admin" in line) for line in lines] == [(True, False)]


def test_service_that_moved_to_another_address_has_nothing_that_serves() -> None:
    """The old address may be another Service's."""
    standing = _wanted(WEB, endpoint_slice(WEB))
    moved = service("web", cluster_ip="10.96.0.99")

    assert still_serving(standing, _wanted(moved, endpoint_slice(moved))) is NOTHING
