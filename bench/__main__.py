"""
Run the benchmarks: syncs, changes, new flows; tables on the terminal, CSV and SVG in a folder.

Everything happens in network namespaces that are made for it; root is needed. docs/performance.md explains the figures.
"""

import argparse
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.changes import measure_changes, measure_large
from bench.floor import desired_rules
from bench.kube_proxy import asked, measure_kube_proxy
from bench.new_flows import flow_variants, measure_new_flows
from bench.report import print_tables, write_tables
from bench.samples import Cell, Sample, read_csv, write_csv
from bench.whole_command import measure_whole_command
from kproxy_ipt.testing.big_cluster import Protocol, cluster

_RESULTS = Path(__file__).with_name("results")
_SCENARIOS = ("whole", "changes", "large", "flows", "kube-proxy")
_TREE_CHECK_SERVICES = 500
_WIDTH = 140
"""Columns of tables that go into a file or a pipe."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command; see its help."""

    sizes: tuple[int, ...]
    large: tuple[int, ...]
    backends: tuple[str, ...]
    dispatches: tuple[str, ...]
    scenarios: tuple[str, ...]
    rounds: int
    changes: int
    blocks: int
    samples: int
    protocol: Protocol
    results: Path
    page: Path | None
    reuse: bool
    keep: bool


class Job(msgspec.Struct, frozen=True):
    """One step of the progress bar: what it says, and the samples that come."""

    title: str
    samples: Iterator[Sample]


def main() -> None:
    """Run what the options ask for."""
    options, console = _options(), Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH)
    table = options.results / "measurements.csv"
    samples: Sequence[Sample]
    if options.reuse:
        samples = read_csv(table)
    else:
        if os.geteuid() != 0:
            sys.exit("the benchmarks load rules into network namespaces: root is needed")
        options.results.mkdir(parents=True, exist_ok=True)
        kept = read_csv(table) if options.keep and table.exists() else ()
        samples = _measure(_with_real_tree(options, console), console, table, kept)
    print_tables(samples, console)
    console.print(f"All values: {table}", highlight=False)
    _draw(samples, options.results, console)
    if options.page is not None:
        write_tables(samples, options.page)


def _draw(samples: Sequence[Sample], folder: Path, console: Console) -> None:
    if importlib.util.find_spec("matplotlib") is None:
        console.print("No pictures: matplotlib is not installed (pip install --group bench)")
        return
    from bench.plots import write_plots

    for path in write_plots(samples, folder):
        console.print(f"Picture: {path}", highlight=False)


def _measure(options: Options, console: Console, table: Path, kept: Sequence[Sample]) -> Sequence[Sample]:
    """All samples; what is there is written after each step, so that a run that is ended has not been for nothing."""
    os.environ["XTABLES_LOCKFILE"] = str(table.with_name("lock"))  # that of the machine is shared by all namespaces
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    found: list[Sample] = []
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("benchmarks")

        def tell(text: str) -> None:
            progress.update(task, description=text)

        jobs = _jobs(options, console, tell)
        progress.update(task, total=len(jobs))
        for job in jobs:
            tell(job.title)
            found.extend(job.samples)
            write_csv(_with_kept(kept, found), table)
            progress.advance(task)
    return _with_kept(kept, found)


def _with_kept(kept: Sequence[Sample], found: Sequence[Sample]) -> Sequence[Sample]:
    """Samples of both runs, cell by cell; new ones in the place of those that they replace, or at the end."""
    measured = {one.cell for one in found}
    remaining = [one for one in kept if one.cell not in measured]
    cells: dict[Cell, list[Sample]] = {one.cell: [] for one in (*kept, *found)}
    for one in (*remaining, *found):
        cells[one.cell].append(one)
    return [one for some in cells.values() for one in some]


