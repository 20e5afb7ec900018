"""
Where nodes, labels and edges of a graph go: layers from left to right, nothing on top of anything else.

The usual four steps: every node gets a column (longest way from a start), long edges get a waypoint in each column that
they pass, boxes of a column are put into an order with few crossings, and get heights close to their neighbours.
Labels are boxes in columns of their own, so they cannot overlap either. Sizes are in pixels; text is measured in cells
of a monospace font. Decided against: Graphviz, which is not always there, and a library, since this is all we need.
"""

import unicodedata
from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from kproxy_ipt.trace.graph import Graph, GraphNode

CELL_WIDTH = 7.2
"""Of the 12 pixel font of nodes."""
LABEL_CELL_WIDTH = 6.6
"""Of the 11 pixel font of labels."""
LINE_HEIGHT = 16
LABEL_LINE_HEIGHT = 14
TITLE_BASE = 34

_PADDING = 10
_MARGIN = 24
_COLUMN_GAP = 24
_STEEPEST = 8
"""Steep curves get room: a pixel more between two columns for so many of height, up to `_EXTRA_GAP`."""
_EXTRA_GAP = 60
_NODE_GAP = 14
_SMALL_GAP = 8
_HEADING = 30
_SWEEPS = 12
_SETTLING_SWEEPS = 48


class Box(msgspec.Struct, frozen=True):
    """A rectangle: left upper corner and size."""

    x: float
    y: float
    width: float
    height: float


class PlacedLabel(msgspec.Struct, frozen=True):
    """The lines of an edge and where they stand."""

    lines: tuple[str, ...]
    box: Box


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """
    A drawn graph.

    Attributes:
        nodes: Box by key.
        labels: Of edges that have any.
        paths: For each edge of the graph the points that it passes, from left to right; two for each column, within
            which it is level.
        headings: Name of each table and where its base line begins.
    """

    width: float
    height: float
    nodes: Mapping[str, Box]
    labels: tuple[PlacedLabel, ...]
    paths: tuple[tuple[tuple[float, float], ...], ...]
    headings: tuple[tuple[str, float, float], ...]


def cells(text: str) -> int:
    """How many cells of a monospace font *text* takes: two for wide characters, none for combining ones."""
    return sum(_character_cells(character) for character in text)


