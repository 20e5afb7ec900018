"""
Actual -> Plan of a clean-up: all of ours goes, nothing else.

Ours are the fixed chains, the chains with exact names of service ports, the mark KUBE-PROXY-CANARY, and the jumps into
them. KUBE-FIREWALL is shared with the kubelet: it goes with its two jumps only where no kubelet is seen and nobody
else has a rule in it. A chain that somebody else jumps to stays, with its rules, and a note says so.

Needs no objects, no configuration and no name of a node, so it works when nothing else does.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import msgspec

from kproxy_ipt.plan.actual import base_jump_lines
from kproxy_ipt.plan.plan import Plan
from kproxy_ipt.plan.stages import Step, pack
from kproxy_ipt.plan.stale import deletion_order, kept_for_others
from kproxy_ipt.rules.fixed import BASE_JUMPS, loopback_guard
from kproxy_ipt.rules.names import (
    FIXED_CHAINS,
    KUBE_FIREWALL,
    KUBE_MARK_MASQ,
    KUBE_PROXY_CANARY,
    is_own_chain,
)
from kproxy_ipt.ruleset.edits import DeleteChain, DeleteRule, Edit
from kproxy_ipt.ruleset.parse import parse_rule
from kproxy_ipt.ruleset.render import render_rule
from kproxy_ipt.ruleset.scan import SavedTables, jumps_to

_KUBELET_CHAINS = ("KUBE-KUBELET-CANARY", "KUBE-IPTABLES-HINT")
_BASE_COMMENTS = ('--comment "kubernetes ', '--comment "kube-proxy ')
"""How comments of all jumps begin that kube-proxy ever inserted into built-in chains, in any version and mode."""

OfChain: TypeAlias = Callable[[str, str], bool]
"""Asked with a table and a chain of it."""


class Removal(msgspec.Struct, frozen=True):
    """
    Chains of one table on their way out.

    Attributes:
        jumps: Rules of built-in chains that led to them.
        deleted: In an order in which the kernel lets them go.
        kept: Those that must stay after all: each with a chain that jumps to it.
    """

    jumps: tuple[DeleteRule, ...]
    deleted: tuple[str, ...]
    kept: Mapping[str, str]


def plan_cleanup(actual: SavedTables, *, staged: bool) -> Plan:
    """
    The way from *actual* to the same tables without us.

    Args:
        actual: All tables of one family.
        staged: As for `plan_sync`; also whether tables that came into being with us can be removed.
    """
    return plan_removal(actual, goes_in_cleanup(actual), staged=staged)


def plan_removal(actual: SavedTables, goes: OfChain, *, staged: bool, counts_not: OfChain = is_own_chain) -> Plan:
    """
    The way from *actual* to the same tables without some chains and the jumps into them.

    Args:
        actual: All tables of one family.
        goes: Which chains should go.
        staged: As for `plan_cleanup`.
        counts_not: As for `kept_for_others`.
    """
    steps: list[Step] = []
    notes: list[str] = []
    void: list[str] = []
    for table in actual.tables:
        removal = table_removal(actual, table, goes, counts_not=counts_not)
        notes.extend(
            f"chain {name} of table {table} stays: chain {referrer}, which is not ours, jumps to it"
            for name, referrer in removal.kept.items()
        )
        steps.extend(_table_steps(table, removal))
        if staged and KUBE_PROXY_CANARY in removal.deleted and _is_void_without(actual, table, removal):
            void.append(table)
    return Plan(transactions=pack(steps, staged=staged), notes=tuple(notes), void_tables=tuple(void))


def table_removal(actual: SavedTables, table: str, goes: OfChain, *, counts_not: OfChain = is_own_chain) -> Removal:
    """What of one table can go: see `plan_removal`."""
    leaving = [name for name in actual.tables[table] if goes(table, name)]
    jumps = tuple(_jumps_into(actual, table, leaving))
    gone = _texts(jumps)
    remaining = {
        name: msgspec.structs.replace(chain, lines=tuple(line for line in chain.lines if (name, line) not in gone))
        for name, chain in actual.tables[table].items()
    }
    kept = kept_for_others(SavedTables({table: remaining}), table, leaving, counts_not=counts_not)
    deleted = tuple(name for name in deletion_order(actual, table, leaving) if name not in kept)
    return Removal(jumps, deleted, kept)


def _texts(jumps: tuple[DeleteRule, ...]) -> set[tuple[str, str]]:
    return {(edit.chain, render_rule(edit.chain, edit.rule)) for edit in jumps}


def _table_steps(table: str, removal: Removal) -> Iterator[Step]:
    """Jumps and fixed chains first and together: from then on no packet comes to us."""
    fixed = [name for name in removal.deleted if name in FIXED_CHAINS.get(table, ()) and name != KUBE_MARK_MASQ]
    first: list[Edit] = [*removal.jumps, *(DeleteChain(name) for name in fixed)]
    if first:
        yield Step(table, tuple(first))
    for name in removal.deleted:
        if name not in fixed:
            yield Step(table, (DeleteChain(name),))


def goes_in_cleanup(actual: SavedTables) -> OfChain:
    """Which chains of *actual* a clean-up takes away."""
    firewall = _firewall_is_ours(actual)

    def goes(table: str, name: str) -> bool:
        is_ours = is_own_chain(table, name) or name == KUBE_PROXY_CANARY
        return is_ours or (table == "filter" and name == KUBE_FIREWALL and firewall)

    return goes


def _firewall_is_ours(actual: SavedTables) -> bool:
    """Whether KUBE-FIREWALL holds nothing but our rule and no kubelet shows itself in the table mangle."""
    mangle = actual.tables.get("mangle", {})
    saved = actual.chain("filter", KUBE_FIREWALL)
    guard = render_rule(KUBE_FIREWALL, loopback_guard())
    return saved is not None and set(saved.lines) <= {guard} and not any(name in mangle for name in _KUBELET_CHAINS)


def _jumps_into(actual: SavedTables, table: str, leaving: list[str]) -> Iterator[DeleteRule]:
    """Every rule of a built-in chain that leads to *leaving* and was put there by us or by a kube-proxy."""
    known = {(jump.chain, line) for jump in BASE_JUMPS if jump.table == table for line in base_jump_lines(jump, actual)}
    for chain in actual.tables[table].values():
        for line in chain.lines if chain.policy != "-" else ():
            target = jumps_to(line)
            if target in leaving and ((chain.name, line) in known or _is_base_jump(line)):
                yield DeleteRule(chain.name, parse_rule(line)[1])


def _is_base_jump(line: str) -> bool:
    return any(comment in line for comment in _BASE_COMMENTS)


def _is_void_without(actual: SavedTables, table: str, removal: Removal) -> bool:
    """Whether only empty built-in chains of policy ACCEPT are left of *table*."""
    gone, deleted = _texts(removal.jumps), set(removal.deleted)
    rest = (chain for name, chain in actual.tables[table].items() if name not in deleted)
    return all(chain.policy == "ACCEPT" and all((chain.name, line) in gone for line in chain.lines) for chain in rest)
