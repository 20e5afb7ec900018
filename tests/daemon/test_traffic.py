"""The daemon's count of connections: when it begins, when the kernel is read, what others are told."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TypeVar

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import ConnectionMetrics
from kproxy_ipt.daemon.log import SilentLog
from kproxy_ipt.daemon.traffic import LEAST_AGE_S, Traffic
from kproxy_ipt.errors import KernelError
from kproxy_ipt.rules.names import endpoint_chain_name
from kproxy_ipt.stats.ended_rule import EndedRule
from kproxy_ipt.stats.ledger import CounterKey, Kind
from kproxy_ipt.testing.objects import endpoint_slice, service
from kproxy_ipt.testing.synced_family import FamilyInMemory

V4 = Family.IPV4
T = TypeVar("T")
_POD = "10.244.1.11"
_KEY = CounterKey("default/web", "tcp", Kind.CONNECTIONS, f"{_POD}:80")


class _Daemon:
    """A family on a machine in memory, and its traffic."""

    def __init__(self, wanted: ConnectionMetrics = ConnectionMetrics.SERVICE) -> None:
        web = service()
        self.synced = FamilyInMemory(web, endpoint_slice(web, [_POD]))
        self.fake, self.clock = self.synced.machine, self.synced.clock
        self.tasks: list[asyncio.Task[None]] = []
        self.traffic = Traffic(
            wanted,
            SilentLog(),
            netns=None,
            in_background=lambda work: self.tasks.append(asyncio.create_task(work)),
            unix_s=self.clock,
            monotonic=self.clock,
        )
        self.traffic.serve(self.fake.opened())

    async def sync(self) -> None:
        """As `FamilyParts` does it; the reading that begins with the first one is awaited."""
        changes = self.synced.tracker.pending().changes
        self.traffic.expect(V4, changes)
        self.synced.sync()
        self.traffic.settle(V4, changes)
        await asyncio.gather(*self.tasks)

    @property
    def count(self) -> int | None:
        """The sum of the only endpoint."""
        found = self.traffic.sums()
        return None if found is None else found.sums.get(V4, {}).get(_KEY)


def _run(scenario: Callable[[_Daemon], Coroutine[None, None, T]], *, wanted: str = "service") -> T:
    async def run() -> T:
        daemon = _Daemon(ConnectionMetrics(wanted))
        try:
            return await scenario(daemon)
        finally:
            daemon.traffic.close()

    return asyncio.run(run())


def test_counting_begins_with_the_first_sync() -> None:
    """What rules had counted before is no connection of this life, or a restart would count it twice."""

    async def scenario(daemon: _Daemon) -> list[int | None]:
        counts = [daemon.count]
        await daemon.sync()
        daemon.fake.kernels[V4].count("-j DNAT", 1_000)
        counts.append(daemon.count)
        await daemon.traffic.refresh(max_age_s=0)
        return [*counts, daemon.count]

    assert [None, 0, 1_000] == _run(scenario)


def test_kernel_is_read_for_metrics_no_more_than_now_and_then() -> None:
    """Scrapes in a row see one reading; other pages read nothing."""

    async def scenario(daemon: _Daemon) -> list[int]:
        await daemon.sync()
        first, saves = daemon.fake.saves, list[int]()
        for path, pause_s in (("/metrics", 0.0), ("/metrics", LEAST_AGE_S), ("/metrics", 0.1), ("/healthz", 9.0)):
            daemon.clock.advance(pause_s)
            await daemon.traffic.prepare(path)
            saves.append(daemon.fake.saves - first)
        return saves

    assert [0, 1, 1, 1] == _run(scenario)


def test_nothing_is_counted_or_read_where_nobody_wants_it() -> None:
    """No series, no program, and the report says why it is empty."""

    async def scenario(daemon: _Daemon) -> tuple[object, int, str]:
        await daemon.sync()
        saves = daemon.fake.saves
        await daemon.traffic.prepare("/metrics")
        report = await daemon.traffic.refresh(max_age_s=0)
        return daemon.traffic.sums(), daemon.fake.saves - saves, report.problem

    assert (None, 0, "connections are not counted") == _run(scenario, wanted="none")


def test_kernel_that_cannot_be_read_is_a_problem_told() -> None:
    """What was known stays; the next reading clears it."""

    async def scenario(daemon: _Daemon) -> list[str]:
        await daemon.sync()
        daemon.fake.broken = KernelError("the program hangs")
        first = await daemon.traffic.refresh(max_age_s=0)
        daemon.fake.broken = None
        second = await daemon.traffic.refresh(max_age_s=0)
        return [first.problem, second.problem, first.services[0].service_port]

    assert ["the program hangs", "", "default/web"] == _run(scenario)


def test_rules_that_end_are_counted_without_reading() -> None:
    """Whoever hears of them tells."""

    async def scenario(daemon: _Daemon) -> list[int | None]:
        await daemon.sync()
        saves = daemon.fake.saves
        chain = endpoint_chain_name("default/web", "tcp", f"{_POD}:80")
        daemon.traffic.all_ended([EndedRule(V4, chain, "", 7), EndedRule(Family.IPV6, chain, "", 9)])
        return [daemon.count, daemon.fake.saves - saves]

    assert [7, 0] == _run(scenario)


def test_report_has_shares_beside_counts() -> None:
    """For whoever shows them, from the same source as metrics."""

    async def scenario(daemon: _Daemon) -> tuple[object, ...]:
        await daemon.sync()
        daemon.clock.advance(5)
        daemon.fake.kernels[V4].count("-j DNAT", 30)
        daemon.fake.kernels[V4].count("-j KUBE-SEP-", 12)
        report = await daemon.traffic.refresh(max_age_s=1)
        (one,) = report.services[0].endpoints
        return one.connections, one.recent, one.share, one.observed, report.unix_time_s - (report.since_unix_s or 0)

    assert (30, 12, 1.0, 1.0, 5) == _run(scenario)


@pytest.mark.parametrize("wanted", ["service", "endpoint"])
def test_endpoints_have_series_only_if_they_are_wanted(wanted: str) -> None:
    """What metrics are told follows the configuration."""

    async def scenario(daemon: _Daemon) -> bool | None:
        await daemon.sync()
        found = daemon.traffic.sums()
        return found.by_endpoint if found else None

    assert (wanted == "endpoint") is _run(scenario, wanted=wanted)
