"""
Desired x actual -> Plan: which chains to write and to delete, as transactions in the right order.

Whole chains, only changed chains: a chain whose text in the kernel is the wanted one is left alone, so a plan for a
node in good order is empty. Foreign chains and rules are never touched; the jumps into our chains are inserted where
they are missing.

Order, so that at no moment a live chain leads into a missing or half-filled one, and no packet of a service slips
through between the tables:

1. new chains, which nothing leads to yet, each after those that it jumps to;
2. changed chains of service ports, all of one service port at once;
3. filter: rules that refuse or drop are added (old ones stay);
4. nat: dispatch and the other fixed chains switch over, missing jumps are inserted;
5. filter: rules that no longer refuse or drop go;
6. chains that nothing leads to any more are deleted.

`in_place.py` says which chains are changed rather than written anew. `stages.py` decides how many steps share a
transaction; where all of nat fits one, step 3 comes first.
"""

from collections.abc import Iterator, Mapping

import msgspec

from kproxy_ipt.plan.actual import has_base_jump, holds_rule, same_rules
from kproxy_ipt.plan.in_place import in_place
from kproxy_ipt.plan.stages import MAX_LINES, Step, fits_one_transaction, pack
from kproxy_ipt.plan.stale import deletion_order, kept_for_others
from kproxy_ipt.plan.wanted import Lines, Wanted, wanted_of
from kproxy_ipt.rules.build import Desired
from kproxy_ipt.rules.names import (
    KUBE_EXTERNAL_SERVICES,
    KUBE_FIREWALL,
    KUBE_NODEPORTS,
    KUBE_PROXY_CANARY,
    KUBE_PROXY_FIREWALL,
    KUBE_SERVICES,
    TABLES,
    is_changing_chain,
    is_service_chain,
)
from kproxy_ipt.ruleset.edits import (
    AppendRule,
    DeleteChain,
    DeleteRule,
    Edit,
    EditChain,
    EnsureChain,
    InsertRule,
    RestoreInput,
    Transaction,
    WriteChain,
)
from kproxy_ipt.ruleset.parse import parse_rule
from kproxy_ipt.ruleset.scan import SavedTables


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """
    What has to be done, in order.

    Attributes:
        transactions: Applied one after the other; a failure leaves those before it in force, which is safe.
        notes: What a person should know: chains that stay because somebody else jumps to them.
        void_tables: Tables that are ours and will be empty afterwards (clean-up on nf_tables only).
    """

    transactions: tuple[Transaction, ...] = ()
    notes: tuple[str, ...] = ()
    void_tables: tuple[str, ...] = ()

    @property
    def restore_input(self) -> RestoreInput:
        """The transactions as one input."""
        return RestoreInput(self.transactions)

    def _edits(self) -> Iterator[tuple[str, Edit]]:
        return ((transaction.table, edit) for transaction in self.transactions for edit in transaction.edits)

    @property
    def chains_written(self) -> int:
        """Number of chains that are created, rewritten or changed where they stand."""
        written = (WriteChain, EditChain, EnsureChain)
        return len({(table, edit.name) for table, edit in self._edits() if isinstance(edit, written)})

    @property
    def chains_deleted(self) -> int:
        """Number of chains that are deleted."""
        return sum(isinstance(edit, DeleteChain) for _, edit in self._edits())

    @property
    def rules_written(self) -> int:
        """Number of rules that are written or inserted."""
        return sum(rules_written(edit) for _, edit in self._edits())

    @property
    def rules_deleted(self) -> int:
        """Number of rules that are taken out of foreign or built-in chains."""
        return sum(isinstance(edit, DeleteRule) for _, edit in self._edits())


def rules_written(edit: Edit) -> int:
    """Number of rules that *edit* writes or inserts."""
    if isinstance(edit, WriteChain):
        return len(edit.rules)
    return len(edit.inserted) if isinstance(edit, EditChain) else isinstance(edit, InsertRule | AppendRule)


