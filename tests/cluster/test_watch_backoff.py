"""Facts about the waits between attempts."""

from kproxy_ipt.sources.backoff import Backoff
from kproxy_ipt.testing.api_watching import StillTime


def test_waits_double_up_to_half_a_minute() -> None:
    """Without chance: 0.8, 1.6 and so on, and 15 s for ever."""
    backoff = Backoff(lambda: 0.0, lambda: 0.0)

    assert [backoff.next_s() for _ in range(8)] == [0.8, 1.6, 3.2, 6.4, 12.8, 15.0, 15.0, 15.0]


def test_chance_makes_a_wait_up_to_twice_as_long() -> None:
    """No two clients come back at the same moment, and none waits longer than 30 s."""
    backoff = Backoff(lambda: 0.0, lambda: 0.999)

    assert [round(backoff.next_s(), 1) for _ in range(7)] == [1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0]


def test_two_good_minutes_make_the_next_failure_the_first() -> None:
    """Time spent waiting does not count as good."""
    time = StillTime()
    backoff = Backoff(time.clock, lambda: 0.0)
    for _ in range(6):
        time.now += backoff.next_s()
    time.now += 119.0
    again = backoff.next_s()
    time.now += again + 121.0

    assert (again, backoff.next_s()) == (15.0, 0.8)
