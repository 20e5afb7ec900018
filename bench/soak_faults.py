"""
Faults for minutes: every fault again and again, the daemon killed hundreds of times, and one life through all the rest.

Promised: no update, no rule of others and no connection to an untouched Service is lost, every fault is over within
its bound, nothing is left behind, and a daemon that lives through all of it does not grow.

Usage: python bench/soak_faults.py [--minutes 20] [--kills 500] [--backend nft|legacy|both] [--seed N]
"""

import argparse
import random
import secrets
import sys
import tempfile
import time
from pathlib import Path

import msgspec
from rich.console import Console

from kproxy_ipt.daemon.machine import BackendWish
from kproxy_ipt.testing.fault_lab import FaultLab, FaultOutcome
from kproxy_ipt.testing.fault_table import Size, fault_table, size_of, slope_per_hour
from kproxy_ipt.testing.faults import FAULTS, KILL, LONG_STOP

_BACKENDS: dict[str, tuple[BackendWish, ...]] = {"nft": ("nft",), "legacy": ("legacy",), "both": ("nft", "legacy")}
_MOST_DESCRIPTORS = 8
"""More than at the beginning, at the end of a life: connections that happen to be open."""
_MOST_MIB = 24.0
_WARM_UP = 5
"""Faults until caches are filled."""


class Soak(msgspec.Struct):
    """What came of one backend; *sizes* are those of the one long life."""

    outcomes: list[FaultOutcome] = msgspec.field(default_factory=list)
    sizes: list[Size] = msgspec.field(default_factory=list)

    @property
    def is_as_promised(self) -> bool:
        """Whether nothing was lost and nothing grew."""
        if not all(outcome.is_harmless for outcome in self.outcomes):
            return False
        if len(self.sizes) < 2:
            return True
        first, last = self.sizes[0], self.sizes[-1]
        grown = last.descriptors - first.descriptors, last.resident_mib - first.resident_mib
        return grown[0] <= _MOST_DESCRIPTORS and grown[1] <= _MOST_MIB


def soak(backend: BackendWish, seconds: float, kills: int, seed: int) -> Soak:
    """
    Kill *kills* times, but for at most half of the time; then let one life meet all faults that it survives.

    What ends a life, other than kills, is met once, in between.
    """
    made, chance, began_s = Soak(), random.Random(seed), time.monotonic()
    with tempfile.TemporaryDirectory() as folder, FaultLab(backend, Path(folder), seed=seed) as node:
        suiting = [fault for fault in FAULTS if not fault.unfit(backend)]
        for _ in range(kills):
            if time.monotonic() - began_s > seconds / 2:
                break
            made.outcomes.append(KILL.meet(node))
        made.outcomes += [fault.meet(node) for fault in suiting if fault.ends_life and fault is not KILL]
        if seconds >= 600:
            made.outcomes.append(LONG_STOP.meet(node))
        lasting = [fault for fault in suiting if not fault.ends_life]
        number = 0
        while time.monotonic() - began_s < seconds or number < len(lasting):
            fault = lasting[number] if number < len(lasting) else chance.choice(lasting)
            made.outcomes.append(fault.meet(node))
            number += 1
            if number >= _WARM_UP:
                made.sizes.append(size_of(node.daemon.process_id, time.monotonic()))
    return made


def show(made: Soak, title: str) -> None:
    """Print the table and the slopes."""
    console = Console(width=None if sys.stdout.isatty() else 140)  # a table in a file is not cut
    console.print(fault_table(made.outcomes, title))
    first, last = made.sizes[0], made.sizes[-1]
    resident = slope_per_hour([(size.at_s, size.resident_mib) for size in made.sizes])
    descriptors = slope_per_hour([(size.at_s, float(size.descriptors)) for size in made.sizes])
    console.print(
        f"One life of {last.at_s - first.at_s:.0f} s through {len(made.sizes)} faults: resident memory "
        f"{first.resident_mib:.1f} to {last.resident_mib:.1f} MiB ({resident:+.1f} MiB/h), file descriptors "
        f"{first.descriptors} to {last.descriptors} ({descriptors:+.1f}/h)",
        highlight=False,
    )
    console.print(f"as promised: {'yes' if made.is_as_promised else 'no'}", highlight=False)


def main() -> None:
    """Run the soak test; exit status 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0, help="of all backends together")
    parser.add_argument("--kills", type=int, default=500, help="of all backends together")
    parser.add_argument("--backend", choices=list(_BACKENDS), default="both")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000))
    options = parser.parse_args()
    backends = _BACKENDS[options.backend]
    promised = True
    for backend in backends:
        made = soak(backend, 60 * options.minutes / len(backends), options.kills // len(backends), options.seed)
        show(made, f"{backend}, seed {options.seed}")
        promised &= made.is_as_promised
    sys.exit(0 if promised else 1)


if __name__ == "__main__":
    main()
