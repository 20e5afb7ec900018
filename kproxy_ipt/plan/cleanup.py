"""
Actual -> Plan of a clean-up: all of ours goes, nothing else.

Ours are the fixed chains, the chains with exact names of service ports, the mark KUBE-PROXY-CANARY, and the jumps into
them. KUBE-FIREWALL is shared with the kubelet: it goes with its two jumps only where no kubelet is seen and nobody
else has a rule in it. A chain that somebody else jumps to stays, with its rules, and a note says so.

Needs no objects, no configuration and no name of a node, so it works when nothing else does.
"""

from collections.abc import Iterator

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
from kproxy_ipt.ruleset.scan import SavedChain, SavedTables, jumps_to

_KUBELET_CHAINS = ("KUBE-KUBELET-CANARY", "KUBE-IPTABLES-HINT")
_BASE_COMMENT = '--comment "kubernetes '
"""How comments of all jumps begin that kube-proxy ever inserted into built-in chains, older versions included."""


def plan_cleanup(actual: SavedTables, *, staged: bool) -> Plan:
    """
    The way from *actual* to the same tables without us.

    Args:
        actual: All tables of one family.
        staged: As for `plan_sync`; also whether tables that came into being with us can be removed.
    """
    steps: list[Step] = []
    notes: list[str] = []
    void: list[str] = []
    for table in actual.tables:
        leaving = [name for name in actual.tables[table] if _goes(actual, table, name)]
        jumps = tuple(_jumps_into(actual, table, leaving))
        gone_jumps = {(edit.chain, render_rule(edit.chain, edit.rule)) for edit in jumps}
        kept = _kept(actual, table, leaving, gone_jumps)
        notes.extend(
            f"chain {name} of table {table} stays: chain {referrer}, which is not ours, jumps to it"
            for name, referrer in kept.items()
        )
        deleted = [name for name in deletion_order(actual, table, leaving) if name not in kept]
        steps.extend(_table_steps(table, jumps, deleted))
        if staged and KUBE_PROXY_CANARY in deleted and _is_void_without(actual, table, deleted, gone_jumps):
            void.append(table)
    return Plan(transactions=pack(steps, staged=staged), notes=tuple(notes), void_tables=tuple(void))


def _table_steps(table: str, jumps: tuple[DeleteRule, ...], deleted: list[str]) -> Iterator[Step]:
    """Jumps and fixed chains first and together: from then on no packet comes to us."""
    fixed = [name for name in deleted if name in FIXED_CHAINS.get(table, ()) and name != KUBE_MARK_MASQ]
    first: list[Edit] = [*jumps, *(DeleteChain(name) for name in fixed)]
    if first:
        yield Step(table, tuple(first))
    for name in deleted:
        if name not in fixed:
            yield Step(table, (DeleteChain(name),))


def _goes(actual: SavedTables, table: str, name: str) -> bool:
    if is_own_chain(table, name) or name == KUBE_PROXY_CANARY:
        return True
    return table == "filter" and name == KUBE_FIREWALL and _firewall_is_ours(actual)


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
            if target in leaving and ((chain.name, line) in known or _BASE_COMMENT in line):
                yield DeleteRule(chain.name, parse_rule(line, leaving)[1])


def _kept(actual: SavedTables, table: str, leaving: list[str], gone_jumps: set[tuple[str, str]]) -> dict[str, str]:
    remaining = {
        name: SavedChain(name, chain.policy, tuple(line for line in chain.lines if (name, line) not in gone_jumps))
        for name, chain in actual.tables[table].items()
    }
    return dict(kept_for_others(SavedTables({table: remaining}), table, leaving))


def _is_void_without(actual: SavedTables, table: str, deleted: list[str], gone_jumps: set[tuple[str, str]]) -> bool:
    """Whether only empty built-in chains of policy ACCEPT are left of *table*."""
    rest = (chain for name, chain in actual.tables[table].items() if name not in deleted)
    return all(
        chain.policy == "ACCEPT" and all((chain.name, line) in gone_jumps for line in chain.lines) for chain in rest
    )
