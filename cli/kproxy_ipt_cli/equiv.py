"""`kproxy-ipt equiv`."""

from collections.abc import Mapping, Sequence
from typing import Any

import click

from kproxy_ipt.addresses import Family, canonical_address
from kproxy_ipt.errors import KproxyError
from kproxy_ipt.objects.model import Objects
from kproxy_ipt.state.snapshot import node_facts
from kproxy_ipt.trace.distribution import nominal
from kproxy_ipt.trace.equivalence import (
    DEFAULT_TOLERANCE,
    BehaviourDifference,
    EquivalenceReport,
    Marks,
    compare_behaviour,
)
from kproxy_ipt.trace.naming import reason_of, service_of
from kproxy_ipt.trace.packet import End, Host, Origin, Outcome, Packet
from kproxy_ipt.trace.tree import percent
from kproxy_ipt_cli._exit_codes import ExitCode
from kproxy_ipt_cli._failures import fail
from kproxy_ipt_cli._options import backend_option, families_of, family_option, flag_options, output_option, request_of
from kproxy_ipt_cli._output import TEXT, Plain, counted, plain, print_document, print_findings, print_notes, print_table
from kproxy_ipt_cli._reports import findings_document
from kproxy_ipt_cli._sides import Circumstances, Read, pairs_of, read_both, sides_of


@click.command(
    name="equiv", short_help="Find a packet that two rule sets treat differently, or show that there is none."
)
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@click.option(
    "--node-address",
    "node_addresses",
    multiple=True,
    metavar="IP",
    help="Address of the node. Default: those of a live side and of the Node among objects, else made up. Repeatable.",
)
@click.option(
    "--marks",
    type=click.Choice([str(one) for one in Marks]),
    default=str(Marks.COMPARED),
    show_default=True,
    help="ignored: packets arrive without a mark and may leave with any, for sides with different masqueradeBit.",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(0, 1),
    default=DEFAULT_TOLERANCE,
    show_default=True,
    help="Difference of two shares that counts as rounding.",
)
@backend_option()
@family_option
@flag_options
@output_option
def command(
    *,
    first: str,
    second: str,
    node_addresses: tuple[str, ...],
    marks: str,
    tolerance: float,
    backend: Any,
    family: str,
    output: str,
    **flags: tuple[str, ...],
) -> None:
    """
    Find packets that rule set B treats differently from rule set A, probabilities included. Nothing is sent.

    \b
    A and B are each one of:
      live, live:NETNS   the rules in the kernel, of a network namespace
      FILE, -            output of iptables-save or ip6tables-save, - for standard input
      from:PATH          what manifests ask for, with the configuration of the options
      golden:DIR         a recorded case: DIR/iptables.txt, DIR/ip6tables.txt

    Exit codes: 0 every packet is treated alike, 1 different, 2 cannot tell.

    \b
    Examples:
      kproxy-ipt equiv before.txt after.txt
      kproxy-ipt equiv live:lab from:manifests/ --hostname-override n1
    """
    sides = sides_of(first, second)
    try:
        host_addresses = _given_addresses(node_addresses)
        request = request_of((), "", flags)
        reads = read_both(
            sides,
            Circumstances(
                families=families_of(family), backend=backend, config=request.config, node_name=request.node_name
            ),
        )
        host = Host(addresses=host_addresses or _known_addresses(reads, request.node_name))
        reports = {
            one: compare_behaviour(*pair, host, tolerance=tolerance, marks=Marks(marks))
            for one, pair in pairs_of(reads).items()
        }
    except KproxyError as error:
        fail(error, ExitCode.CANNOT_TELL, output)
    print_notes((*request.config_notes, *(note for read in reads for note in read.notes)))
    code = _exit_code(reports)
    _print(reports, reads, {"command": "equiv", "a": first, "b": second, "exit_code": int(code)}, output)
    raise SystemExit(int(code))


def _print(
    reports: Mapping[Family, EquivalenceReport], reads: tuple[Read, Read], head: Mapping[str, Plain], output: str
) -> None:
    findings = tuple(dict.fromkeys(finding for read in reads for finding in read.findings))
    print_findings(findings)
    if output == TEXT:
        for family, report in reports.items():
            _print_report(family, report)
        return
    families = {str(family): _document(report) for family, report in reports.items()}
    print_document({**head, **findings_document(findings), "families": families}, output)


