"""What others do to the machine for a moment breaks no promise; a program that is late by itself does."""

import pytest

from kproxy_ipt.testing.promptness import quickest


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
