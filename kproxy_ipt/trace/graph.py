"""
The way of packets through chains as a graph: what the pictures of `graph_svg.py` and `graph_text.py` are drawn from.

Nodes are built-in chains, chains of ours, final destinations and verdicts; an edge says under which conditions a
packet goes from one to the other. Rules of endpoint chains that only mark or remember are lines of their node, since
drawn as edges they would hide the way to the endpoint. Chains of others are left out.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from fractions import Fraction

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.rules.names import KUBE_MARK_MASQ
from kproxy_ipt.ruleset.matches import Comment, Recent
from kproxy_ipt.ruleset.model import Chain, Rule, Ruleset
from kproxy_ipt.ruleset.targets import Dnat, Jump, Masquerade, OpaqueTarget, Reject, SetMark, Snat, Verdict
from kproxy_ipt.trace.branches import as_rows
from kproxy_ipt.trace.compare import own_rules
from kproxy_ipt.trace.conditions import condition_words, plain_share
from kproxy_ipt.trace.row_shares import RowShares
from kproxy_ipt.trace.service_reading import SHARED_CHAINS, owner_of, read_services

MAX_CHAINS = 200
"""A picture of more chains than this is for programs, not for people."""

_MAX_LABEL_LINES = 6
_WIDE = 34
"""Conditions of one rule that are longer than this, in characters, stand below each other."""

_BASE_CHAINS = ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING")
_BALANCING = ("KUBE-SVC-", "KUBE-SVL-")
_TABLES = ("nat", "filter", "mangle", "raw")
_MARK_NODE = f"nat/{KUBE_MARK_MASQ}"

_PURPOSES = {
    "KUBE-SERVICES": "addresses of services",
    "KUBE-NODEPORTS": "node ports",
    "KUBE-EXTERNAL-SERVICES": "addresses without endpoints",
    "KUBE-PROXY-FIREWALL": "source ranges",
    "KUBE-POSTROUTING": "masquerading",
    "KUBE-FORWARD": "forwarding",
    "KUBE-FIREWALL": "guard of loopback",
    "KUBE-SVC": "all endpoints",
    "KUBE-SVL": "local endpoints",
    "KUBE-EXT": "from outside",
    "KUBE-FW": "source ranges",
    "KUBE-SEP": "one endpoint",
}


class NodeKind(StrEnum):
    """What a node stands for."""

    BASE = "base"
    SHARED = "shared"
    SERVICE = "service"
    ENDPOINT = "endpoint"
    DESTINATION = "destination"
    VERDICT = "verdict"


class GraphNode(msgspec.Struct, frozen=True):
    """A node: *key* is unique; the first of *lines* is its name, others explain it."""

    key: str
    kind: NodeKind
    table: str
    lines: tuple[str, ...]


class GraphEdge(msgspec.Struct, frozen=True):
    """
    An edge between two keys.

    Attributes:
        source: Key of the node that it leaves.
        target: Key of the node that it leads to.
        lines: When a packet goes this way, () for always; of several rules one is enough, a comma goes on with "and".
        is_detour: Whether the packet is marked there and comes back.
    """

    source: str
    target: str
    lines: tuple[str, ...] = ()
    is_detour: bool = False


class Graph(msgspec.Struct, frozen=True, kw_only=True):
    """
    A picture before it is drawn.

    Attributes:
        title: What it shows, one line.
        nodes: Chains of a table in the order of the walk, the table nat first.
        edges: By source, in the order of its rules.
    """

    title: str
    family: Family
    nodes: tuple[GraphNode, ...]
    edges: tuple[GraphEdge, ...]

    @property
    def chain_count(self) -> int:
        """How many nodes are chains."""
        return sum(node.kind not in (NodeKind.DESTINATION, NodeKind.VERDICT) for node in self.nodes)


def build_graph(ruleset: Ruleset, service: str = "", destination_names: Mapping[str, str] | None = None) -> Graph:
    """
    The graph of one service, or of all our chains.

    Args:
        ruleset: Of any origin.
        service: `namespace/name` or `namespace/name:port`; "" for everything.
        destination_names: Address of an endpoint -> what else to say about it.

    Returns:
        A graph without nodes if no rule is about *service*.
    """
    builder = _Builder(own_rules(ruleset), service, destination_names or {})
    for table in _TABLES:
        builder.add_table(table)
    shown = service or "all services"
    nodes, edges = _merged_bases(builder.nodes.values(), builder.edges.values())
    return Graph(
        title=f"{shown}: {ruleset.family.api_name} rules",
        family=ruleset.family,
        nodes=nodes,
        edges=tuple(_with_short_masquerading(edges)),
    )


class _Edge(msgspec.Struct):
    """An edge that is still collecting rules; one tuple of conditions for each."""

    source: str
    target: str
    conditions: list[tuple[str, ...]] = msgspec.field(default_factory=list)


class _Builder:
    """Walks from built-in chains along jumps and keeps what belongs to the service."""

    def __init__(self, ruleset: Ruleset, service: str, names: Mapping[str, str]) -> None:
        self.ruleset = as_rows(ruleset)
        self.service = service
        self.names = names
        services = read_services(self.ruleset).values()
        self.owners = {name: view.text for view in services for name in view.chains}
        self.groups = frozenset(name for view in services for name in view.groups)
        shown = {text for text in self.owners.values() if not service or self._is_of_service(text)}
        self.has_several_owners = len(shown) > 1
        self.nodes: dict[str, GraphNode] = {}
        self.edges: dict[tuple[str, str], _Edge] = {}
        self.kept: dict[tuple[str, str], tuple[Rule, ...]] = {}

    def add_table(self, table: str) -> None:
        """Add everything of *table*, built-in chains first, then chains that nothing leads to."""
        chains = self.ruleset.tables[table].chains if table in self.ruleset.tables else {}
        roots = [name for name in (*_BASE_CHAINS, *dict(SHARED_CHAINS[::-1]).values(), *chains) if name in chains]
        shared = [name for place, name in SHARED_CHAINS if place == table and name in chains]
        for name in dict.fromkeys((*(root for root in roots if root in _BASE_CHAINS), *shared)):
            self._visit(table, name)
        if not self.service:
            for name in chains:
                if name != KUBE_MARK_MASQ:
                    self._visit(table, name)

    def _visit(self, table: str, name: str) -> None:
        key = f"{table}/{name}"
        chain = self.ruleset.chain(table, name)
        if key in self.nodes or chain is None:
            return
        rules = self._rules(table, chain)
        if not rules:
            return
        self.nodes[key] = self._chain_node(table, chain, rules)
        shares = _shares(rules) if name.startswith(_BALANCING) else [None] * len(rules)
        for rule, share in zip(rules, shares, strict=True):
            self._add_rule(table, chain, rule, share)

    def _rules(self, table: str, chain: Chain) -> tuple[Rule, ...]:
        """The rules of a chain that count: those of the service, and jumps to chains that have such rules."""
        place = (table, chain.name)
        if place not in self.kept:
            self.kept[place] = ()  # a chain that leads to itself, which no kernel has, ends here
            is_shared = chain.name in _BASE_CHAINS or place in SHARED_CHAINS
            narrow = bool(self.service) and is_shared
            self.kept[place] = tuple(rule for rule in chain.rules if not narrow or self._belongs(table, rule))
        return self.kept[place]

    def _is_of_service(self, text: str) -> bool:
        return text == self.service or (":" not in self.service and text.startswith(f"{self.service}:"))

    def _belongs(self, table: str, rule: Rule) -> bool:
        owner = owner_of(rule)[0]
        if owner:
            return self._is_of_service(owner)
        target = rule.target.chain if isinstance(rule.target, Jump) else ""
        chain = self.ruleset.chain(table, target)
        return chain is not None and (table, target) in SHARED_CHAINS and bool(self._rules(table, chain))

    def _chain_node(self, table: str, chain: Chain, rules: tuple[Rule, ...]) -> GraphNode:
        prefix = "-".join(chain.name.split("-")[:2])
        purpose = _PURPOSES.get(chain.name) or _PURPOSES.get(prefix, "")
        purpose = "group of endpoints" if chain.name in self.groups else purpose
        owner = self.owners.get(chain.name, "")
        if owner and prefix != "KUBE-SEP" and self.has_several_owners:
            purpose = f"{purpose}, {owner}"
        notes = tuple(note for rule in rules for note in _notes(table, chain.name, rule))
        lines = (chain.name, *((purpose,) if purpose else ()), *notes)
        return GraphNode(f"{table}/{chain.name}", _kind(table, chain.name), table, lines)

    def _add_rule(self, table: str, chain: Chain, rule: Rule, share: Fraction | None) -> None:
        if any(True for _ in _notes(table, chain.name, rule)) and not isinstance(rule.target, Dnat):
            return
        target = self._target(table, rule)
        if not target:
            return
        conditions = _conditions(chain.name, rule, share)
        edge = self.edges.setdefault((f"{table}/{chain.name}", target), _Edge(f"{table}/{chain.name}", target))
        if conditions in edge.conditions:
            return
        edge.conditions.append(conditions)
        if isinstance(rule.target, Jump) and target != _MARK_NODE:
            self._visit(table, rule.target.chain)

    def _target(self, table: str, rule: Rule) -> str:
        """The key of the node that *rule* leads to, added if it is no chain; "" if it leads nowhere."""
        match rule.target:
            case Jump(name):
                return self._jump_target(table, name)
            case Dnat(destination):
                return self._end(f"to {destination}", NodeKind.DESTINATION, "nat", self._destination_lines(destination))
            case _:
                lines = _verdict_lines(rule)
                return self._end(f"{table}/={lines[0]}", NodeKind.VERDICT, table, lines) if lines else ""

    def _jump_target(self, table: str, name: str) -> str:
        if f"{table}/{name}" == _MARK_NODE:
            return self._end(_MARK_NODE, NodeKind.VERDICT, table, ("MASQUERADE mark", *self._mark_lines()))
        chain = self.ruleset.chain(table, name)
        if chain is None:
            return self._end(f"{table}/{name}", NodeKind.VERDICT, table, (name, "chain is missing"))
        return f"{table}/{name}" if self._rules(table, chain) else ""

    def _mark_lines(self) -> Iterator[str]:
        chain = self.ruleset.chain("nat", KUBE_MARK_MASQ)
        for rule in chain.rules if chain else ():
            if isinstance(rule.target, SetMark):
                yield f"{rule.target.value:#x}: leaves with"
                yield "the node's address"

    def _destination_lines(self, destination: str) -> tuple[str, ...]:
        address = destination.rpartition(":")[0].strip("[]")
        name = self.names.get(address, "")
        return (destination, name) if name else (destination,)

    def _end(self, key: str, kind: NodeKind, table: str, lines: tuple[str, ...]) -> str:
        self.nodes.setdefault(key, GraphNode(key, kind, table, lines))
        return key


def _kind(table: str, name: str) -> NodeKind:
    if name in _BASE_CHAINS:
        return NodeKind.BASE
    if name.startswith("KUBE-SEP-"):
        return NodeKind.ENDPOINT
    is_service = table == "nat" and name.startswith(("KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-"))
    return NodeKind.SERVICE if is_service else NodeKind.SHARED


def _verdict_lines(rule: Rule) -> tuple[str, ...]:
    """The name of the verdict of *rule*, and its parameter; () for a rule that decides nothing."""
    match rule.target:
        case Verdict(name):
            return (name,)
        case Reject(kind):
            return ("REJECT", kind)
        case Masquerade():
            return ("MASQUERADE", "source becomes", "the node's address")
        case Snat(source):
            return ("SNAT", source)
        case OpaqueTarget(name, arguments):
            return (name, arguments) if arguments else (name,)
        case _:
            return ()


def _notes(table: str, chain: str, rule: Rule) -> Iterator[str]:
    """What a rule does besides sending packets somewhere, as lines of its chain's node."""
    words = ", ".join(condition_words(rule))
    if isinstance(rule.target, SetMark):
        change = f"sets mark {rule.target.value:#x}" if rule.target.mask else f"flips mark {rule.target.value:#x}"
        yield f"{words}: {change}" if words else change
    elif rule.target == Verdict("RETURN"):
        yield f"{words}: back" if words else "back"
    elif table == "nat" and chain.startswith("KUBE-SEP-"):
        if rule.target == Jump(KUBE_MARK_MASQ):
            yield "from itself: MASQUERADE mark" if _is_hairpin(rule) else f"{words}: MASQUERADE mark"
        elif any(isinstance(match, Recent) for match in rule.matches):
            yield "remembers the client"