class _Changes(msgspec.Struct, frozen=True):
    """Chains of one table that differ from the kernel's, with their wanted lines, in the order wanted."""

    new: Mapping[str, Lines]
    changed: Mapping[str, Lines]


def plan_sync(desired: Desired, actual: SavedTables, *, staged: bool, max_lines: int = MAX_LINES) -> Plan:
    """The way from *actual* to *desired*; see `plan_wanted`."""
    return plan_wanted(wanted_of(desired), actual, staged=staged, max_lines=max_lines)


def plan_wanted(wanted: Wanted, actual: SavedTables, *, staged: bool, max_lines: int = MAX_LINES) -> Plan:
    """
    The way from *actual* to *wanted*.

    Both may be parts of the whole: then only chains in either are judged, and only jumps in *wanted*.

    Args:
        wanted: Of one family.
        actual: What the kernel has in the tables filter and nat of that family.
        staged: Whether large changes are split into several transactions (right for nf_tables), or one transaction a
            table holds everything (right for the legacy backend, which copies the whole table each time).
        max_lines: Lines of one staged transaction; steps that belong together may exceed it.
    """
    nat, filters = (_changes(wanted, actual, table) for table in ("nat", "filter"))
    before, after = _filter_steps(wanted, actual, filters, nat_changes=bool(nat.new or nat.changed))
    marks = {table: [*_new_table_mark(actual, table)] if staged else [] for table in TABLES}
    before = [*marks["filter"], *before]
    prepare = [*marks["nat"], *_new_nat_chains(nat), *_changed_service_chains(wanted, nat)]
    switch = _switch(nat, wanted, actual)
    delete, notes = _deletion(wanted, actual, "nat")
    delete_filter, filter_notes = _deletion(wanted, actual, "filter")
    after = [*after, *delete_filter]
    if staged and not fits_one_transaction([*prepare, *switch, *delete], max_lines):
        steps = [*prepare, *before, *switch, *after, *delete]
    else:
        steps = [*before, *prepare, *switch, *delete, *after]
    steps = [*in_place(steps, actual, wanted)] if staged else steps
    return Plan(transactions=pack(steps, staged=staged, max_lines=max_lines), notes=(*notes, *filter_notes))


def _deletion(wanted: Wanted, actual: SavedTables, table: str) -> tuple[list[Step], list[str]]:
    """The steps that delete what nothing leads to any more, and notes about what others still lead to."""
    stale = _stale_chains(wanted, actual, table)
    kept = kept_for_others(actual, table, stale)
    steps = [Step(table, (DeleteChain(name),)) for name in deletion_order(actual, table, stale) if name not in kept]
    notes = [
        f"chain {name} of table {table} is no longer needed but stays: chain {referrer} jumps to it"
        for name, referrer in kept.items()
    ]
    return steps, notes


def _changes(wanted: Wanted, actual: SavedTables, table: str) -> _Changes:
    new: dict[str, Lines] = {}
    changed: dict[str, Lines] = {}
    chains = actual.tables.get(table, {})
    for name, lines in wanted.tables[table].items():
        saved = chains.get(name)
        if saved is None:
            new[name] = lines
        elif saved.lines != lines and name != KUBE_FIREWALL and not same_rules(lines, saved.lines, wanted.family):
            changed[name] = lines
    return _Changes(new, changed)


def _stale_chains(wanted: Wanted, actual: SavedTables, table: str) -> list[str]:
    chains = wanted.tables[table]
    return [name for name in actual.tables.get(table, {}) if name not in chains and is_changing_chain(table, name)]


def _new_table_mark(actual: SavedTables, table: str) -> Iterator[Step]:
    """
    Mark a table that comes into being with us, so that a clean-up knows that it may remove it.

    The empty chain KUBE-PROXY-CANARY is the mark: kube-proxy has it too, so either removes the other's. The tables of
    the legacy backend cannot be removed, so they need none.
    """
    if table not in actual.tables:
        yield Step(table, (EnsureChain(KUBE_PROXY_CANARY),))


def _is_dispatch(name: str) -> bool:
    return name in (KUBE_SERVICES, KUBE_NODEPORTS)


