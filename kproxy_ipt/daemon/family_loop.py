"""
One family, kept in step: when to sync, what with, and who is told about it.

Runs on the event loop; the work itself is done in the kernel thread of the family.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.drift import Ration
from kproxy_ipt.daemon.family import EVERYTHING, FamilySync, SyncOutcome, SyncRequest
from kproxy_ipt.daemon.health import ProxyHealth
from kproxy_ipt.daemon.kernel_thread import KernelThread
from kproxy_ipt.daemon.log import Log
from kproxy_ipt.daemon.metrics import Metrics, SyncEnd, SyncKind
from kproxy_ipt.daemon.quarantine import Quarantine, Refusal
from kproxy_ipt.daemon.schedule import SyncSchedule
from kproxy_ipt.errors import KernelError, LockTimeoutError
from kproxy_ipt.rules.options import RuleOptions
from kproxy_ipt.state.flows import EntryOptions
from kproxy_ipt.state.tracker import Pending, StateTracker

_SHOWN_CHAINS = 5
_MOST_FAILED_S = 0.4
"""A comparison that failed counts as no longer than this: most of a long one was waiting, for a lock or a program."""

AfterSync = Callable[[SyncOutcome, Pending], Awaitable[None]]
OnSynced = Callable[[Family, SyncRequest, SyncOutcome], None]


class Clocks(msgspec.Struct, frozen=True):
    """Monotonic seconds, and seconds since 1970."""

    monotonic: Callable[[], float]
    unix_s: Callable[[], float]

    def wall_ns(self) -> int:
        """Nanoseconds since 1970."""
        return int(self.unix_s() * 1e9)


class FamilyLoop:
    """
    The loop of one family.

    Attributes:
        schedule: Says when to sync; `reschedule` after changing it.
        ration: Says when everything may be compared because of what others did.
    """

    def __init__(
        self,
        sync: FamilySync,
        tracker: StateTracker,
        thread: KernelThread,
        schedule: SyncSchedule,
        *,
        health: ProxyHealth,
        metrics: Metrics,
        log: Log,
        clocks: Clocks,
        window: Callable[[], AbstractContextManager[set[int]]],
        before_sync: Callable[[Pending], Awaitable[None]],
        after_sync: AfterSync,
        on_refusal: Callable[[Refusal], None] = lambda _: None,
        on_synced: OnSynced = lambda *_: None,
    ) -> None:
        """
        Put the parts together; `run` begins.

        Args:
            sync: Of this family.
            tracker: Of this family.
            thread: Where *sync* runs.
            schedule: Says when.
            health: Told what waits and what is done.
            metrics: Counts.
            log: Told what is done.
            clocks: Time.
            window: Gives what is entered around programs of ours that write, and takes their process ids.
            before_sync: Awaited before rules change.
            after_sync: Awaited after a sync that succeeded.
            on_refusal: Told about each Service that the kernel refuses, each time that it does.
            on_synced: Told what each sync had to do and what it did, failures included.
        """
        self.family = sync.family
        self.schedule = schedule
        self.ration = Ration()
        self._sync = sync
        self._tracker = tracker
        self._thread = thread
        self._health = health
        self._metrics = metrics
        self._log = log
        self._clocks = clocks
        self._window = window
        self._before_sync = before_sync
        self._after_sync = after_sync
        self._on_refusal = on_refusal
        self._on_synced = on_synced
        self._quarantine = Quarantine(sync.family)
        self._wake = asyncio.Event()
        self._can_begin = asyncio.Event()
        self._options: RuleOptions | None = None
        self._entries: EntryOptions | None = None
        self._reason = ""

    def request(self, reason: str = "") -> None:
        """
        Ask for a sync.

        Args:
            reason: Why the kernel is to be read and compared as a whole; "" if only state changed.
        """
        self._add_reason(reason)
        self._health.queued(self.family)
        self._metrics.sync_queued(self.family, unix_time_s=self._clocks.unix_s())
        self.schedule.request()
        self._wake.set()

    def reschedule(self, *, min_gap_s: float, retry_cap_s: float) -> None:
        """Let the schedule have other periods, from now on."""
        self.schedule.min_gap_s = min_gap_s
        self.schedule.retry_cap_s = retry_cap_s
        self._wake.set()

    def _add_reason(self, reason: str) -> None:
        """The latest reason counts, but for the one that asks for more than a comparison."""
        if self._reason != EVERYTHING:
            self._reason = reason or self._reason

    def set_options(self, options: RuleOptions, entries: EntryOptions) -> None:
        """Set what all rules depend on, from the next sync on; ask for that sync separately. None runs before."""
        self._options, self._entries = options, entries
        self._can_begin.set()

    async def run(self) -> None:
        """Sync whenever it is due, until cancelled; a sync that has begun is finished."""
        await self._can_begin.wait()
        while True:
            await self._wait_until_due()
            await self.sync()

    async def _wait_until_due(self) -> None:
        while True:
            due_s = self.due_s()
            remaining_s = None if due_s is None else due_s - self._clocks.monotonic()
            if remaining_s is not None and remaining_s <= 0:
                return
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(remaining_s):
                    await self._wake.wait()

    def due_s(self) -> float | None:
        """When to sync next: by the schedule, or to try Services again that are set aside; None: nothing to do."""
        due = [due_s for due_s in (self.schedule.due_s(), self._quarantine.due_s()) if due_s is not None]
        return min(due, default=None)

    async def sync(self) -> None:
        """Sync once, now."""
        pending = self._tracker.pending()
        self._metrics.changes_taken()
        request = SyncRequest(
            changes=pending.changes,
            options=self._options,
            entries=self._entries,
            reason=self._reason,
            retry=self._quarantine.take_due(self._clocks.monotonic()),
        )
        self._reason = ""
        self._options = self._entries = None
        self.schedule.started()
        self.ration.began()
        self._health.sync_began(self.family)
        await self._before_sync(pending)
        with self._window() as process_ids:
            outcome = await self._run_in_thread(request, process_ids)
        self.schedule.ended(self._clocks.monotonic(), succeeded=outcome.error is None)
        self.ration.ended(self._clocks.monotonic(), _compared_s(outcome))
        self._record(outcome)
        self._tell_quarantine(outcome)
        self._on_synced(self.family, request, outcome)
        if outcome.error is not None:
            self._keep_request(request)
            self._health.failed(self.family, str(outcome.error))
            return
        self._tracker.commit(pending)
        self._health.updated(self.family)
        now_s = self._clocks.unix_s()
        self._metrics.programmed(self.family, [now_s - trigger_s for trigger_s in pending.trigger_times_s])
        await self._after_sync(outcome, pending)

    async def _run_in_thread(self, request: SyncRequest, process_ids: set[int]) -> SyncOutcome:
        """A thread that cannot enter its namespace, for want of file descriptors, is a failure as others are."""
        try:
            return await self._thread.call(self._sync.run, request, process_ids)
        except KernelError as error:
            return SyncOutcome(full=False, error=error)

    def _keep_request(self, request: SyncRequest) -> None:
        """What a failed sync was asked for is asked for again; rules keep their options themselves."""
        self._add_reason(request.reason if request.reason == EVERYTHING else self._reason or request.reason)
        self._options = self._options or request.options
        self._entries = self._entries or request.entries

    def _record(self, outcome: SyncOutcome) -> None:
        metrics, family = self._metrics, self.family
        ending = SyncEnd.FAILED if outcome.error else SyncEnd.WRITTEN if outcome.transactions else SyncEnd.SKIPPED
        kind = SyncKind.FULL if outcome.full else SyncKind.PARTIAL
        metrics.sync_ended(family, kind, ending, seconds=outcome.seconds, unix_time_s=self._clocks.unix_s())
        for table, owned in outcome.rules.items():
            metrics.rules_counted(family, table, owned=owned, written=outcome.rules_written.get(table, 0))
        if outcome.error is not None:
            self._record_failure(outcome)
        elif outcome.transactions:
            metrics.restored(
                family,
                seconds=outcome.restore_seconds,
                size=outcome.bytes,
                transactions=outcome.transactions,
                written=outcome.chains_written,
                deleted=outcome.chains_deleted,
            )
            self._log.debug(
                "synced",
                family=family,
                kind=str(kind),
                transactions=outcome.transactions,
                bytes=outcome.bytes,
                seconds=round(outcome.seconds, 4),
            )
        self._record_repairs(outcome)

    def _tell_quarantine(self, outcome: SyncOutcome) -> None:
        now_s, family = self._clocks.monotonic(), self.family
        self._quarantine.refused(outcome.set_aside, outcome.aside, now_s)
        back = self._quarantine.succeeded(outcome.aside) if outcome.error is None else ()
        for name in back:
            self._log.info("service no longer set aside", family=family, service="/".join(name))
        for refusal in self._quarantine.refusals:
            if refusal.service in outcome.set_aside:
                self._log.warning(
                    "service set aside",
                    family=family,
                    service=refusal.text,
                    reason=refusal.reason,
                    rules=refusal.rules,
                    retry_in_s=round(refusal.due_s - now_s),
                )
                self._on_refusal(refusal)
        self._metrics.quarantined(family, len(self._quarantine.refusals))
        self._health.set_aside(family, self._quarantine.refusals)

    def _record_failure(self, outcome: SyncOutcome) -> None:
        if isinstance(outcome.error, LockTimeoutError):
            self._metrics.lock_timed_out(self.family, waited_s=outcome.seconds)
        self._metrics.restore_failed(self.family)
        retry_s = (self.schedule.due_s() or 0.0) - self._clocks.monotonic()
        self._log.warning(
            "sync failed",
            family=self.family,
            error=str(outcome.error),
            failures=self.schedule.failures,
            retry_in_s=round(max(retry_s, 0.0), 2),
        )

    def _record_repairs(self, outcome: SyncOutcome) -> None:
        for note in outcome.notes:
            self._log.warning("note", family=self.family, note=note)
        for table in sorted({table for table, _ in outcome.repaired}):
            chains = [chain for one, chain in outcome.repaired if one == table]
            jumps = [chain for chain in chains if not chain.startswith("KUBE-")]
            self._metrics.drift_repaired(self.family, table, "chain", len(chains) - len(jumps))
            self._metrics.drift_repaired(self.family, table, "jump", len(jumps))
            shown = [*jumps, *(chain for chain in chains if chain.startswith("KUBE-"))][:_SHOWN_CHAINS]
            self._log.warning("drift repaired", family=self.family, table=table, chains=len(chains), first=shown)


def _compared_s(outcome: SyncOutcome) -> float | None:
    """How long everything was compared, as far as it is to be made up for; None if it was not."""
    if not outcome.full:
        return None
    return outcome.seconds if outcome.error is None else min(outcome.seconds, _MOST_FAILED_S)
