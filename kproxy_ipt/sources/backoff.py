"""
How long to wait before the next attempt: longer each time, never the same for two clients.

Source: client-go `tools/cache/reflector.go` (`wait.NewExponentialBackoffManager(800ms, 30s, 2min, 2.0, 1.0)`).
"""

import random as random_module
import time
from collections.abc import Callable

FIRST_WAIT_S = 0.8
MAX_WAIT_S = 30.0
FACTOR = 2.0
RESET_AFTER_S = 120.0
"""Without a failure for this long, the next one counts as the first."""


class Backoff:
    """
    Waits of 0.8 to 1.6 s, 1.6 to 3.2 s and so on, in the end of 15 to 30 s.

    Args:
        clock: Seconds, never going back.
        random: A number from 0 up to, but not including, 1.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, random: Callable[[], float] = random_module.random
    ) -> None:
        self._clock = clock
        self._random = random
        self._longest_s = FIRST_WAIT_S
        self._failed_at = clock()

    def next_s(self) -> float:
        """Seconds to wait after one more failure."""
        now = self._clock()
        if now - self._failed_at > RESET_AFTER_S:
            self._longest_s = FIRST_WAIT_S
        self._longest_s = min(self._longest_s * FACTOR, MAX_WAIT_S)
        wait_s = self._longest_s / FACTOR * (1.0 + self._random())
        self._failed_at = now + wait_s
        return wait_s
