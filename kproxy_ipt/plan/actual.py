"""
What the kernel already has, compared with what is wanted: by text first, by meaning where the text differs.

The text can differ although nothing is wrong: another version of iptables prints the same rule in another way.
"""

from collections.abc import Iterable, Sequence

from kproxy_ipt.addresses import Family
from kproxy_ipt.errors import RulesetError
from kproxy_ipt.rules.fixed import BaseJump
from kproxy_ipt.ruleset.model import Rule
from kproxy_ipt.ruleset.parse import parse_rule
from kproxy_ipt.ruleset.render import render_rule
from kproxy_ipt.ruleset.scan import SavedTables, jumps_to


def _read(line: str, family: Family) -> Rule | None:
    """The rule of a line; no chain that we jump to has the name of a target extension, so none has to be named."""
    try:
        return parse_rule(line, family=family)[1]
    except RulesetError:
        return None


def same_rules(wanted: Sequence[str], saved: Sequence[str], family: Family) -> bool:
    """Whether both are the same rules in the same order, whatever their spelling."""
    if len(wanted) != len(saved):
        return False
    return all(line == other or _same_rule(line, other, family) for line, other in zip(wanted, saved, strict=True))


def _same_rule(wanted: str, saved: str, family: Family) -> bool:
    rule = _read(wanted, family)
    return rule is not None and rule == _read(saved, family)


def holds_rule(saved: Iterable[str], wanted: str, family: Family) -> bool:
    """Whether the rule *wanted* stands anywhere in *saved*, whatever its spelling."""
    return any(line == wanted or _same_rule(wanted, line, family) for line in saved)


def base_jump_lines(jump: BaseJump, actual: SavedTables) -> tuple[str, ...]:
    """The lines of the built-in chain that are *jump*, whatever their spelling; none or one in a healthy table."""
    base = actual.chain(jump.table, jump.chain)
    if base is None:
        return ()
    wanted = render_rule(jump.chain, jump.rule)
    return tuple(
        line
        for line in base.lines
        # The family does not matter: no match of a jump differs between them.
        if line == wanted or (jumps_to(line) == jump.target and _same_rule(wanted, line, Family.IPV4))
    )


def has_base_jump(jump: BaseJump, actual: SavedTables) -> bool:
    """Whether *jump* stands anywhere in its built-in chain."""
    return bool(base_jump_lines(jump, actual))
