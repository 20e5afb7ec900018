"""Graphs of chains, where their boxes go, and the languages that they are written in."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.decode import decode_config
from kproxy_ipt.objects.model import EndpointSlice, Service
from kproxy_ipt.rules.build import with_base_chains
from kproxy_ipt.ruleset.model import Ruleset
from kproxy_ipt.ruleset.parse import parse_save
from kproxy_ipt.ruleset.render import render_save
from kproxy_ipt.testing.desired import desired_for
from kproxy_ipt.testing.objects import endpoint_slice, service, service_port
from kproxy_ipt.trace.graph import Graph, GraphEdge, GraphNode, NodeKind, build_graph
from kproxy_ipt.trace.graph_layout import Box, cells, lay_out
from kproxy_ipt.trace.graph_svg import render_svg
from kproxy_ipt.trace.graph_text import render_dot, render_mermaid

CONFIG = decode_config(
    b"apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nclusterCIDR: 10.244.0.0/16\n", "c"
).config
NASTY = 'a"b\\c <d> & #e|f]`g`'


def _rules(*objects: Service | EndpointSlice) -> Ruleset:
    return with_base_chains(desired_for(*objects, config=CONFIG))


def _web(count: int = 3, /, **spec: object) -> Ruleset:
    one = service("web", **spec)  # type: ignore[arg-type] # each test gives the fields of the builder
    return _rules(one, endpoint_slice(one, [f"10.244.1.{number}" for number in range(1, count + 1)]))


def _balancer() -> Ruleset:
    return _web(
        2,
        ports=[service_port(80, node_port=30080)],
        service_type="LoadBalancer",
        ingress=("198.51.100.1",),
        source_ranges=("203.0.113.0/24",),
        affinity_timeout_s=60,
        external_policy="Local",
    )


def _edges(graph: Graph) -> set[tuple[str, str, tuple[str, ...]]]:
    """Edges by the names of their ends, with chain names shortened to their kind."""
    names = {node.key: "-".join(node.lines[0].split("-")[:2]) for node in graph.nodes}
    return {(names[edge.source], names[edge.target], edge.lines) for edge in graph.edges}


def _nasty_graph() -> Graph:
    nodes = (GraphNode("a", NodeKind.BASE, "nat", (NASTY,)), GraphNode("b", NodeKind.VERDICT, "nat", ("DROP", NASTY)))
    return Graph(title=NASTY, family=Family.IPV4, nodes=nodes, edges=(GraphEdge("a", "b", (NASTY,)),))


def test_cluster_ip_is_a_way_from_hooks_to_endpoints() -> None:
    """Conditions are short, shares are those of all connections, the address is not repeated for masquerading."""
    graph = build_graph(_web(), "default/web")
    endpoints = {("KUBE-SEP", f"10.244.1.{number}:80", ()) for number in (1, 2, 3)}

    assert _edges(graph) == {
        ("PREROUTING, OUTPUT", "KUBE-SERVICES", ()),
        ("KUBE-SERVICES", "KUBE-SVC", ("tcp 80 to 10.96.0.10",)),
        ("KUBE-SVC", "MASQUERADE mark", ("not from 10.244.0.0/16",)),
        ("KUBE-SVC", "KUBE-SEP", ("share 33.3 %",)),
        *endpoints,
    }
    assert [edge.is_detour for edge in graph.edges].count(True) == 1


def test_load_balancer_shows_ranges_policy_and_firewall() -> None:
    """Source ranges lead on, other sources are dropped in the table filter."""
    edges = _edges(build_graph(_balancer(), "default/web"))

    assert ("KUBE-SERVICES", "KUBE-FW", ("tcp 80 to 198.51.100.1",)) in edges
    assert ("KUBE-FW", "KUBE-EXT", ("from 203.0.113.0/24",)) in edges
    assert ("KUBE-EXT", "KUBE-SVC", ("from 10.244.0.0/16", "from this node")) in edges
    assert ("KUBE-SVC", "KUBE-SEP", ("known client 60 s", "share 50 %")) in edges
    assert ("KUBE-PROXY", "DROP", ("tcp 80 to 198.51.100.1",)) in edges
    assert ("KUBE-NODEPORTS", "KUBE-EXT", ("tcp 30080",)) in edges


def test_service_without_endpoints_is_refused() -> None:
    """The picture holds the verdict and how it is told."""
    graph = build_graph(_rules(service("web")), "default/web")

    assert {"REJECT"} == {node.lines[0] for node in graph.nodes if node.kind is NodeKind.VERDICT}
    assert ("KUBE-SERVICES", "REJECT", ("tcp 80 to 10.96.0.10",)) in _edges(graph)


def test_picture_of_one_service_holds_nothing_of_others() -> None:
    """A name that begins like another one is not it."""
    pair = [service(name, cluster_ip=ip) for name, ip in (("web", "10.96.0.1"), ("web-2", "10.96.0.2"))]
    ruleset = _rules(*pair, *(endpoint_slice(one, ["10.244.1.1"]) for one in pair))
    text = render_svg(build_graph(ruleset, "default/web"))

    assert "10.96.0.1<" in text
    assert "10.96.0.2" not in text
    assert build_graph(ruleset, "default/we").nodes == ()


def test_one_port_can_be_named() -> None:
    """A service with two ports: both, or one."""
    one = service("dns", ports=[service_port(53, name="dns", protocol="UDP"), service_port(9153, name="metrics")])
    ruleset = _rules(one, endpoint_slice(one, ["10.244.1.1"]))

    assert {"udp 53", "tcp 9153"} <= set(
        re.findall(r"(?:udp|tcp) \d+", render_dot(build_graph(ruleset, "default/dns")))
    )
    assert "9153" not in render_dot(build_graph(ruleset, "default/dns:dns"))


def test_whole_graph_holds_every_chain_of_ours() -> None:
    """Each chain with rules is a node, but the mark, which is a verdict; chains of others are none."""
    text = render_save(_balancer()).replace("*nat\n", "*nat\n:CNI-X - [0:0]\n-A CNI-X -j RETURN\n")
    ruleset = parse_save(text, Family.IPV4)
    graph = build_graph(ruleset)
    chains = {
        f"{table.name}/{chain.name}"
        for table in ruleset.tables.values()
        for chain in table.chains.values()
        if chain.rules
    }
    merged = {"nat/OUTPUT", "nat/CNI-X"}

    assert chains - merged == {node.key for node in graph.nodes if "/KUBE-" in node.key or node.kind is NodeKind.BASE}


def test_names_of_destinations_stand_below_their_address() -> None:
    """What else is known about an endpoint is its second line."""
    graph = build_graph(_web(1), "default/web", {"10.244.1.1": "on node n1"})

    assert [node.lines for node in graph.nodes if node.kind is NodeKind.DESTINATION] == [
        ("10.244.1.1:80", "on node n1")
    ]


def test_long_labels_are_cut() -> None:
    """A hundred source ranges do not fill the picture."""
    ranges = tuple(f"10.{number}.0.0/16" for number in range(100))
    graph = build_graph(
        _web(service_type="LoadBalancer", ingress=("198.51.100.1",), source_ranges=ranges), "default/web"
    )

    assert max(len(edge.lines) for edge in graph.edges) == 6
    assert any("... 95 more lines" in edge.lines for edge in graph.edges)


def test_chains_in_a_circle_do_not_hang() -> None:
    """No kernel takes such rules, but a file may hold them."""
    text = "*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-NODEPORTS - [0:0]\n"
    text += "-A KUBE-SERVICES -j KUBE-NODEPORTS\n-A KUBE-NODEPORTS -j KUBE-SERVICES\nCOMMIT\n"
    graph = build_graph(parse_save(text, Family.IPV4))

    assert len(graph.edges) == 2
    assert render_svg(graph).count('class="arrow"') == 2


@pytest.mark.parametrize(
    ("rule", "lines"),
    [
        ("-j KUBE-SVC-AAAAAAAAAAAAAAAA", ("KUBE-SVC-AAAAAAAAAAAAAAAA", "chain is missing")),
        ("-j SNAT --to-source 192.0.2.1", ("SNAT", "192.0.2.1")),
        ("-j NFQUEUE --queue-num 1", ("NFQUEUE", "--queue-num 1")),
        ("-j TRACE", ("TRACE",)),
    ],
)
def test_rules_of_every_kind_lead_somewhere(rule: str, lines: tuple[str, ...]) -> None:
    """To a chain that is missing, or to a target that we do not write; the same way twice is one edge."""
    text = f"*nat\n:KUBE-SERVICES - [0:0]\n-A KUBE-SERVICES {rule}\n-A KUBE-SERVICES {rule}\nCOMMIT\n"
    graph = build_graph(parse_save(text, Family.IPV4))
    (edge,) = graph.edges

    assert next(node.lines for node in graph.nodes if node.key == edge.target) == lines


def _overlap(one: Box, other: Box) -> bool:
    apart = one.x + one.width <= other.x or other.x + other.width <= one.x
    return not (apart or one.y + one.height <= other.y or other.y + other.height <= one.y)


@st.composite
def _graphs(draw: st.DrawFn) -> Graph:
    count = draw(st.integers(1, 14))
    words = st.text("abc 漢", min_size=1, max_size=30)
    nodes = [
        GraphNode(
            str(number),
            NodeKind.SHARED,
            draw(st.sampled_from(["nat", "filter"])),
            tuple(draw(st.lists(words, min_size=1, max_size=3))),
        )
        for number in range(count)
    ]
    pairs = [(a, b) for a, b in combinations(nodes, 2) if a.table == b.table and draw(st.integers(0, 3)) == 0]
    edges = tuple(GraphEdge(a.key, b.key, tuple(draw(st.lists(words, max_size=3)))) for a, b in pairs)
    return Graph(title="t", family=Family.IPV4, nodes=tuple(nodes), edges=edges)


@given(_graphs())
@settings(max_examples=150, deadline=None)
def test_nothing_overlaps_and_edges_lead_to_the_right(graph: Graph) -> None:
    """Boxes of nodes and labels are apart and inside of the picture, whatever the graph."""
    layout = lay_out(graph)
    boxes: Sequence[Box] = [*layout.nodes.values(), *(label.box for label in layout.labels)]

    assert [pair for pair in combinations(boxes, 2) if _overlap(*pair)] == []
    assert all(0 <= box.x and box.x + box.width <= layout.width for box in boxes)
    assert all(0 <= box.y and box.y + box.height <= layout.height for box in boxes)
    assert all(list(path) == sorted(path, key=lambda point: point[0]) for path in layout.paths)
    assert len(layout.labels) == sum(bool(edge.lines) for edge in graph.edges)


@given(_graphs())
@settings(max_examples=60, deadline=None)
def test_edges_pass_between_nodes(graph: Graph) -> None:
    """No edge crosses a node that it does not belong to: where it is level it is above or below of it."""
    layout = lay_out(graph)
    for edge, path in zip(graph.edges, layout.paths, strict=True):
        for (left, y), (right, end_y) in zip(path[::2], path[1::2], strict=False):
            crossed = Box(min(left, right), min(y, end_y), abs(right - left), 0.1)
            others = [box for key, box in layout.nodes.items() if key not in (edge.source, edge.target)]

            assert y != end_y or not any(_overlap(crossed, box) for box in others)


def test_text_is_measured_in_cells() -> None:
    """Wide characters take two, combining ones none."""
    assert [cells(text) for text in ("abc", "漢字", "e\u0301", "a\u200bb", "")] == [3, 4, 1, 2, 0]


@pytest.mark.parametrize("count", [1, 3, 10])
def test_svg_is_well_formed_and_stands_alone(count: int) -> None:
    """XML that says what it shows, adapts to dark and light, and neither runs nor loads anything."""
    text = render_svg(build_graph(_web(count), "default/web"))
    root = ET.fromstring(text)
    names = {element.tag.rpartition("}")[2] for element in root.iter()}

    assert names == {"svg", "title", "desc", "style", "rect", "text", "path", "g"}
    assert text.count("http") == 1
    assert "url(" not in text
    assert "prefers-color-scheme: dark" in text
    assert root.attrib["aria-labelledby"] == "graph-title graph-description"
    assert text.count(">share ") == count


def test_description_tells_the_edges_in_words() -> None:
    """Who cannot see the picture reads the same."""
    root = ET.fromstring(render_svg(build_graph(_web(), "default/web")))
    description = root.findtext("{http://www.w3.org/2000/svg}desc")

    assert description
    assert "PREROUTING, OUTPUT to KUBE-SERVICES." in description
    assert ": share 33.3 %." in description


def test_same_rules_give_the_same_bytes() -> None:
    """Pictures can be kept in version control."""
    assert render_svg(build_graph(_balancer())) == render_svg(build_graph(_balancer()))


def test_svg_escapes_and_drops_what_xml_forbids() -> None:
    """Any text comes back as it was, control characters as a replacement."""
    root = ET.fromstring(render_svg(_nasty_graph()))
    node = GraphNode("a", NodeKind.BASE, "nat", ("a\0b\x1b",))
    controls = render_svg(Graph(title="t", family=Family.IPV4, nodes=(node,), edges=()))

    assert sum(element.text == NASTY for element in root.iter("{http://www.w3.org/2000/svg}text")) == 4
    assert ET.fromstring(controls) is not None
    assert "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}" in controls


def test_dot_escapes_quotes_and_backslashes() -> None:
    """Strings end where they should, and no backslash is taken for one of DOT's."""
    text = render_dot(_nasty_graph())
    strings = re.findall(r'"((?:[^"\\]|\\.)*)"', text)

    assert NASTY in {string.replace('\\"', '"').replace("\\\\", "\\") for string in strings}
    assert '[label="DROP\\na\\"b\\\\c <d> & #e|f]`g`"' in text
    assert re.sub(r'"(?:[^"\\]|\\.)*"', "", text).count('"') == 0


def test_mermaid_escapes_what_it_would_read() -> None:
    """Quotes, angle brackets and Markdown become entities, lines are joined by breaks."""
    text = render_mermaid(_nasty_graph())

    assert '["DROP<br/>a#quot;b#92;c #lt;d#gt; #amp; #35;e|f]#96;g#96;"]' in text
    assert text.count('"') % 2 == 0
    assert text.startswith("flowchart LR\n")


def test_detours_are_dashed_in_every_language() -> None:
    """A packet that is marked comes back."""
    graph = build_graph(_web(1), "default/web")

    assert render_svg(graph).count('class="edge detour"') == 1
    assert render_dot(graph).count("style=dashed") == 1
    assert render_mermaid(graph).count("-.->") == 1
