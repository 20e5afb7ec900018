"""
Churn for a minute: 2,000 random changes over 500 Services, with traffic to a Service that nobody touches.

One run for each backend and each way of dispatch.
Promised: no packet lost, the kernel ends as a fresh render, no sync longer than three times the median.

Usage: python bench/soak_churn.py [--services 500] [--changes 2000] [--seconds 60] [--backend nft|legacy|both]
       [--dispatch linear|tree|both]
"""

import argparse
import sys

from rich.console import Console
from rich.table import Table

from kproxy_ipt.config.model import Dispatch
from kproxy_ipt.daemon.machine import BackendWish
from kproxy_ipt.testing.churn_run import ChurnOutcome, run_churn

_BACKENDS: dict[str, tuple[BackendWish, ...]] = {"nft": ("nft",), "legacy": ("legacy",), "both": ("nft", "legacy")}
_DISPATCHES: dict[str, tuple[Dispatch, ...]] = {
    "linear": (Dispatch.LINEAR,),
    "tree": (Dispatch.TREE,),
    "both": (Dispatch.LINEAR, Dispatch.TREE),
}
_MOST_MEDIANS = 3.0


def is_as_promised(outcome: ChurnOutcome) -> bool:
    """Whether nothing was lost, nothing differs, and no sync was too long."""
    is_whole = not (outcome.lost or outcome.moved or outcome.differences)
    return is_whole and max(outcome.sync_s) <= _MOST_MEDIANS * outcome.median_s


def show(outcomes: dict[str, ChurnOutcome], title: str) -> None:
    """Print one column for each backend and dispatch."""
    table = Table("", *outcomes, title=title)
    rows = {
        "changes": [f"{sum(one.changes.values())} in {one.took_s:.1f} s" for one in outcomes.values()],
        "syncs that wrote": [str(len(one.sync_s)) for one in outcomes.values()],
        "sync, median": [f"{1000 * one.median_s:.1f} ms" for one in outcomes.values()],
        "sync, longest": [f"{1000 * max(one.sync_s):.1f} ms" for one in outcomes.values()],
        "longest / median": [f"{max(one.sync_s) / one.median_s:.1f}" for one in outcomes.values()],
        "settled after the last change": [f"{one.settled_s:.2f} s" for one in outcomes.values()],
        "exchanges with the steady Service": [str(one.exchanges) for one in outcomes.values()],
        "of them lost": [str(one.lost) for one in outcomes.values()],
        "UDP sockets that changed endpoint": [str(one.moved) for one in outcomes.values()],
        "lines unlike a fresh render": [str(len(one.differences)) for one in outcomes.values()],
        "resident memory, before and after": [
            "{:.0f} and {:.0f} MiB".format(*one.resident_mib) for one in outcomes.values()
        ],
        "as promised": ["yes" if is_as_promised(one) else "no" for one in outcomes.values()],
    }
    for name, values in rows.items():
        table.add_row(name, *values)
    Console().print(table)


def main() -> None:
    """Run the soak test; exit status 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--services", type=int, default=500)
    parser.add_argument("--changes", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--backend", choices=list(_BACKENDS), default="both")
    parser.add_argument("--dispatch", choices=list(_DISPATCHES), default="both")
    options = parser.parse_args()
    outcomes: dict[str, ChurnOutcome] = {
        f"{backend}, {dispatch}": run_churn(
            backend,
            services=options.services,
            changes=options.changes,
            seconds=options.seconds,
            seed=options.seed,
            dispatch=dispatch,
        )
        for backend in _BACKENDS[options.backend]
        for dispatch in _DISPATCHES[options.dispatch]
    }
    show(outcomes, f"{options.changes} changes over {options.services} Services, seed {options.seed}")
    sys.exit(0 if all(is_as_promised(one) for one in outcomes.values()) else 1)


if __name__ == "__main__":
    main()
