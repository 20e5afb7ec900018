"""
Do two Rulesets treat every packet alike, probabilities included?

The packets are cut into classes: by destination (every prefix and address that occurs, and those of the node), then by
protocol and destination port as far as rules that packets to this destination can meet tell them apart. For each class
the rules that it can meet are brought into a form that does not depend on chains (`normal_form.py`). Where the two
forms are the same, so is the behaviour. Where they are not, one packet for each combination of the other values that
these rules ask for (`representatives.py`) walks both Rulesets, restricted to these rules, and outcomes are compared.

Compared are: accepted, dropped or refused and how; of accepted packets also the destination, the source, whether it
was masqueraded, whether it is for the node, the mark, and which list of `recent` remembers the client; each with its
share. The path, names of chains, comments and counters do not count.

Decided against: the full product of all values that occur (10**9 classes for 1,000 services), and a decision diagram
over all fields (exact as well, but no packet to show that anybody would recognise).
"""

import re
from collections.abc import Iterator
from enum import StrEnum
from fractions import Fraction
from itertools import islice

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.errors import RulesetError
from kproxy_ipt.ruleset.matches import Mark, Match, Recent
from kproxy_ipt.ruleset.model import Chain, Rule, Ruleset, Table
from kproxy_ipt.trace.classes import (
    address_classes,
    address_text,
    is_prefix,
    network_and_mask,
    port_classes,
    unnamed_address,
)
from kproxy_ipt.trace.distribution import distribution
from kproxy_ipt.trace.indexed import Place, Places, recent_names
from kproxy_ipt.trace.naming import service_of
from kproxy_ipt.trace.normal_form import Block, Blocks, IndexedRuleset, View, is_local_address, same_block
from kproxy_ipt.trace.packet import End, Host, Outcome, Packet
from kproxy_ipt.trace.representatives import (
    MOST_PACKETS,
    Candidate,
    Clients,
    candidates,
    conditions_of,
    local_prefixes,
    undecided,
)
from kproxy_ipt.trace.walk import walk

MOST_DIFFERENCES = 20
DEFAULT_TOLERANCE = 1e-8
"""Difference of two shares that counts as rounding: iptables prints 11 decimals, the kernel keeps 31 bits."""

_SPECIAL = {Family.IPV4: ("224.0.0.0/4", "255.255.255.255/32"), Family.IPV6: ("ff00::/8",)}
_OTHER_PROTOCOLS = ("47", "89", "253")
_REMEMBERS = re.compile(r"--(?:set|update) .*?--name (\S+)")


class Marks(StrEnum):
    """Whether marks count: with which ones packets may arrive, and with which they leave."""

    COMPARED = "compared"
    IGNORED = "ignored"


class BehaviourDifference(msgspec.Struct, frozen=True, kw_only=True):
    """
    A packet that two Rulesets treat differently: the first one of its class.

    Attributes:
        service: Text of the service port that comments on the way name, "" if none does.
        client: What lists of `recent` know about the source, "" for nothing.
        packet: The packet.
        outcomes_a: What the first Ruleset makes of it.
        outcomes_b: What the second one does.
    """

    service: str
    client: str
    packet: Packet
    outcomes_a: tuple[Outcome, ...]
    outcomes_b: tuple[Outcome, ...]


class EquivalenceReport(msgspec.Struct, frozen=True, kw_only=True):
    """
    Whether two Rulesets treat every packet alike.

    Attributes:
        equal: No difference was found, and none can be hidden.
        classes: Classes of destination, protocol and port that were looked at; all, unless *is_cut*.
        packets: Packets that walked, where forms were not the same.
        differences: At most one for each class, ordered by service port.
        is_cut: Whether the search ended with the last difference of the allowed number.
        undecided: Why differences may be hidden, each reason once.
    """

    equal: bool
    classes: int
    packets: int
    differences: tuple[BehaviourDifference, ...] = ()
    is_cut: bool = False
    undecided: tuple[str, ...] = ()


def compare_behaviour(
    first: Ruleset,
    second: Ruleset,
    host: Host,
    *,
    tolerance: float = DEFAULT_TOLERANCE,
    marks: Marks = Marks.COMPARED,
    most_differences: int = MOST_DIFFERENCES,
) -> EquivalenceReport:
    """
    Compare what becomes of every packet.

    Args:
        first: All tables that matter; a table that only one of the two has is compared with an empty one.
        second: Of the same family.
        host: The machine; where it has no address of the family, one is made up that no rule names, so that rules for
            local addresses are looked at in any case.
        tolerance: Shares that differ by no more are the same.
        marks: `IGNORED` for Rulesets that use different bits: packets arrive without a mark, and leave with any.
        most_differences: The search ends with this number.

    Raises:
        RulesetError: Two families, or jumps that go in circles.
    """
    if first.family is not second.family:
        raise RulesetError(f"rules of {first.family} and of {second.family} cannot be compared")
    comparison = _Comparison(first, second, host, tolerance, marks)
    found = list(islice(comparison.differences(), most_differences))
    reasons = tuple(sorted(comparison.reasons))
    return EquivalenceReport(
        equal=not found and not reasons,
        classes=comparison.classes,
        packets=comparison.packets,
        differences=tuple(sorted(found, key=lambda one: one.service)),
        is_cut=len(found) == most_differences,
        undecided=reasons,
    )


