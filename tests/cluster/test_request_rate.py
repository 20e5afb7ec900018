"""Facts about the pace of requests."""

from kproxy_ipt.sources.request_rate import RequestRate


def test_requests_beyond_the_burst_wait_for_their_turn() -> None:
    """With a burst of 2 and 4 a second, the third request waits a quarter of a second, the fourth a half."""
    rate = RequestRate(4.0, 2, clock=lambda: 100.0)

    assert [rate.reserve() for _ in range(4)] == [0.0, 0.0, 0.25, 0.5]


def test_bucket_fills_with_time_up_to_the_burst() -> None:
    """After a long pause no more than one burst is free."""
    now = [0.0]
    rate = RequestRate(1.0, 2, clock=lambda: now[0])
    for _ in range(2):
        rate.reserve()

    now[0] = 60.0

    assert [rate.reserve() for _ in range(3)] == [0.0, 0.0, 1.0]


def test_zero_means_the_defaults_of_the_go_client() -> None:
    """`qps: 0` and `burst: 0`, as kubeadm writes them, mean 5 a second and 10 at once."""
    rate = RequestRate(0.0, 0, clock=lambda: 0.0)

    assert [rate.reserve() for _ in range(11)][9:] == [0.0, 0.2]


def test_negative_rate_means_no_limit() -> None:
    """A negative qps switches the limit off, as in client-go."""
    rate = RequestRate(-1.0, 1, clock=lambda: 0.0)

    assert [rate.reserve() for _ in range(3)] == [0.0, 0.0, 0.0]
