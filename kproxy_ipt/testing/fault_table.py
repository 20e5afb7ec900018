"""What faults cost, fault by fault, as a table; and whether a daemon grows meanwhile."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from rich.table import Table

from kproxy_ipt.testing.fault_lab import FaultOutcome


class Size(msgspec.Struct, frozen=True):
    """What a process holds at one moment: *at_s* of any clock, resident memory, open file descriptors."""

    at_s: float
    resident_mib: float
    descriptors: int


def size_of(process_id: int, at_s: float) -> Size:
    """The size of a process, which must run."""
    folder = Path(f"/proc/{process_id}")
    status = (folder / "status").read_text(encoding="ascii")
    resident_mib = int(status.split("VmRSS:")[1].split()[0]) / 1024
    return Size(at_s, resident_mib, sum(1 for _ in (folder / "fd").iterdir()))


def slope_per_hour(points: Sequence[tuple[float, float]]) -> float:
    """The slope of the line of least squares through `(seconds, value)`, for an hour; 0 for fewer than two moments."""
    mean_s = sum(at_s for at_s, _ in points) / max(1, len(points))
    mean = sum(value for _, value in points) / max(1, len(points))
    spread = sum((at_s - mean_s) ** 2 for at_s, _ in points)
    if not spread:
        return 0.0
    return 3600.0 * sum((at_s - mean_s) * (value - mean) for at_s, value in points) / spread


def fault_table(outcomes: Iterable[FaultOutcome], title: str) -> Table:
    """One row for each fault: tries, what was lost in all of them, the worst time to converge and its bound."""
    table = Table(
        title=title, caption="lost: updates, lines of others, connections; seconds until in step, and the bound"
    )
    table.add_column("fault", no_wrap=True)
    for column in ("tries", "upd.", "oth.", "conn.", "of", "leaks", "worst", "bound"):
        table.add_column(column, justify="right")
    by_name: dict[str, list[FaultOutcome]] = {}
    for outcome in outcomes:
        by_name.setdefault(outcome.fault, []).append(outcome)
    for name, tries in by_name.items():
        lost = sum((Counter(one.lost_exchanges) for one in tries), Counter[str]())
        leaks = sorted({leak for one in tries for leak in one.leaked})
        table.add_row(
            name,
            str(len(tries)),
            str(sum(one.lost_updates for one in tries)),
            str(sum(one.lost_foreign for one in tries)),
            " ".join(f"{count} {kind}" for kind, count in lost.items()) or "0",
            str(sum(one.exchanges for one in tries)),
            "\n".join(leaks) or "0",
            f"{max(one.took_s for one in tries):.2f}",
            f"{tries[0].bound_s:.0f}",
        )
    return table
