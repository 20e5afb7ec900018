"""
How long the first sync and one with nothing to do take, beside the bare restore program.

Each round: an empty network namespace gets the rules by bare runs of the restore program, one for each 100 services;
another one by the whole command, from a JSON file; then the command runs again with nothing to do. Rounds are pairs
measured one after the other, so the ratio stands although machines are noisy.

Usage: python bench/bench_first_sync.py [--services 5000] [--rounds 3] [--backend nft|legacy]
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config
from kproxy_ipt.plan.stages import Step, pack
from kproxy_ipt.rules.build import Desired, build_ruleset
from kproxy_ipt.rules.names import is_service_chain
from kproxy_ipt.ruleset.edits import EnsureChain, RestoreInput, WriteChain
from kproxy_ipt.ruleset.render import render_chain, render_input
from kproxy_ipt.sources.files import read_paths
from kproxy_ipt.state.model import MachineFacts, NodeFacts
from kproxy_ipt.state.snapshot import take_snapshot
from kproxy_ipt.testing.big_cluster import cluster
from kproxy_ipt.testing.namespaces import temporary_namespace

SERVICES_PER_INPUT = 100


class Round(msgspec.Struct, frozen=True):
    """Seconds of one round."""

    bare: float
    first: float
    second: float


def bare_inputs(desired: Desired) -> list[str]:
    """The rules of *desired* as inputs of 100 services each: chains first, then the tables' fixed chains."""
    by_owner: dict[str, list[WriteChain]] = {}
    for name, chain in desired.ruleset.tables["nat"].chains.items():
        if is_service_chain("nat", name):
            by_owner.setdefault(desired.owners[name], []).append(WriteChain(name, render_chain(chain)))
    owners = list(by_owner.values())
    fixed = [
        Step(
            table,
            tuple(
                WriteChain(name, render_chain(chain))
                for name, chain in chains.chains.items()
                if not (table == "nat" and is_service_chain(table, name))
            ),
        )
        for table, chains in desired.ruleset.tables.items()
    ]
    groups = [
        Step("nat", tuple(edit for edits in owners[start : start + SERVICES_PER_INPUT] for edit in edits))
        for start in range(0, len(owners), SERVICES_PER_INPUT)
    ]
    mark = Step("nat", (EnsureChain("KUBE-MARK-MASQ"),))
    return [render_input(RestoreInput(pack([step], staged=False))) for step in (mark, *groups, *fixed)]


def timed(command: Sequence[str], netns: str, stdin: str = "") -> float:
    """Seconds that a command takes in a namespace."""
    started = time.perf_counter()
    subprocess.run(
        ["ip", "netns", "exec", netns, *command], input=stdin, text=True, check=True, stdout=subprocess.DEVNULL
    )
    return time.perf_counter() - started


def one_round(inputs: Sequence[str], path: Path, backend: str) -> Round:
    """Measure once, in fresh namespaces."""
    program = Path(sys.executable).with_name("kproxy-ipt")
    command = [
        str(program), "sync", "--once", "--from", str(path), "--cluster-cidr", "10.128.0.0/9",
        "--backend", backend, "--family", "ipv4", "--output", "json",
    ]  # fmt: skip
    restore = f"iptables-{backend}-restore"
    with temporary_namespace("bench") as netns:
        bare = sum(timed([restore, "--noflush"], netns, text) for text in inputs)
    with temporary_namespace("bench") as netns:
        return Round(bare, timed(command, netns), timed(command, netns))


def show(rounds: Sequence[Round], title: str) -> None:
    """Print medians and the ratio of each pair."""
    table = Table("", "min", "median", "max", title=title)
    rows = {
        "bare restore runs, s": [one.bare for one in rounds],
        "whole command, first run, s": [one.first for one in rounds],
        "ratio, pair by pair": [one.first / one.bare for one in rounds],
        "whole command, nothing to do, s": [one.second for one in rounds],
    }
    for name, values in rows.items():
        table.add_row(name, f"{min(values):.2f}", f"{statistics.median(values):.2f}", f"{max(values):.2f}")
    Console().print(table)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--services", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--backend", choices=["nft", "legacy"], default="nft")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "cluster.json")
        path.write_bytes(cluster(options.services))
        config = Config(cluster_cidrs=("10.128.0.0/9",))
        snapshot = take_snapshot(read_paths([str(path)]), Family.IPV4, NodeFacts(name="bench"))
        inputs = bare_inputs(build_ruleset(snapshot, config, MachineFacts(nfacct_counters=frozenset())))
        rounds = [one_round(inputs, path, options.backend) for _ in range(options.rounds)]
    show(rounds, f"{options.services} services x 5 endpoints, IPv4, {options.backend}, {options.rounds} rounds")


if __name__ == "__main__":
    main()
