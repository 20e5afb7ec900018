"""What the kernel has and what is wanted are compared by text, and by meaning where the text differs."""

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.plan.actual import base_jump_lines, has_base_jump, holds_rule, same_rules
from kproxy_ipt.rules.fixed import BASE_JUMPS, BaseJump
from kproxy_ipt.ruleset.render import render_rule
from kproxy_ipt.ruleset.scan import SavedTables, scan_save

V4, V6 = Family.IPV4, Family.IPV6
A, B = (f"-A KUBE-SERVICES -d 10.96.0.{number}/32 -j KUBE-SVC-AAAAAAAAAAAAAAAA" for number in (1, 2))
A_RESPELLED = "-A KUBE-SERVICES --destination 10.96.0.1 -j KUBE-SVC-AAAAAAAAAAAAAAAA"
REFUSED = "-A KUBE-SERVICES -d 10.96.0.1/32 -j REJECT --reject-with icmp-port-unreachable"
REFUSED_V6 = "-A KUBE-SERVICES -d fd00::1/128 -j REJECT --reject-with icmp6-port-unreachable"
UNREADABLE, NO_RULE = "-A KUBE-SERVICES foo", "-A KUBE-SERVICES bar"


@pytest.mark.parametrize(
    ("wanted", "saved", "family", "same"),
    [
        ((), (), V4, True),
        ((A, B), (A, B), V4, True),
        ((A, B), (B, A), V4, False),
        ((A, B), (A,), V4, False),
        ((A,), (A, B), V4, False),
        ((A, A), (A, B), V4, False),
        ((A, B), (A_RESPELLED, B), V4, True),
        ((B, A), (A_RESPELLED, B), V4, False),
        ((UNREADABLE,), (UNREADABLE,), V4, True),
        ((UNREADABLE,), (NO_RULE,), V4, False),
        ((A,), (NO_RULE,), V4, False),
        ((NO_RULE,), (A,), V4, False),
        ((REFUSED,), (REFUSED.partition(" --reject-with")[0],), V4, True),
        ((REFUSED_V6,), (REFUSED_V6.partition(" --reject-with")[0],), V6, True),
        ((REFUSED_V6,), (REFUSED_V6.partition(" --reject-with")[0],), V4, False),
    ],
)
def test_rules_are_the_same_in_the_same_order(
    wanted: tuple[str, ...], saved: tuple[str, ...], family: Family, *, same: bool
) -> None:
    """Whatever their spelling; lines that nobody can read are the same as their own text alone."""
    assert same_rules(wanted, saved, family) is same


def test_rule_is_held_anywhere_and_in_any_spelling() -> None:
    """Of IPv6 too, whose defaults are others."""
    short = REFUSED_V6.partition(" --reject-with")[0]

    assert holds_rule((B, NO_RULE, A_RESPELLED), A, V4)
    assert holds_rule((UNREADABLE,), UNREADABLE, V4)
    assert not holds_rule((B, NO_RULE), A, V4)
    assert not holds_rule((), A, V4)
    assert holds_rule((short,), REFUSED_V6, V6)
    assert not holds_rule((short,), REFUSED_V6, V4)


def _tables(jump: BaseJump, *lines: str) -> SavedTables:
    rules = "".join(f"{line}\n" for line in lines)
    return scan_save(f"*{jump.table}\n:{jump.chain} ACCEPT [0:0]\n{rules}COMMIT\n")


@pytest.mark.parametrize("jump", BASE_JUMPS, ids=lambda jump: f"{jump.table} {jump.chain} {jump.target}")
def test_jump_is_found_wherever_and_however_it_stands(jump: BaseJump) -> None:
    """Every line that is this jump, as often as it is there; others to the same chain are not it."""
    line = render_rule(jump.chain, jump.rule)
    respelled = line.replace(f"-A {jump.chain} ", f"-A {jump.chain}  ")
    foreign = f"-A {jump.chain} -i eth9 -j {jump.target}"
    other = f"-A {jump.chain} -j MINE"

    assert base_jump_lines(jump, _tables(jump, foreign, line, other, respelled, line)) == (line, respelled, line)
    assert has_base_jump(jump, _tables(jump, other, line)) is True
    assert has_base_jump(jump, _tables(jump, foreign, other)) is False
    assert has_base_jump(jump, SavedTables({})) is False
    assert has_base_jump(jump, SavedTables({jump.table: {}})) is False
