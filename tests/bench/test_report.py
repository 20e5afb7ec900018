"""Tables: medians of rounds, written between marks of a page."""

from pathlib import Path

from bench.changes import ONE_ENDPOINT
from bench.report import COLUMNS, markdown, write_tables
from bench.samples import Cell, Sample, medians, read_csv, write_csv

_CELL = Cell(ONE_ENDPOINT, "nft", "linear", 1000, 5)


def _samples(*values: float) -> tuple[Sample, ...]:
    return tuple(Sample(_CELL, "whole", "s", number, value) for number, value in enumerate(values))


def test_samples_survive_the_file(tmp_path: Path) -> None:
    """What is written is what is read."""
    samples = _samples(0.5, 0.25)
    write_csv(samples, tmp_path / "m.csv")

    assert samples == read_csv(tmp_path / "m.csv")


def test_tables_show_medians() -> None:
    """One round that was disturbed does not move the figure."""
    samples = _samples(0.030, 9.0, 0.020)

    assert medians(samples) == {_CELL: {"whole": 0.030}}
    assert "| nft | linear | 1,000 | 30.0 | - |" in markdown(samples, ONE_ENDPOINT)


def test_tables_of_what_was_not_measured_stay(tmp_path: Path) -> None:
    """A run of some scenarios leaves the figures of others in the page."""
    page = tmp_path / "page.md"
    text = "<!-- table: full sync -->\n\n| old |\n\n<!-- end of table -->\n"
    page.write_text(text, encoding="utf-8")
    write_tables(_samples(1.0), page)

    assert text == page.read_text(encoding="utf-8")


def test_the_page_has_a_place_for_every_table() -> None:
    """docs/performance.md shows every scenario but the one that needs a kube-proxy."""
    page = (Path(__file__).parents[2] / "docs" / "performance.md").read_text(encoding="utf-8")

    assert {name for name in COLUMNS if f"<!-- table: {name} -->" in page} == set(COLUMNS) - {"kube-proxy"}
