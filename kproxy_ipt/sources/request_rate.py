"""
How fast requests may follow one another: a bucket of *burst* tokens that fills at *qps* tokens a second.

Source: client-go `util/flowcontrol` (`NewTokenBucketRateLimiter`); defaults of `rest.Config`.
"""

import time
from collections.abc import Callable

DEFAULT_QPS = 5.0
DEFAULT_BURST = 10


class RequestRate:
    """
    The bucket of one client.

    Args:
        qps: Requests per second in the long run; 0 means 5, a negative number means no limit.
        burst: Requests at once; 0 means 10.
        clock: Seconds, never going back.
    """

    def __init__(self, qps: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._qps = qps or DEFAULT_QPS
        self._burst = float(burst or DEFAULT_BURST)
        self._clock = clock
        self._tokens = self._burst
        self._counted_at = clock()

    def reserve(self) -> float:
        """Book the next request; returns the seconds to wait before it may be sent."""
        if self._qps < 0:
            return 0.0
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._counted_at) * self._qps)
        self._counted_at = now
        self._tokens -= 1.0
        return max(0.0, -self._tokens / self._qps)
