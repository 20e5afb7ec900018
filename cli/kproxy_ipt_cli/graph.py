"""`kproxy-ipt graph`."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from kproxy_ipt.addresses import Family, canonical_address
from kproxy_ipt.errors import SourceError
from kproxy_ipt.objects.model import Objects
from kproxy_ipt.trace.graph import MAX_CHAINS, Graph, build_graph
from kproxy_ipt.trace.graph_svg import render_svg
from kproxy_ipt.trace.graph_text import render_dot, render_mermaid
from kproxy_ipt_cli._failures import failing
from kproxy_ipt_cli._options import backend_option, flag_options, netns_option, output_option, request_of
from kproxy_ipt_cli._output import TEXT, plain, print_document, print_findings, print_notes
from kproxy_ipt_cli._sides import Circumstances, Read, Side, SideKind, read_side

_FORMS: Mapping[str, Callable[[Graph], str]] = {"svg": render_svg, "dot": render_dot, "mermaid": render_mermaid}
_SERVICE = re.compile(r"(?:svc/)?([a-z0-9.-]+/[a-z0-9.-]+(?::[a-z0-9-]+)?)")


def _service(_context: click.Context, _parameter: click.Parameter, text: str | None) -> str:
    if text is None:
        return ""
    found = None if re.fullmatch("svc/[^/]+", text) else _SERVICE.fullmatch(text)
    if not found:
        raise click.BadParameter(f"{text!r} is no service, expected svc/NAMESPACE/NAME or svc/NAMESPACE/NAME:PORT_NAME")
    return found[1]


@click.command(name="graph", short_help="Draw the way of packets through the chains of a service, or of all.")
@click.argument("service", required=False, callback=_service, metavar="[svc/NAMESPACE/NAME[:PORT]]")
@click.option(
    "--form", type=click.Choice(list(_FORMS)), default="svg", show_default=True, help="Language of the picture."
)
@click.option("--write", "target", metavar="FILE", help="Write the picture into a file instead of standard output.")
@click.option("--all", "allow_all", is_flag=True, help=f"Draw more than {MAX_CHAINS} chains too.")
@click.option("--rules", metavar="FILE|-", help="Read rules from the output of iptables-save.")
@click.option("path", "--from", "-f", metavar="PATH|-", help="Build rules from manifests: a file or a folder.")
@backend_option()
@click.option(
    "--family",
    type=click.Choice([family.value for family in Family]),
    help="IP family. Default: that of a file of rules, else ipv4.",
)
@netns_option
@flag_options
@output_option
@failing
def command(
    *,
    service: str,
    form: str,
    target: str | None,
    allow_all: bool,
    rules: str | None,
    path: str | None,
    backend: Any,
    family: str | None,
    netns: str | None,
    output: str,
    **flags: tuple[str, ...],
) -> None:
    """
    Draw chains, verdicts and endpoints as a picture, from the rules in the kernel, in a file, or for manifests.

    An edge says which packets go that way; of several lines one is enough, lines that end in a comma go together. A
    dashed edge marks a packet, which comes back. Chains of others are not shown. --output json gives nodes and edges.

    \b
    Examples:
      kproxy-ipt graph svc/demo/web --netns lab --write web.svg
      kproxy-ipt graph svc/demo/web:http --from manifests/ --form mermaid
      iptables-save | kproxy-ipt graph --rules - --form dot | dot -Tpng > all.png
    """
    side = _side(rules, path, netns)
    request = request_of((), "", flags)
    wanted = (Family(family),) if family else tuple(Family) if side.kind is SideKind.FILE else (Family.IPV4,)
    circumstances = Circumstances(families=wanted, backend=backend, config=request.config, node_name=request.node_name)
    read = read_side(side, circumstances)
    print_notes((*request.config_notes, *read.notes))
    print_findings(read.findings)
    graph = _graph(read, service)
    if graph.chain_count > MAX_CHAINS and not allow_all:
        raise click.UsageError(
            f"{graph.chain_count} chains are too many for a picture (more than {MAX_CHAINS}): "
            "name a service, or say --all"
        )
    if output == TEXT:
        _write(_FORMS[form](graph), target)
    else:
        print_document({"command": "graph", **_document(graph)}, output)


def _side(rules: str | None, path: str | None, netns: str | None) -> Side:
    given = [word for word, value in (("--rules", rules), ("--from", path), ("--netns", netns)) if value is not None]
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(given)} each say where rules come from: give one")
    if rules is not None:
        return Side(SideKind.FILE, rules)
    return Side(SideKind.OBJECTS, path) if path is not None else Side(SideKind.LIVE, netns or "")


def _graph(read: Read, service: str) -> Graph:
    """
    The graph of the first family that was read.

    Raises:
        SourceError: There are no such rules.
    """
    if not read.rulesets:
        raise SourceError("there are no rules of that family")
    names = _node_names(read.objects) if read.objects else {}
    graph = build_graph(next(iter(read.rulesets.values())), service, names)
    if not graph.nodes:
        missing = f"no rule is about service {service}" if service else "there are no rules of ours"
        raise SourceError(f"{graph.family.api_name}: {missing}")
    return graph


def _node_names(objects: Objects) -> Mapping[str, str]:
    """On which node each endpoint is, where objects tell."""
    return {
        canonical: f"on node {endpoint.node_name}"
        for endpoint_slice in objects.endpoint_slices
        for endpoint in endpoint_slice.endpoints or ()
        if endpoint.node_name
        for address in endpoint.addresses or ()
        if (canonical := canonical_address(address))
    }


def _write(text: str, target: str | None) -> None:
    if target is None:
        click.echo(text, nl=False)
        return
    try:
        Path(target).write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.UsageError(f"--write {target}: {error.strerror or error}") from error


def _document(graph: Graph) -> dict[str, Any]:
    return {
        "title": graph.title,
        "family": str(graph.family),
        "chains": graph.chain_count,
        "nodes": plain(graph.nodes),
        "edges": plain(graph.edges),
    }
