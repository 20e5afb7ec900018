"""
The whole command: a full sync into an empty namespace, and a restart that finds nothing to do.

Each round: an empty namespace gets the rules by the bare restore program; another one by `kproxy-ipt sync --once`, from
a JSON file; then the command runs again, and the bare save program. What is compared was measured right after each
other, so the ratios stand although machines are noisy.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from bench.floor import CLUSTER_CIDR, bare_inputs, desired_rules, run_bare, run_bare_save
from bench.samples import Cell, Sample
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.testing.big_cluster import ENDPOINTS, cluster
from kproxy_ipt.testing.namespaces import temporary_namespace

FULL_SYNC = "full sync"
RESTART = "restart without change"


class Report(msgspec.Struct, frozen=True):
    """What the command prints about itself, as far as it is needed."""

    transactions: int
    bytes: int
    chains: int
    rules: int


class Ran(msgspec.Struct, frozen=True):
    """What `launch.py` prints about a command, and what the command printed."""

    seconds: float
    peak_kib: int
    exit_status: int


def run_command(path: Path, backend: str, dispatch: str) -> tuple[Ran, Report]:
    """Sync once, in the namespace of the calling thread; a failure ends the benchmark."""
    program = str(Path(sys.executable).with_name("kproxy-ipt"))
    command = [
        program, "sync", "--once", "--from", str(path), "--cluster-cidr", CLUSTER_CIDR, "--backend", backend,
        "--family", "ipv4", "--dispatch", dispatch, "--output", "json", "--lock-wait", "60",
    ]  # fmt: skip
    launcher = str(Path(__file__).with_name("launch.py"))
    with tempfile.NamedTemporaryFile() as output:
        done = subprocess.run(
            [sys.executable, "-I", "-S", launcher, output.name, *command], check=True, capture_output=True
        )
        ran = msgspec.json.decode(done.stdout, type=Ran)
        if ran.exit_status != 0:
            raise RuntimeError(f"{' '.join(command)}: exit status {ran.exit_status}: {done.stderr.decode()}")
        return ran, msgspec.json.decode(Path(output.name).read_bytes(), type=Report)


def measure_whole_command(backend: str, dispatch: str, services: int, rounds: int) -> Iterator[Sample]:
    """Samples of both scenarios, round by round."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "cluster.json")
        path.write_bytes(cluster(services))
        inputs = bare_inputs(desired_rules(path, dispatch), backend)
        for number in range(rounds):
            with temporary_namespace("bench") as netns, inside(netns):
                bare = run_bare(backend, inputs)
            with temporary_namespace("bench") as netns, inside(netns):
                first = run_command(path, backend, dispatch)
                second = run_command(path, backend, dispatch)
                save = run_bare_save(backend)
            shape = (backend, dispatch, services, ENDPOINTS)
            yield from _samples(Cell(FULL_SYNC, *shape), number, *first, bare)
            yield from _samples(Cell(RESTART, *shape), number, *second, save)


def _samples(cell: Cell, number: int, ran: Ran, report: Report, floor: float) -> Iterator[Sample]:
    yield Sample(cell, "whole", "s", number, ran.seconds)
    yield Sample(cell, "floor", "s", number, floor)
    yield Sample(cell, "ratio", "", number, ran.seconds / floor)
    yield Sample(cell, "bytes", "", number, report.bytes)
    yield Sample(cell, "transactions", "", number, report.transactions)
    yield Sample(cell, "chains", "", number, report.chains)
    yield Sample(cell, "rules", "", number, report.rules)
    yield Sample(cell, "peak memory", "MiB", number, ran.peak_kib / 1024)