def _destination_prefixes(ruleset: Ruleset) -> set[str]:
    return {
        rule.destination
        for table in ruleset.tables.values()
        for chain in table.chains.values()
        for rule in chain.rules
        if rule.destination
    }


class _Comparison:
    """One comparison: the two Rulesets, what was counted, and what could not be decided."""

    def __init__(self, first: Ruleset, second: Ruleset, host: Host, tolerance: float, marks: Marks) -> None:
        self._family = first.family
        prefixes = _destination_prefixes(first) | _destination_prefixes(second)
        self._host = _known_host(host, prefixes, first.family)
        self._prefixes = prefixes | local_prefixes(first.family, self._host) | set(_SPECIAL[first.family])
        self._sides = (IndexedRuleset(first, self._host), IndexedRuleset(second, self._host))
        self._names = (recent_names(first), recent_names(second))
        self._tolerance = tolerance
        self._marks = marks
        self.classes = 0
        self.packets = 0
        self.reasons: set[str] = set()
        self._alike: set[object] = set()
        if not all(is_prefix(network_and_mask(prefix)[1], self._family) for prefix in prefixes):
            self.reasons.add("a mask of a destination has gaps: not all of its addresses were looked at")

    def differences(self) -> Iterator[BehaviourDifference]:
        for address in address_classes(sorted(self._prefixes), self._family):
            place = Place(address, None, is_local_address(address_text(address, self._family), self._host))
            for protocol, port in self._ports(place):
                self.classes += 1
                found = self._difference(msgspec.structs.replace(place, port=port), protocol)
                if found:
                    yield found

    def _ports(self, place: Place) -> Iterator[tuple[str, int]]:
        """Protocols and ports that rules tell apart which packets to *place* can meet."""
        views = [side.view(place, None) for side in self._sides]
        places = _union(views)
        ranges: dict[str, set[tuple[int, int]]] = {}
        for view in views:
            view.blocks(places)
            for met in (rule for rules in view.met.values() for rule in rules.values()):
                for protocol, _ in met.protocols:
                    ranges.setdefault(protocol, set()).update((first, last) for first, last, _ in met.ports)
        for protocol, asked in sorted(ranges.items()):
            for port in port_classes(asked) if asked else (0,):
                yield protocol, port
        yield next(protocol for protocol in _OTHER_PROTOCOLS if protocol not in ranges), 0

    def _difference(self, place: Place, protocol: str) -> BehaviourDifference | None:
        views = [side.view(place, protocol) for side in self._sides]
        places = _union(views)
        blocks = [view.blocks(places) for view in views]
        if _same_blocks(blocks[0], blocks[1], self._tolerance):
            return None
        # Packets that are not translated meet the same rules at many addresses: what they do there is known by now.
        kind = (protocol, place.is_local, *(tuple(some.items()) for some in blocks)) if places == (place,) else None
        if kind is not None and kind in self._alike:
            return None
        pattern = Packet(
            family=self._family,
            source="",
            destination=address_text(place.address, self._family),
            protocol=protocol,
            destination_port=place.port or 0,
        )
        rulesets = [view.restricted() for view in views]
        packets, are_all = candidates(pattern, blocks, self._host, marked=self._marks is Marks.COMPARED)
        for candidate in islice(packets, MOST_PACKETS):
            self.packets += 1
            if not self._treats_alike(rulesets, candidate):
                return self._described(candidate)
        if not self._doubt(blocks, pattern, are_all=are_all) and kind is not None:
            self._alike.add(kind)
        return None

    def _doubt(self, blocks: list[Blocks], pattern: Packet, *, are_all: bool) -> bool:
        """Note why packets other than the tried ones may be treated differently; whether there is any such reason."""
        conditions = (one for some in blocks for one in conditions_of(some.values()))
        reasons = [f"{word} is not understood well enough" for word in undecided(conditions, self._family)]
        if not are_all:
            where = f"{pattern.protocol} to {pattern.destination} port {pattern.destination_port}"
            reasons.append(f"{where}: only {MOST_PACKETS} kinds of packets were tried")
        self.reasons.update(reasons)
        return bool(reasons)

    def _treats_alike(self, rulesets: list[Ruleset], candidate: Candidate) -> bool:
        first, second = (
            self._shares(_with_clients(ruleset, names, candidate.clients), candidate.packet, names)
            for ruleset, names in zip(rulesets, self._names, strict=True)
        )
        nothing = Fraction(0)
        return all(
            abs(first.get(key, nothing) - second.get(key, nothing)) <= self._tolerance for key in {*first, *second}
        )

    def _shares(self, ruleset: Ruleset, packet: Packet, names: dict[str, str]) -> dict[object, Fraction]:
        found: dict[object, Fraction] = {}
        for outcome in walk(ruleset, packet, self._host):
            key = self._key(outcome, names)
            found[key] = found.get(key, Fraction(0)) + outcome.share
        return found

    def _key(self, outcome: Outcome, names: dict[str, str]) -> object:
        """What counts of an outcome: of a packet that goes nowhere, only how it ends."""
        lists = (name for step in outcome.path for name in _REMEMBERS.findall(step.line))
        remembered = frozenset(names.get(name, name) for name in lists)
        if outcome.end is not End.ACCEPTED:
            return outcome.end, outcome.reject_with, remembered
        return (
            outcome.destination,
            outcome.destination_port,
            outcome.source,
            outcome.masqueraded,
            outcome.delivered_locally,
            outcome.mark if self._marks is Marks.COMPARED else 0,
            remembered,
        )

    def _described(self, candidate: Candidate) -> BehaviourDifference:
        """The difference, with paths through the whole Rulesets."""
        outcomes = [
            distribution(walk(_with_clients(side.ruleset, names, candidate.clients), candidate.packet, self._host))
            for side, names in zip(self._sides, self._names, strict=True)
        ]
        known = (f"known to the list {name} for {age} s" for name, age in candidate.clients.ages_s)
        return BehaviourDifference(
            service=next(filter(None, map(service_of, (*outcomes[0], *outcomes[1]))), ""),
            client=", ".join(known),
            packet=candidate.packet,
            outcomes_a=outcomes[0],
            outcomes_b=outcomes[1],
        )


