"""
Syncs of one family: what is wanted goes into its tables, a part of it or all.

Everything here blocks and runs in the kernel thread of the family. A partial sync writes what changed since the last
one that succeeded, and reads nothing; a full one reads the tables first and so finds and repairs whatever else differs.
After a failure the next sync is a full one, for nobody knows then what the kernel has.

A Service that the kernel refuses is set aside and the rest is written in the same run: `write.py` says how.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.legacy_departures import Departures
from kproxy_ipt.daemon.log import Log
from kproxy_ipt.daemon.machine import Machine, tune_after
from kproxy_ipt.daemon.sync import Stopwatch
from kproxy_ipt.daemon.write import PersistentWriter, Steps, Written, plan_run, with_sums
from kproxy_ipt.errors import KproxyError, RestoreError
from kproxy_ipt.kernel.conntrack import ConntrackOutcome, reconcile
from kproxy_ipt.plan.family_rules import FamilyRules
from kproxy_ipt.plan.flows import former_entries, leaving_lines
from kproxy_ipt.plan.plan import Plan, rules_written
from kproxy_ipt.rules.names import KUBE_FIREWALL, TABLES
from kproxy_ipt.rules.options import RuleOptions
from kproxy_ipt.ruleset.edits import DeleteChain, EditChain, InsertRule, WriteChain
from kproxy_ipt.ruleset.render import render_sections
from kproxy_ipt.ruleset.scan import SavedTables
from kproxy_ipt.state.flow_memory import FlowMemory
from kproxy_ipt.state.flows import EntryOptions
from kproxy_ipt.state.tracker import ServiceName, States

EVERYTHING = "scheduled comparison"
"""The reason of the comparison that also looks at every tracked flow."""


class SyncRequest(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a sync has to do.

    Attributes:
        changes: Services that mean something else than in the last sync that succeeded.
        options: What all rules depend on; None to leave it.
        entries: What decides about entry addresses of tracked flows; None to leave it.
        reason: Why the kernel is to be read and everything compared; "" for a partial sync.
        retry: Services that are set aside and to be tried again.
    """

    changes: Mapping[ServiceName, States]
    options: RuleOptions | None = None
    entries: EntryOptions | None = None
    reason: str = ""
    retry: frozenset[ServiceName] = frozenset()


class SyncOutcome(Written, frozen=True, kw_only=True):
    """
    What a sync did; numbers are sums over all restore runs that the kernel took.

    Attributes:
        full: Whether the kernel was read.
        rules: Rules that we have, by table.
        chains: Chains that we have, by table.
        rules_written: Rules written in this run, by table.
        repaired: `(table, chain)` that differed though nothing had changed: drift.
        seconds: Of the whole run.
        restore_seconds: Of the restore program, lock included.
        set_aside: Services that this run set aside, and why.
        aside: All Services that are set aside, and whether earlier rules of theirs stay in force.
        error: Why the kernel does not have what is wanted, or None.
    """

    full: bool
    rules: Mapping[str, int] = msgspec.field(default_factory=dict)
    chains: Mapping[str, int] = msgspec.field(default_factory=dict)
    rules_written: Mapping[str, int] = msgspec.field(default_factory=dict)
    repaired: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    restore_seconds: float = 0.0
    set_aside: Mapping[ServiceName, str] = msgspec.field(default_factory=dict)
    aside: Mapping[ServiceName, bool] = msgspec.field(default_factory=dict)
    error: KproxyError | None = None


class ProcessNote:
    """Where the ids of started programs are written down: given to a `SubprocessRunner` as its *on_start*."""

    def __init__(self) -> None:
        self._process_ids: set[int] = set()

    def note_into(self, process_ids: set[int]) -> None:
        """From now on write into *process_ids*."""
        self._process_ids = process_ids

    def started(self, process_id: int) -> None:
        """A program was started."""
        self._process_ids.add(process_id)


