"""What one changed endpoint of a large grouped Service costs, in written rules."""

from collections.abc import Callable, Mapping

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Balance, Config, ShapeConfig
from kproxy_ipt.plan.family_rules import FamilyRules
from kproxy_ipt.plan.plan import Plan
from kproxy_ipt.rules.options import rule_options
from kproxy_ipt.ruleset.edits import DeleteChain, WriteChain
from kproxy_ipt.state.model import MachineFacts, NodeFacts, ServiceState
from kproxy_ipt.testing.desired import snapshot_of
from kproxy_ipt.testing.fake_kernel import FakeKernel
from kproxy_ipt.testing.objects import endpoint_slice, service

WEB, OTHER = service(), service("other", cluster_ip="10.96.0.11")
MOST_WRITTEN_RULES = 200
States = Mapping[tuple[str, str], tuple[ServiceState, ...]]


def _states(numbers: set[int]) -> States:
    addresses = [f"10.{200 + one // 60000}.{one // 250 % 240}.{one % 250 + 1}" for one in sorted(numbers)]
    (state,) = snapshot_of(WEB, endpoint_slice(WEB, addresses)).services.values()
    return {("default", "web"): (state,)}


class Grouped:
    """A Service of some endpoints in a kernel that takes every plan."""

    def __init__(self, count: int) -> None:
        self.numbers = set(range(count))
        self.kernel = FakeKernel()
        self.rules = FamilyRules()
        config = Config(shape=ShapeConfig(balance=Balance.GROUPED))
        self.rules.set_options(rule_options(config, NodeFacts(), MachineFacts(), Family.IPV4, endpoint_count=0))
        # Others have endpoints too: rules carry no comments, whatever becomes of this Service.
        other = endpoint_slice(OTHER, [f"10.9.{one // 250}.{one % 250 + 1}" for one in range(1001)])
        (state,) = snapshot_of(OTHER, other).services.values()
        self.rules.update({("default", "other"): (state,), **_states(self.numbers)})
        self._apply(self.rules.plan_full(self.kernel.saved(), staged=True))

    def _apply(self, plan: Plan) -> None:
        self.kernel.apply(plan)
        self.rules.commit()

    def written(self, numbers: set[int]) -> int:
        """Rules that a partial sync writes until the Service has the endpoints *numbers*."""
        self.rules.update(_states(numbers))
        plan = self.rules.plan_partial(staged=True)
        self._apply(plan)
        self.numbers = numbers
        edits = [edit for transaction in plan.transactions for edit in transaction.edits]
        assert {type(edit) for edit in edits} <= {WriteChain, DeleteChain}
        return sum(len(edit.rules) for edit in edits if isinstance(edit, WriteChain))


CHANGES: Mapping[str, Callable[[set[int], int], set[int]]] = {
    "added": lambda numbers, step: {*numbers, 20_000 + step},
    "removed": lambda numbers, step: numbers - {step * 7},
    "replaced": lambda numbers, step: {*(numbers - {step * 7}), 30_000 + step},
}


@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("count", [1000, 5000])
def test_one_changed_endpoint_writes_few_rules(
    count: int, kind: str, record_property: Callable[[str, object], None]
) -> None:
    """Twelve changes in a row, and a comparison finds nothing to do in the end."""
    grouped = Grouped(count)
    written = [grouped.written(CHANGES[kind](grouped.numbers, step)) for step in range(12)]
    record_property("most rules written", max(written))
    record_property("rules written on average", sum(written) / len(written))

    assert max(written) <= MOST_WRITTEN_RULES
    assert grouped.rules.plan_full(grouped.kernel.saved(), staged=True).transactions == ()


def test_way_there_does_not_matter() -> None:
    """After many changes the chains are those of the same endpoints written at once."""
    grouped = Grouped(500)
    grouped.written(set(range(100, 1200)))
    grouped.written(set(range(300, 800)))
    fresh = Grouped(0)
    fresh.written(set(range(300, 800)))

    assert grouped.kernel.saved() == fresh.kernel.saved()