def _jobs(options: Options, console: Console, tell: Callable[[str], None]) -> Sequence[Job]:
    jobs: list[Job] = []
    shapes = [(backend, dispatch) for backend in options.backends for dispatch in options.dispatches]
    for size in options.sizes:
        for backend, dispatch in shapes:
            title, shape = f"{backend}, {dispatch}, {size} Services", (backend, dispatch, size)
            if "whole" in options.scenarios:
                samples = measure_whole_command(*shape, _rounds(options.rounds, size))
                jobs.append(Job(f"whole command: {title}", samples))
            if "changes" in options.scenarios:
                jobs.append(Job(f"changes: {title}", measure_changes(*shape, _rounds(options.changes, size))))
    if "large" in options.scenarios:
        jobs += _large_jobs(options, shapes)
    if "flows" in options.scenarios:
        variants = flow_variants(options.backends, options.dispatches, options.sizes)
        flows = measure_new_flows(variants, options.protocol, options.blocks, options.samples, tell)
        jobs.append(Job("new flows", flows))
    if "kube-proxy" in options.scenarios:
        jobs += _kube_proxy_jobs(options, console)
    return jobs


def _large_jobs(options: Options, shapes: Sequence[tuple[str, str]]) -> Iterator[Job]:
    """One large Service among as many small ones as the second size says: some, but not so many that they hide it."""
    services = sorted(options.sizes)[:2][-1]
    for endpoints in options.large:
        for backend, dispatch in shapes:
            samples = measure_large(backend, dispatch, services, endpoints, options.changes)
            yield Job(f"a Service of {endpoints} endpoints: {backend}, {dispatch}", samples)


def _kube_proxy_jobs(options: Options, console: Console) -> Iterator[Job]:
    wish = asked()
    if wish is None:
        console.print("kube-proxy: skipped; it needs KUBE_PROXY, KUBECONFIG and KUBE_PROXY_NETNS (bench/kube_proxy.py)")
    else:
        yield Job("kube-proxy", measure_kube_proxy(wish, options.rounds))


def _rounds(most: int, services: int) -> int:
    """Fewer rounds for large clusters, so that a run ends."""
    return max(1, most * 4000 // max(services, 4000))


def _with_real_tree(options: Options, console: Console) -> Options:
    """Without `tree` where its rules are those of `linear`: the same thing is not measured under two names."""
    if not {"linear", "tree"} <= set(options.dispatches):
        return options
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "cluster.json")
        path.write_bytes(cluster(_TREE_CHECK_SERVICES))
        tree, linear = (desired_rules(path, dispatch).ruleset for dispatch in ("tree", "linear"))
    if tree != linear:
        return options
    console.print("dispatch tree: skipped, its rules are those of linear")
    return msgspec.structs.replace(options, dispatches=tuple(one for one in options.dispatches if one != "tree"))


def _options() -> Options:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=_numbers, default="100,1000,5000,10000,20000", help="numbers of Services")
    parser.add_argument("--large", type=_numbers, default="1000,5000", help="endpoints of the large Service")
    parser.add_argument("--backends", type=_words, default="nft,legacy")
    parser.add_argument("--dispatches", type=_words, default="linear,tree")
    parser.add_argument("--scenarios", type=_words, default=",".join(_SCENARIOS), help="of: %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="of whole commands; fewer with many Services")
    parser.add_argument("--changes", type=int, default=10, help="of each kind; fewer with many Services")
    parser.add_argument("--blocks", type=int, default=20, help="of new flows, for each variant of rules")
    parser.add_argument("--samples", type=int, default=300, help="new flows in a block")
    parser.add_argument("--protocol", choices=["UDP", "TCP"], default="UDP", help="of new flows")
    parser.add_argument("--results", type=Path, default=_RESULTS, help="folder for CSV and SVG")
    parser.add_argument("--page", type=Path, default=None, help="write the tables into this page as well")
    parser.add_argument("--keep", action="store_true", help="keep what the CSV has and this run does not measure")
    parser.add_argument("--reuse", action="store_true", help="measure nothing: tables and pictures from the CSV")
    return Options(**vars(parser.parse_args()))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(","))


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


if __name__ == "__main__":
    main()
