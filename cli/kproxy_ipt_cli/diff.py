"""`kproxy-ipt diff`."""

import difflib
from collections import Counter
from typing import Any

import click

from kproxy_ipt.addresses import Family
from kproxy_ipt.errors import KproxyError
from kproxy_ipt.ruleset.canonical import canonical_ruleset
from kproxy_ipt.ruleset.diff import ChainDifference, DifferenceKind
from kproxy_ipt.ruleset.model import Ruleset
from kproxy_ipt.trace.compare import ChangeKind, Comparison, compare, own_rules
from kproxy_ipt.trace.packet import Host
from kproxy_ipt_cli._exit_codes import ExitCode
from kproxy_ipt_cli._failures import fail
from kproxy_ipt_cli._options import backend_option, families_of, family_option, flag_options, output_option, request_of
from kproxy_ipt_cli._output import TEXT, Plain, counted, plain, print_document, print_findings, print_notes
from kproxy_ipt_cli._reports import findings_document
from kproxy_ipt_cli._sides import Circumstances, Read, pairs_of, read_both, sides_of

_COLOURS = {ChangeKind.ADDED: "green", ChangeKind.REMOVED: "red", ChangeKind.CHANGED: "yellow"}
_BEHAVIOURS = {
    "alike": "every packet is treated alike",
    "different": "there are packets that are treated differently",
    "undecided": "no packet was found that is treated differently, but one may be hidden",
}
_SHOWN_LINES = 20
"""Rules of one chain in the text output; JSON has them all."""


@click.command(name="diff", short_help="Compare two rule sets by what they mean, service by service.")
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@click.option("--text", "as_text", is_flag=True, help="A unified diff of the canonical texts instead.")
@click.option("--foreign", is_flag=True, help="Compare rules of others too.")
@click.option(
    "--behaviour",
    "with_behaviour",
    is_flag=True,
    help="Say too whether any packet is treated differently; `kproxy-ipt equiv` shows such packets.",
)
@backend_option()
@family_option
@flag_options
@output_option
def command(
    *,
    first: str,
    second: str,
    as_text: bool,
    foreign: bool,
    with_behaviour: bool,
    backend: Any,
    family: str,
    output: str,
    **flags: tuple[str, ...],
) -> None:
    """
    Say how rule set B differs from rule set A: services that were added, removed or changed, and how.

    \b
    A and B are each one of:
      live, live:NETNS   the rules in the kernel, of a network namespace
      FILE, -            output of iptables-save or ip6tables-save, - for standard input
      from:PATH          what manifests ask for, with the configuration of the options
      golden:DIR         a recorded case: DIR/iptables.txt, DIR/ip6tables.txt

    Exit codes: 0 same, 1 different, 2 cannot tell; --behaviour does not change them.

    \b
    Examples:
      kproxy-ipt diff before.txt after.txt
      kproxy-ipt diff live:lab from:manifests/ --hostname-override n1
      iptables-save | kproxy-ipt diff - golden:tests/golden/26-node-port-cluster --text
    """
    sides = sides_of(first, second)
    try:
        request = request_of((), "", flags)
        circumstances = Circumstances(
            families=families_of(family), backend=backend, config=request.config, node_name=request.node_name
        )
        reads = read_both(sides, circumstances)
        pairs = pairs_of(reads)
        behaviours = {one: _behaviour(pair, reads) for one, pair in pairs.items()} if with_behaviour else {}
    except KproxyError as error:
        fail(error, ExitCode.CANNOT_TELL, output)
    findings = tuple(dict.fromkeys(finding for read in reads for finding in read.findings))
    print_notes((*request.config_notes, *(note for read in reads for note in read.notes)))
    print_findings(findings)
    unified = {one: _unified(pair, first, second, foreign=foreign) for one, pair in pairs.items()} if as_text else {}
    comparisons = {one: compare(*pair) for one, pair in pairs.items()}
    differs = any(unified.values() if as_text else (one.differs(foreign=foreign) for one in comparisons.values()))
    code = ExitCode.DRIFT if differs else ExitCode.DONE
    if output != TEXT:
        families = {
            str(one): _document(found, unified.get(one), behaviours.get(one), foreign=foreign)
            for one, found in comparisons.items()
        }
        sides_document: dict[str, Plain] = {"command": "diff", "a": first, "b": second}
        document = {**sides_document, "differs": differs, "exit_code": int(code)}
        print_document({**document, **findings_document(findings), "families": families}, output)
    elif as_text:
        for lines in unified.values():
            _print_unified(lines)
    else:
        for one, comparison in comparisons.items():
            _print_comparison(one, comparison, foreign=foreign)
    if output == TEXT:
        for one, word in behaviours.items():
            click.echo(f"{one}: {_BEHAVIOURS[word]}")
    raise SystemExit(int(code))


