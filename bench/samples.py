"""What was measured, as one long table: a row for each value, so that every scenario has the same columns."""

import csv
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec


class Cell(msgspec.Struct, frozen=True, order=True):
    """
    What a scenario was run with.

    Attributes:
        scenario: As in the headings of the report.
        backend: `nft` or `legacy`.
        dispatch: `linear` or `tree`; for lines of reference what stands in their place.
        services: Number of Services.
        endpoints: Of each Service; for a scenario of one large Service, of that one.
    """

    scenario: str
    backend: str
    dispatch: str
    services: int
    endpoints: int


class Sample(msgspec.Struct, frozen=True):
    """One value of one measure; *unit* is part of the name where tables show it."""

    cell: Cell
    measure: str
    unit: str
    round: int
    value: float


_COLUMNS = ("scenario", "backend", "dispatch", "services", "endpoints", "measure", "unit", "round", "value")


def write_csv(samples: Iterable[Sample], path: Path) -> None:
    """Write all samples, a line for each."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(_COLUMNS)
        for one in samples:
            cell = msgspec.structs.astuple(one.cell)
            writer.writerow([*cell, one.measure, one.unit, one.round, f"{one.value:.6g}"])


def read_csv(path: Path) -> tuple[Sample, ...]:
    """
    Read what `write_csv` wrote.

    Raises:
        ValueError: Another table.
    """
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.reader(file)
        if tuple(next(rows)) != _COLUMNS:
            raise ValueError(f"{path}: not a table of measurements")
        return tuple(_sample(row) for row in rows)


def _sample(row: Sequence[str]) -> Sample:
    scenario, backend, dispatch, services, endpoints, measure, unit, number, value = row
    cell = Cell(scenario, backend, dispatch, int(services), int(endpoints))
    return Sample(cell, measure, unit, int(number), float(value))


def medians(samples: Iterable[Sample]) -> dict[Cell, dict[str, float]]:
    """By cell and measure the median of all rounds, in the order in which they were measured."""
    values: dict[Cell, dict[str, list[float]]] = {}
    for one in samples:
        values.setdefault(one.cell, {}).setdefault(one.measure, []).append(one.value)
    return {
        cell: {name: statistics.median(found) for name, found in measures.items()} for cell, measures in values.items()
    }
