"""
Many endpoints in groups: few rules to walk, few rules to write, equal shares.

::

    KUBE-SVC ──16 ways──> group ──some 20 ways──> group ──up to 24 endpoints──> KUBE-SEP

An endpoint belongs where the hash of its text says, so that it stays there whatever becomes of the others: the first
four bits choose one of 16 groups, and a group with too many endpoints is split by the bits that follow until all
parts are small enough. Nothing depends on the total: no number of endpoints is a threshold at which all groups change.
A change of one endpoint writes its group, the group above and the chain of the service port.

Shares follow from exact counts. A dice has 31 bits; each is rounded such that what remains for the ways after it is
nearest to what it should be, so errors do not add up along a row.

Decided against: one level, which cannot replace one of 5,000 endpoints with less than 202 written rules (G groups cost
G + 2 * 5000 / G + 2); groups by rank, in which one endpoint moves all that follow.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

import msgspec

from kproxy_ipt.rules.names import service_suffix
from kproxy_ipt.ruleset.matches import PROBABILITY_ONE, Comment, Match, StatisticRandom
from kproxy_ipt.ruleset.model import Chain, Rule
from kproxy_ipt.ruleset.targets import Jump
from kproxy_ipt.state.model import Endpoint

GROUP_CAPACITY = 24
"""Endpoints of one group."""

_FIRST_BITS = 4
_HASH_BITS = 64

Members = tuple[tuple[Endpoint, str], ...]
"""Endpoints, each with the name of its chain."""


class Group(msgspec.Struct, frozen=True):
    """
    Endpoints whose hashes begin alike.

    Attributes:
        path: The common first bits, `0110`.
        members: All of them, in the order given.
        parts: The groups it is split into; () for one small enough to hold its members itself.
    """

    path: str
    members: Members
    parts: tuple["Group", ...] = ()


def groups_of(endpoints: Sequence[tuple[Endpoint, str]], capacity: int = GROUP_CAPACITY) -> tuple[Group, ...]:
    """
    The groups below the chain of a service port, by path; () if *endpoints* fit into that chain.

    The same for any order of *endpoints*, but for the order of members.
    """
    if len(endpoints) <= capacity:
        return ()
    first = _split("", {one[0].text: _bits(one[0].text) for one in endpoints}, tuple(endpoints), _FIRST_BITS)
    return tuple(
        msgspec.structs.replace(group, parts=tuple(leaves)) if len(leaves := [*_leaves(group, capacity)]) > 1 else group
        for group in first
    )


def _leaves(group: Group, capacity: int) -> Iterator[Group]:
    """*group* halved until each part is small enough."""
    if len(group.members) <= capacity or len(group.path) == _HASH_BITS:
        yield group
        return
    bits = {endpoint.text: _bits(endpoint.text) for endpoint, _ in group.members}
    for half in _split(group.path, bits, group.members, 1):
        yield from _leaves(half, capacity)


def _split(path: str, bits: Mapping[str, str], members: Members, count: int) -> Iterator[Group]:
    """By the next *count* bits after *path*; parts without members are left out."""
    end = len(path) + count
    found: dict[str, list[tuple[Endpoint, str]]] = {}
    for member in members:
        found.setdefault(bits[member[0].text][:end], []).append(member)
    return (Group(one, tuple(found[one])) for one in sorted(found))


@lru_cache(maxsize=65536)
def _bits(endpoint_text: str) -> str:
    digest = hashlib.sha256(endpoint_text.encode()).digest()[: _HASH_BITS // 8]
    return f"{int.from_bytes(digest, 'big'):0{_HASH_BITS}b}"


def group_chain_name(parent: str, service_port_text: str, protocol: str, path: str) -> str:
    """The name of a group's chain: the kind of *parent*, `KUBE-SVC-` or `KUBE-SVL-`, and a hash that no service has."""
    kind = parent[: len("KUBE-SVC-")]
    return kind + service_suffix(service_port_text, f"{protocol} endpoints {path}")


@lru_cache(maxsize=1024)
def dices(weights: tuple[int, ...]) -> tuple[int, ...]:
    """
    The probabilities of a row of dices, in units of 2**-31, that give way i the share weights[i] / sum(weights).

    Returns:
        One less than *weights*: the last way takes the rest. Each share of the row is within 2**-31 of its due.
    """
    total = sum(weights)
    due, remaining, found = total, 1.0, list[int]()
    for weight in weights[:-1]:
        due -= weight
        probability = round((1 - due / total / remaining) * PROBABILITY_ONE)
        found.append(probability)
        remaining *= 1 - probability / PROBABILITY_ONE
    return tuple(found)


def dice_row(ways: Sequence[tuple[int, str, tuple[Match, ...]]]) -> tuple[Rule, ...]:
    """Rules that choose one of *ways*: weight, chain and comment; the last without a dice."""
    probabilities = dices(tuple(weight for weight, _, _ in ways))
    matches: list[tuple[Match, ...]] = [*((StatisticRandom(one),) for one in probabilities), ()]
    return tuple(
        Rule(matches=(*comment, *dice), target=Jump(chain))
        for (_, chain, comment), dice in zip(ways, matches, strict=True)
    )


def group_chain_names(
    parent: str, service_port_text: str, protocol: str, groups: Sequence[Group]
) -> Iterator[tuple[str, int]]:
    """Each chain of *groups*, parts included, and how many endpoints it leads to."""
    for group in groups:
        yield group_chain_name(parent, service_port_text, protocol, group.path), len(group.members)
        yield from group_chain_names(parent, service_port_text, protocol, group.parts)


class GroupWriter(msgspec.Struct, frozen=True):
    """
    Turns the groups of one chain into rules.

    Attributes:
        parent: Name of the chain that the groups are below.
        service_port_text: For names and comments.
        protocol: For names.
        with_comments: Whether rules name where they lead.
    """

    parent: str
    service_port_text: str
    protocol: str
    with_comments: bool

    def chains(self, groups: Sequence[Group]) -> Iterator[Chain]:
        """The chains of *groups*, each after those that it jumps to."""
        for group in groups:
            yield from self.chains(group.parts)
            yield Chain(self._name(group), self.row(group.parts) if group.parts else self._endpoint_row(group))

    def row(self, groups: Sequence[Group]) -> tuple[Rule, ...]:
        """The rules that choose one of *groups*."""
        ways = [(len(group.members), self._name(group)) for group in groups]
        return dice_row([(count, name, self._comment(f"{count} endpoints")) for count, name in ways])

    def _endpoint_row(self, group: Group) -> tuple[Rule, ...]:
        return dice_row([(1, chain, self._comment(endpoint.text)) for endpoint, chain in group.members])

    def _name(self, group: Group) -> str:
        return group_chain_name(self.parent, self.service_port_text, self.protocol, group.path)

    def _comment(self, where: str) -> tuple[Match, ...]:
        return (Comment(f"{self.service_port_text} -> {where}"),) if self.with_comments else ()
