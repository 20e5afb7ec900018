"""Rollback: after a failed run the tables are as they were."""

from collections.abc import Sequence

import pytest

from kproxy_ipt.errors import RestoreError
from kproxy_ipt.plan.plan import Plan, plan_sync
from kproxy_ipt.plan.rollback import plan_rollback
from kproxy_ipt.plan.stages import MAX_LINES
from kproxy_ipt.rules.build import Desired
from kproxy_ipt.rules.names import endpoint_chain_name
from kproxy_ipt.ruleset.edits import DeleteChain
from kproxy_ipt.ruleset.scan import SavedChain, SavedTables, jumps_to
from kproxy_ipt.testing.desired import ApiObject, desired_for
from kproxy_ipt.testing.fake_kernel import FakeKernel
from kproxy_ipt.testing.objects import endpoint_slice, service, service_port

FOREIGN = """*filter
:INPUT DROP [0:0]
-A INPUT -i lo -j ACCEPT
COMMIT
*nat
:MINE - [0:0]
-A PREROUTING -j MINE
COMMIT
"""


def _cluster(numbers: Sequence[int], address: str) -> Desired:
    """Services with node ports, each with one endpoint; the one with number 0 has none."""
    api_objects: list[ApiObject] = []
    for number in numbers:
        one = service(f"s{number}", cluster_ip=f"10.96.1.{number}", ports=[service_port(80, node_port=30000 + number)])
        api_objects.append(one)
        if number:
            api_objects.append(endpoint_slice(one, [f"{address}.{number}"]))
    return desired_for(*api_objects)


@pytest.mark.parametrize("staged", [True, False])
@pytest.mark.parametrize("failing", [1, 2, 3, 4])
@pytest.mark.parametrize("old", [(), (0, 1, 2, 3)])
def test_tables_are_as_before_wherever_the_run_failed(*, staged: bool, failing: int, old: tuple[int, ...]) -> None:
    """New, changed and deleted chains and new jumps are taken back, whichever transaction was refused."""
    kernel = FakeKernel(FOREIGN)
    if old:
        kernel.apply(plan_sync(_cluster(old, "10.244.1"), kernel.saved(), staged=staged))
    saved = kernel.saved()
    plan = plan_sync(_cluster((1, 2, 3, 4, 5), "10.244.2"), saved, staged=staged, max_lines=8)
    kernel.fail_at(min(failing, len(plan.transactions)))

    with pytest.raises(RestoreError):
        kernel.apply(plan)
    kernel.apply(plan_rollback(saved, kernel.saved(), staged=staged))

    assert kernel.saved() == saved


def test_nothing_written_needs_no_transaction() -> None:
    """A run that failed at its first transaction leaves nothing to take back."""
    saved = FakeKernel(FOREIGN).saved()

    assert plan_rollback(saved, saved, staged=True) == Plan()
    assert plan_rollback(SavedTables({}), SavedTables({}), staged=True) == Plan()


def test_tables_that_came_into_being_are_named() -> None:
    """On nf_tables they can be removed as a whole."""
    kernel = FakeKernel()
    before = kernel.saved()
    kernel.apply(plan_sync(_cluster((1,), "10.244.1"), before, staged=True))

    assert set(plan_rollback(before, kernel.saved(), staged=True).void_tables) == {"filter", "nat"}


def test_new_chains_go_before_those_that_they_jump_to() -> None:
    """Whatever the order in which the kernel lists them: it removes no chain that a rule leads to."""
    kernel = FakeKernel(FOREIGN)
    before = kernel.saved()
    kernel.apply(plan_sync(_cluster((1, 2, 3), "10.244.1"), before, staged=True))
    actual = kernel.saved()
    plan = plan_rollback(before, actual, staged=True)

    for transaction in plan.transactions:
        gone = [edit.name for edit in transaction.edits if isinstance(edit, DeleteChain)]
        listed = actual.tables[transaction.table]
        jumps = [(name, jumps_to(line)) for name in gone for line in listed[name].lines]
        assert gone
        assert all(gone.index(name) < gone.index(target) for name, target in jumps if target in gone)


@pytest.mark.parametrize(("staged", "transactions"), [(True, 2), (False, 1)])
def test_large_rollback_is_staged_on_nf_tables_only(*, staged: bool, transactions: int) -> None:
    """Many chains go in several transactions there, and in one in the legacy backend."""
    names = [endpoint_chain_name("default/web", "tcp", str(number)) for number in range(MAX_LINES + 1)]
    actual = SavedTables({"nat": {name: SavedChain(name, "-", ()) for name in names}})
    plan = plan_rollback(SavedTables({"nat": {}}), actual, staged=staged)

    assert sum(len(transaction.edits) for transaction in plan.transactions) == MAX_LINES + 1
    assert len(plan.transactions) == transactions