def _is_hairpin(rule: Rule) -> bool:
    bare = Rule(source=rule.source, target=rule.target, matches=rule.matches)
    is_bare = msgspec.structs.replace(rule, counters=None) == bare
    return is_bare and all(isinstance(match, Comment) for match in rule.matches)


def _conditions(chain: str, rule: Rule, share: Fraction | None) -> tuple[str, ...]:
    if share is not None:
        return (f"share {float(plain_share(share) * 100):.3g} %",)
    if chain.startswith("KUBE-SEP-") and isinstance(rule.target, Dnat):
        return ()
    return condition_words(rule)


def _shares(rules: tuple[Rule, ...]) -> list[Fraction | None]:
    """For each rule that chooses an endpoint or a group the part that it takes of what comes to its chain."""
    row = RowShares()
    return [row.take(rule) or None for rule in rules]


def _label(conditions: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """Lines of an edge: a rule is one line, or several that end in commas."""
    lines: list[str] = []
    for parts in conditions:
        joined = ", ".join(parts)
        if len(joined) <= _WIDE:
            lines.append(joined or "always")
        else:
            lines += [f"{part}," for part in parts[:-1]] + [parts[-1]]
    if lines == ["always"]:
        return ()
    if len(lines) > _MAX_LABEL_LINES:
        shown = _MAX_LABEL_LINES - 1
        return (*lines[:shown], f"... {len(lines) - shown} more lines")
    return tuple(lines)


def _without_counting(conditions: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Without rules that another one of the same edge covers: those only count."""
    whole = {parts[0] for parts in conditions if len(parts) == 1}
    return [parts for parts in conditions if not (parts and any(parts[0].startswith(f"{one} to ") for one in whole))]


def _with_short_masquerading(edges: Iterable[_Edge]) -> Iterator[GraphEdge]:
    """Edges with labels; masquerading does not repeat an address that everything in its chain is for."""
    known = list(edges)
    incoming: dict[str, set[str]] = {}
    for edge in known:
        incoming.setdefault(edge.target, set()).update(parts[0] if parts else "" for parts in edge.conditions)
    for edge in known:
        conditions = _without_counting(edge.conditions)
        if edge.target == _MARK_NODE:
            into = incoming.get(edge.source, set())
            conditions = [parts[1:] if into == {parts[0] if parts else None} else parts for parts in conditions]
        yield GraphEdge(edge.source, edge.target, _label(conditions), edge.target == _MARK_NODE)


def _merged_bases(
    nodes: Iterable[GraphNode], edges: Iterable[_Edge]
) -> tuple[tuple[GraphNode, ...], tuple[_Edge, ...]]:
    """Built-in chains of one table that lead to the same chains in the same way become one node."""
    known = list(edges)
    ways: dict[tuple[object, ...], GraphNode] = {}
    replaced: dict[str, str] = {}
    result: dict[str, GraphNode] = {}
    for node in nodes:
        if node.kind is NodeKind.BASE:
            way = (node.table, *((edge.target, *edge.conditions) for edge in known if edge.source == node.key))
            first = ways.setdefault(way, node)
            if first is not node:
                replaced[node.key] = first.key
                merged = result[first.key]
                result[first.key] = msgspec.structs.replace(merged, lines=(f"{merged.lines[0]}, {node.lines[0]}",))
                continue
        result[node.key] = node
    return tuple(result.values()), tuple(edge for edge in known if edge.source not in replaced)
