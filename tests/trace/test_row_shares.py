"""What part of connections each rule of a row takes."""

from fractions import Fraction

import pytest

from kproxy_ipt.ruleset.matches import PROBABILITY_ONE, Comment, Mark, Match, StatisticNth, StatisticRandom
from kproxy_ipt.ruleset.model import Rule
from kproxy_ipt.ruleset.targets import Jump, Verdict
from kproxy_ipt.trace.row_shares import RowShares

_PLACE = Jump("KUBE-SEP-AAAAAAAAAAAAAAAA")
_HALF = StatisticRandom(PROBABILITY_ONE // 2)


def _rule(*matches: Match) -> Rule:
    return Rule(matches=(Comment("ns/web"), *matches), target=_PLACE)


@pytest.mark.parametrize(
    ("rules", "shares", "schedulers"),
    [
        ([_rule()], [1], []),
        ([_rule(_HALF), _rule(_HALF), _rule()], [Fraction(1, 2), Fraction(1, 4), Fraction(1, 4)], ["random"]),
        ([_rule(StatisticNth(3)), _rule(StatisticNth(2)), _rule()], [Fraction(1, 3)] * 3, ["rr"]),
        ([_rule(StatisticNth(3, negated=True)), _rule()], [Fraction(2, 3), Fraction(1, 3)], ["rr"]),
        ([_rule(StatisticRandom(0, negated=True))], [1], ["random"]),
        ([_rule(StatisticNth(2)), _rule(_HALF)], [Fraction(1, 2), Fraction(1, 4)], ["rr", "random"]),
    ],
)
def test_rules_take_their_part_of_what_is_left(
    rules: list[Rule], shares: list[Fraction], schedulers: list[str]
) -> None:
    """Exactly, and what is left over is known."""
    row = RowShares()

    assert shares == [row.take(rule) for rule in rules]
    assert (1 - sum(shares), schedulers) == (row.remaining, list(row.schedulers))


@pytest.mark.parametrize(
    "other",
    [
        Rule(matches=(_HALF,), target=Verdict("ACCEPT")),
        Rule(matches=(_HALF,), target=Jump("KUBE-MARK-MASQ")),
        Rule(matches=(_HALF,), target=Jump("KUBE-SVC-MYOWN")),
        Rule(matches=(_HALF, Mark(1)), target=_PLACE),
        Rule(matches=(_HALF, _HALF), target=_PLACE),
        Rule(source="10.0.0.1/32", target=_PLACE),
    ],
)
def test_other_rules_take_nothing(other: Rule) -> None:
    """They are told as they are."""
    row = RowShares()

    assert (row.take(other), row.remaining) == (Fraction(0), Fraction(1))
    assert not row.schedulers
