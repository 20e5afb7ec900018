"""
The lines of the chains that all Services share, kept up to date Service by Service, as rows or as trees.

A change of one Service costs a tree a handful of small chains and a row all of its lines.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Dispatch
from kproxy_ipt.plan.wanted import Lines
from kproxy_ipt.rules.build import ServicePortRules
from kproxy_ipt.rules.dispatch_tree import Branch, DispatchTree, Entry, Node, Place, dispatch_key
from kproxy_ipt.rules.shared_chains import PLACES, wants_tree
from kproxy_ipt.ruleset.render import render_rule
from kproxy_ipt.state.tracker import ServiceName

SharedChain: TypeAlias = tuple[str, str]
"""Table and name of a chain that is no Service's own."""


class SharedLine(msgspec.Struct, frozen=True, gc=False):
    """A rule of a Service in a shared chain: its key in a tree, and its text in a row."""

    key: str
    text: str


SharedLines: TypeAlias = Mapping[Place, tuple[SharedLine, ...]]
"""What one Service has in shared chains."""


def shared_lines(parts: Iterable[ServicePortRules], family: Family) -> SharedLines:
    """The lines of the service ports of one Service; places without any are left out."""
    ports = tuple(parts)
    found = {
        place: tuple(
            SharedLine(dispatch_key(rule, family, ports_first=place.ports_first), render_rule(place.chain, rule))
            for part in ports
            for rule in getattr(part.dispatch, field)
        )
        for field, place in PLACES.items()
    }
    return {place: lines for place, lines in found.items() if lines}


class _Shared:
    """One place: *tree* is None for a row; *touched* are chains that may differ from what was committed."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.count = 0
        self.is_tree = False
        self.tree: DispatchTree[str] | None = None
        self.touched: set[str] = set()

    def chain_lines(self, node: Node[str]) -> Lines:
        """The lines of a chain of the tree."""
        return tuple(
            render_rule(node.name, one.rule) if isinstance(one, Branch) else self._moved(one.rule, node.name)
            for one in node.contents
        )

    def _moved(self, line: str, chain_name: str) -> str:
        return f"-A {chain_name}{line[3 + len(self.place.chain) :]}"

    def touched_in_order(self) -> Iterator[str]:
        """The touched chains, each after those that it leads to; those that are gone first."""
        nodes = self.tree.nodes if self.tree else {}
        yield from sorted(self.touched, key=lambda name: (-nodes[name].level if name in nodes else -len(nodes), name))


class DispatchLines:
    """
    All shared chains of one family.

    The order of use: `put` what Services have now, `settle`, read, `commit`.
    """

    def __init__(self, family: Family, order: Sequence[ServiceName]) -> None:
        """*order* is kept by the caller: all Services, sorted."""
        self._family = family
        self._order = order
        self._shared = {place: _Shared(place) for place in PLACES.values()}
        self._first = {(place.table, place.chain): shared for place, shared in self._shared.items()}
        self._of: dict[ServiceName, SharedLines] = {}
        self._unsettled: dict[ServiceName, SharedLines] = {}

    def put(self, name: ServiceName, lines: SharedLines) -> None:
        """A Service has *lines* now; none for one that is gone."""
        old = self._of.pop(name, {})
        if lines:
            self._of[name] = lines
        if old == lines:
            return
        self._unsettled.setdefault(name, old)
        for place, shared in self._shared.items():
            before, after = old.get(place, ()), lines.get(place, ())
            if before != after:
                shared.count += len(after) - len(before)
                shared.touched.add(place.chain)

    def learn(self, branched: Iterable[Place]) -> None:
        """What the kernel has as a tree stays one between the bounds."""
        for place in branched:
            self._shared[place].is_tree = True

    @property
    def branched(self) -> frozenset[Place]:
        """The places that are trees."""
        return frozenset(place for place, shared in self._shared.items() if shared.is_tree)

    def settle(self, dispatch: Dispatch) -> None:
        """Let trees follow what was put, and rows become trees or the other way round where their sizes ask for it."""
        changed = [(name, old, self._of.get(name, {})) for name, old in self._unsettled.items()]
        for shared in self._shared.values():
            shared.is_tree = wants_tree(dispatch, shared.count, is_tree=shared.is_tree)
            if not shared.is_tree:
                shared.touched.update(shared.tree.nodes if shared.tree else ())
                shared.tree = None
            elif shared.tree is None:
                shared.tree = DispatchTree(shared.place, self._family)
                self._grow(shared, shared.tree, [], [(name, self._of[name]) for name in self._of])
            else:
                differing = [one for one in changed if _differ(shared.place, *one[1:])]
                leaving = [(name, old) for name, old, _ in differing]
                self._grow(shared, shared.tree, leaving, [(name, new) for name, _, new in differing])
        self._unsettled.clear()

    @staticmethod
    def _grow(
        shared: _Shared,
        tree: DispatchTree[str],
        leaving: Sequence[tuple[ServiceName, SharedLines]],
        coming: Sequence[tuple[ServiceName, SharedLines]],
    ) -> None:
        if leaving or coming:
            growth = tree.replace(_entries(shared.place, leaving), _entries(shared.place, coming))
            shared.touched.update(node.name for node in growth.written)
            shared.touched.update(growth.gone)

    def touched(self) -> list[SharedChain]:
        """Chains that may differ from what was committed, each after those that it leads to."""
        return [(shared.place.table, name) for shared in self._shared.values() for name in shared.touched_in_order()]

    def lines(self, table: str, name: str) -> Lines | None:
        """What Services have in a chain; None if there is no such chain."""
        shared = self._first.get((table, name))
        if shared is not None and shared.tree is None:
            return self._row(shared)
        for one in self._shared.values():
            if one.tree is not None and one.place.table == table and name in one.tree.nodes:
                return one.chain_lines(one.tree.nodes[name])
        return None

    def _row(self, shared: _Shared) -> Lines:
        place = shared.place
        of = (self._of[name].get(place, ()) for name in self._order if name in self._of)
        return tuple(line.text for lines in of for line in lines)

    def chains(self) -> Iterator[tuple[SharedChain, Lines]]:
        """All chains, each after those that it leads to."""
        for place, shared in self._shared.items():
            if shared.tree is None:
                yield (place.table, place.chain), self._row(shared)
                continue
            for node in shared.tree.ordered():
                yield (place.table, node.name), shared.chain_lines(node)

    def service_of(self, line: str) -> ServiceName | None:
        """The Service that a line of any of these chains is there for; looks through all."""
        text = line.partition(" ")[2].partition(" ")[2]
        for name, places in self._of.items():
            for place, lines in places.items():
                if any(one.text[4 + len(place.chain) :] == text for one in lines):
                    return name
        return None

    def commit(self) -> None:
        """What is wanted is what the kernel has."""
        for shared in self._shared.values():
            shared.touched.clear()


def _differ(place: Place, old: SharedLines, new: SharedLines) -> bool:
    return old.get(place) != new.get(place)


def _entries(place: Place, services: Iterable[tuple[ServiceName, SharedLines]]) -> Iterator[Entry[str]]:
    for name, lines in services:
        for position, line in enumerate(lines.get(place, ())):
            yield Entry(line.key, (*name, position), line.text)
