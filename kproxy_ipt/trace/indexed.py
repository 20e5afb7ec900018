"""
The part of a Ruleset that one class of packets can meet, found without looking at the rest.

A class is a protocol, and the few places (address, port) that a packet of the class can be addressed to on its way:
its first destination and those that DNAT gives it. A rule falls into one of three kinds: its protocol, destination,
destination port and local destination fit none of the places (left out), all of them (these conditions are dropped), or
some of them (they are kept). What is left asks only for what a class does not fix: source, interfaces, mark, state.

Exactness: the conditions of a rule are a conjunction, so a rule whose fixed part is never true never acts, and one
whose fixed part is always true acts as its remaining conditions say. (A rule that adds to a list of `recent` and then
asks for the port would add in any case; nobody writes such rules, and they are taken as adding only where all matches.)
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.ruleset.matches import AddressType, Comment, Match, Nfacct, PortMatch, Recent
from kproxy_ipt.ruleset.model import Chain, Rule, Ruleset
from kproxy_ipt.ruleset.targets import Dnat
from kproxy_ipt.trace.classes import network_and_mask


class Place(msgspec.Struct, frozen=True):
    """Where a packet is addressed to; *port* None stands for any port, and goes with any protocol."""

    address: int
    port: int | None
    is_local: bool


Places = tuple[Place, ...] | None
"""The places of a class at some hook; None where they cannot be known (a target that is not understood)."""


class Asked(msgspec.Struct, frozen=True):
    """
    One condition of the header of a rule.

    Attributes:
        field: `source`, `destination`, `destination port`, `protocol`, `in`, `out` or `fragment`.
        value: As the rule writes it; ports as `FIRST:LAST`.
        negated: Whether it must not hold.
    """

    field: str
    value: str
    negated: bool = False


Condition = Asked | Match


class IndexedRule(msgspec.Struct, frozen=True):
    """
    A rule taken apart.

    Attributes:
        position: In its chain, from 0.
        destination: Network, mask and negation.
        ports: First, last and negation of each destination port condition.
        local: For each condition on it, whether the destination must be local or must not.
        protocols: Each with its negation.
        rest: Conditions that no class fixes.
        fixed: The conditions that a class may fix, for the case that it does not.
    """

    position: int
    rule: Rule
    destination: tuple[int, int, bool] | None
    ports: tuple[tuple[int, int, bool], ...]
    local: tuple[bool, ...]
    protocols: tuple[tuple[str, bool], ...]
    rest: tuple[Condition, ...]
    fixed: tuple[Condition, ...]

    def conditions(self, places: Places, protocol: str | None) -> tuple[Condition, ...] | None:
        """What is left to ask for, or None if the rule cannot match; *protocol* None stands for any."""
        if protocol is not None:
            for wanted, negated in self.protocols:
                if (wanted == protocol) is negated:
                    return None
        hits = 0 if places is None else sum(map(self._fits, places))
        if places is None or (hits and protocol is None):
            return self.rest + self.fixed + self._protocol_conditions()
        if not hits:
            return None
        return self.rest if hits == len(places) else self.rest + self.fixed

    def _protocol_conditions(self) -> tuple[Condition, ...]:
        return tuple(Asked("protocol", wanted, negated) for wanted, negated in self.protocols)

    def _fits(self, place: Place) -> bool:
        if self.destination is not None:
            network, mask, negated = self.destination
            if (place.address & mask == network) is negated:
                return False
        if self.local and any(wanted is not place.is_local for wanted in self.local):
            return False
        if place.port is None:
            return True
        return all((first <= place.port <= last) is not negated for first, last, negated in self.ports)


class IndexedChain:
    """The rules of one chain, found by address or by port where they name exactly one."""

    def __init__(self, chain: Chain, family: Family, recent_names: Mapping[str, str]) -> None:
        self.policy = chain.policy
        self.generic: list[IndexedRule] = []
        self.by_address: dict[int, list[IndexedRule]] = {}
        self.by_port: dict[int, list[IndexedRule]] = {}
        host_mask = (1 << family.bits) - 1
        for position, rule in enumerate(chain.rules):
            indexed = _indexed(position, rule, recent_names)
            if indexed.destination and indexed.destination[1:] == (host_mask, False):
                self.by_address.setdefault(indexed.destination[0], []).append(indexed)
            elif (port := _single_port(indexed)) is not None:
                self.by_port.setdefault(port, []).append(indexed)
            else:
                self.generic.append(indexed)

    def kept(self, places: Places, protocol: str | None) -> Iterator[tuple[IndexedRule, tuple[Condition, ...]]]:
        """The rules that can match, in order, with what is left to ask for."""
        for indexed in self._candidates(places):
            conditions = indexed.conditions(places, protocol)
            if conditions is not None:
                yield indexed, conditions

    def _candidates(self, places: Places) -> list[IndexedRule]:
        found = list(self.generic)
        if self.by_address:
            for address in self.by_address if places is None else {place.address for place in places}:
                found += self.by_address.get(address, ())
        if self.by_port:
            ports = None if places is None else {place.port for place in places}
            for port in self.by_port if ports is None or None in ports else ports:
                found += self.by_port.get(port or 0, ())
        return sorted(found, key=_position) if len(found) > len(self.generic) else found


def _position(indexed: IndexedRule) -> int:
    return indexed.position


def _single_port(indexed: IndexedRule) -> int | None:
    """The port, where the rule asks for exactly one."""
    return next((first for first, last, negated in indexed.ports if first == last and not negated), None)


def _indexed(position: int, rule: Rule, recent_names: Mapping[str, str]) -> IndexedRule:
    ports = [match for match in rule.matches if isinstance(match, PortMatch)]
    destination = None
    if rule.destination:
        destination = (*network_and_mask(rule.destination), rule.destination_negated)
    types = [match for match in rule.matches if isinstance(match, AddressType) and _is_local_destination(match)]
    protocols = [(match.protocol, False) for match in ports]
    return IndexedRule(
        position=position,
        rule=rule,
        destination=destination,
        ports=tuple((*one.destination, one.destination_negated) for one in ports if one.destination),
        local=tuple(not one.destination_negated for one in types),
        protocols=(*([(rule.protocol, rule.protocol_negated)] if rule.protocol else []), *protocols),
        rest=(*_header(rule), *_kept_matches(rule, recent_names)),
        fixed=tuple(_fixed(rule, ports, types)),
    )


def _is_local_destination(match: Match) -> bool:
    return isinstance(match, AddressType) and match.destination == "LOCAL" and not match.source


def _fixed(rule: Rule, ports: list[PortMatch], types: list[AddressType]) -> Iterator[Condition]:
    if rule.destination:
        yield Asked("destination", rule.destination, rule.destination_negated)
    for one in ports:
        if one.destination:
            first, last = one.destination
            yield Asked("destination port", f"{first}:{last}", one.destination_negated)
    yield from types


def _header(rule: Rule) -> Iterator[Asked]:
    if rule.source:
        yield Asked("source", rule.source, rule.source_negated)
    if rule.in_interface:
        yield Asked("in", rule.in_interface, rule.in_interface_negated)
    if rule.out_interface:
        yield Asked("out", rule.out_interface, rule.out_interface_negated)
    if rule.fragment:
        yield Asked("fragment", rule.fragment)


def _kept_matches(rule: Rule, recent_names: Mapping[str, str]) -> Iterator[Match]:
    for match in rule.matches:
        if isinstance(match, PortMatch):
            if match.source:
                yield msgspec.structs.replace(match, destination=None, destination_negated=False)
        elif isinstance(match, Recent):
            yield msgspec.structs.replace(match, name=recent_names.get(match.name, match.name))
        elif not isinstance(match, Comment | Nfacct) and not _is_local_destination(match):
            yield match


def recent_names(ruleset: Ruleset) -> dict[str, str]:
    """
    Names for the lists of `recent` that do not depend on chain names: the DNAT destinations of rules that add to them.

    Two lists of services that share an endpoint get one name; no packet is of both services.
    """
    destinations: dict[str, set[str]] = {}
    for rule in _all_rules(ruleset.tables[name].chains.values() for name in ruleset.tables):
        if isinstance(rule.target, Dnat):
            for match in rule.matches:
                if isinstance(match, Recent) and match.action == "set":
                    destinations.setdefault(match.name, set()).add(rule.target.to_destination)
    return {name: f"clients-of-{'+'.join(sorted(found))}" for name, found in destinations.items()}


def _all_rules(tables: Iterable[Iterable[Chain]]) -> Iterator[Rule]:
    for chains in tables:
        for chain in chains:
            yield from chain.rules
