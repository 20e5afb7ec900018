"""
What syncs did lately: a ring of the last ones, and a longer memory for those that a person would ask about.

Kept on the event loop, at most some hundred small values, and only where a status page is served. Names of chains and
Services are cut to the first ones: a flushed table of 10,000 Services is one record, not 60,000 names.
"""

from collections import deque
from collections.abc import Callable, Mapping
from heapq import nsmallest

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.family import SyncOutcome, SyncRequest
from kproxy_ipt.state.tracker import ServiceName

MOST_SYNCS = 500
MOST_NOTABLE = 200
_SHOWN = 12


class SyncRecord(msgspec.Struct, frozen=True, kw_only=True):
    """
    One sync.

    Attributes:
        ended_unix_s: When it ended.
        reason: Why everything was compared, "" for a partial sync.
        changes: How many Services meant something else than before.
        changed: The first of them.
        rules_written: Over both tables.
        repaired: How many chains differed though nothing had changed.
        repaired_chains: The first of them, `nat KUBE-SERVICES`.
        set_aside: Services that the kernel refused in this sync, and why; the first ones.
        error: Why the kernel does not have what is wanted, "" if it has.
    """

    ended_unix_s: float
    family: Family
    is_full: bool
    reason: str = ""
    changes: int = 0
    changed: tuple[str, ...] = ()
    seconds: float = 0.0
    restore_seconds: float = 0.0
    transactions: int = 0
    bytes: int = 0
    chains_written: int = 0
    chains_deleted: int = 0
    rules_written: int = 0
    repaired: int = 0
    repaired_chains: tuple[str, ...] = ()
    set_aside: Mapping[str, str] = msgspec.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    error: str = ""

    @property
    def is_notable(self) -> bool:
        """Whether something was repaired, refused or failed."""
        return bool(self.repaired or self.set_aside or self.error or self.notes)


class History:
    """
    The memory of all families.

    Attributes:
        changed_unix_s: When the rules of each Service were last written because it meant something else.
    """

    def __init__(self, unix_s: Callable[[], float]) -> None:
        """Remember nothing; *unix_s* tells the time."""
        self.changed_unix_s: dict[ServiceName, float] = {}
        self._unix_s = unix_s
        self._syncs: deque[SyncRecord] = deque(maxlen=MOST_SYNCS)
        self._notable: deque[SyncRecord] = deque(maxlen=MOST_NOTABLE)

    @property
    def syncs(self) -> tuple[SyncRecord, ...]:
        """The last syncs, the latest first."""
        return tuple(reversed(self._syncs))

    @property
    def notable(self) -> tuple[SyncRecord, ...]:
        """The last ones that repaired, refused or failed, the latest first."""
        return tuple(reversed(self._notable))

    def note(self, family: Family, request: SyncRequest, outcome: SyncOutcome) -> None:
        """A sync has ended."""
        record = _record(family, request, outcome, self._unix_s())
        self._syncs.append(record)
        if record.is_notable:
            self._notable.append(record)
        if outcome.error is None:
            self._remember_changes(request, outcome, record.ended_unix_s)

    def _remember_changes(self, request: SyncRequest, outcome: SyncOutcome, now_unix_s: float) -> None:
        for name, states in request.changes.items():
            if not states:
                self.changed_unix_s.pop(name, None)
            elif name not in outcome.aside:
                self.changed_unix_s[name] = now_unix_s


def _record(family: Family, request: SyncRequest, outcome: SyncOutcome, now_unix_s: float) -> SyncRecord:
    return SyncRecord(
        ended_unix_s=now_unix_s,
        family=family,
        is_full=outcome.full,
        reason=request.reason,
        changes=len(request.changes),
        changed=tuple("/".join(name) for name in nsmallest(_SHOWN, request.changes)),
        seconds=outcome.seconds,
        restore_seconds=outcome.restore_seconds,
        transactions=outcome.transactions,
        bytes=outcome.bytes,
        chains_written=outcome.chains_written,
        chains_deleted=outcome.chains_deleted,
        rules_written=sum(outcome.rules_written.values()),
        repaired=len(outcome.repaired),
        repaired_chains=tuple(f"{table} {chain}" for table, chain in outcome.repaired[:_SHOWN]),
        set_aside={"/".join(name): outcome.set_aside[name] for name in nsmallest(_SHOWN, outcome.set_aside)},
        notes=outcome.notes,
        error="" if outcome.error is None else str(outcome.error),
    )
