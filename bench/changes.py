"""
Changes: from the bytes of a watch to rules in the kernel, beside the restore program fed with the very same text.

Every change is measured there and back by syncs, and then there and back by the bare program with the two recorded
texts, so both find the table in the same state. Beside them stands the smallest input there is: one rule, with a
target, in a chain of its own that nothing leads to. On nf_tables what that takes is the kernel's check of the whole
table (every rule that can be reached from each base chain is looked at whenever a rule with a target is added); the
same rule without a target needs no check.
"""

import time
from collections.abc import Iterator, Sequence

import msgspec

from bench.follower import Follower, Line, Written, follower, listed
from bench.samples import Cell, Sample
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.objects.events import Kind
from kproxy_ipt.testing.big_cluster import (
    ENDPOINTS,
    ENDPOINTS_PER_SLICE,
    endpoint_slice_line,
    large_slice_line,
    service_lines,
)
from kproxy_ipt.testing.namespaces import temporary_namespace

ONE_ENDPOINT = "one endpoint changes"
SERVICE_ADDED = "Service added"
SERVICE_REMOVED = "Service removed"
ALL_ADDED = "all Services added"
ALL_REMOVED = "all Services removed"
LARGE = "one endpoint of a large Service changes"

_PROBE = "*nat\n:KPROXY-IPT-BENCH - [0:0]\n-A KPROXY-IPT-BENCH -s 192.0.2.1/32{target}\nCOMMIT\n"
_MOST_AT_ONCE = 10_000
"""Services of the largest cluster that is removed and added as a whole: it takes four times a full sync."""

_KINDS = (Kind.SERVICES, Kind.ENDPOINT_SLICES)


class _Timed(msgspec.Struct, frozen=True):
    seconds: float
    written: Written


def measure_changes(backend: str, dispatch: str, services: int, rounds: int) -> Iterator[Sample]:
    """Samples of small changes and of all Services at once, *rounds* pairs of each but the last, which has one."""
    shape = (backend, dispatch, services, ENDPOINTS)
    endpoint, added, removed = (Cell(name, *shape) for name in (ONE_ENDPOINT, SERVICE_ADDED, SERVICE_REMOVED))
    with temporary_namespace("bench") as netns, inside(netns):
        made = _filled(backend, dispatch, services)
        for number in range(rounds):
            chosen = number * 7919 % services
            changed = ((Kind.ENDPOINT_SLICES, endpoint_slice_line(chosen, replaced=0, generation=1)),)
            former = service_lines(chosen, "ADDED")[1:]
            yield from _there_and_back(made, (endpoint, endpoint), number, (changed, former))
            coming, leaving = service_lines(services, "ADDED"), service_lines(services, "DELETED")
            yield from _there_and_back(made, (added, removed), number, (coming, leaving))
        if services <= _MOST_AT_ONCE:
            yield from _everything(made, shape)


def measure_large(backend: str, dispatch: str, services: int, endpoints: int, rounds: int) -> Iterator[Sample]:
    """Samples of one endpoint that changes in a Service with *endpoints* of them, beside *services* small ones."""
    cell = Cell(LARGE, backend, dispatch, services, endpoints)
    slices = range(max(1, endpoints // ENDPOINTS_PER_SLICE))
    with temporary_namespace("bench") as netns, inside(netns):
        made = _filled(backend, dispatch, services)
        made.take(service_lines(services, "ADDED")[:1])
        made.take((Kind.ENDPOINT_SLICES, large_slice_line(services, index)) for index in slices)
        made.write()
        for number in range(rounds):
            index = number * 7 % len(slices)
            changed = ((Kind.ENDPOINT_SLICES, large_slice_line(services, index, replacement=number)),)
            former = ((Kind.ENDPOINT_SLICES, large_slice_line(services, index)),)
            yield from _there_and_back(made, (cell, cell), number, (changed, former))


def _filled(backend: str, dispatch: str, services: int) -> Follower:
    made = follower(backend, dispatch)
    for kind in _KINDS:
        made.take_list(kind, listed(kind, services))
    made.write()
    return made


def _there_and_back(
    made: Follower, cells: tuple[Cell, Cell], number: int, lines: tuple[Sequence[Line], Sequence[Line]]
) -> Iterator[Sample]:
    syncs = []
    for some in lines:
        started = time.perf_counter()
        made.take(some)
        written = made.write()
        syncs.append(_Timed(time.perf_counter() - started, written))
    yield from _beside_bare(made, cells, number, syncs)


def _everything(made: Follower, shape: tuple[str, str, int, int]) -> Iterator[Sample]:
    objects = {kind: listed(kind, shape[2]) for kind in _KINDS}
    syncs = []
    for lists in (dict.fromkeys(_KINDS, ()), objects):
        started = time.perf_counter()
        for kind, some in lists.items():
            made.take_list(kind, some)
        written = made.write()
        syncs.append(_Timed(time.perf_counter() - started, written))
    yield from _beside_bare(made, (Cell(ALL_REMOVED, *shape), Cell(ALL_ADDED, *shape)), 0, syncs)


def _beside_bare(made: Follower, cells: tuple[Cell, Cell], number: int, syncs: Sequence[_Timed]) -> Iterator[Sample]:
    """Feed the texts of both syncs to the bare program, in their order, and give all samples."""
    for position, (cell, timed) in enumerate(zip(cells, syncs, strict=True)):
        outcome = timed.written.outcome
        # All at once crosses the number of endpoints above which rules carry no comments, which takes a full sync.
        if outcome.transactions == 0 or (outcome.full and cell.scenario not in {ALL_ADDED, ALL_REMOVED}):
            raise RuntimeError(f"{cell}: the change was no change, or not written partially")
        bare = made.iptables.restore(timed.written.text).seconds
        smallest = made.iptables.restore(_PROBE.format(target=" -j RETURN")).seconds
        unchecked = made.iptables.restore(_PROBE.format(target="")).seconds
        values: dict[tuple[str, str], float] = {
            ("whole", "s"): timed.seconds,
            ("floor", "s"): bare,
            ("ratio", ""): timed.seconds / bare,
            ("our part", "s"): timed.seconds - outcome.restore_seconds,
            ("smallest input", "s"): smallest,
            ("smallest, unchecked", "s"): unchecked,
            ("bytes", ""): outcome.bytes,
            ("transactions", ""): outcome.transactions,
            ("chains", ""): outcome.chains_written + outcome.chains_deleted,
            ("rules", ""): sum(outcome.rules_written.values()),
        }
        for (measure, unit), value in values.items():
            yield Sample(cell, measure, unit, 2 * number + position, value)