def _unified(pair: tuple[Ruleset, Ruleset], first: str, second: str, *, foreign: bool) -> tuple[str, ...]:
    before, after = (canonical_ruleset(one if foreign else own_rules(one)).splitlines() for one in pair)
    return tuple(difflib.unified_diff(before, after, first, second, lineterm=""))


def _print_unified(lines: tuple[str, ...]) -> None:
    for line in lines:
        colour = {"+": "green", "-": "red", "@": "cyan"}.get(line[0])
        click.secho(line, fg=colour)


def _behaviour(pair: tuple[Ruleset, Ruleset], reads: tuple[Read, Read]) -> str:
    """
    Whether every packet is treated alike by all rules of both sides, foreign ones too: a key of `_BEHAVIOURS`.

    Raises:
        RulesetError: Jumps go in circles.
    """
    from kproxy_ipt.trace.equivalence import compare_behaviour  # costs more than all the rest of this command

    addresses = {address for read in reads if read.machine for address in read.machine.interface_addresses}
    report = compare_behaviour(*pair, Host(addresses=frozenset(addresses)), most_differences=1)
    if report.differences:
        return "different"
    return "alike" if report.equal else "undecided"


def _document(
    comparison: Comparison, unified: tuple[str, ...] | None, behaviour: str | None, *, foreign: bool
) -> dict[str, Plain]:
    document: dict[str, Plain] = {
        "differs": comparison.differs(foreign=foreign),
        "service_ports": comparison.compared,
        "services": plain(comparison.services),
        "fixed": plain(comparison.fixed),
        "foreign": plain(comparison.foreign) if foreign else [],
    }
    more: dict[str, Plain] = {"text": None if unified is None else list(unified), "behaviour": behaviour}
    return document | {name: value for name, value in more.items() if value is not None}


def _print_comparison(family: Family, comparison: Comparison, *, foreign: bool) -> None:
    for change in comparison.services:
        click.secho(f"{family} {change.service_port} {change.kind}", fg=_COLOURS[change.kind], bold=True)
        for word in change.words:
            click.echo(f"  {word}")
    _print_chains(family, "fixed", comparison.fixed)
    _print_chains(family, "foreign", comparison.foreign if foreign else ())
    click.echo(f"{family}: {_verdict(comparison, foreign=foreign)}")


def _verdict(comparison: Comparison, *, foreign: bool) -> str:
    ports = counted(comparison.compared, "service port")
    if not comparison.differs(foreign=foreign):
        return f"both mean the same ({ports} compared)"
    kinds = Counter(change.kind for change in comparison.services)
    parts = [f"{kinds[kind]} {kind}" for kind in ChangeKind if kinds[kind]]
    chains = len(comparison.fixed) + (len(comparison.foreign) if foreign else 0)
    if chains:
        parts.append(f"{counted(chains, 'other chain')} different")
    return f"{', '.join(parts)} ({ports} compared)"


def _print_chains(family: Family, word: str, differences: tuple[ChainDifference, ...]) -> None:
    for difference in differences:
        note = " (order)" if difference.kind is DifferenceKind.ORDER else ""
        click.secho(f"{family} {word} chain {difference.table} {difference.chain}{note}", fg="yellow", bold=True)
        for sign, lines, colour in (("-", difference.missing, "red"), ("+", difference.extra, "green")):
            for line in lines[:_SHOWN_LINES]:
                click.secho(f"  {sign} {line}", fg=colour)
            if len(lines) > _SHOWN_LINES:
                click.echo(f"  {sign} ... and {len(lines) - _SHOWN_LINES} more (--output json has them all)")
