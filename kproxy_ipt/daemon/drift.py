"""
Noticing that somebody else changed the tables.

On nf_tables the kernel tells about every transaction; on the legacy backend the shapes of the tables are looked at each
second, which shows flushes and rules that came or went, at the cost of a system call, and a digest of all rules is
taken every two seconds, less often where there are very many. What both miss is found by comparing everything from time
to time.

Comparing reads whole tables, so it is rationed: however often others write, no more than a small part of the time goes
into looking.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.kernel_thread import KernelThread
from kproxy_ipt.daemon.log import Log
from kproxy_ipt.errors import KernelError
from kproxy_ipt.kernel.notify_legacy import (
    ENTRIES_OF_CHAIN,
    LegacyFingerprint,
    legacy_digest,
    legacy_fingerprint,
)
from kproxy_ipt.kernel.notify_tables import TableChange, TableMonitor
from kproxy_ipt.rules.fixed import BASE_JUMPS
from kproxy_ipt.rules.names import KUBE_FIREWALL, TABLES, is_own_chain
from kproxy_ipt.stats.ended_rule import EndedRule

POLL_S = 1.0
_LEAST_DIGEST_S = 2.0
_DIGEST_SHARE = 40.0
"""Reading all rules of legacy tables for t seconds is followed by none for 40 t."""
_QUICK_S = 0.02
"""What reading all rules may take to be done around each sync."""
_SHARE = 5.0
"""Comparisons of t seconds make 5 t without."""

Compare = Callable[[Family, str], None]


class OwnChains:
    """The chains of one table whose change may concern us: ours, and built-in ones that hold our jumps."""

    def __init__(self, table: str) -> None:
        self._table = table
        self._bases = frozenset(jump.chain for jump in BASE_JUMPS if jump.table == table)

    def __contains__(self, name: object) -> bool:
        """Whether a chain of that name is one of them."""
        return isinstance(name, str) and (
            name in self._bases or name == KUBE_FIREWALL or is_own_chain(self._table, name)
        )


OWN_CHAINS = {table: OwnChains(table) for table in TABLES}


class TableWatch:
    """Turns transactions of others into requests to compare (nf_tables)."""

    def __init__(
        self,
        compare: Compare,
        families: tuple[Family, ...],
        *,
        netns: str | None,
        on_ended_rule: Callable[[EndedRule], None] | None = None,
    ) -> None:
        """
        Listen from now on; a loop must be running.

        Args:
            compare: Called with the family and what happened.
            families: Those that are served.
            netns: Of the tables.
            on_ended_rule: See `TableMonitor`.

        Raises:
            KernelError: The kernel does not tell.
        """
        self._compare = compare
        self._families = families
        self._monitor = TableMonitor(self._changed, netns=netns, on_ended_rule=on_ended_rule)

    def own_changes(self) -> AbstractContextManager[set[int]]:
        """Around programs of ours; gives the set that takes their process ids."""
        return self._monitor.own_changes()

    def take_waiting(self) -> None:
        """Take in everything that the kernel has told so far."""
        self._monitor.take_waiting()

    def close(self) -> None:
        """Stop listening."""
        self._monitor.close()

    def _changed(self, change: TableChange) -> None:
        for family in self._families:
            if any(change.concerns(family, table, chains) for table, chains in OWN_CHAINS.items()):
                who = change.process_name or "another program"
                what = "messages of the kernel were lost" if change.lost else f"{who} changed the tables"
                self._compare(family, what)


class LegacyWatch:
    """
    Looks at the shapes of legacy tables each second, and before each sync; at all rules as often as that stays cheap.

    Between `before_sync` and `learn` the tables change by our own doing, so that a look from those moments tells
    nothing. Others that write in the same moments show in the number of entries that are not ours, which no sync
    changes; if that stays the same, or the sync is the first one, the next comparison of everything finds it.

    Attributes:
        has_learnt: Whether there was a sync to learn from.
    """

    def __init__(
        self,
        compare: Compare,
        family: Family,
        thread: KernelThread,
        log: Log,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        processor: Callable[[], float] = time.thread_time,
    ) -> None:
        """
        Prepare; `run` begins.

        Args:
            compare: Called with the family and what happened.
            family: To look at.
            thread: Where to look.
            log: Told if looking is not possible, once until it is again.
            monotonic: Seconds.
            processor: Seconds of the processor that the calling thread used.
        """
        self._compare = compare
        self._family = family
        self._thread = thread
        self._log = log
        self._monotonic = monotonic
        self._processor = processor
        self._known: LegacyFingerprint | None = None
        self._others: dict[str, int] | None = None
        self._known_digest: bytes | None = None
        self._digest_took_s = 0.0
        self._next_digest_s = 0.0
        self._is_syncing = False
        self._syncs = 0
        self.has_learnt = False

    async def learn(self, rules: Mapping[str, int], chains: Mapping[str, int]) -> None:
        """
        What is there now is as it should be, unless others wrote since `before_sync`: to be called after each sync.

        Args:
            rules: How many of ours each table has.
            chains: The same for chains.
        """
        self._known_digest = None
        try:
            with contextlib.suppress(KernelError):
                self._known = await self._thread.call(legacy_fingerprint, self._family)
                own = {table: count + ENTRIES_OF_CHAIN * chains[table] for table, count in rules.items()}
                others = {shape.name: shape.entries - own.get(shape.name, 0) for shape in self._known}
                if self._others is not None and others != self._others:
                    self._compare(self._family, "another program changed the tables during a sync")
                self._others = others
                if self._digest_took_s <= _QUICK_S:
                    self._known_digest = await self._digest()
        finally:
            self._is_syncing, self.has_learnt = False, True

    async def before_sync(self) -> None:
        """See what others did so far: `learn` would take it for ours. To be called right before each sync."""
        with contextlib.suppress(KernelError):
            self._judge(await self._thread.call(legacy_fingerprint, self._family))
            if self._digest_took_s <= _QUICK_S:
                self._judge_digest(await self._digest())
        self._is_syncing = True
        self._syncs += 1

    async def look(self) -> None:
        """
        Look now.

        Raises:
            KernelError: The kernel does not tell.
        """
        syncs = self._syncs
        found = await self._thread.call(legacy_fingerprint, self._family)
        digest = await self._digest() if self._monotonic() >= self._next_digest_s else None
        if not self._is_syncing and syncs == self._syncs:
            self._judge(found)
            self._judge_digest(digest)

    async def _digest(self) -> bytes:
        return await self._thread.call(self._digest_in_thread)

    def _digest_in_thread(self) -> bytes:
        """Only the reading counts, neither the wait for the thread nor that for a processor which others use."""
        began_s = self._processor()
        digest = legacy_digest(self._family)
        self._digest_took_s = self._processor() - began_s
        self._next_digest_s = self._monotonic() + max(_LEAST_DIGEST_S, _DIGEST_SHARE * self._digest_took_s)
        return digest

    def _judge(self, found: LegacyFingerprint) -> None:
        if self._known is not None and found != self._known:
            self._others = self._with_changes(found)
            self._known, self._known_digest = found, None
            self._compare(self._family, "another program changed the tables")

    def _with_changes(self, found: LegacyFingerprint) -> dict[str, int]:
        """Entries that are not ours, if all that changed is not."""
        before = {shape.name: shape.entries for shape in self._known or ()}
        others = self._others or {}
        return {shape.name: others.get(shape.name, 0) + shape.entries - before.get(shape.name, 0) for shape in found}

    def _judge_digest(self, found: bytes | None) -> None:
        """The first one since the last sync, or since the shape was another, is what later ones are held against."""
        if found is None:
            return
        if self._known_digest is not None and found != self._known_digest:
            self._compare(self._family, "another program changed the tables")
        self._known_digest = found

    async def run(self) -> None:
        """Look until cancelled; where that is not possible, for want of file descriptors as an example, go on."""
        is_told = False
        while True:
            await asyncio.sleep(POLL_S)
            try:
                await self.look()
            except KernelError as error:
                if not is_told:
                    self._log.warning("legacy tables", error=str(error))
                is_told = True
            else:
                is_told = False


class Ration:
    """
    How often everything may be compared; time comes in as seconds of a clock that never goes back.

    After a quiet time two are allowed one right after the other: what a slow first one has just missed does not wait
    for five times as long. From the third on each has to be made up for.
    """

    def __init__(self, *, least_s: float = 0.2) -> None:
        """Allow the first one at once; between two there are *least_s* seconds at least."""
        self._least_s = least_s
        self._next_s = 0.0
        self._owed_s, self._noted_s = 0.0, 0.0
        self._is_running = False

    def wait_s(self, now_s: float) -> float:
        """Seconds until the next one is allowed; while a sync runs, which may be one, until the next look."""
        return max(self._least_s if self._is_running else 0.0, self._next_s - now_s)

    def began(self) -> None:
        """A sync runs."""
        self._is_running = True

    def ended(self, now_s: float, compared_s: float | None) -> None:
        """The sync has ended at *now_s*, in whatever way; it took *compared_s* if it compared everything."""
        self._is_running = False
        if compared_s is not None:
            idle_s = now_s - compared_s - self._noted_s
            owed_s = max(0.0, self._owed_s - idle_s / _SHARE)
            self._next_s = now_s + max(self._least_s, _SHARE * owed_s)
            self._owed_s, self._noted_s = owed_s + compared_s, now_s


@contextlib.contextmanager
def no_window() -> Iterator[set[int]]:
    """Stands for `TableWatch.own_changes` where nobody listens."""
    yield set()
