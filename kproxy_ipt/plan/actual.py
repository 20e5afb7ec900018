"""
What the kernel already has, compared with what is wanted: by text first, by meaning where the text differs.

The text can differ although nothing is wrong: another version of iptables prints the same rule in another way.
"""

from kproxy_ipt.errors import RulesetError
from kproxy_ipt.rules.fixed import BaseJump
from kproxy_ipt.ruleset.model import Chain, Rule
from kproxy_ipt.ruleset.parse import parse_rule
from kproxy_ipt.ruleset.render import render_rule
from kproxy_ipt.ruleset.scan import SavedChain, SavedTables, jumps_to


def _read(line: str, chains: frozenset[str]) -> Rule | None:
    try:
        return parse_rule(line, chains)[1]
    except RulesetError:
        return None


def same_chain(chain: Chain, saved: SavedChain) -> bool:
    """Whether *saved* holds the rules of *chain* in the same order, whatever their spelling."""
    if len(chain.rules) != len(saved.lines):
        return False
    for rule, line in zip(chain.rules, saved.lines, strict=True):
        if render_rule(chain.name, rule) != line and not _same_rule(rule, line):
            return False
    return True


def _same_rule(rule: Rule, line: str) -> bool:
    target = jumps_to(line)
    return _read(line, frozenset({target} if target else ())) == rule


def base_jump_lines(jump: BaseJump, actual: SavedTables) -> tuple[str, ...]:
    """The lines of the built-in chain that are *jump*, whatever their spelling; none or one in a healthy table."""
    base = actual.chain(jump.table, jump.chain)
    if base is None:
        return ()
    wanted = render_rule(jump.chain, jump.rule)
    return tuple(
        line
        for line in base.lines
        if line == wanted or (jumps_to(line) == jump.target and _read(line, frozenset({jump.target})) == jump.rule)
    )


def has_base_jump(jump: BaseJump, actual: SavedTables) -> bool:
    """Whether *jump* stands anywhere in its built-in chain."""
    return bool(base_jump_lines(jump, actual))
