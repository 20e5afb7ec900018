"""What plan tests share: carrying out a plan and watching every moment in between."""

from collections.abc import Callable

import pytest

from kproxy_ipt.plan.plan import Plan, plan_sync
from kproxy_ipt.rules.build import Desired
from kproxy_ipt.testing.fake_kernel import FakeKernel
from kproxy_ipt.testing.reachability import Reachability, gaps, reachability

Sync = Callable[..., Plan]


def _sync(kernel: FakeKernel, desired: Desired, *, staged: bool = True) -> Plan:
    states: list[Reachability] = [reachability(kernel.saved())]
    kernel.on_commit = lambda changed: states.append(reachability(changed.saved()))
    plan = plan_sync(desired, kernel.saved(), staged=staged)
    kernel.apply(plan)
    kernel.on_commit = None

    assert gaps(states) == ()
    assert plan_sync(desired, kernel.saved(), staged=staged).transactions == ()
    return plan


@pytest.fixture(scope="session")
def sync() -> Sync:
    """Plan and apply; no traffic is lost on the way, and afterwards nothing is left to do."""
    return _sync