def _given_addresses(texts: tuple[str, ...]) -> frozenset[str]:
    found = {text: canonical_address(text) for text in texts}
    for text, address in found.items():
        if address is None:
            raise click.UsageError(f"--node-address: {text!r} is not an IP address")
    return frozenset(address for address in found.values() if address)


def _known_addresses(reads: tuple[Read, Read], node_name: str) -> frozenset[str]:
    found: set[str] = set()
    for read in reads:
        found.update(read.machine.interface_addresses if read.machine else ())
        found.update(_node_addresses(read.objects, node_name) if read.objects else ())
    return frozenset(found)


def _node_addresses(objects: Objects, node_name: str) -> tuple[str, ...]:
    return node_facts(objects.nodes, node_name).addresses


def _exit_code(reports: Mapping[Family, EquivalenceReport]) -> ExitCode:
    if any(report.differences for report in reports.values()):
        return ExitCode.DRIFT
    return ExitCode.DONE if all(report.equal for report in reports.values()) else ExitCode.CANNOT_TELL


def _document(report: EquivalenceReport) -> dict[str, Plain]:
    return {
        "equal": report.equal,
        "classes": report.classes,
        "packets": report.packets,
        "cut": report.is_cut,
        "undecided": list(report.undecided),
        "differences": [_difference_document(one) for one in report.differences],
    }


def _difference_document(difference: BehaviourDifference) -> dict[str, Plain]:
    return {
        "service_port": difference.service,
        "client": difference.client,
        "packet": plain(difference.packet),
        "a": [_outcome_document(outcome) for outcome in difference.outcomes_a],
        "b": [_outcome_document(outcome) for outcome in difference.outcomes_b],
    }


def _outcome_document(outcome: Outcome) -> dict[str, Plain]:
    fields = {name: getattr(outcome, name) for name in outcome.__struct_fields__ if name not in ("share", "path")}
    return {
        "share": str(nominal(outcome.share)),
        "share_float": float(outcome.share),
        **{name: plain(value) for name, value in fields.items()},
        "reason": reason_of(outcome),
        "path": [f"{step.hook} {step.table} {step.chain}: {step.line}" for step in outcome.path],
    }


def _print_report(family: Family, report: EquivalenceReport) -> None:
    for difference in report.differences:
        _print_difference(family, difference)
    for reason in report.undecided if not report.differences else ():
        click.secho(f"{family}: {reason}", fg="yellow")
    click.echo(f"{family}: {_verdict(report)}")


def _verdict(report: EquivalenceReport) -> str:
    looked = f"{counted(report.classes, 'kind')} of packets looked at"
    if report.differences:
        more = ", there may be more" if report.is_cut else ""
        return f"different in {len(report.differences)} of them{more} ({looked})"
    if report.undecided:
        return f"no difference found, but there may be one ({looked})"
    return f"both treat every packet alike ({looked})"


def _print_difference(family: Family, difference: BehaviourDifference) -> None:
    click.secho(f"{family} {difference.service or '-'}", bold=True)
    client = f", {difference.client}" if difference.client else ""
    click.echo(f"{_packet_line(difference.packet)}{client}")
    rows = [
        row
        for side, outcomes in (("A", difference.outcomes_a), ("B", difference.outcomes_b))
        for row in _rows(side, outcomes)
    ]
    print_table(("in", "share", "what", "destination", "source", "mark", "why"), rows)
    click.echo()


def _packet_line(packet: Packet) -> str:
    where = "the node itself" if packet.origin is Origin.NODE else packet.in_interface or "outside"
    mark = f", mark {packet.mark:#x}" if packet.mark else ""
    source = _place(packet.source, packet.source_port)
    target = _place(packet.destination, packet.destination_port)
    return f"{packet.protocol} {source} -> {target}, {packet.state}, from {where}{mark}"


def _rows(side: str, outcomes: Sequence[Outcome]) -> list[tuple[str, ...]]:
    return [
        (
            side,
            percent(outcome.share),
            _what(outcome),
            _place(outcome.destination, outcome.destination_port),
            outcome.source or "masqueraded",
            f"{outcome.mark:#x}",
            (service_of(outcome) if outcome.end is End.ACCEPTED else reason_of(outcome)) or "-",
        )
        for outcome in outcomes
    ]


def _what(outcome: Outcome) -> str:
    if outcome.end is not End.ACCEPTED:
        return f"{outcome.end} {outcome.reject_with}".strip()
    return "to the node" if outcome.delivered_locally else "leaves"


def _place(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
