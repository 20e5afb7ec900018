"""What others do to the machine for a moment breaks no promise; a program that is late by itself does."""

import threading
from time import thread_time

import pytest

from kproxy_ipt.testing.promptness import quickest, slowness


@pytest.mark.parametrize(
    ("seconds", "took_s", "attempts"),
    [
        ([0.5], 0.5, 1),
        ([7.0, 0.5], 0.5, 2),
        ([7.0, 2.0, 1.9], 1.9, 3),
        ([7.0, 3.0, 4.0], 3.0, 3),
        ([2.0, 2.0, 2.0], 2.0, 3),
    ],
    ids=["in time", "late once", "late twice", "always late", "at the bound"],
)
def test_three_attempts_are_given(seconds: list[float], took_s: float, attempts: int) -> None:
    """No attempt follows one that is in time, and the quickest of three counts otherwise."""
    left = iter([*seconds, 0.0])

    assert took_s == quickest(lambda: next(left), 2.0)
    assert len(list(left)) == len(seconds) - attempts + 1


def test_work_is_slower_while_others_work() -> None:
    """Beside two threads of the same interpreter a third of the time is left."""
    is_over = threading.Event()

    def work() -> None:
        while not is_over.is_set():
            thread_time()

    others = [threading.Thread(target=work) for _ in range(2)]
    for other in others:
        other.start()
    found = slowness()
    is_over.set()
    for other in others:
        other.join()

    assert found > 1.5