def _known_host(host: Host, prefixes: set[str], family: Family) -> Host:
    """*host*, with an address of the family in any case."""
    if any((":" in address) is (family is Family.IPV6) for address in host.addresses):
        return host
    made_up = unnamed_address(prefixes, family)
    return msgspec.structs.replace(host, addresses=host.addresses | {made_up}) if made_up else host


def _union(views: list[View]) -> Places:
    """All destinations that packets of a class may have, by either Ruleset; None if they cannot be known."""
    found: dict[Place, None] = {}
    for view in views:
        places = view.places()
        if places is None:
            return None
        found.update(dict.fromkeys(places))
    return tuple(found)


def _same_blocks(first: Blocks, second: Blocks, tolerance: float) -> bool:
    empty = Block()
    return all(
        same_block(first.get(hook, empty), second.get(hook, empty), tolerance)
        for hook in dict.fromkeys((*first, *second))
    )


def _with_clients(ruleset: Ruleset, names: dict[str, str], clients: Clients) -> Ruleset:
    """
    *ruleset* for a source that lists of `recent` know as *clients* says: the questions replaced by their answers.

    A rule whose answer is no becomes one that never matches, so that positions stay what they are.
    """
    if not names and not clients.ages_s:
        return ruleset
    ages = dict(clients.ages_s)
    return Ruleset(
        ruleset.family,
        {
            table.name: Table(
                table.name,
                {name: _answered_chain(chain, names, ages) for name, chain in table.chains.items()},
            )
            for table in ruleset.tables.values()
        },
    )


def _answered_chain(chain: Chain, names: dict[str, str], ages: dict[str, int]) -> Chain:
    if not any(isinstance(match, Recent) and match.action != "set" for rule in chain.rules for match in rule.matches):
        return chain
    return msgspec.structs.replace(chain, rules=tuple(_answered(rule, names, ages) for rule in chain.rules))


def _answered(rule: Rule, names: dict[str, str], ages: dict[str, int]) -> Rule:
    kept: list[Match] = []
    for match in rule.matches:
        if not isinstance(match, Recent) or match.action == "set":
            kept.append(match)
            continue
        age = ages.get(names.get(match.name, match.name))
        is_known = age is not None and (not match.seconds or age < match.seconds)
        if is_known is match.negated:
            return _NEVER
    return msgspec.structs.replace(rule, matches=tuple(kept))


_NEVER = Rule(matches=(Mark(1, mask=0),))
