"""
Save text with counters -> the few numbers that connections are counted by, without parsing rules.

Whoever asks again and again, for tables of 100,000 rules, cannot read every rule each time. What is needed stands in
lines of two forms whose spelling is fixed by `iptables-save`; all others are passed over. `parse.py` reads everything.
"""

import re
from collections.abc import Mapping

import msgspec

from kproxy_ipt.errors import RulesetError
from kproxy_ipt.ruleset.matches import Comment, StatisticNth, StatisticRandom
from kproxy_ipt.ruleset.model import Rule
from kproxy_ipt.ruleset.parse import parse_rule

Chances = tuple[StatisticRandom | StatisticNth, ...]

_ROW = r"KUBE-SV[CL]-[A-Z2-7]{16}"
_ENDPOINT = r"KUBE-SEP-[A-Z2-7]{16}"
_COMMENT = r'-m comment --comment (?:"[^"\n]*"|\S+) '
# A dispatch tree has chains of the same names; there is none among them that leads on whatever the packet is.
_COUNTED = re.compile(
    r"^\[(\d+):\d+\] -A (?:"
    rf"({_ENDPOINT}) (?:[^\n]* )?--to-destination \S+$"
    rf"|({_ROW}) (?:{_COMMENT})?(?:((?:-m statistic --mode [^\n]* )?)-j ({_ROW})|((?:[^\n]* )?)-j ({_ENDPOINT}))$"
    r'|\S+ [^\n]*--comment "(\S+ (?:has no (?:local )?endpoints|traffic not accepted by [^"\n]*))" [^\n]*$'
    r"|(KUBE-FORWARD) [^\n]*--ctstate INVALID [^\n]*-j DROP$)",
    re.ASCII | re.MULTILINE,
)
_DESTINATION = re.compile(
    rf"^\[\d+:\d+\] -A ({_ENDPOINT}) (?:[^\n]* )?--to-destination (\S+)$", re.ASCII | re.MULTILINE
)
REFUSAL = re.compile(r"(\S+) (?:(has no endpoints)|has no local endpoints|traffic not accepted by .*)")
"""The comment of a rule that refuses: the service port, and whether it rejects; otherwise it drops."""

REFUSAL_MARKS = (" has no endpoints", " has no local endpoints", " traffic not accepted by ")
"""What one of the lines with such a comment holds."""


class Way(msgspec.Struct, frozen=True, gc=False):
    """
    A rule of a chain that chooses.

    Attributes:
        place: The chain that it leads to: of an endpoint, or of a group.
        packets: What it counted.
        chances: The dice or rotation that decides, () for none; None where it asks for anything else.
    """

    place: str
    packets: int
    chances: Chances | None


class CountedTables(msgspec.Struct, frozen=True, kw_only=True):
    """
    Packets that rules counted.

    Attributes:
        endpoints: By chain of an endpoint: of the rule that rewrites the destination.
        choices: By chain that chooses: its rules that lead to a place, in their order.
        refusals: By comment of a rule that refuses packets to a service port, sums over all rules with it.
        invalid: Dropped because connection tracking found them invalid.
    """

    endpoints: Mapping[str, int] = msgspec.field(default_factory=dict)
    choices: Mapping[str, tuple[Way, ...]] = msgspec.field(default_factory=dict)
    refusals: Mapping[str, int] = msgspec.field(default_factory=dict)
    invalid: int = 0


def scan_counters(text: str) -> CountedTables:
    """
    Read the tables nat and filter of `iptables-save --counters`.

    Rules in another spelling than that of the program are passed over: this is no check of anything.
    """
    endpoints: dict[str, int] = {}
    choices: dict[str, list[Way]] = {}
    refusals: dict[str, int] = {}
    chances: dict[str, Chances | None] = {}
    invalid = 0
    for packets, endpoint, row, dice, group, asked, chosen, comment, forward in _COUNTED.findall(text):
        count = int(packets)
        if row:
            words = dice if group else asked
            if words not in chances:
                chances[words] = _chances(words)
            choices.setdefault(row, []).append(Way(group or chosen, count, chances[words]))
        elif endpoint:
            endpoints[endpoint] = count
        elif comment:
            refusals[comment] = refusals.get(comment, 0) + count
        elif forward:
            invalid += count
    rows = {chain: tuple(ways) for chain, ways in choices.items()}
    return CountedTables(endpoints=endpoints, choices=rows, refusals=refusals, invalid=invalid)


def scan_destinations(text: str) -> Mapping[str, str]:
    """Where each chain of an endpoint sends connections, `ip:port`, read from the same text."""
    return dict(_DESTINATION.findall(text))


def _chances(words: str) -> Chances | None:
    if words and not words.startswith("-m statistic "):
        return None
    try:
        return chances_of(parse_rule(f"-A X {words}-j Y", ("Y",))[1])
    except RulesetError:
        return None


def chances_of(rule: Rule) -> Chances | None:
    """What *rule* leaves to chance, () if it takes every packet; None if it asks for anything else."""
    chances = tuple(one for one in rule.matches if isinstance(one, StatisticRandom | StatisticNth))
    comments = tuple(one for one in rule.matches if isinstance(one, Comment))
    plain = Rule(matches=rule.matches, target=rule.target, counters=rule.counters)
    return chances if len(chances) + len(comments) == len(rule.matches) and rule == plain else None
