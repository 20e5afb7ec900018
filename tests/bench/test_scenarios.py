"""Every scenario is really run, with clusters so small that the figures say nothing."""

import shutil
import subprocess
import sys
from collections.abc import Mapping
from itertools import product
from pathlib import Path

import pytest

from bench.changes import ALL_ADDED, ALL_REMOVED, LARGE, ONE_ENDPOINT, SERVICE_ADDED, SERVICE_REMOVED
from bench.new_flows import CONNTRACK, NEW_FLOWS, NO_RULES, REFERENCE
from bench.report import COLUMNS
from bench.samples import Cell, Sample, read_csv
from bench.whole_command import FULL_SYNC, RESTART

_ROOT = Path(__file__).parents[2]
_OPTIONS = (
    *("--sizes", "4,40", "--large", "200"),
    *("--rounds", "1", "--changes", "1", "--blocks", "2", "--samples", "20"),
)
_BESIDE_A_FLOOR = {FULL_SYNC, RESTART, ONE_ENDPOINT, SERVICE_ADDED, SERVICE_REMOVED, ALL_ADDED, ALL_REMOVED, LARGE}

pytestmark = pytest.mark.kernel


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one run, a page with a place for a table in it."""
    folder = tmp_path_factory.mktemp("bench")
    page = folder / "page.md"
    page.write_text(f"Before.\n<!-- table: {FULL_SYNC} -->\n<!-- end of table -->\nAfter.\n", encoding="utf-8")
    command = [sys.executable, "-m", "bench", *_OPTIONS, "--results", str(folder), "--page", str(page)]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "kube-proxy: skipped" in done.stdout
    return folder


@pytest.fixture(scope="module")
def samples(results: Path) -> tuple[Sample, ...]:
    """What the run measured."""
    return read_csv(results / "measurements.csv")


def _rounds(samples: tuple[Sample, ...]) -> Mapping[tuple[Cell, int], Mapping[str, float]]:
    found: dict[tuple[Cell, int], dict[str, float]] = {}
    for one in samples:
        found.setdefault((one.cell, one.round), {})[one.measure] = one.value
    return found


def _split(samples: tuple[Sample, ...]) -> tuple[list[Sample], list[Sample]]:
    """All but new flows, and new flows."""
    found: tuple[list[Sample], list[Sample]] = ([], [])
    for one in samples:
        found[one.cell.scenario == NEW_FLOWS].append(one)
    return found


def test_every_scenario_is_measured_on_both_backends_in_both_forms(samples: tuple[Sample, ...]) -> None:
    """Nothing that the report has a table for is left out, but for what needs a kube-proxy."""
    found = {(one.cell.scenario, one.cell.backend, one.cell.dispatch) for one in samples}
    expected = set(product((*_BESIDE_A_FLOOR, NEW_FLOWS), ("nft", "legacy"), ("linear", "tree")))

    assert expected <= found


def test_ratios_are_those_of_pairs(samples: tuple[Sample, ...]) -> None:
    """Each value stands beside a floor of its own round, and the ratio is that of both."""
    rounds = {key: found for key, found in _rounds(samples).items() if key[0].scenario in _BESIDE_A_FLOOR}

    assert rounds
    for measures in rounds.values():
        assert measures["floor"] > 0
        assert measures["whole"] / measures["floor"] == pytest.approx(measures["ratio"], rel=1e-4)


def test_a_change_is_counted(samples: tuple[Sample, ...]) -> None:
    """One endpoint of a Service: one transaction, whatever the number of Services, and chains of that Service alone."""
    changes = [found for (cell, _), found in _rounds(samples).items() if cell.scenario == ONE_ENDPOINT]

    assert {found["transactions"] for found in changes} == {1}
    assert {found["chains"] for found in changes} == {3}  # the one of the Service, a new endpoint, a former one
    assert {found["bytes"] < 2000 for found in changes} == {True}


def test_a_restart_writes_nothing(samples: tuple[Sample, ...]) -> None:
    """The second run of the command finds what the first one wrote."""
    assert {one.value for one in samples if one.cell.scenario == RESTART and one.measure == "bytes"} == {0}


def test_memory_is_that_of_the_command(samples: tuple[Sample, ...]) -> None:
    """Peak memory lies between a bare interpreter and the benchmark with all that it has loaded."""
    peaks = [one.value for one in samples if one.measure == "peak memory"]

    assert peaks
    assert all(10 < peak < 100 for peak in peaks)


def test_new_flows_stand_beside_ways_without_rules(samples: tuple[Sample, ...]) -> None:
    """Lines of reference are part of every run, and what has no rules is faster than what has."""
    flows = {
        one.cell.dispatch: one.value
        for one in samples
        if one.cell.scenario == NEW_FLOWS and one.measure == "median" and one.cell.services in {1, 40}
    }

    assert {NO_RULES, CONNTRACK, REFERENCE, "linear", "tree"} == set(flows)
    assert flows[NO_RULES] < flows["linear"]


def test_tables_are_written_into_a_page(results: Path) -> None:
    """Between the marks stands the table; the rest of the page stays."""
    page = (results / "page.md").read_text(encoding="utf-8")

    assert page.startswith("Before.\n<!-- table: full sync -->\n\n| backend | dispatch | Services | whole, s |")
    assert page.endswith(" |\n\n<!-- end of table -->\nAfter.\n")
    assert page.count("| nft | linear |") == 2


def test_tables_can_be_made_again_from_the_file(results: Path) -> None:
    """`--reuse` measures nothing, and prints a table for each scenario."""
    command = [sys.executable, "-m", "bench", "--reuse", "--results", str(results)]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=True, timeout=60)

    measured = {name for name in COLUMNS if f"{name}: medians" in done.stdout}
    assert measured == {*_BESIDE_A_FLOOR, NEW_FLOWS}


def test_an_earlier_run_can_be_added_to(results: Path, samples: tuple[Sample, ...], tmp_path: Path) -> None:
    """`--keep` leaves what is not measured again, and replaces what is."""
    shutil.copy(results / "measurements.csv", tmp_path)
    command = [sys.executable, "-m", "bench", *_OPTIONS, "--scenarios", "flows", "--keep", "--results", str(tmp_path)]
    subprocess.run(command, cwd=_ROOT, capture_output=True, check=True, timeout=60)
    after = read_csv(tmp_path / "measurements.csv")

    (kept, former), (same, measured) = (_split(found) for found in (samples, after))
    assert same == kept
    assert measured != former
    assert {one.cell for one in measured} == {one.cell for one in former}
