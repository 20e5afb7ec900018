"""
Generated worlds: in each one real packets must end where the walk through its rules says.

Compared are verdict, endpoints, source address and, for one entry of each world, the shares. Ends with exit status 1
and the first world that disagrees, as YAML. Every run has other worlds; `--seed` brings those of an earlier run back.

Usage: python bench/soak_worlds.py [--worlds 300] [--seed N] [--backend nft|legacy|both] [--family ipv4|ipv6|both]
"""

import argparse
import secrets
import sys
import time
from collections import Counter

import msgspec
from hypothesis import HealthCheck, Phase, given, seed, settings
from rich.console import Console
from rich.table import Table

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.machine import BackendWish
from kproxy_ipt.testing.topology import BOTH
from kproxy_ipt.testing.world_lab import WorldLab, world_lab
from kproxy_ipt.testing.worlds import World, worlds

_BACKENDS: dict[str, tuple[BackendWish, ...]] = {"nft": ("nft",), "legacy": ("legacy",), "both": ("nft", "legacy")}
_FAMILIES: dict[str, tuple[Family, ...]] = {**{family.value: (family,) for family in BOTH}, "both": BOTH}


class Tally(msgspec.Struct, kw_only=True):
    """What was counted in all worlds of one backend; *first* is the first world that disagrees."""

    worlds: Counter[str] = msgspec.field(default_factory=Counter)
    services: Counter[str] = msgspec.field(default_factory=Counter)
    probes: Counter[str] = msgspec.field(default_factory=Counter)
    exchanges: int = 0
    shares: int = 0
    disagreeing: int = 0
    first: World | None = None
    disagreements: tuple[str, ...] = ()
    took_s: float = 0.0

    def add(self, made: WorldLab, world: World) -> None:
        """Compare one more world."""
        found = made.compare(world)
        self.worlds[world.family.value] += 1
        self.services.update(service.spec.type or "" for service in world.services)
        self.probes += found.probes
        self.exchanges += found.exchanges
        self.shares += found.shares
        self.disagreeing += bool(found.disagreements)
        if found.disagreements and self.first is None:
            self.first, self.disagreements = world, found.disagreements


def run(backend: BackendWish, families: tuple[Family, ...], count: int, number: int) -> Tally:
    """Compare *count* worlds, the same ones for the same *number*."""
    tally, began_s = Tally(), time.monotonic()
    with world_lab(backend) as made:

        @seed(number)
        @settings(
            max_examples=count,
            deadline=None,
            database=None,
            phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
        )
        @given(world=worlds(families))
        def compare(world: World) -> None:
            tally.add(made, world)

        compare()
    tally.took_s = time.monotonic() - began_s
    return tally


def show(tallies: dict[str, Tally], title: str) -> None:
    """Print one column for each backend, and the first disagreement."""
    table, console = Table("", *tallies, title=title), Console()
    rows = {
        "worlds": [_counted(one.worlds) for one in tallies.values()],
        "Services": [_counted(one.services) for one in tallies.values()],
        "probes, by what the walk says": [_counted(one.probes) for one in tallies.values()],
        "exchanges": [str(one.exchanges) for one in tallies.values()],
        "worlds with shares counted": [str(one.shares) for one in tallies.values()],
        "time": [f"{one.took_s:.0f} s" for one in tallies.values()],
        "worlds that disagree": [str(one.disagreeing) for one in tallies.values()],
    }
    for name, values in rows.items():
        table.add_row(name, *values)
    console.print(table)
    for backend, tally in tallies.items():
        if tally.first is not None:
            text = "\n".join((f"The first one with {backend}:", *tally.disagreements, "", tally.first.as_yaml()))
            console.print(text, markup=False, highlight=False, soft_wrap=True)


def _counted(counts: Counter[str]) -> str:
    return "\n".join(f"{count} {name}" for name, count in sorted(counts.items()))


def main() -> None:
    """Run the soak test; exit status 1 if a world disagrees."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, default=300)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000))
    parser.add_argument("--backend", choices=list(_BACKENDS), default="nft")
    parser.add_argument("--family", choices=list(_FAMILIES), default="both")
    options = parser.parse_args()
    tallies: dict[str, Tally] = {
        backend: run(backend, _FAMILIES[options.family], options.worlds, options.seed)
        for backend in _BACKENDS[options.backend]
    }
    show(tallies, f"{options.worlds} worlds, seed {options.seed}")
    sys.exit(1 if any(one.disagreeing for one in tallies.values()) else 0)


if __name__ == "__main__":
    main()
