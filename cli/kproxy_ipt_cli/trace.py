"""`kproxy-ipt trace`."""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from kproxy_ipt.addresses import Family, canonical_address
from kproxy_ipt.daemon.machine import Target, open_machine
from kproxy_ipt.daemon.node import own_node
from kproxy_ipt.errors import MissingFeatureError, RulesetError, SourceError
from kproxy_ipt.kernel.addresses import interface_addresses
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.rules.build import build_ruleset, with_base_chains
from kproxy_ipt.ruleset.model import Ruleset
from kproxy_ipt.ruleset.reading import read_save
from kproxy_ipt.state.model import MachineFacts
from kproxy_ipt.state.snapshot import take_snapshot
from kproxy_ipt.trace.distribution import distribution, nominal
from kproxy_ipt.trace.naming import reason_of, service_of
from kproxy_ipt.trace.outcome_words import endpoint_text, packet_words, source_words, what_words, why_words
from kproxy_ipt.trace.packet import Host, Outcome, Packet
from kproxy_ipt.trace.question import Question, QuestionError, family_of_question, packet_of
from kproxy_ipt.trace.tree import percent, tree_lines
from kproxy_ipt.trace.walk import walk
from kproxy_ipt_cli._failures import failing
from kproxy_ipt_cli._options import (
    Request,
    backend_option,
    flag_options,
    netns_option,
    output_option,
    request_of,
    source_options,
)
from kproxy_ipt_cli._output import TEXT, Plain, plain, print_document, print_findings, print_notes, print_table

_STATES = ("NEW", "ESTABLISHED", "RELATED", "INVALID", "UNTRACKED")
_PROTOCOLS = ("tcp", "udp", "sctp", "icmp", "ipv6-icmp")


class Rules(msgspec.Struct, frozen=True):
    """
    Where rules come from.

    Attributes:
        origin: In words.
        addresses: Of the node, canonical, both families.
        ruleset: Reads or builds those of one family.
    """

    origin: str
    addresses: tuple[str, ...]
    ruleset: Callable[[Family], Ruleset]


