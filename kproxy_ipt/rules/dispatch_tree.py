"""
Dispatch as a tree: the rules of a chain that all service ports share, spread over small chains by prefixes.

::

    KUBE-SERVICES                  KUBE-SVC-(10.96.0.0/12)              KUBE-SVC-(10.96.0.0/16)
    -d 10.96.0.0/12 -j ----------> -d 10.96.0.0/16 -j ----------------> -d 10.96.3.7/32 -p tcp --dport 80 -j KUBE-SVC-..
    -d 203.0.113.0/24 -j           -d 10.97.0.0/16 -j                   -d 10.96.8.1/32 -p udp --dport 53 -j KUBE-SVC-..

A rule has a key: the digits of its address, its protocol, the digits of its port, in hexadecimal. Rules are parted by
the first digit in which their keys differ until at most `LEAF_RULES` are left, so a branch has at most 16 ways. The
first chain parts by the first digit, whatever comes behind: packets to other addresses leave after a few rules.

What a chain holds follows from the rules below it and its level alone, never from history: every node and every run
makes the same chains, and a new rule changes the chains on its own path only. A rule keeps its matches wherever it
stands, and rules that one packet can match stay together in their order, so every packet ends where the row of rules
would send it.

Decided against: fewer ways (less to walk at each level, more levels; nf_tables allows 16 nested jumps in all); bounds
that remember the past, which would make nodes differ; goto, which would pass by rules that a change leaves standing for
a moment behind the branches.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.rules.names import dispatch_chain_name
from kproxy_ipt.ruleset.matches import Comment, Match, PortMatch
from kproxy_ipt.ruleset.model import Rule
from kproxy_ipt.ruleset.targets import Jump

LEAF_RULES = 16
"""A chain with more rules than this is parted, where their keys differ."""

MOST_LEVELS = 6
"""
Chains below the first one.