def _character_cells(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Cf", "Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


class _Slot(msgspec.Struct, eq=False, kw_only=True):
    """A box in a column: a node, a label, or a waypoint of a long edge; *y* is its middle, *right* ends the column."""

    column: int
    width: float = 0.0
    height: float = 4.0
    gap: float = _SMALL_GAP
    weight: float = 4.0
    before: list["_Slot"] = msgspec.field(default_factory=list)
    after: list["_Slot"] = msgspec.field(default_factory=list)
    is_waypoint: bool = False
    position: int = 0
    x: float = 0.0
    right: float = 0.0
    y: float = 0.0


def lay_out(graph: Graph) -> Layout:
    """Place everything; each table by itself, one below the other."""
    tables = list(dict.fromkeys(node.table for node in graph.nodes))
    top = TITLE_BASE + float(_MARGIN)
    nodes: dict[str, Box] = {}
    labels: list[PlacedLabel] = []
    paths: dict[int, tuple[tuple[float, float], ...]] = {}
    headings: list[tuple[str, float, float]] = []
    width = 0.0
    for table in tables:
        headings.append((table, _MARGIN, top + 14))
        part = _Part(graph, table)
        bottom = part.place(top + _HEADING)
        nodes |= part.boxes()
        labels += part.labels()
        paths |= part.paths()
        width = max(
            [width, *(box.x + box.width for box in nodes.values()), *(one.box.x + one.box.width for one in labels)]
        )
        top = bottom + _MARGIN
    return Layout(
        width=width + _MARGIN,
        height=top,
        nodes=nodes,
        labels=tuple(labels),
        paths=tuple(paths[index] for index in range(len(graph.edges))),
        headings=tuple(headings),
    )


class _Part:
    """The boxes of one table."""

    def __init__(self, graph: Graph, table: str) -> None:
        keys = [node.key for node in graph.nodes if node.table == table]
        known = frozenset(keys)
        self.edges = {index: edge for index, edge in enumerate(graph.edges) if edge.source in known}
        pairs = [(edge.source, edge.target) for edge in self.edges.values()]
        columns = _columns(keys, pairs)
        self.slots = {node.key: _node_slot(node, 2 * columns[node.key]) for node in graph.nodes if node.key in known}
        self.chains = {index: self._chain(index) for index in self.edges}
        self.all_slots = [*self.slots.values(), *(slot for chain in self.chains.values() for slot in chain)]

    def _chain(self, index: int) -> list[_Slot]:
        """The boxes of an edge between its ends: the label first, then a waypoint in each column."""
        edge = self.edges[index]
        source, target = self.slots[edge.source], self.slots[edge.target]
        between = [_Slot(column=column, is_waypoint=True) for column in range(source.column + 1, target.column)]
        if edge.lines and between:
            between[0].width = max(map(cells, edge.lines)) * LABEL_CELL_WIDTH + 8
            between[0].height = len(edge.lines) * LABEL_LINE_HEIGHT + 4
        for left, right in zip([source, *between], [*between, target], strict=True):
            left.after.append(right)
            right.before.append(left)
        return between

    def place(self, top: float) -> float:
        """Give every box its place below *top*; returns where the lowest one ends."""
        layers = _ordered(list(self.slots.values()), self.all_slots)
        _set_heights(layers)
        _set_columns(layers)
        lowest = min(slot.y - slot.height / 2 for slot in self.all_slots)
        for slot in self.all_slots:
            slot.y += top - lowest
        return max(slot.y + slot.height / 2 for slot in self.all_slots)

    def boxes(self) -> dict[str, Box]:
        """Boxes of nodes by key."""
        return {key: _box(slot) for key, slot in self.slots.items()}

    def labels(self) -> list[PlacedLabel]:
        """Labels and their boxes."""
        return [
            PlacedLabel(self.edges[index].lines, _box(chain[0]))
            for index, chain in self.chains.items()
            if chain and self.edges[index].lines
        ]

    def paths(self) -> dict[int, tuple[tuple[float, float], ...]]:
        """Points by number of the edge."""
        return {index: self._path(index) for index in self.edges}

    def _path(self, index: int) -> tuple[tuple[float, float], ...]:
        edge = self.edges[index]
        source, target = self.slots[edge.source], self.slots[edge.target]
        points = [(source.x + source.width, source.y), (source.right, source.y)]
        for slot in self.chains[index]:
            points += [(slot.x, slot.y), (slot.right, slot.y)]
        return (*points, (target.x, target.y))


def _box(slot: _Slot) -> Box:
    return Box(slot.x, slot.y - slot.height / 2, slot.width, slot.height)


def _node_slot(node: GraphNode, column: int) -> _Slot:
    width = max(map(cells, node.lines)) * CELL_WIDTH + 2 * _PADDING
    height = len(node.lines) * LINE_HEIGHT + _PADDING
    return _Slot(column=column, width=width, height=height, gap=_NODE_GAP, weight=1.0)


def _columns(keys: Sequence[str], pairs: Iterable[tuple[str, str]]) -> dict[str, int]:
    """The length of the longest way to each node; the edge that would close a circle is left out of account."""
    after: dict[str, list[str]] = {key: [] for key in keys}
    for source, target in pairs:
        after[source].append(target)
    order = _topological(keys, after)
    rank = {key: number for number, key in enumerate(order)}
    columns = dict.fromkeys(keys, 0)
    for key in order:
        for target in after[key]:
            if rank[target] > rank[key]:
                columns[target] = max(columns[target], columns[key] + 1)
    return columns


def _topological(keys: Sequence[str], after: Mapping[str, Sequence[str]]) -> list[str]:
    """Depth first, finished last comes first."""
    finished: dict[str, None] = {}
    seen: set[str] = set()
    for root in keys:
        waiting = [(root, False)]
        while waiting:
            key, is_done = waiting.pop()
            if is_done:
                finished[key] = None
            elif key not in seen:
                seen.add(key)
                waiting.append((key, True))
                waiting += [(target, False) for target in after[key]]
    return list(reversed(finished))


def _ordered(roots: Sequence[_Slot], slots: Sequence[_Slot]) -> list[list[_Slot]]:
    """Columns of boxes in an order with few crossings: the mean place of neighbours, forth and back."""
    layers: list[list[_Slot]] = [[] for _ in range(max(slot.column for slot in slots) + 1)]
    seen: set[int] = set()
    waiting = list(reversed(roots))
    while waiting:
        slot = waiting.pop()
        if id(slot) not in seen:
            seen.add(id(slot))
            layers[slot.column].append(slot)
            waiting += reversed(slot.after)
    best, fewest = [list(layer) for layer in layers], None
    for sweep in range(_SWEEPS):
        _number(layers)
        crossings = _crossings(layers)
        if fewest is None or crossings < fewest:
            best, fewest = [list(layer) for layer in layers], crossings
        forward = sweep % 2 == 0
        for layer in layers if forward else reversed(layers):
            layer.sort(key=lambda slot, forward=forward: _mean_place(slot.before if forward else slot.after, slot))  # type: ignore[misc] # mypy has no type for the default
            _number([layer])
    _number(best)
    return best


def _number(layers: Iterable[list[_Slot]]) -> None:
    for layer in layers:
        for place, slot in enumerate(layer):
            slot.position = place


def _mean_place(neighbours: Sequence[_Slot], slot: _Slot) -> float:
    return sum(one.position for one in neighbours) / len(neighbours) if neighbours else float(slot.position)


def _crossings(layers: Sequence[Sequence[_Slot]]) -> int:
    """How many pairs of edges cross between neighbouring columns (counted by insertion into a sorted list)."""
    total = 0
    for layer in layers:
        placed: list[int] = []
        for slot in layer:
            ends = sorted(one.position for one in slot.after)
            total += sum(len(placed) - bisect_right(placed, end) for end in ends)
            for end in ends:
                insort(placed, end)
    return total


def _set_columns(layers: Sequence[Sequence[_Slot]]) -> None:
    left = float(_MARGIN)
    for layer in layers:
        width = max((slot.width for slot in layer), default=0.0)
        for slot in layer:
            slot.x, slot.right = left, left + width
        steepest = max((abs(one.y - slot.y) for slot in layer for one in slot.after), default=0.0)
        left += width + _COLUMN_GAP + min(_EXTRA_GAP, steepest / _STEEPEST)


def _set_heights(layers: Sequence[Sequence[_Slot]]) -> None:
    """Pull each box to the mean of its neighbours, as far as the order of its column and the gaps allow."""
    for layer in layers:
        y = 0.0
        for slot in layer:
            slot.y = y + slot.height / 2
            y += slot.height + slot.gap
    for sweep in range(_SETTLING_SWEEPS):
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            _settle(layer, [_wanted_height(slot, sweep) for slot in layer])
    for layer in reversed(layers):
        _settle(layer, [slot.after[0].y if _is_alone(slot, slot.after) else slot.y for slot in layer])
    for layer in layers:
        _settle(layer, [slot.before[0].y if _is_alone(slot, slot.before) else slot.y for slot in layer])


def _is_alone(slot: _Slot, neighbours: Sequence[_Slot]) -> bool:
    """Whether a single edge that shares its ends with no other leads to *neighbours*: it should be level."""
    return len(neighbours) == 1 and [slot] in (neighbours[0].before, neighbours[0].after)


def _wanted_height(slot: _Slot, sweep: int) -> float:
    neighbours = [*slot.before, *slot.after] if sweep >= _SWEEPS else (slot.before if sweep % 2 == 0 else slot.after)
    if not neighbours:
        return slot.y
    # Of a long edge the parts between columns are pulled straight before its ends are.
    weights = [8.0 if slot.is_waypoint and one.is_waypoint else 1.0 for one in neighbours]
    return sum(one.y * weight for one, weight in zip(neighbours, weights, strict=True)) / sum(weights)


def _settle(layer: Sequence[_Slot], wanted: Sequence[float]) -> None:
    """
    Heights closest to *wanted* (least squares) that keep order and gaps.

    With the gaps subtracted this is isotonic regression: neighbours in the wrong order share their mean.
    """
    offsets: list[float] = []
    offset = 0.0
    for index, slot in enumerate(layer):
        if index:
            above = layer[index - 1]
            offset += (above.height + slot.height) / 2 + max(above.gap, slot.gap)
        offsets.append(offset)
    blocks: list[tuple[float, float, int]] = []
    for slot, height, shift in zip(layer, wanted, offsets, strict=True):
        blocks.append(((height - shift) * slot.weight, slot.weight, 1))
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] > blocks[-1][0] / blocks[-1][1]:
            last, before = blocks.pop(), blocks.pop()
            blocks.append((before[0] + last[0], before[1] + last[1], before[2] + last[2]))
    means = [total / weight for total, weight, count in blocks for _ in range(count)]
    for slot, mean, shift in zip(layer, means, offsets, strict=True):
        slot.y = mean + shift
