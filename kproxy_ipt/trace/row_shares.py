"""
What part of connections each rule of a balancing row takes: dices and rotations, exactly.

A rule that takes some of them leads to the chain of an endpoint, or of a group of endpoints, and asks for nothing else.
"""

from collections.abc import Iterable
from fractions import Fraction

import msgspec

from kproxy_ipt.rules.names import is_service_chain
from kproxy_ipt.ruleset.counted import Chances, chances_of
from kproxy_ipt.ruleset.matches import Comment, Match, StatisticNth, StatisticRandom
from kproxy_ipt.ruleset.model import Rule
from kproxy_ipt.ruleset.targets import Jump
from kproxy_ipt.trace.conditions import probability

_PLACES = ("KUBE-SEP-", "KUBE-SVC-", "KUBE-SVL-")
_SCHEDULERS: dict[type[Match], str] = {StatisticRandom: "random", StatisticNth: "rr"}


def without_comment(rule: Rule) -> Rule:
    """*rule* without comments and counters."""
    matches = tuple(match for match in rule.matches if not isinstance(match, Comment))
    return msgspec.structs.replace(rule, matches=matches, counters=None)


def leads_to_place(rule: Rule, matches: Iterable[Match]) -> bool:
    """Whether *rule* leads to the chain of an endpoint or of a group, and asks for nothing but *matches*."""
    target = rule.target
    is_place = isinstance(target, Jump) and target.chain.startswith(_PLACES) and is_service_chain("nat", target.chain)
    return is_place and without_comment(rule) == Rule(matches=tuple(matches), target=target)


class RowShares:
    """
    Follows one row of rules.

    Attributes:
        remaining: The part of connections that no rule took so far.
        schedulers: How rules chose, by the names of the configuration, in order of appearance.
    """

    def __init__(self) -> None:
        self.remaining = Fraction(1)
        self.schedulers: dict[str, None] = {}

    def take(self, rule: Rule) -> Fraction:
        """The part of all connections that *rule* takes, which is then gone; 0 if it is no such rule."""
        chances = chances_of(rule)
        part = None if chances is None else part_of(chances)
        if chances is None or part is None or not leads_to_place(rule, chances):
            return Fraction(0)
        taken = self.remaining * part
        self.remaining -= taken
        self.schedulers.update((_SCHEDULERS[type(one)], None) for one in chances)
        return taken


def part_of(chances: Chances) -> Fraction | None:
    """The part that a rule takes of what comes to it, exactly; None for one that has several chances."""
    if len(chances) > 1:
        return None
    return _chance(chances[0]) if chances else Fraction(1)


def _chance(match: StatisticRandom | StatisticNth) -> Fraction:
    if isinstance(match, StatisticRandom):
        return probability(match)
    once = Fraction(1, match.every)
    return 1 - once if match.negated else once