def _number(_context: click.Context, _parameter: click.Parameter, text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a number such as 0x4000") from None


def _addresses(_context: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    found = {text: canonical_address(text) for text in texts}
    wrong = next((text for text, address in found.items() if address is None), None)
    if wrong is not None:
        raise click.BadParameter(f"{wrong!r} is not an IP address")
    return tuple(address for address in found.values() if address)


def _packet_options(command: Callable[..., Any]) -> Callable[..., Any]:
    port = click.IntRange(0, 65535)
    for decorate in (
        click.option("--state", type=click.Choice(_STATES), default="NEW", show_default=True, help="Of conntrack."),
        click.option("--mark", default="0", callback=_number, metavar="MARK", help="Mark that it arrives with."),
        click.option("--from-node", is_flag=True, help="The node itself sends it."),
        click.option("--out-interface", default="", metavar="NAME", help="Where it leaves by, if a rule asks for it."),
        click.option("--in-interface", "-i", default="", metavar="NAME", help="Where it comes in by."),
        click.option(
            "--sport", type=port, default=0, metavar="PORT", help="Source port. Default: any that clients get."
        ),
        click.option(
            "--dport", type=port, metavar="PORT", help="Destination port. Default: that of a svc/ name, or 80."
        ),
        click.option("--proto", type=click.Choice(_PROTOCOLS), help="Default: that of a svc/ name, or tcp."),
        click.option(
            "--dst", required=True, metavar="NAME", help="An address, node, endpoint/IP, or svc/NAMESPACE/NAME[:PORT]."
        ),
        click.option("--src", metavar="NAME", help="An address, node or endpoint/IP. With --from-node: node."),
    ):
        command = decorate(command)
    return command


def _rules_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for decorate in (
        click.option(
            "--node-address",
            "node_addresses",
            multiple=True,
            callback=_addresses,
            metavar="IP",
            help="Address of the node. Default: those of this machine, with --from those of the Node. Repeatable.",
        ),
        backend_option("Whose rules of the kernel."),
        click.option("rules_file", "--rules", metavar="FILE|-", help="Rules as iptables-save prints them."),
    ):
        command = decorate(command)
    return command


@click.command(name="trace", short_help="Show what becomes of a packet, rule by rule.")
@_packet_options
@_rules_options
@source_options
@netns_option
@flag_options
@output_option
@failing
def command(*, output: str, **options: Any) -> None:
    """
    Walk a packet through the rules: each rule it meets, and what becomes of it how often. Nothing is sent.

    Rules are those of the kernel, or of a file (--rules), or those that objects ask for (--from).

    \b
    Examples:
      kproxy-ipt trace --src 10.244.1.11 --dst svc/shop/web:http
      kproxy-ipt trace --from-node --dst svc/shop/web --netns lab
      kproxy-ipt trace --src 203.0.113.9 --dst node --dport 30080 -i eth0
      iptables-save | kproxy-ipt trace --rules - --src 10.244.1.11 --dst 10.96.0.10 --dport 53 --proto udp
      kproxy-ipt trace --from manifests/ --hostname-override n1 --src 10.244.1.11 --dst svc/shop/web
    """
    rules = _rules(options)
    try:
        packet, ruleset = _packet(options, rules)
        outcomes = walk(ruleset, packet, Host(addresses=frozenset(rules.addresses)))
    except RulesetError as error:
        raise SourceError(f"rules {rules.origin}: {error}") from error
    results = distribution(outcomes)
    if output == TEXT:
        _print_text(packet, rules.origin, outcomes, results)
    else:
        print_document(_document(packet, rules, outcomes, results), output)


def _rules(options: Mapping[str, Any]) -> Rules:
    if options["rules_file"] and options["paths"]:
        raise click.UsageError("--rules and --from exclude each other: rules come from one place")
    if options["rules_file"]:
        return _rules_of_file(options["rules_file"], options["node_addresses"] or interface_addresses())
    if options["paths"]:
        return _rules_of_objects(request_of(options["paths"], options["context"], options), options["node_addresses"])
    return _rules_of_kernel(options)


def _rules_of_file(path: str, addresses: tuple[str, ...]) -> Rules:
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise SourceError(f"--rules {path}: {error.strerror or error}") from error
    return Rules(f"file {path}", addresses, lambda family: _parsed(path, text, family))


def _parsed(path: str, text: str, family: Family) -> Ruleset:
    try:
        return read_save(text, family)
    except RulesetError as error:
        raise SourceError(f"--rules {path}: {error}") from error


def _rules_of_objects(request: Request, addresses: tuple[str, ...]) -> Rules:
    objects = request.read_objects()
    node = own_node(objects, request.config, request.node_name)
    facts = MachineFacts(interface_addresses=addresses or node.addresses)

    def build(family: Family) -> Ruleset:
        return with_base_chains(build_ruleset(take_snapshot(objects, family, node), request.config, facts))

    print_notes(request.config_notes)
    print_findings(objects.findings)
    return Rules(f"of the objects, for node {node.name}", facts.interface_addresses, build)


def _rules_of_kernel(options: Mapping[str, Any]) -> Rules:
    target = Target(netns=options["netns"], backend=options["backend"])
    with inside(target.netns):
        machine = open_machine(target)
        addresses = options["node_addresses"] or interface_addresses()

    def read(family: Family) -> Ruleset:
        if family not in machine.iptables:
            raise MissingFeatureError(f"no {family} here: {machine.choice.unavailable.get(family, 'switched off')}")
        with inside(target.netns):
            return read_save(machine.iptables[family].start_save().text(), family)

    return Rules(f"kernel, {machine.choice.backend}", addresses, read)


def _packet(options: Mapping[str, Any], rules: Rules) -> tuple[Packet, Ruleset]:
    if not (options["src"] or options["from_node"]):
        raise click.UsageError("Missing option '--src' (or --from-node)")
    question = Question(
        source=options["src"] or "",
        destination=options["dst"],
        protocol=options["proto"] or "",
        source_port=options["sport"],
        destination_port=options["dport"],
        in_interface=options["in_interface"],
        out_interface=options["out_interface"],
        mark=options["mark"],
        state=options["state"],
        from_node=options["from_node"],
    )
    try:
        ruleset = rules.ruleset(family_of_question(question, rules.addresses))
        return packet_of(question, ruleset, rules.addresses), ruleset
    except QuestionError as error:
        raise click.UsageError(str(error)) from error


def _print_text(packet: Packet, origin: str, outcomes: Sequence[Outcome], results: Sequence[Outcome]) -> None:
    click.echo(packet_words(packet, origin))
    for line in tree_lines(outcomes):
        click.echo(line)
    click.echo()
    print_table(
        ("share", "what", "destination", "source", "why"),
        [
            (
                percent(result.share),
                what_words(result),
                endpoint_text(result.destination, result.destination_port),
                source_words(result),
                why_words(result),
            )
            for result in results
        ],
    )
    print_notes(f"assumed: {text}" for result in results for text in result.assumptions)


def _document(packet: Packet, rules: Rules, outcomes: Sequence[Outcome], results: Sequence[Outcome]) -> Plain:
    return {
        "command": "trace",
        "packet": plain(packet),
        "rules": rules.origin,
        "node_addresses": list(rules.addresses),
        "outcomes": [_outcome_document(result) for result in results],
        "paths": [
            {"share": _share(outcome), "steps": [_step_document(step) for step in outcome.path]} for outcome in outcomes
        ],
    }


def _outcome_document(outcome: Outcome) -> dict[str, Plain]:
    fields = {name: getattr(outcome, name) for name in outcome.__struct_fields__ if name not in ("share", "path")}
    return {
        "share": _share(outcome),
        "share_float": float(outcome.share),
        "what": what_words(outcome),
        **{name: plain(value) for name, value in fields.items()},
        "service_port": service_of(outcome),
        "reason": reason_of(outcome),
    }


def _share(outcome: Outcome) -> str:
    """`1/3`, as it was meant."""
    return str(nominal(outcome.share))


def _step_document(step: Any) -> dict[str, Plain]:
    fields = {name: getattr(step, name) for name in step.__struct_fields__}
    return {**fields, "share": str(nominal(step.share)), "share_float": float(step.share)}