def _new_nat_chains(nat: _Changes) -> Iterator[Step]:
    """Fixed chains first, since others jump to them; where packets enter dispatch waits until all are there."""
    for wanted in (False, True):
        for name, lines in nat.new.items():
            if is_service_chain("nat", name) is wanted and not _is_dispatch(name):
                yield Step("nat", (WriteChain(name, lines),))


def _changed_service_chains(wanted: Wanted, nat: _Changes) -> Iterator[Step]:
    by_owner: dict[str, list[Edit]] = {}
    for name, lines in nat.changed.items():
        if name in wanted.owners:
            by_owner.setdefault(wanted.owners[name], []).append(WriteChain(name, lines))
    return (Step("nat", tuple(edits)) for edits in by_owner.values())


def _switch(nat: _Changes, wanted: Wanted, actual: SavedTables) -> list[Step]:
    """
    The steps that put new rules in force: dispatch, changed fixed chains, jumps.

    Parts of a dispatch tree change one after the other: no rule moves from one that stays to another that stays.
    """
    parts = [name for name in nat.changed if is_service_chain("nat", name) and name not in wanted.owners]
    steps = [Step("nat", (WriteChain(name, nat.changed[name]),)) for name in parts]
    edits: list[Edit] = [WriteChain(name, lines) for name, lines in nat.new.items() if _is_dispatch(name)]
    edits.extend(WriteChain(name, lines) for name, lines in nat.changed.items() if not is_service_chain("nat", name))
    edits.extend(_missing_jumps(wanted, actual, "nat"))
    return [*steps, Step("nat", tuple(edits))] if edits else steps


def _missing_jumps(wanted: Wanted, actual: SavedTables, table: str) -> Iterator[Edit]:
    for jump in wanted.base_jumps:
        if jump.table == table and not has_base_jump(jump, actual):
            yield InsertRule(jump.chain, jump.rule)


def _filter_steps(
    wanted: Wanted, actual: SavedTables, filters: _Changes, *, nat_changes: bool
) -> tuple[list[Step], list[Step]]:
    """
    What happens in the table filter before and after nat switches over.

    While nat changes, a service that gets its first endpoint is refused until its address is translated, and one that
    loses its last is refused before it stops being translated. So between both, old and new rules stand together.
    """
    before: list[Edit] = [
        EnsureChain(name)
        for table, name in wanted.shared_chains
        if table == "filter" and actual.chain(table, name) is None
    ]
    before.extend(WriteChain(name, lines) for name, lines in filters.new.items())
    after: list[Edit] = []
    for name, lines in filters.changed.items():
        old = actual.tables["filter"][name].lines
        needed = frozenset(lines)
        leaving = tuple(line for line in old if line not in needed) if nat_changes and _holds_verdicts(name) else ()
        if leaving:
            after.append(WriteChain(name, lines))
        if not leaving or not needed.issubset(old):
            before.append(WriteChain(name, (*lines, *leaving)))
    before.extend(_missing_guards(wanted, actual))
    before.extend(_missing_jumps(wanted, actual, "filter"))
    return [Step("filter", (edit,)) for edit in before], [Step("filter", (edit,)) for edit in after]


def _missing_guards(wanted: Wanted, actual: SavedTables) -> Iterator[Edit]:
    """KUBE-FIREWALL is the kubelet's as well: what is missing of ours goes to the top, what others put there stays."""
    saved = actual.chain("filter", KUBE_FIREWALL)
    if saved is None:
        return
    for line in wanted.tables["filter"].get(KUBE_FIREWALL, ()):
        if not holds_rule(saved.lines, line, wanted.family):
            yield InsertRule(KUBE_FIREWALL, parse_rule(line, family=wanted.family)[1])


def _holds_verdicts(name: str) -> bool:
    is_first = name in (KUBE_SERVICES, KUBE_EXTERNAL_SERVICES, KUBE_PROXY_FIREWALL)
    return is_first or is_changing_chain("filter", name)
