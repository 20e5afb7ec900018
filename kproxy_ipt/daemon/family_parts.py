"""Everything that belongs to one family in the daemon: its thread, its sync, its loop, what it tells others."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.drift import LegacyWatch
from kproxy_ipt.daemon.fallback_watch import FallbackWatch
from kproxy_ipt.daemon.family import FamilySync, ProcessNote, SyncOutcome
from kproxy_ipt.daemon.family_loop import Clocks, FamilyLoop, OnSynced
from kproxy_ipt.daemon.health import ProxyHealth
from kproxy_ipt.daemon.health_ports import HealthPorts, WantedPorts, listen_addresses
from kproxy_ipt.daemon.kernel_thread import KernelThread
from kproxy_ipt.daemon.legacy_departures import LegacyDepartures
from kproxy_ipt.daemon.log import Log
from kproxy_ipt.daemon.machine import Machine
from kproxy_ipt.daemon.metrics import Metrics
from kproxy_ipt.daemon.quarantine import Refusal
from kproxy_ipt.daemon.schedule import SyncSchedule
from kproxy_ipt.daemon.service_summaries import ServiceSummaries
from kproxy_ipt.daemon.traffic import Traffic
from kproxy_ipt.rules.options import RuleOptions
from kproxy_ipt.state.flows import EntryOptions
from kproxy_ipt.state.tracker import Pending, StateTracker
from kproxy_ipt.stats.ended_rule import EndedRule

Window = Callable[[], AbstractContextManager[set[int]]]


class FamilyParts:
    """
    One family.

    Attributes:
        loop: Decides when to sync.
        legacy: Watches legacy tables; None on nf_tables.
    """

    def __init__(
        self,
        family: Family,
        machine: Machine,
        processes: ProcessNote,
        thread: KernelThread,
        tracker: StateTracker,
        schedule: SyncSchedule,
        *,
        health: ProxyHealth,
        health_ports: HealthPorts,
        metrics: Metrics,
        log: Log,
        clocks: Clocks,
        window: Window,
        on_refusal: Callable[[Refusal], None] = lambda _: None,
        on_synced: OnSynced = lambda *_: None,
        traffic: Traffic | None = None,
    ) -> None:
        """Put the parts together; see their classes."""
        self.family = family
        self.legacy: LegacyWatch | None = None
        self._thread = thread
        self._summaries = ServiceSummaries()
        self._fallbacks = FallbackWatch(family, log, metrics)
        self._traffic = traffic
        departures = None if machine.is_staged or traffic is None else _departures(family, traffic, log)
        self._sync = FamilySync(machine, family, log, processes, departures=departures)
        self._health_ports = health_ports
        self._metrics = metrics
        self._log = log
        self._clocks = clocks
        self._options: RuleOptions | None = None
        self._entries: EntryOptions | None = None
        self.loop = FamilyLoop(
            self._sync,
            tracker,
            thread,
            schedule,
            health=health,
            metrics=metrics,
            log=log,
            clocks=clocks,
            window=window,
            before_sync=self._before_sync,
            after_sync=self._after_sync,
            on_refusal=on_refusal,
            on_synced=on_synced,
        )

    def set_options(self, options: RuleOptions, entries: EntryOptions, reason: str) -> None:
        """Let rules follow what they depend on; nothing happens where nothing changed."""
        if (options, entries) == (self._options, self._entries):
            return
        # Addresses alone may change which flows are ours, and no rule: then there is nothing to compare.
        reason = reason if options != self._options else ""
        self._options, self._entries = options, entries
        self.loop.set_options(options, entries)
        self.loop.request(reason)

    @property
    def is_watched(self) -> bool:
        """Whether changes of others are noticed; on legacy only from the end of the first sync on."""
        return self.legacy is None or self.legacy.has_learnt

    def compare_in_s(self) -> float:
        """Seconds until everything may be compared again."""
        return self.loop.ration.wait_s(self._clocks.monotonic())

    async def _before_sync(self, pending: Pending) -> None:
        """A balancer has to hear of a lost pod no later than rules do; what others did is seen before it is ours."""
        self._health_ports.lower(self.family, self._summaries.counts_after(pending.changes))
        if self._traffic is not None:
            self._traffic.expect(self.family, pending.changes)
        if self.legacy is not None:
            await self.legacy.before_sync()

    async def _after_sync(self, outcome: SyncOutcome, pending: Pending) -> None:
        if self._traffic is not None:
            self._traffic.settle(self.family, pending.changes)
        options = self._options
        if options is None:
            return
        self._summaries.update(pending.changes, options.node)
        self._fallbacks.update(pending.changes, options)
        without = self._summaries.without_local
        self._metrics.no_local_endpoints(self.family, internal=without.internal, external=without.external)
        if self.legacy is not None:
            await self._extra("legacy tables", self.legacy.learn(outcome.rules, outcome.chains))
        await self._extra("health check node ports", self._update_health_ports(options))
        await self._extra("conntrack", self._clean_flows())

    async def _extra(self, what: str, work: Awaitable[None]) -> None:
        """Rules stand already: whatever goes wrong now is told, and done at the next sync."""
        try:
            await work
        except Exception as error:  # noqa: BLE001 - a bug here must not take rules from a node
            self._log.warning(
                "left undone", family=self.family, what=what, error=repr(error), now="tried again at the next sync"
            )

    async def _update_health_ports(self, options: RuleOptions) -> None:
        wanted = WantedPorts(
            services=self._summaries.ports,
            node_ports=self._summaries.node_ports,
            addresses=listen_addresses(options.node_ports, self.family),
        )
        await self._health_ports.update(self.family, wanted, self._summaries.counts)
        self._metrics.health_check_ports(
            self.family,
            opened=len(self._health_ports.open_ports(self.family)),
            failed=len(self._health_ports.problems(self.family)),
        )

    async def _clean_flows(self) -> None:
        outcome = await self._thread.call(self._sync.clean_flows)
        if outcome is None:
            return
        if outcome.problem:
            self._log.warning("conntrack", family=self.family, problem=outcome.problem)
            return
        self._metrics.conntrack_cleaned(self.family, seconds=outcome.seconds, deleted=outcome.deleted)
        self._log.info("conntrack", family=self.family, listed=outcome.listed, deleted=outcome.deleted)


def _departures(family: Family, traffic: Traffic, log: Log) -> LegacyDepartures:
    """What ends on the legacy backend is read in the kernel thread, and counted on the loop."""
    loop = asyncio.get_running_loop()

    def tell(ended: Sequence[EndedRule]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the daemon has ended
            loop.call_soon_threadsafe(traffic.all_ended, ended)

    return LegacyDepartures(family, tell, lambda: traffic.has_started(family), log)
