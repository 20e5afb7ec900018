"""A graph in the languages of two programs that draw: DOT for Graphviz, and Mermaid for pages of Markdown."""

from collections.abc import Iterator

from kproxy_ipt.trace.graph import Graph, NodeKind

_DOT_SHAPES = {
    NodeKind.BASE: 'shape=box style="filled" fillcolor="#eef1f4"',
    NodeKind.SHARED: 'shape=box style="rounded,filled" fillcolor="#f6f8fa"',
    NodeKind.SERVICE: 'shape=box style="rounded,filled" fillcolor="#ddf4ff"',
    NodeKind.ENDPOINT: 'shape=box style="rounded,filled" fillcolor="#fbefff"',
    NodeKind.DESTINATION: 'shape=box style="rounded,filled" fillcolor="#dafbe1"',
    NodeKind.VERDICT: 'shape=box style="filled" fillcolor="#fff1e5"',
}

_MERMAID_COLOURS = {
    NodeKind.BASE: "fill:#eef1f4,stroke:#59636e,color:#1f2328",
    NodeKind.SHARED: "fill:#f6f8fa,stroke:#818b98,color:#1f2328",
    NodeKind.SERVICE: "fill:#ddf4ff,stroke:#0969da,color:#1f2328",
    NodeKind.ENDPOINT: "fill:#fbefff,stroke:#8250df,color:#1f2328",
    NodeKind.DESTINATION: "fill:#dafbe1,stroke:#1a7f37,color:#1f2328",
    NodeKind.VERDICT: "fill:#fff1e5,stroke:#bc4c00,color:#1f2328",
}

_MERMAID_ENTITIES = {
    ord("#"): "#35;",
    ord("&"): "#amp;",
    ord('"'): "#quot;",
    ord("<"): "#lt;",
    ord(">"): "#gt;",
    ord("`"): "#96;",
    ord("\\"): "#92;",
    ord("*"): "#42;",
    ord("_"): "#95;",
}
"""Characters that Mermaid would take for its own syntax, for HTML or for Markdown."""


def render_dot(graph: Graph) -> str:
    """The graph for Graphviz; each table is a cluster."""
    return "\n".join(_dot_lines(graph)) + "\n"


def _dot_lines(graph: Graph) -> Iterator[str]:
    names = _names(graph)
    yield f"digraph {_dot_quoted(graph.title)} {{"
    yield "  rankdir=LR;"
    yield f"  label={_dot_quoted(graph.title)};"
    yield '  node [fontname="monospace" fontsize=10];'
    yield '  edge [fontname="monospace" fontsize=9];'
    for table in dict.fromkeys(node.table for node in graph.nodes):
        yield f"  subgraph {_dot_quoted(f'cluster_{table}')} {{"
        yield f"    label={_dot_quoted(f'table {table}')};"
        for node in graph.nodes:
            if node.table == table:
                yield f"    {names[node.key]} [label={_dot_quoted(*node.lines)} {_DOT_SHAPES[node.kind]}];"
        yield "  }"
    for edge in graph.edges:
        words = [f"label={_dot_quoted(*edge.lines)}"] if edge.lines else []
        words += ["style=dashed"] if edge.is_detour else []
        attributes = f" [{' '.join(words)}]" if words else ""
        yield f"  {names[edge.source]} -> {names[edge.target]}{attributes};"
    yield "}"


def _dot_quoted(*lines: str) -> str:
    r"""Lines as one string of DOT, joined by `\n`; backslashes too are doubled, or `\N` would become a name."""
    escaped = (line.replace("\\", "\\\\").replace('"', '\\"') for line in lines)
    return '"' + "\\n".join(escaped) + '"'


def render_mermaid(graph: Graph) -> str:
    """The graph as a Mermaid flowchart; each table is a subgraph."""
    return "\n".join(_mermaid_lines(graph)) + "\n"


def _mermaid_lines(graph: Graph) -> Iterator[str]:
    names = _names(graph)
    yield "flowchart LR"
    yield f"  accTitle: {_mermaid_escaped(graph.title)}"
    for table in dict.fromkeys(node.table for node in graph.nodes):
        yield f'  subgraph table_{table}["table {table}"]'
        yield "    direction LR"
        for node in graph.nodes:
            if node.table == table:
                yield f"    {names[node.key]}[{_mermaid_quoted(*node.lines)}]:::of_{node.kind}"
        yield "  end"
    for edge in graph.edges:
        label = f"|{_mermaid_quoted(*edge.lines)}|" if edge.lines else ""
        arrow = "-.->" if edge.is_detour else "-->"
        yield f"  {names[edge.source]} {arrow}{label} {names[edge.target]}"
    for kind in dict.fromkeys(node.kind for node in graph.nodes):
        yield f"  classDef of_{kind} {_MERMAID_COLOURS[kind]}"


def _mermaid_quoted(*lines: str) -> str:
    return '"' + "<br/>".join(map(_mermaid_escaped, lines)) + '"'


def _mermaid_escaped(text: str) -> str:
    return text.translate(_MERMAID_ENTITIES)


def _names(graph: Graph) -> dict[str, str]:
    """Short names: keys hold characters that neither language allows in names."""
    return {node.key: f"n{number}" for number, node in enumerate(graph.nodes)}
