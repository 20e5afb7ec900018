"""
How long one changed pod takes from the bytes of a watch to rules in the kernel, and how much memory a long life takes.

One process, one family (IPv4), the nf_tables tables of a network namespace of its own. First all objects are decoded
from lines of a watch and synced; then one endpoint at a time changes, each Service in turn:

    line of the watch -> decoded object -> tracker -> rules -> restore program has ended

What is printed: milliseconds of the whole way and of the restore program alone, bytes that the program was fed, and
resident memory after the first sync and after many more events. These events go the same way but for the restore
program, so that they show memory of ours; in the end everything is compared and written.

After each change the restore program is run alone with the smallest input there is: one rule, with a target, in a
chain of its own that nothing leads to. What that takes is the kernel's check of the whole table, which no restore
can do without; the same without a target needs no check. Both in the same table, so the ratios stand although
machines are noisy.

Usage: python bench/bench_change.py [--services 5000] [--changes 200] [--events 20000]
"""

import argparse
import gc
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config
from kproxy_ipt.daemon.family import FamilySync, ProcessNote, SyncOutcome, SyncRequest
from kproxy_ipt.daemon.log import SilentLog
from kproxy_ipt.daemon.machine import Machine, Target, machine_facts, open_machine
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.objects.events import Kind, Listed, Put
from kproxy_ipt.plan.flows import entry_options
from kproxy_ipt.rules.options import rule_options
from kproxy_ipt.sources.watch_stream import Changed, read_line
from kproxy_ipt.state.model import NodeFacts
from kproxy_ipt.state.tracker import ObjectStore, StateTracker
from kproxy_ipt.testing.big_cluster import ENDPOINTS, endpoint_slice_line, watch_lines
from kproxy_ipt.testing.namespaces import temporary_namespace

NODE = "node-0"


_PROBE = "*nat\n:KPROXY-IPT-BENCH - [0:0]\n-A KPROXY-IPT-BENCH -s 192.0.2.1/32{target}\nCOMMIT\n"


class Change(msgspec.Struct, frozen=True):
    """
    One change that was written.

    Attributes:
        seconds: Of the whole way.
        restore_seconds: Of the restore program.
        bytes: What it was fed.
        least_seconds: Of the restore program with the smallest input that the kernel has to check.
        unchecked_seconds: The same where it has not.
    """

    seconds: float
    restore_seconds: float
    bytes: int
    least_seconds: float
    unchecked_seconds: float


class Follower:
    """Objects, what they mean, and the kernel that is kept in step with them."""

    def __init__(self, machine: Machine) -> None:
        self.store = ObjectStore()
        self.tracker = StateTracker(Family.IPV4, NODE)
        config = Config(cluster_cidrs=("10.128.0.0/9",))
        facts = machine_facts(machine, ensure=True)
        self._options = rule_options(config, NodeFacts(name=NODE), facts, Family.IPV4, endpoint_count=0)
        self._entries = entry_options(self._options, facts.interface_addresses)
        self._iptables = machine.iptables[Family.IPV4]
        self.sync = FamilySync(machine, Family.IPV4, SilentLog(), ProcessNote())

    def take_lists(self, services: int) -> None:
        """Take in a cluster, decoded line by line as a streaming list is."""
        for kind in (Kind.SERVICES, Kind.ENDPOINT_SLICES):
            objects = tuple(decoded(kind, line).object for line in watch_lines(kind, services))
            self.tracker.refresh(self.store, self.store.apply(Listed(kind, objects)), now_s=0.0)

    def take(self, line: bytes) -> None:
        """Take in one line of the watch of EndpointSlices."""
        event = decoded(Kind.ENDPOINT_SLICES, line)
        self.tracker.refresh(self.store, self.store.apply(event), now_s=0.0)

    def write(self, reason: str = "") -> SyncOutcome:
        """Sync, as the daemon does; a failure ends the benchmark."""
        pending = self.tracker.pending()
        request = SyncRequest(changes=pending.changes, options=self._options, entries=self._entries, reason=reason)
        outcome = self.sync.run(request, set())
        if outcome.error is not None:
            raise outcome.error
        self.tracker.commit(pending)
        return outcome

    def probe(self, target: str) -> float:
        """Seconds of the restore program with one rule."""
        return self._iptables.restore(_PROBE.format(target=target)).seconds

    def pretend(self) -> None:
        """Go the way of a sync up to the restore program, which is not run."""
        pending = self.tracker.pending()
        self.sync.rules.update(pending.changes)
        self.sync.rules.plan_partial(staged=True)
        self.sync.rules.commit()
        self.sync.flows.update(pending.changes)
        self.tracker.commit(pending)