class FamilySync:
    """The rules of one family and the programs that write them."""

    def __init__(
        self,
        machine: Machine,
        family: Family,
        log: Log,
        processes: ProcessNote,
        *,
        departures: Departures | None = None,
    ) -> None:
        self.family = family
        self._departures = departures
        self._processes = processes
        self.rules = FamilyRules()
        self.flows = FlowMemory()
        self._machine = machine
        self._log = log
        self._has_synced = False
        self._is_repair_due = False

    def run(self, request: SyncRequest, process_ids: set[int]) -> SyncOutcome:
        """
        Sync once; a failure is part of the outcome. Blocks; in the network namespace of the calling thread.

        Args:
            request: What has to be done.
            process_ids: Gets the ids of the programs that are started.
        """
        self._processes.note_into(process_ids)
        watch = Stopwatch()
        if request.options is not None:
            self.rules.set_options(request.options)
        self.rules.update(request.changes)
        has_news = bool(request.changes or request.retry)
        is_drift = self._has_synced and not has_news and (self._is_repair_due or not self.rules.needs_full)
        self.rules.release(request.retry)
        is_full = bool(request.reason) or self.rules.needs_full
        former: list[str] = []
        writer = PersistentWriter(self.rules, self._steps(former, is_drift=is_drift))
        try:
            writer.write(is_full=is_full)
        except KproxyError as error:
            outcome = SyncOutcome(full=is_full or isinstance(error, RestoreError), error=error)
            self._is_repair_due = is_drift
        else:
            self._is_repair_due = False
            self._remember_flows(request, former)
            self._has_synced = True
            outcome = _sum_of(writer.taken)
        counts = self.rules.counts()
        return msgspec.structs.replace(
            outcome,
            rules={table: rules for table, (_, rules) in counts.items()},
            chains={table: chains for table, (chains, _) in counts.items()},
            seconds=watch.total()["total"],
            set_aside=writer.set_aside,
            aside=self.rules.aside,
        )

    def _steps(self, former: list[str], *, is_drift: bool) -> Steps[SyncOutcome]:
        """How to write; lines of the table nat that go in a first sync are added to *former*."""
        is_first = True

        def apply(plan: Plan, actual: SavedTables, is_full: bool) -> SyncOutcome:  # noqa: FBT001 - a step's form
            nonlocal is_first
            # A run that was refused, since others were still writing, repaired nothing; the next one does.
            outcome = self._apply(plan, actual, is_full=is_full, is_drift=is_first and is_drift)
            is_first = False
            if not self._has_synced:
                former.extend(leaving_lines(plan, actual))
            return outcome

        return Steps(lambda is_full: plan_run(self.rules, self._machine, self.family, is_full=is_full), apply)

    def clean_flows(self) -> ConntrackOutcome | None:
        """
        End the flows that follow rules which are no more; None if no Service changed that has such flows.

        To be called after a sync that succeeded, in the same thread; a failure is made up for at the next call.
        """
        table = self.flows.pending()
        if table.is_empty:
            return None
        outcome = reconcile(self.family, table)
        if not outcome.problem:
            self.flows.reconciled(table)
        return outcome

    def _remember_flows(self, request: SyncRequest, former: Sequence[str]) -> None:
        if request.entries is not None:
            self.flows.set_options(request.entries)
        self.flows.update(request.changes)
        if request.reason == EVERYTHING:
            self.flows.require_all()
        if not self._has_synced:
            # What was served before this process began is only told by the rules that have just gone.
            self.flows.remember_former(former_entries(former, self.family))

    def _apply(self, plan: Plan, actual: SavedTables, *, is_full: bool, is_drift: bool) -> SyncOutcome:
        written = {table: _rules_written(plan, table) for table in TABLES}
        has_guard = KUBE_FIREWALL in self.rules.fixed.tables["filter"]
        if not plan.transactions:
            notes = (*plan.notes, *(tune_after(localhost_node_ports=has_guard) if is_full else ()))
            return SyncOutcome(full=is_full, rules_written=written, notes=notes)
        tell_departures = self._before_departures(plan, actual if is_full else None)
        result = self._machine.iptables[self.family].restore_sections(
            lambda: render_sections(plan.restore_input), owner_of=self.rules.owner_of
        )
        tell_departures()
        self._log.debug("restored", family=self.family, bytes=result.bytes, seconds=round(result.seconds, 4))
        return SyncOutcome(
            full=is_full,
            transactions=result.transactions,
            bytes=result.bytes,
            chains_written=plan.chains_written,
            chains_deleted=plan.chains_deleted,
            rules_written=written,
            repaired=_touched(plan) if is_drift else (),
            notes=(*plan.notes, *(tune_after(localhost_node_ports=has_guard) if is_full else ())),
            restore_seconds=result.seconds,
        )

    def _before_departures(self, plan: Plan, actual: SavedTables | None) -> Callable[[], None]:
        """Let counters be read that *plan* ends; *actual* is None where the tables are as they were written."""
        if self._departures is None:
            return lambda: None

        def lines_of(table: str, chain: str) -> Sequence[str]:
            if actual is None:
                return self.rules.applied_lines(table, chain)
            saved = actual.chain(table, chain)
            return saved.lines if saved else ()

        return self._departures(plan, lines_of)


def _sum_of(runs: Sequence[SyncOutcome]) -> SyncOutcome:
    """The runs of one sync as one."""
    outcome = SyncOutcome(
        full=any(one.full for one in runs),
        rules_written={table: sum(one.rules_written[table] for one in runs) for table in TABLES},
        repaired=tuple(place for one in runs for place in one.repaired),
        notes=tuple(dict.fromkeys(note for one in runs for note in one.notes)),
        restore_seconds=sum(one.restore_seconds for one in runs),
    )
    return with_sums(outcome, runs)


def _rules_written(plan: Plan, table: str) -> int:
    edits = [edit for transaction in plan.transactions if transaction.table == table for edit in transaction.edits]
    return sum(rules_written(edit) for edit in edits)


def _touched(plan: Plan) -> tuple[tuple[str, str], ...]:
    found: dict[tuple[str, str], None] = {}
    for transaction in plan.transactions:
        for edit in transaction.edits:
            if isinstance(edit, WriteChain | EditChain | DeleteChain):
                found[(transaction.table, edit.name)] = None
            elif isinstance(edit, InsertRule):
                found[(transaction.table, edit.chain)] = None
    return tuple(found)