The longest way, through two levels of groups of endpoints, then has 15 chains of the 16 that nf_tables allows.
"""

BRANCH_COMMENT = "services at "
"""How the comment of each rule begins that leads to a smaller part."""

T = TypeVar("T")

Order: TypeAlias = tuple[str, str, int]
"""Where a rule stands in the row: namespace and name of the Service, position among its rules."""

_LETTERS = {"tcp": "t", "udp": "u", "sctp": "s"}
_PROTOCOLS = {"": "", **{letter: protocol for protocol, letter in _LETTERS.items()}}
_PORT_DIGITS = 5
_ADDRESS_TYPES: Mapping[Family, type[IPv4Address] | type[IPv6Address]] = {
    Family.IPV4: IPv4Address,
    Family.IPV6: IPv6Address,
}
_AFTER = "~"
"""Sorts after every character of a key."""


class Place(msgspec.Struct, frozen=True):
    """
    A chain that all service ports share.

    Attributes:
        table: `nat` or `filter`.
        chain: Its name.
        ports_first: Whether keys begin with protocol and port: where rules without address stand among those with one.
    """

    table: str
    chain: str
    ports_first: bool = False


class Entry(NamedTuple, Generic[T]):
    """One rule of the row, sorted by *key* and *order*, which no two share; *rule* is a `Rule`, or its text."""

    key: str
    order: Order
    rule: T


class Branch(msgspec.Struct, frozen=True):
    """The way to a smaller part."""

    rule: Rule
    chain: str


@dataclass(frozen=True, slots=True)
class Node(Generic[T]):
    """One chain: rules of the row, and branches to *children*."""

    name: str
    level: int
    contents: tuple[Entry[T] | Branch, ...]
    children: tuple["Node[T]", ...]


class Regrowth(NamedTuple, Generic[T]):
    """What a change did: chains that are *written* anew, each after its children, and names that are *gone*."""

    written: tuple[Node[T], ...]
    gone: frozenset[str]


def dispatch_key(rule: Rule, family: Family, *, ports_first: bool) -> str:
    """
    The key of a rule of a shared chain.

    Rules that one packet can match have the same key, or one's key begins with the other's. A rule that was read from a
    kernel may be of any form.
    """
    ports = next(
        (
            f"{_LETTERS[match.protocol]}{match.destination[0]:04x}"
            for match in rule.matches
            if isinstance(match, PortMatch) and match.destination
        ),
        "",
    )
    host = rule.destination.removesuffix(f"/{family.bits}")
    digits = f"{int(_ADDRESS_TYPES[family](host)):0{family.bits // 4}x}" if host != rule.destination else ""
    if ports_first:
        return ports + digits
    return digits + ports if digits else ""


def is_branched(lines: Sequence[str]) -> bool:
    """Whether the lines of a shared chain lead to smaller parts."""
    return any(f'--comment "{BRANCH_COMMENT}' in line for line in lines)


class DispatchTree(Generic[T]):
    """
    The chains of one place, kept up to date.

    Attributes:
        nodes: By name of the chain; the first one has the name of the place.
    """

    def __init__(self, place: Place, family: Family) -> None:
        self.place = place
        self.family = family
        self._entries: list[Entry[T]] = []
        self.nodes: dict[str, Node[T]] = {place.chain: Node(place.chain, 0, (), ())}

    def replace(self, leaving: Iterable[Entry[T]], coming: Iterable[Entry[T]]) -> Regrowth[T]:
        """
        Take rules out and put others in; the work is proportional to their number, once there is a tree.

        Args:
            leaving: Rules that are there.
            coming: Rules of other keys or orders than those that stay.
        """
        leaves, comes = list(leaving), list(coming)
        _exchange(self._entries, leaves, comes)
        changed = sorted({entry.key for entry in (*leaves, *comes)})
        growth = _Growth(self.place, self.family, self._entries, self.nodes, changed)
        old = self.nodes[self.place.chain]
        growth.root()
        fresh = {node.name: node for node in growth.fresh}
        gone = frozenset(name for name in _names(old, growth.kept) if name not in fresh)
        for name in gone:
            del self.nodes[name]
        self.nodes.update(fresh)
        return Regrowth(tuple(growth.fresh), gone)

    def ordered(self) -> Iterator[Node[T]]:
        """All chains, each after its children."""
        return _after_children(self.nodes[self.place.chain])


def _exchange(entries: list[Entry[T]], leaving: list[Entry[T]], coming: list[Entry[T]]) -> None:
    """Keep *entries* sorted; a large exchange sorts once instead of moving the rest for each."""
    if (len(leaving) + len(coming)) * 8 > len(entries):
        gone = set(leaving)
        entries[:] = sorted([*(one for one in entries if one not in gone), *coming])
        return
    for entry in leaving:
        del entries[bisect_left(entries, entry)]
    for entry in coming:
        insort(entries, entry)


def _names(node: Node[T], kept: set[str]) -> Iterator[str]:
    if node.name not in kept:
        yield node.name
        for child in node.children:
            yield from _names(child, kept)


def _after_children(node: Node[T]) -> Iterator[Node[T]]:
    for child in node.children:
        yield from _after_children(child)
    yield node


class _Growth(Generic[T]):
    """
    One pass over the sorted rules, top down; parts without a change are taken from *old*.

    Attributes:
        fresh: Chains that were made, each after its children.
        kept: Names of parts that were taken whole.
    """

    def __init__(
        self, place: Place, family: Family, entries: list[Entry[T]], old: dict[str, Node[T]], changed: list[str]
    ) -> None:
        self.place = place
        self.family = family
        self.entries = entries
        self.old = old
        self.changed = changed
        self.fresh: list[Node[T]] = []
        self.kept: set[str] = set()

    def root(self) -> Node[T]:
        """The chain of the place itself: parted by the first digit, though others may be alike too."""
        span = (0, len(self.entries))
        if self._is_leaf(span, "", 0):
            return self._made(Node(self.place.chain, 0, self._row(span), ()))
        return self._branching(self.place.chain, span, "", 0)

    def _is_leaf(self, span: tuple[int, int], path: str, level: int) -> bool:
        """A rule whose key ends here may match whatever the others match, so they cannot be parted."""
        first, last = span
        is_small = last - first <= LEAF_RULES
        return is_small or level >= MOST_LEVELS or len(self.entries[first].key) == len(path)

    def _row(self, span: tuple[int, int]) -> tuple[Entry[T], ...]:
        return tuple(sorted(self.entries[span[0] : span[1]], key=lambda entry: entry.order))

    def _branching(self, name: str, span: tuple[int, int], path: str, level: int) -> Node[T]:
        contents: list[Entry[T] | Branch] = []
        children: list[Node[T]] = []
        start = span[0]
        while start < span[1]:
            edge = path + self.entries[start].key[len(path)]
            end = bisect_left(self.entries, edge + _AFTER, start, span[1], key=lambda entry: entry.key)
            if end - start == 1:
                contents.append(self.entries[start])
            else:
                whole = _shared_beginning(self.entries[start].key, self.entries[end - 1].key)
                child = self._part((start, end), edge, whole, level + 1)
                children.append(child)
                rule = _branch_rule(self.place, self.family, path, whole, child.name)
                contents.append(Branch(rule, child.name))
            start = end
        return self._made(Node(name, level, tuple(contents), tuple(children)))

    def _part(self, span: tuple[int, int], edge: str, whole: str, level: int) -> Node[T]:
        """The chain behind a branch: a leaf is known by its way, a branching by what all its rules share."""
        is_leaf = self._is_leaf(span, whole, level)
        path = edge if is_leaf else whole
        name = dispatch_chain_name(self.place.table, self.place.chain, path)
        known = self.old.get(name)
        if known is not None and known.level == level and not self._is_changed(path):
            self.kept.add(name)
            return known
        if is_leaf:
            return self._made(Node(name, level, self._row(span), ()))
        return self._branching(name, span, whole, level)

    def _is_changed(self, path: str) -> bool:
        position = bisect_left(self.changed, path)
        return position < len(self.changed) and self.changed[position].startswith(path)

    def _made(self, node: Node[T]) -> Node[T]:
        self.fresh.append(node)
        return node


def _shared_beginning(one: str, other: str) -> str:
    """Of sorted keys the first and the last tell what all share."""
    while not other.startswith(one):
        one = one[:-1]
    return one


class _Parts(NamedTuple):
    """What a path says: digits of the address, protocol, digits of the port; "" for what it does not reach."""

    address: str
    protocol: str
    port: str


def _parts(place: Place, family: Family, path: str) -> _Parts:
    width = family.bits // 4
    at = _PORT_DIGITS if place.ports_first else width
    first, second = path[:at], path[at:]
    ports, address = (first, second) if place.ports_first else (second, first)
    return _Parts(address, _PROTOCOLS[ports[:1]], ports[1:])


def _branch_rule(place: Place, family: Family, known: str, path: str, chain: str) -> Rule:
    """The rule for all packets whose keys begin with *path*, among those whose keys begin with *known*."""
    before, parts = _parts(place, family, known), _parts(place, family, path)
    prefix = _prefix(family, parts.address) if len(parts.address) > len(before.address) else ""
    has_ports = parts[1:] != before[1:]
    ports = (int(parts.port.ljust(4, "0"), 16), int(parts.port.ljust(4, "f"), 16))
    words = [prefix, parts.protocol if has_ports else "", f"{ports[0]}-{ports[1]}" if has_ports and parts.port else ""]
    matches: list[Match] = [Comment(BRANCH_COMMENT + " ".join(filter(None, words)))]
    if has_ports and parts.port:
        matches.append(PortMatch(parts.protocol, ports))
    return Rule(
        destination=prefix,
        protocol=parts.protocol if has_ports else "",
        matches=tuple(matches),
        target=Jump(chain),
    )


def _prefix(family: Family, digits: str) -> str:
    number = int(digits.ljust(family.bits // 4, "0"), 16)
    return f"{_ADDRESS_TYPES[family](number)}/{4 * len(digits)}"
