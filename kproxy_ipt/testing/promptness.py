"""
Promises of a time, tried on a machine that others use as well.

Seconds of a wall clock tell about the machine as much as about the program under test. So what has to be done within
some seconds is done up to three times, and the quickest counts: processors that others hold make one attempt late, a
program that is late by itself makes all of them late. Decided against: a wider bound, which is another promise; time of
the processor, of which a program that waits for the wrong thing uses none.
"""

import time
from collections.abc import Callable

ATTEMPTS = 3
"""The last one has to be in time if those before were not."""
_LOOP_S = 0.1


def quickest(attempt: Callable[[], float], bound_s: float) -> float:
    """
    Try until it takes less than *bound_s*, three times at most.

    Args:
        attempt: Does it once more; returns the seconds that it took.
        bound_s: Of the promise.

    Returns:
        Seconds of the quickest attempt; less than *bound_s* if the promise is kept.
    """
    took_s = attempt()
    for _ in range(ATTEMPTS - 1):
        if took_s < bound_s:
            break
        took_s = min(took_s, attempt())
    return took_s


def slowness() -> float:
    """
    How many times longer than on a machine of its own work takes now, for what is nothing but work of processors.

    Returns:
        The time of a busy loop by the clock, by its time of the processor: 1, or more while others hold processors.
    """
    began_s, used_s = time.monotonic(), time.thread_time()
    while time.thread_time() - used_s < _LOOP_S:
        pass
    return max(1.0, (time.monotonic() - began_s) / (time.thread_time() - used_s))
