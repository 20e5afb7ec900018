"""
What the kernel already has, compared with what is wanted: by text first, by meaning where the text differs.

The text can differ although nothing is wrong: another version of iptables prints the same rule in another way.
"""

from kproxy_ipt.addresses import Family
from kproxy_ipt.errors import RulesetError
from kproxy_ipt.rules.fixed import BaseJump
from kproxy_ipt.ruleset.model import Chain, Rule
from kproxy_ipt.ruleset.parse import parse_rule
from kproxy_ipt.ruleset.render import render_rule
from kproxy_ipt.ruleset.scan import SavedChain, SavedTables, jumps_to
from kproxy_ipt.ruleset.targets import Jump


def _read(line: str, chains: frozenset[str], family: Family = Family.IPV4) -> Rule | None:
    try:
        return parse_rule(line, chains, family=family)[1]
    except RulesetError:
        return None


def same_chain(chain: Chain, saved: SavedChain, family: Family) -> bool:
    """Whether *saved* holds the rules of *chain* in the same order, whatever their spelling."""
    if len(chain.rules) != len(saved.lines):
        return False
    for rule, line in zip(chain.rules, saved.lines, strict=True):
        if render_rule(chain.name, rule) != line and not _same_rule(rule, line, family):
            return False
    return True


def _same_rule(rule: Rule, line: str, family: Family) -> bool:
    chains = frozenset({rule.target.chain} if isinstance(rule.target, Jump) else ())
    return _read(line, chains, family) == rule


def holds_rule(saved: SavedChain, rule: Rule, family: Family) -> bool:
    """Whether *rule* stands anywhere in *saved*, whatever its spelling."""
    wanted = render_rule(saved.name, rule)
    return any(line == wanted or _same_rule(rule, line, family) for line in saved.lines)


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
