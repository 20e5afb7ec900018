"""
What a rule asks for, in the fewest words that keep its meaning.

`-d 10.96.0.10/32 -p tcp -m comment ... -m tcp --dport 80` becomes `tcp 80 to 10.96.0.10`. Comments and accounting
objects ask for nothing and are left out; what has no words of its own keeps the text of `iptables-save`.
"""

from collections.abc import Iterator
from fractions import Fraction

from kproxy_ipt.ruleset.matches import (
    PROBABILITY_ONE,
    AddressType,
    Comment,
    Conntrack,
    Mark,
    Match,
    Nfacct,
    PortMatch,
    Recent,
    StatisticNth,
    StatisticRandom,
)
from kproxy_ipt.ruleset.model import Rule
from kproxy_ipt.ruleset.render import MATCH_WRITERS

_MAX_DENOMINATOR = 10_000
_ROUNDING = Fraction(1, 10**4)
"""Relative error of a share that counts as rounding: old versions of kube-proxy wrote five decimals."""


def plain_share(share: Fraction) -> Fraction:
    """
    The simple fraction that a share of connections stands for.

    Probabilities are stored in 31 bits, so a third is never exactly 1/3. The nearest fraction with a denominator of
    at most 10,000 is taken if it is within a ten-thousandth of *share*, the one with a small denominator first.
    """
    if not share:
        return share
    unit = Fraction(1, round(1 / share)) if share <= 1 else share
    for candidate in (unit, *(share.limit_denominator(limit) for limit in (10, 100, 1000, _MAX_DENOMINATOR))):
        if abs(candidate - share) <= share * _ROUNDING:
            return candidate
    return share


def share_words(share: Fraction) -> str:
    """A share as a simple fraction (`1/3`), or as a percentage where none is near."""
    plain = plain_share(share)
    if plain.denominator <= _MAX_DENOMINATOR:
        return str(plain)
    return f"{float(share * 100):.4g} %"


def probability(match: StatisticRandom) -> Fraction:
    """How often *match* says yes, exactly."""
    once = Fraction(match.probability, PROBABILITY_ONE)
    return 1 - once if match.negated else once


def address_words(prefix: str) -> str:
    """A prefix without the length of a single address."""
    return prefix.removesuffix("/128") if ":" in prefix else prefix.removesuffix("/32")


def condition_words(rule: Rule) -> tuple[str, ...]:
    """
    What *rule* asks for, each part by itself, all of which must hold; () if it asks for nothing.

    Protocol, ports and destination are one part; then source, interfaces, and the other matches in their order.
    """
    return tuple(part for part in (_destination(rule), *_sources(rule), *_matches(rule)) if part)


def _not(negated: bool) -> str:  # noqa: FBT001 - the field of the same name
    return "not " if negated else ""


def _destination(rule: Rule) -> str:
    words = [_not(rule.protocol_negated) + rule.protocol] if rule.protocol else []
    words += [
        _not(match.destination_negated) + _range(match.destination)
        for match in rule.matches
        if isinstance(match, PortMatch) and match.destination
    ]
    if rule.destination:
        words += [f"{_not(rule.destination_negated)}to", address_words(rule.destination)]
    return " ".join(words)


def _range(ports: tuple[int, int]) -> str:
    first, last = ports
    return str(first) if first == last else f"{first}-{last}"


def _sources(rule: Rule) -> Iterator[str]:
    if rule.source:
        yield f"{_not(rule.source_negated)}from {address_words(rule.source)}"
    if rule.in_interface:
        yield f"{_not(rule.in_interface_negated)}in by {rule.in_interface}"
    if rule.out_interface:
        yield f"{_not(rule.out_interface_negated)}out by {rule.out_interface}"
    if rule.fragment:
        yield "no first fragment" if rule.fragment == "-f" else "first fragment"


def _matches(rule: Rule) -> Iterator[str]:
    for match in rule.matches:
        if not isinstance(match, Comment | Nfacct):
            yield match_words(match)


def match_words(match: Match) -> str:
    """One match in words; "" for ports of the destination, which `condition_words` puts beside the protocol."""
    text: str
    match match:
        case PortMatch():
            text = f"{_not(match.source_negated)}from port {_range(match.source)}" if match.source else ""
        case Conntrack():
            text = _connection_words(match)
        case Mark():
            text = _mark_words(match)
        case AddressType():
            text = " ".join(_address_types(match))
        case StatisticRandom():
            text = f"share {float(probability(match) * 100):.3g} %"
        case StatisticNth():
            text = f"{_not(match.negated)}one in {match.every}"
        case Recent():
            text = _recent_words(match)
        case _:
            text = MATCH_WRITERS[type(match)](match).removeprefix(" -m ")
    return text


def _connection_words(match: Conntrack) -> str:
    if match.states == ("NEW",) and not match.negated:
        return "new connections"
    return f"{_not(match.negated)}state {' or '.join(match.states)}"


def _mark_words(match: Mark) -> str:
    if match.value == match.mask and match.value.bit_count() == 1:
        return f"without mark {match.value:#x}" if match.negated else f"with mark {match.value:#x}"
    return f"{_not(match.negated)}mark {match.value:#x}/{match.mask:#x}"


def _address_types(match: AddressType) -> Iterator[str]:
    for negated, kind, local, other in (
        (match.source_negated, match.source, "from this node", "from a"),
        (match.destination_negated, match.destination, "to this node", "to a"),
    ):
        if kind:
            yield _not(negated) + (local if kind == "LOCAL" else f"{other} {kind} address")


def _recent_words(match: Recent) -> str:
    if match.action == "set":
        return f"{_not(match.negated)}remember the client"
    seconds = f" {match.seconds} s" if match.seconds else ""
    return f"{_not(match.negated)}known client{seconds}"
