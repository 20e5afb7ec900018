"""When a family syncs: at once, not too often, and again after a failure."""

import pytest

from kproxy_ipt.daemon.schedule import SyncSchedule


def _schedule(min_gap_s: float = 1.0, retry_cap_s: float = 30.0) -> SyncSchedule:
    return SyncSchedule(min_gap_s=min_gap_s, retry_cap_s=retry_cap_s)


def test_nothing_is_due_without_a_request() -> None:
    """There is no run without a reason, not after a run either."""
    schedule = _schedule()
    due = [schedule.due_s()]
    schedule.request()
    schedule.started()
    schedule.ended(10.0, succeeded=True)

    assert [*due, schedule.due_s()] == [None, None]


def test_first_request_is_due_at_once() -> None:
    """A quiet time needs no waiting."""
    schedule = _schedule()
    schedule.request()

    assert schedule.due_s() == 0.0


@pytest.mark.parametrize(("min_gap_s", "due_s"), [(1.0, 11.0), (0.0, 10.0)])
def test_next_run_keeps_the_gap_to_the_end_of_the_last(min_gap_s: float, due_s: float) -> None:
    """Without a gap it follows back to back."""
    schedule = _schedule(min_gap_s)
    schedule.request()
    schedule.started()
    schedule.ended(10.0, succeeded=True)
    schedule.request()

    assert schedule.due_s() == due_s


def test_request_during_a_run_is_for_the_next() -> None:
    """The run has read its changes already."""
    schedule = _schedule()
    schedule.request()
    schedule.started()
    schedule.request()
    schedule.ended(10.0, succeeded=True)

    assert schedule.due_s() == 11.0


def test_failures_are_tried_again_with_back_off_up_to_the_cap() -> None:
    """1 s, 2 s, 4 s, and never longer than the sync period."""
    schedule = _schedule(retry_cap_s=5.0)
    waits, now_s = [], 100.0
    for _ in range(5):
        schedule.started()
        schedule.ended(now_s, succeeded=False)
        waits.append((schedule.due_s() or 0.0) - now_s)
        now_s += waits[-1]

    assert (waits, schedule.failures) == ([1.0, 2.0, 4.0, 5.0, 5.0], 5)


def test_success_ends_the_back_off() -> None:
    """The next failure begins anew."""
    schedule = _schedule()
    for succeeded in (False, False, True):
        schedule.started()
        schedule.ended(100.0, succeeded=succeeded)
    after_success = (schedule.due_s(), schedule.failures)
    schedule.started()
    schedule.ended(200.0, succeeded=False)

    assert (after_success, schedule.due_s()) == ((None, 0), 201.0)


def test_new_request_does_not_wait_for_the_retry() -> None:
    """What changed may be what was wrong; only the gap counts."""
    schedule = _schedule(min_gap_s=0.5)
    schedule.started()
    schedule.ended(100.0, succeeded=False)
    waiting = schedule.due_s()
    schedule.request()

    assert (waiting, schedule.due_s()) == (101.0, 100.5)


def test_many_requests_in_a_short_trouble_do_not_lengthen_the_wait() -> None:
    """Twenty runs that fail within a second are tried again when the first of them said."""
    schedule = _schedule(min_gap_s=0.0)
    for number in range(20):
        schedule.request()
        schedule.started()
        schedule.ended(100.0 + number * 0.04, succeeded=False)

    assert (20, 101.0) == (schedule.failures, schedule.due_s())


def test_retry_keeps_the_gap() -> None:
    """A gap longer than the back-off counts."""
    schedule = _schedule(min_gap_s=60.0)
    schedule.started()
    schedule.ended(100.0, succeeded=False)

    assert schedule.due_s() == 160.0


def test_very_many_failures_are_no_trouble() -> None:
    """The exponent is bounded, so a node that fails for a year still counts."""
    schedule = _schedule()
    now_s = 0.0
    for _ in range(2000):
        schedule.started()
        schedule.ended(now_s, succeeded=False)
        now_s = schedule.due_s() or 0.0

    assert schedule.due_s() == 1 + 2 + 4 + 8 + 16 + 1995 * 30.0


def test_new_periods_count_at_once() -> None:
    """A configuration that changes needs no restart."""
    schedule = _schedule(min_gap_s=3600.0)
    schedule.started()
    schedule.ended(10.0, succeeded=True)
    schedule.request()
    schedule.min_gap_s = 0.0

    assert schedule.due_s() == 10.0
