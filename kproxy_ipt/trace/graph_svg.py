"""
A graph as an SVG picture: one file without scripts and without references to anything outside.

Colours follow the reader's light or dark scheme. Every text says how wide it is, so that the layout holds with any
monospace font.
"""

from collections.abc import Iterator
from html import escape
from itertools import pairwise

from kproxy_ipt.trace.graph import Graph, GraphNode
from kproxy_ipt.trace.graph_layout import (
    CELL_WIDTH,
    LABEL_CELL_WIDTH,
    LABEL_LINE_HEIGHT,
    LINE_HEIGHT,
    TITLE_BASE,
    Box,
    Layout,
    PlacedLabel,
    cells,
    lay_out,
)

_STYLE = """
text { font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; font-size: 12px; fill: #1f2328 }
.name { font-weight: 600 }
.more { fill: #59636e }
.label { font-size: 11px; fill: #3d444d }
.title { font-size: 15px; font-weight: 600 }
.heading { font-size: 13px; fill: #59636e }
.page, .behind { fill: #ffffff }
.edge { fill: none; stroke: #818b98; stroke-width: 1.3 }
.detour { stroke-dasharray: 4 3 }
.arrow { fill: #818b98 }
.node rect { stroke-width: 1.3; fill: #f6f8fa; stroke: #818b98 }
.base rect { fill: #eef1f4; stroke: #59636e }
.service rect { fill: #ddf4ff; stroke: #0969da }
.endpoint rect { fill: #fbefff; stroke: #8250df }
.destination rect { fill: #dafbe1; stroke: #1a7f37 }
.verdict rect { fill: #fff1e5; stroke: #bc4c00 }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc }
.heading { fill: #9198a1 }
.more { fill: #c3c9d2 }
.label { fill: #d1d7e0 }
.page, .behind { fill: #0d1117 }
.edge { stroke: #656c76 }
.arrow { fill: #656c76 }
.node rect { fill: #151b23; stroke: #656c76 }
.base rect { fill: #212830; stroke: #9198a1 }
.service rect { fill: #0c2d6b; stroke: #4493f8 }
.endpoint rect { fill: #3c1e70; stroke: #ab7df8 }
.destination rect { fill: #033a16; stroke: #3fb950 }
.verdict rect { fill: #5a1e02; stroke: #db6d28 }
}
""".strip()

_TITLE_CELL_WIDTH = 9.2
_ARROW = 7
_ROUNDING = 5
_LEVEL = 0.5


def render_svg(graph: Graph) -> str:
    """The picture as text; the same graph gives the same bytes."""
    layout = lay_out(graph)
    return "\n".join(_lines(graph, layout)) + "\n"


def _lines(graph: Graph, layout: Layout) -> Iterator[str]:
    width = max(layout.width, 48 + cells(graph.title) * _TITLE_CELL_WIDTH)
    size = f"{width:.0f} {layout.height:.0f}"
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{layout.height:.0f}" '
        f'viewBox="0 0 {size}" role="img" aria-labelledby="graph-title graph-description">'
    )
    yield f'<title id="graph-title">{_text(graph.title)}</title>'
    yield f'<desc id="graph-description">{_text(_description(graph))}</desc>'
    yield f"<style>\n{_STYLE}\n</style>"
    yield f'<rect class="page" width="{width:.0f}" height="{layout.height:.0f}"/>'
    yield f'<text class="title" x="24" y="{TITLE_BASE}">{_text(graph.title)}</text>'
    for name, x, y in layout.headings:
        yield f'<text class="heading" x="{x:.1f}" y="{y:.1f}">table {_text(name)}</text>'
    for edge, path in zip(graph.edges, layout.paths, strict=True):
        yield from _edge(path, "edge detour" if edge.is_detour else "edge")
    for label in layout.labels:
        yield from _label(label)
    for node in graph.nodes:
        yield from _node(node, layout.nodes[node.key])
    yield "</svg>"


def _description(graph: Graph) -> str:
    """The edges as sentences, for those who cannot see the picture."""
    names = {node.key: node.lines[0] for node in graph.nodes}
    sentences = (
        f"{names[edge.source]} to {names[edge.target]}{': ' + ' '.join(edge.lines) if edge.lines else ''}."
        for edge in graph.edges
    )
    return " ".join(sentences) or "Nothing."


def _text(text: str) -> str:
    """Escaped, and without characters that XML 1.0 does not allow."""
    return escape("".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text))


def _edge(points: tuple[tuple[float, float], ...], style: str) -> Iterator[str]:
    """A curve that is level where it passes a column, and an arrow at its end."""
    end_x, end_y = points[-1]
    commands = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    for (x, y), (next_x, next_y) in pairwise([*points[:-1], (end_x - _ARROW, end_y)]):
        middle = (x + next_x) / 2
        is_level = abs(next_y - y) < _LEVEL
        curve = f"C{middle:.1f} {y:.1f} {middle:.1f} {next_y:.1f} {next_x:.1f} {next_y:.1f}"
        commands.append(f"L{next_x:.1f} {next_y:.1f}" if is_level else curve)
    yield f'<path class="{style}" d="{"".join(commands)}"/>'
    yield f'<path class="arrow" d="M{end_x:.1f} {end_y:.1f}l-{_ARROW + 1} -4v8z"/>'


def _label(label: PlacedLabel) -> Iterator[str]:
    box = label.box
    yield f'<rect class="behind" x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}"/>'
    for number, line in enumerate(label.lines):
        y = box.y + 12 + number * LABEL_LINE_HEIGHT
        yield _line("label", line, box.x + 4, y, LABEL_CELL_WIDTH)


def _line(style: str, line: str, x: float, y: float, cell_width: float) -> str:
    length = cells(line) * cell_width
    return (
        f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" textLength="{length:.1f}" lengthAdjust="spacingAndGlyphs">'
        f"{_text(line)}</text>"
    )


def _node(node: GraphNode, box: Box) -> Iterator[str]:
    yield f'<g class="node {node.kind}">'
    yield (
        f'<rect x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="{_ROUNDING}"/>'
    )
    for number, line in enumerate(node.lines):
        style = "more" if number else "name"
        yield _line(style, line, box.x + 10, box.y + 17 + number * LINE_HEIGHT, CELL_WIDTH)
    yield "</g>"
