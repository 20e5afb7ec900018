"""Random changes of many Services, with traffic to one that nobody touches; the soak is longer, and judges times."""

import pytest

from kproxy_ipt.config.model import Dispatch
from kproxy_ipt.daemon.machine import BackendWish
from kproxy_ipt.testing.churn_run import run_churn

pytestmark = pytest.mark.kernel


@pytest.mark.parametrize("dispatch", [Dispatch.LINEAR, Dispatch.TREE])
def test_churn_disturbs_no_traffic_and_ends_as_a_fresh_render(backend: BackendWish, dispatch: Dispatch) -> None:
    """300 changes in 8 s over 60 Services: nothing is lost, the kernel has what a fresh start would write."""
    outcome = run_churn(backend, services=60, changes=300, seconds=8, dispatch=dispatch)

    assert (0, 0, ()) == (outcome.lost, outcome.moved, outcome.differences)
    assert outcome.exchanges > 300  # one for each change
    assert 7 == len(outcome.changes)
