"""
Syncs of one family: what is wanted goes into its tables, a part of it or all.

Everything here blocks and runs in the kernel thread of the family. A partial sync writes what changed since the last
one that succeeded, and reads nothing; a full one reads the tables first and so finds and repairs whatever else differs.
After a failure the next sync is a full one, for nobody knows then what the kernel has.

Where the kernel refuses a rule that is there for one Service, and refuses it again after everything was compared, that
Service is set aside and the rest is written in the same run: it costs the others nothing.
"""

from collections.abc import Mapping
from itertools import count

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.log import Log
from kproxy_ipt.daemon.machine import Machine, tune_after
from kproxy_ipt.daemon.sync import TABLES, Stopwatch
from kproxy_ipt.errors import KproxyError, RestoreError
from kproxy_ipt.kernel.conntrack import ConntrackOutcome, reconcile
from kproxy_ipt.plan.family_rules import FamilyRules
from kproxy_ipt.plan.flows import former_entries, leaving_lines
from kproxy_ipt.plan.plan import Plan, rules_written
from kproxy_ipt.rules.names import KUBE_FIREWALL
from kproxy_ipt.rules.options import RuleOptions
from kproxy_ipt.ruleset.edits import DeleteChain, EditChain, InsertRule, WriteChain
from kproxy_ipt.ruleset.render import render_input
from kproxy_ipt.ruleset.scan import SavedTables, scan_save
from kproxy_ipt.state.flow_memory import FlowMemory
from kproxy_ipt.state.flows import EntryOptions
from kproxy_ipt.state.tracker import ServiceName, States

EVERYTHING = "scheduled comparison"
"""The reason of the comparison that also looks at every tracked flow, and tries again what was set aside."""

_MOST_ASIDE = 20
"""Services that one run sets aside at most; where more are refused, something else is wrong as well."""


class SyncRequest(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a sync has to do.

    Attributes:
        changes: Services that mean something else than in the last sync that succeeded.
        options: What all rules depend on; None to leave it.
        entries: What decides about entry addresses of tracked flows; None to leave it.
        reason: Why the kernel is to be read and everything compared; "" for a partial sync.
    """

    changes: Mapping[ServiceName, States]
    options: RuleOptions | None = None
    entries: EntryOptions | None = None
    reason: str = ""


class SyncOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a sync did.

    Attributes:
        full: Whether the kernel was read.
        transactions: 0 means that nothing had to be written.
        bytes: Size of the restore input.
        rules: Rules that we have, by table.
        rules_written: Rules written in this run, by table.
        repaired: `(table, chain)` that differed though nothing had changed: drift.
        seconds: Of the whole run.
        restore_seconds: Of the restore program, lock included.
        set_aside: Services that have no rules since this run, and why.
        aside_count: Services that have no rules, those of earlier runs too.
        error: Why the kernel does not have what is wanted, or None.
    """

    full: bool
    transactions: int = 0
    bytes: int = 0
    chains_written: int = 0
    chains_deleted: int = 0
    rules: Mapping[str, int] = msgspec.field(default_factory=dict)
    rules_written: Mapping[str, int] = msgspec.field(default_factory=dict)
    repaired: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    restore_seconds: float = 0.0
    set_aside: Mapping[ServiceName, str] = msgspec.field(default_factory=dict)
    aside_count: int = 0
    error: KproxyError | None = None


class _Written(msgspec.Struct, frozen=True):
    """A plan that the kernel took; *actual* is what it had before, empty if nobody looked."""

    plan: Plan
    actual: SavedTables
    outcome: SyncOutcome


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

    def __init__(self, machine: Machine, family: Family, log: Log, processes: ProcessNote) -> None:
        self.family = family
        self._processes = processes
        self.rules = FamilyRules()
        self.flows = FlowMemory()
        self._machine = machine
        self._log = log
        self._has_synced = False

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
        is_drift = self._has_synced and not (request.changes or self.rules.needs_full)
        if request.reason == EVERYTHING:
            self.rules.try_again()
        is_full = bool(request.reason) or self.rules.needs_full
        set_aside: dict[ServiceName, str] = {}
        try:
            written = self._write(is_full=is_full, is_drift=is_drift, set_aside=set_aside)
        except KproxyError as error:
            self.rules.require_full()
            outcome = SyncOutcome(full=is_full or isinstance(error, RestoreError), error=error)
        else:
            self.rules.commit()
            self._remember_flows(request, written.plan, written.actual)
            self._has_synced = True
            outcome = written.outcome
        return msgspec.structs.replace(
            outcome,
            rules={table: rules for table, (_, rules) in self.rules.counts().items()},
            seconds=watch.total()["total"],
            set_aside=set_aside,
            aside_count=self.rules.aside_count,
        )

    def _write(self, *, is_full: bool, is_drift: bool, set_aside: dict[ServiceName, str]) -> _Written:
        """Plan and apply until the kernel takes it: compare first (there may be drift), then set Services aside."""
        refused = ""
        for attempt in count():
            plan, actual = self._plan(full=is_full)
            try:
                return _Written(plan, actual, self._apply(plan, is_full=is_full, is_drift=is_drift))
            except RestoreError as error:
                self.rules.require_full()
                name = self.rules.service_of(error.chain, error.rule)
                if is_full and (name is None or len(set_aside) >= _MOST_ASIDE or attempt > 2 * _MOST_ASIDE):
                    raise
                if is_full and name is not None and error.rule == refused:
                    self.rules.set_aside(name)
                    set_aside[name] = str(error)
                is_full, is_drift, refused = True, False, error.rule
        raise AssertionError("unreachable")

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

    def _remember_flows(self, request: SyncRequest, plan: Plan, actual: SavedTables) -> None:
        if request.entries is not None:
            self.flows.set_options(request.entries)
        self.flows.update(request.changes)
        if request.reason == EVERYTHING:
            self.flows.require_all()
        if not self._has_synced:
            # What was served before this process began is only told by the rules that have just gone.
            self.flows.remember_former(former_entries(leaving_lines(plan, actual), self.family))

    def _plan(self, *, full: bool) -> tuple[Plan, SavedTables]:
        if not full:
            return self.rules.plan_partial(staged=self._machine.is_staged), SavedTables({})
        actual = scan_save(self._machine.iptables[self.family].start_save(TABLES).text())
        return self.rules.plan_full(actual, staged=self._machine.is_staged), actual

    def _apply(self, plan: Plan, *, is_full: bool, is_drift: bool) -> SyncOutcome:
        written = {table: _rules_written(plan, table) for table in TABLES}
        has_guard = KUBE_FIREWALL in self.rules.fixed.tables["filter"]
        if not plan.transactions:
            notes = (*plan.notes, *(tune_after(localhost_node_ports=has_guard) if is_full else ()))
            return SyncOutcome(full=is_full, rules_written=written, notes=notes)
        text = render_input(plan.restore_input)
        result = self._machine.iptables[self.family].restore(text, owner_of=self.rules.owner_of)
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