def decoded(kind: Kind, line: bytes) -> Put:
    """The event of one line, which is known to be good."""
    said = read_line(kind, line, "bench")
    if not isinstance(said, Changed) or not isinstance(said.event, Put):
        raise TypeError(f"no event: {said}")
    return said.event


def resident_mib() -> float:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def changed_line(number: int, services: int) -> bytes:
    """The *number*-th change: one endpoint of a Service is replaced, each Service in turn."""
    return endpoint_slice_line(number % services, replaced=number % ENDPOINTS, generation=1 + number // services % 200)


def one_change(follower: Follower, line: bytes) -> Change:
    """Take one line from its bytes to the kernel."""
    started = time.perf_counter()
    follower.take(line)
    outcome = follower.write()
    seconds = time.perf_counter() - started
    if outcome.transactions == 0 or outcome.full:
        raise RuntimeError("the change was no change, or not written partially")
    return Change(seconds, outcome.restore_seconds, outcome.bytes, follower.probe(" -j RETURN"), follower.probe(""))


def show(title: str, changes: Sequence[Change], others: Mapping[str, str]) -> None:
    """Print the table of the changes and the other figures."""
    table = Table("one changed endpoint", "min", "median", "p99", "max", title=title)
    rows = {
        "bytes of the watch to rules in the kernel, ms": [one.seconds * 1e3 for one in changes],
        "of it the restore program, ms": [one.restore_seconds * 1e3 for one in changes],
        "of it all else, ms": [(one.seconds - one.restore_seconds) * 1e3 for one in changes],
        "restore program alone, one rule with a target, ms": [one.least_seconds * 1e3 for one in changes],
        "restore program alone, one rule without, ms": [one.unchecked_seconds * 1e3 for one in changes],
        "bytes fed to the restore program": [float(one.bytes) for one in changes],
    }
    for name, values in rows.items():
        p99 = sorted(values)[int(len(values) * 0.99) - 1]
        table.add_row(name, *(f"{value:.1f}" for value in (min(values), statistics.median(values), p99, max(values))))
    Console().print(table)
    for name, text in others.items():
        Console().print(f"{name}: {text}", highlight=False)


def measure(services: int, changes: int, events: int) -> None:
    """Run the benchmark in a namespace of its own and print what it found."""
    with temporary_namespace("bench") as netns, inside(netns):
        follower = Follower(open_machine(Target(netns=netns, backend="nft", families=(Family.IPV4,))))
        started = time.perf_counter()
        follower.take_lists(services)
        taken = time.perf_counter()
        first = follower.write()
        synced = time.perf_counter()
        gc.collect()
        memory_first = resident_mib()
        written = [one_change(follower, changed_line(number, services)) for number in range(changes)]
        memory_changes = resident_mib()
        last = changes + events
        for number in range(changes, last):
            follower.take(changed_line(number, services))
            follower.pretend()
        memory_events = resident_mib()
        repair = follower.write("comparison")
        left = follower.write("comparison")
    show(
        f"{services} services x {ENDPOINTS} endpoints, IPv4, nft",
        written,
        {
            "decoding all objects": f"{taken - started:.2f} s",
            "first sync": f"{synced - taken:.2f} s, {first.transactions} transactions, {first.bytes / 2**20:.1f} MiB",
            "memory after the first sync": f"{memory_first:.0f} MiB",
            f"memory after {changes} changes": f"{memory_changes:.0f} MiB",
            f"memory after {events} more events": f"{memory_events:.0f} MiB, without the restore program",
            "comparison afterwards": f"{repair.chains_written} chains written",
            "comparison after that": f"{left.transactions} transactions; 0: nothing differs",
        },
    )


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--services", type=int, default=5000)
    parser.add_argument("--changes", type=int, default=200)
    parser.add_argument("--events", type=int, default=20_000)
    options = parser.parse_args()
    measure(options.services, options.changes, options.events)


if __name__ == "__main__":
    main()
