"""
The daemon's count of connections: kept across syncs, read from the kernel when somebody asks.

What ends with a rule is told at once (`kernel/nft_counters.py`, `legacy_departures.py`), so no sync and nobody else's
change loses it, and the kernel need not be read at any other time than when somebody asks. Reading prints the whole
tables, in a program and a thread of their own so that no sync waits for it, and it is rationed: after t seconds of
reading there are 50 t without.

Counting begins with the first sync. Sums are those since then, since a counter of Prometheus has to begin at 0.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from collections.abc import Set as AbstractSet

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import ConnectionMetrics
from kproxy_ipt.daemon.connection_metrics import ConnectionSums
from kproxy_ipt.daemon.kernel_thread import KernelThread
from kproxy_ipt.daemon.log import Log
from kproxy_ipt.daemon.machine import Machine
from kproxy_ipt.errors import KernelError
from kproxy_ipt.rules.names import TABLES
from kproxy_ipt.ruleset.counted import CountedTables, scan_counters
from kproxy_ipt.state.tracker import ServiceName, States
from kproxy_ipt.stats.ended_rule import EndedRule
from kproxy_ipt.stats.family_traffic import FamilyTraffic
from kproxy_ipt.stats.model import TrafficReport

LEAST_AGE_S = 2.0
"""What is younger than this is not read again for metrics."""

LONGEST_WAIT_S = 1.0
"""So long metrics wait for a reading; after that they tell what is known."""

_SHARE = 50.0

Changes = Mapping[ServiceName, States]
Background = Callable[[Coroutine[None, None, None]], None]


class Traffic:
    """
    Counts connections for all families, on the event loop; a `TrafficSource`.

    Attributes:
        take_waiting: Takes in what the kernel has told so far about rules that ended, where it tells.
    """

    def __init__(
        self,
        wanted: ConnectionMetrics,
        log: Log,
        *,
        netns: str | None,
        in_background: Background,
        unix_s: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Prepare; `serve` comes before everything else.

        Args:
            wanted: Which metrics there are; NONE means that nothing is counted.
            log: Told if the kernel cannot be read, once until it can.
            netns: Of the tables.
            in_background: Runs a reading beside everything else.
            unix_s: Seconds since 1970.
            monotonic: Seconds.
        """
        self.take_waiting: Callable[[], None] = lambda: None
        self._wanted = wanted
        self._log = log
        self._in_background = in_background
        self._unix_s = unix_s
        self._monotonic = monotonic
        self._thread = KernelThread(netns, "counters")
        self._families: dict[Family, FamilyTraffic] = {}
        self._machine: Machine | None = None
        self._settled: set[Family] = set()
        self._since_unix_s: float | None = None
        self._read_unix_s = 0.0
        self._read_at_s = float("-inf")
        self._next_s = float("-inf")
        self._idle = asyncio.Event()
        self._idle.set()
        self._problem = ""

    def serve(self, machine: Machine) -> None:
        """Begin to know the rules of *machine*, whose programs must belong to nobody else."""
        if self._wanted is not ConnectionMetrics.NONE:
            self._machine = machine
            self._families = {family: FamilyTraffic(family) for family in machine.iptables}

    def close(self) -> None:
        """Wait for a reading that runs; may be called twice."""
        self._thread.close()

    def expect(self, family: Family, changes: Changes) -> None:
        """A sync of *changes* begins."""
        if family in self._families:
            self._families[family].expect(changes)

    def settle(self, family: Family, changes: Changes) -> None:
        """It succeeded, and everything that it ended was told."""
        if family not in self._families:
            return
        self._families[family].settle(changes)
        if family not in self._settled:
            self._settled.add(family)
            self._in_background(self._read_again())

    def has_started(self, family: Family) -> bool:
        """Whether anything of a family is counted yet; for any thread."""
        return family in self._families and self._families[family].ledger.has_started

    def ended(self, rule: EndedRule) -> None:
        """A rule has gone."""
        if rule.family in self._families:
            self._families[rule.family].ended(rule)

    def all_ended(self, rules: Sequence[EndedRule]) -> None:
        """Several have."""
        for rule in rules:
            self.ended(rule)

    async def prepare(self, path: str) -> None:
        """Read the kernel before metrics are published, if it is time for that; wait for it a moment at most."""
        if path == "/metrics" and self._families and self._may_read(LEAST_AGE_S):
            self._in_background(self._read_again())
            await asyncio.sleep(0)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LONGEST_WAIT_S):
                    await self._idle.wait()

    def _may_read(self, max_age_s: float) -> bool:
        return self._monotonic() >= max(self._next_s, self._read_at_s + max_age_s)

    def sums(self) -> ConnectionSums | None:
        """All sums as they are known, for metrics; None if nothing is counted."""
        if self._wanted is ConnectionMetrics.NONE:
            return None
        return ConnectionSums(
            sums={family: one.ledger.sums for family, one in self._families.items() if one.ledger.has_started},
            by_endpoint=self._wanted is ConnectionMetrics.ENDPOINT,
            age_s=self._monotonic() - self._read_at_s if self._read_unix_s else None,
        )

    def report(self, only: AbstractSet[ServiceName] | None = None) -> TrafficReport:
        """See `TrafficSource`."""
        return TrafficReport(
            services=tuple(service for one in self._families.values() for service in one.services(only)),
            invalid_dropped=sum(one.invalid_dropped for one in self._families.values()),
            unix_time_s=self._read_unix_s,
            since_unix_s=self._since_unix_s,
            problem="connections are not counted" if self._wanted is ConnectionMetrics.NONE else self._problem,
        )

    async def refresh(self, *, max_age_s: float) -> TrafficReport:
        """See `TrafficSource`; the ration counts here too."""
        await self.read(max_age_s=max_age_s)
        return self.report()

    async def read(self, *, max_age_s: float) -> None:
        """See `TrafficSource`; the ration counts here too."""
        if self._may_read(max_age_s):
            await self._read_again()

    async def _read_again(self) -> None:
        """Read all families, or wait for the end of a reading that is under way."""
        if self._machine is None or not self._idle.is_set():
            await self._idle.wait()
            return
        self._idle.clear()
        began_s = self._monotonic()
        try:
            await self._read(self._machine)
            self._problem = ""
        except Exception as error:  # noqa: BLE001 - a bug of counting must not take rules from a node
            problem = str(error) if isinstance(error, KernelError) else repr(error)
            if not self._problem:
                self._log.warning("counters", error=problem, now="connections are those of the last reading")
            self._problem = problem
        finally:
            ended_s = self._monotonic()
            self._next_s = ended_s + _SHARE * (ended_s - began_s)
            self._idle.set()

    async def _read(self, machine: Machine) -> None:
        began_unix_s, began_s = self._unix_s(), self._monotonic()
        for family, one in self._families.items():
            if family not in self._settled:
                continue
            with one.ledger.look() as look:
                seen = await self._thread.call(_scan, machine, family)
                # A rule that ended before it was read must be counted before its absence is seen.
                self.take_waiting()
                if one.ledger.has_started:
                    one.observe(seen, look)
                else:
                    one.start(seen)
        self._read_unix_s, self._read_at_s = began_unix_s, began_s
        self._since_unix_s = self._since_unix_s or self._read_unix_s


def _scan(machine: Machine, family: Family) -> CountedTables:
    return scan_counters(machine.iptables[family].start_save(TABLES, counters=True).text())
