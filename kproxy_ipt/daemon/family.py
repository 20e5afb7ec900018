"""
Syncs of one family: what is wanted goes into its tables, a part of it or all.

Everything here blocks and runs in the kernel thread of the family. A partial sync writes what changed since the last
one that succeeded, and reads nothing; a full one reads the tables first and so finds and repairs whatever else differs.
After a failure the next sync is a full one, for nobody knows then what the kernel has.
"""

from collections.abc import Mapping

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.log import Log
from kproxy_ipt.daemon.machine import Machine, tune_after
from kproxy_ipt.daemon.sync import TABLES, Stopwatch
from kproxy_ipt.errors import KproxyError
from kproxy_ipt.plan.family_rules import FamilyRules
from kproxy_ipt.plan.plan import Plan
from kproxy_ipt.plan.wanted import Lines
from kproxy_ipt.rules.names import KUBE_FIREWALL
from kproxy_ipt.rules.options import RuleOptions
from kproxy_ipt.ruleset.edits import DeleteChain, InsertRule, WriteChain
from kproxy_ipt.ruleset.render import render_input
from kproxy_ipt.ruleset.scan import SavedTables, scan_save
from kproxy_ipt.state.tracker import ServiceName, States


class SyncRequest(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a sync has to do.

    Attributes:
        changes: Services that mean something else than in the last sync that succeeded.
        options: What all rules depend on; None to leave it.
        reason: Why the kernel is to be read and everything compared; "" for a partial sync.
    """

    changes: Mapping[ServiceName, States]
    options: RuleOptions | None = None
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
        removed: Lines of shared nat chains that are gone, where the kernel was read: they tell former addresses.
        previous: What the changed Services meant in the last sync that succeeded.
        seconds: Of the whole run.
        restore_seconds: Of the restore program, lock included.
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
    removed: Lines = ()
    previous: Mapping[ServiceName, States] = msgspec.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    restore_seconds: float = 0.0
    error: KproxyError | None = None


class FamilySync:
    """The rules of one family and the programs that write them."""

    def __init__(self, machine: Machine, family: Family, log: Log) -> None:
        self.family = family
        self.rules = FamilyRules()
        self._machine = machine
        self._log = log
        self._has_synced = False
        self._previous: dict[ServiceName, States] = {}

    def run(self, request: SyncRequest) -> SyncOutcome:
        """Sync once; a failure is part of the outcome. Blocks; in the network namespace of the calling thread."""
        watch = Stopwatch()
        if request.options is not None:
            self.rules.set_options(request.options)
        for name in request.changes:
            self._previous.setdefault(name, self.rules.states_of(name))
        self.rules.update(request.changes)
        is_full = bool(request.reason) or self.rules.needs_full
        try:
            is_drift = self._has_synced and bool(request.reason) and not request.changes and not self.rules.needs_full
            plan, actual = self._plan(full=is_full)
            outcome = self._apply(plan, actual, is_full=is_full, is_drift=is_drift)
        except KproxyError as error:
            self.rules.require_full()
            return SyncOutcome(full=is_full, error=error, seconds=watch.total()["total"])
        self.rules.commit()
        self._has_synced = True
        previous, self._previous = self._previous, {}
        counts = {table: rules for table, (_, rules) in self.rules.counts().items()}
        return msgspec.structs.replace(outcome, rules=counts, previous=previous, seconds=watch.total()["total"])

    def _plan(self, *, full: bool) -> tuple[Plan, SavedTables]:
        if not full:
            return self.rules.plan_partial(staged=self._machine.is_staged), SavedTables({})
        actual = scan_save(self._machine.iptables[self.family].start_save(TABLES).text())
        return self.rules.plan_full(actual, staged=self._machine.is_staged), actual

    def _apply(self, plan: Plan, actual: SavedTables, *, is_full: bool, is_drift: bool) -> SyncOutcome:
        written = {table: _rules_written(plan, table) for table in TABLES}
        if not plan.transactions:
            return SyncOutcome(full=is_full, rules_written=written, notes=plan.notes)
        text = render_input(plan.restore_input)
        owners = self.rules.owner_of
        result = self._machine.iptables[self.family].restore(text, owner_of=owners)
        self._log.debug("restored", family=self.family, bytes=result.bytes, seconds=round(result.seconds, 4))
        has_guard = KUBE_FIREWALL in self.rules.fixed.tables["filter"]
        notes = (*plan.notes, *(tune_after(localhost_node_ports=has_guard) if is_full else ()))
        return SyncOutcome(
            full=is_full,
            transactions=result.transactions,
            bytes=result.bytes,
            chains_written=plan.chains_written,
            chains_deleted=plan.chains_deleted,
            rules_written=written,
            repaired=_touched(plan) if is_drift else (),
            removed=_removed(plan, actual) if is_full else (),
            notes=notes,
            restore_seconds=result.seconds,
        )


def _rules_written(plan: Plan, table: str) -> int:
    edits = [edit for transaction in plan.transactions if transaction.table == table for edit in transaction.edits]
    return sum(len(edit.rules) if isinstance(edit, WriteChain) else isinstance(edit, InsertRule) for edit in edits)


def _touched(plan: Plan) -> tuple[tuple[str, str], ...]:
    found: dict[tuple[str, str], None] = {}
    for transaction in plan.transactions:
        for edit in transaction.edits:
            if isinstance(edit, WriteChain | DeleteChain):
                found[(transaction.table, edit.name)] = None
            elif isinstance(edit, InsertRule):
                found[(transaction.table, edit.chain)] = None
    return tuple(found)


def _removed(plan: Plan, actual: SavedTables) -> Lines:
    """Lines of rewritten shared nat chains that were there before and are not any more."""
    removed: list[str] = []
    for transaction in plan.transactions:
        for edit in transaction.edits:
            if transaction.table == "nat" and isinstance(edit, WriteChain):
                saved = actual.chain("nat", edit.name)
                if saved and edit.name in ("KUBE-SERVICES", "KUBE-NODEPORTS"):
                    kept = frozenset(edit.rules)
                    removed.extend(line for line in saved.lines if line not in kept)
    return tuple(removed)
