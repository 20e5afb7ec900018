"""Taking over from a real kube-proxy: its rules stay in force, chain by chain."""

from pathlib import Path

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.plan.cleanup import plan_cleanup
from kproxy_ipt.plan.plan import plan_sync
from kproxy_ipt.ruleset.canonical import UNORDERED
from kproxy_ipt.ruleset.edits import WriteChain
from kproxy_ipt.testing.fake_kernel import FakeKernel
from kproxy_ipt.testing.recorded import recorded_case

CASES = sorted(path.parent for path in (Path(__file__).parents[1] / "golden").glob("*/case.yaml"))


@pytest.mark.parametrize("family", list(Family))
@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_rules_of_kube_proxy_are_taken_over(folder: Path, family: Family) -> None:
    """For the same objects at most chains whose order was left to chance are written, and nothing is deleted."""
    case = recorded_case(folder)
    plan = plan_sync(case.desired(family), FakeKernel(case.canonical[family]).saved(), staged=True)

    edits = [(transaction.table, edit) for transaction in plan.transactions for edit in transaction.edits]
    assert [edit for _, edit in edits if not isinstance(edit, WriteChain)] == []
    assert all(edit.name in UNORDERED[table] for table, edit in edits if isinstance(edit, WriteChain))
    assert plan.notes == ()


@pytest.mark.parametrize("family", list(Family))
@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_clean_up_after_kube_proxy_leaves_nothing(folder: Path, family: Family) -> None:
    """Its rules go as ours do: only empty built-in chains are left."""
    kernel = FakeKernel(recorded_case(folder).canonical[family])
    plan = plan_cleanup(kernel.saved(), staged=True)
    kernel.apply(plan)

    assert [line for line in kernel.save().splitlines() if line.startswith("-A") or " - [" in line] == []
    assert plan.notes == ()
