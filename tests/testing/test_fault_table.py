"""The table of faults, and slopes."""

import io

import pytest
from rich.console import Console

from kproxy_ipt.testing.fault_lab import FaultOutcome
from kproxy_ipt.testing.fault_table import fault_table, slope_per_hour


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([], 0.0),
        ([(5.0, 7.0)], 0.0),
        ([(0.0, 3.0), (10.0, 3.0), (20.0, 3.0)], 0.0),
        ([(100.0, 1.0), (136.0, 2.0), (172.0, 3.0)], 100.0),
        ([(0.0, 4.0), (36.0, 3.0)], -100.0),
    ],
)
def test_slope_is_that_of_a_line(points: list[tuple[float, float]], expected: float) -> None:
    """Per hour, whatever the clock begins with."""
    assert expected == pytest.approx(slope_per_hour(points))


def test_tries_of_a_fault_are_one_row() -> None:
    """Losses are added up, of the times the worst one counts."""
    outcomes = [
        FaultOutcome(fault="kill", took_s=0.25, bound_s=5.0, exchanges=10, lost_exchanges={"timeout": 1}),
        FaultOutcome(fault="kill", took_s=1.5, bound_s=5.0, exchanges=20, lost_updates=3, leaked=("file x",)),
    ]
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(fault_table(outcomes, "nft"))

    row = next(line for line in console.export_text().splitlines() if "kill" in line)
    assert ["kill", "2", "3", "0", "1 timeout", "30", "file x", "1.50", "5"] == [
        cell.strip() for cell in row.strip("│ ").split("│")
    ]
    assert [False, False] == [outcome.is_harmless for outcome in outcomes]


@pytest.mark.parametrize(
    ("took_s", "lost_updates", "expected"), [(5.0, 0, (True, False)), (5.1, 0, (False, True)), (5.1, 1, (False, False))]
)
def test_fault_that_takes_too_long_does_harm(took_s: float, lost_updates: int, expected: tuple[bool, bool]) -> None:
    """Nothing lost is not enough; one that lost something is not only late."""
    outcome = FaultOutcome(fault="slow", took_s=took_s, bound_s=5.0, lost_updates=lost_updates)

    assert expected == (outcome.is_harmless, outcome.is_late_alone)
