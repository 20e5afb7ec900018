"""Random changes of many Services and slices, with traffic to one that nobody touches; the long form is a benchmark."""

import pytest

from kproxy_ipt.daemon.machine import BackendWish
from kproxy_ipt.testing.churn_run import run_churn

pytestmark = pytest.mark.kernel


def test_churn_disturbs_no_traffic_and_ends_as_a_fresh_render(backend: BackendWish) -> None:
    """300 changes in 8 s over 60 Services: nothing is lost, the kernel has what a fresh start would write."""
    outcome = run_churn(backend, services=60, changes=300, seconds=8)

    assert (0, 0, ()) == (outcome.lost, outcome.moved, outcome.differences)
    assert outcome.exchanges > 500
    assert 7 == len(outcome.changes)
    # A machine that has other things to do lengthens some syncs: the long form looks at the longest one.
    assert sorted(outcome.sync_s)[int(0.9 * len(outcome.sync_s))] <= 3 * outcome.median_s
