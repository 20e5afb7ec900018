"""The tables of what was measured, for a terminal and as Markdown; medians of all rounds."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from bench.changes import ALL_ADDED, ALL_REMOVED, LARGE, ONE_ENDPOINT, SERVICE_ADDED, SERVICE_REMOVED
from bench.kube_proxy import KUBE_PROXY
from bench.new_flows import NEW_FLOWS
from bench.samples import Cell, Sample, medians
from bench.whole_command import FULL_SYNC, RESTART

_MARKED = re.compile(r"(<!-- table: ([^>]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)


class Column(msgspec.Struct, frozen=True):
    """A measure in a table: its value times *scale*, with *digits* after the point."""

    measure: str
    heading: str
    scale: float = 1.0
    digits: int = 0

    def text(self, measures: Mapping[str, float]) -> str:
        """The value of a row, "-" where it was not measured."""
        value = measures.get(self.measure)
        return "-" if value is None else f"{value * self.scale:,.{self.digits}f}"


_RATIO = Column("ratio", "ratio", digits=2)
_SIZES = (
    Column("rules", "rules"),
    Column("chains", "chains"),
    Column("bytes", "KiB fed", 1 / 1024, 1),
    Column("transactions", "transactions"),
)
_SECONDS = (Column("whole", "whole, s", digits=2), Column("floor", "floor, s", digits=2), _RATIO)
_MILLISECONDS = (
    Column("whole", "whole, ms", 1e3, 1),
    Column("floor", "floor, ms", 1e3, 1),
    _RATIO,
    Column("our part", "our part, ms", 1e3, 1),
)
_CHECKS = (
    Column("smallest input", "smallest input, ms", 1e3, 1),
    Column("smallest, unchecked", "the same unchecked, ms", 1e3, 1),
)
_PEAK = Column("peak memory", "peak memory, MiB")

COLUMNS: Mapping[str, Sequence[Column]] = {
    FULL_SYNC: (*_SECONDS, _PEAK, *_SIZES),
    RESTART: (*_SECONDS, _PEAK),
    ONE_ENDPOINT: (*_MILLISECONDS, *_CHECKS, *_SIZES),
    SERVICE_ADDED: (*_MILLISECONDS, *_SIZES),
    SERVICE_REMOVED: (*_MILLISECONDS, *_SIZES),
    LARGE: (Column("endpoints", "its endpoints"), *_MILLISECONDS, *_SIZES),
    ALL_REMOVED: (*_SECONDS, *_SIZES),
    ALL_ADDED: (*_SECONDS, *_SIZES),
    NEW_FLOWS: (
        Column("median", "median, µs", digits=1),
        Column("p99", "p99, µs", digits=1),
        Column("flows a second", "flows a second"),
    ),
    KUBE_PROXY: (
        Column("kube-proxy, sync", "kube-proxy, sync by its metrics, s", digits=2),
        Column("kube-proxy, ready", "from its start, s", digits=2),
        Column("kproxy-ipt, whole", "kproxy-ipt, whole command, s", digits=2),
        Column("ratio", "ratio", digits=2),
    ),
}
"""What the table of each scenario shows, in the order of the report."""

_HEAD = ("backend", "dispatch", "Services")


def rows(samples: Iterable[Sample], scenario: str) -> list[list[str]]:
    """The rows of one table as text, in the order in which they were measured."""
    found = medians(one for one in samples if one.cell.scenario == scenario)
    return [
        [*_head(cell), *(column.text({**measures, "endpoints": cell.endpoints}) for column in COLUMNS[scenario])]
        for cell, measures in found.items()
    ]


def _head(cell: Cell) -> list[str]:
    return [cell.backend, cell.dispatch, f"{cell.services:,}"]


def headings(scenario: str) -> list[str]:
    """The headings of one table."""
    return [*_HEAD, *(column.heading for column in COLUMNS[scenario])]


def print_tables(samples: Sequence[Sample], console: Console) -> None:
    """Print a table for each scenario that was measured."""
    for scenario in COLUMNS:
        found = rows(samples, scenario)
        if found:
            table = Table(title=f"{scenario}: medians", box=SIMPLE)
            for position, heading in enumerate(headings(scenario)):
                table.add_column(heading, justify="left" if position < 2 else "right")
            for row in found:
                table.add_row(*row)
            console.print(table)


def markdown(samples: Sequence[Sample], scenario: str) -> str:
    """One table as Markdown, "" if nothing was measured."""
    found = rows(samples, scenario)
    if not found:
        return ""
    rule = ["---" if position < 2 else "---:" for position in range(len(headings(scenario)))]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (headings(scenario), rule, *found))


def write_tables(samples: Sequence[Sample], page: Path) -> None:
    """
    Write tables into a page, between `<!-- table: SCENARIO -->` and `<!-- end of table -->`.

    Tables of scenarios that were not measured stay as they are.
    """

    def filled(match: re.Match[str]) -> str:
        table = markdown(samples, match[2])
        return f"{match[1]}\n{table}\n{match[3]}" if table else match[0]

    page.write_text(_MARKED.sub(filled, page.read_text(encoding="utf-8")), encoding="utf-8")
