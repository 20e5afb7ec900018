"""
Actual x before -> Plan: take back what a failed run had already written.

Every moment between two transactions is a safe one, so this is not needed for the sake of traffic. It is for people:
a command that failed leaves the tables as it found them.
"""

from collections.abc import Iterator

from kproxy_ipt.plan.actual import base_jump_lines
from kproxy_ipt.plan.plan import Plan
from kproxy_ipt.plan.stages import Step, pack
from kproxy_ipt.plan.stale import deletion_order
from kproxy_ipt.rules.fixed import BASE_JUMPS
from kproxy_ipt.rules.names import KUBE_FIREWALL, KUBE_PROXY_CANARY, is_own_chain
from kproxy_ipt.ruleset.edits import DeleteChain, DeleteRule, Edit, WriteChain
from kproxy_ipt.ruleset.scan import SavedTables

_TABLES = ("nat", "filter")


def plan_rollback(before: SavedTables, actual: SavedTables, *, staged: bool) -> Plan:
    """
    The way from *actual* back to *before*, for chains of ours and jumps into them.

    Args:
        before: What the kernel had before the run that failed.
        actual: What it has now.
        staged: As for `plan_sync`; also whether tables that came into being can be removed.
    """
    steps = [step for table in _TABLES for step in _table_steps(before, actual, table)]
    void = tuple(table for table in _TABLES if staged and table in actual.tables and table not in before.tables)
    return Plan(transactions=pack(steps, staged=staged), void_tables=void)


def _table_steps(before: SavedTables, actual: SavedTables, table: str) -> Iterator[Step]:
    chains, old = actual.tables.get(table, {}), before.tables.get(table, {})
    ours = [name for name in chains if is_own_chain(table, name) or name in (KUBE_FIREWALL, KUBE_PROXY_CANARY)]
    lost = [name for name in old if name not in chains and is_own_chain(table, name)]
    new = [name for name in ours if name not in old]
    changed = [name for name in ours if name in old and old[name].lines != chains[name].lines]
    edits: list[Edit] = [WriteChain(name, old[name].lines) for name in (*lost, *changed)]
    edits.extend(_new_jumps(before, actual, table))
    if edits:
        yield Step(table, tuple(edits))
    for name in deletion_order(actual, table, new):
        yield Step(table, (DeleteChain(name),))


def _new_jumps(before: SavedTables, actual: SavedTables, table: str) -> Iterator[Edit]:
    for jump in BASE_JUMPS:
        if jump.table == table and base_jump_lines(jump, actual) and not base_jump_lines(jump, before):
            yield DeleteRule(jump.chain, jump.rule)
