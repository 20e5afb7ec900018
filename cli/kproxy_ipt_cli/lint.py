"""`kproxy-ipt lint`."""

from collections import Counter
from collections.abc import Iterable

import click

from kproxy_ipt.daemon.node import node_notes, own_node
from kproxy_ipt.errors import Finding, Severity
from kproxy_ipt.state.model import MachineFacts
from kproxy_ipt.state.snapshot import take_snapshot
from kproxy_ipt.trace.lint import lint
from kproxy_ipt_cli._exit_codes import ExitCode
from kproxy_ipt_cli._failures import failing
from kproxy_ipt_cli._options import (
    families_of,
    family_option,
    flag_options,
    interface_addresses_of,
    netns_option,
    node_address_option,
    output_option,
    request_of,
    source_options,
)
from kproxy_ipt_cli._output import TEXT, counted, plain, print_document, print_notes, print_table, warnings
from kproxy_ipt_cli._output import rejected as rejected_of
from kproxy_ipt_cli._reports import findings_document


@click.command(name="lint", short_help="Name objects that yield no rules, or risky ones, and why.")
@click.option("--strict", is_flag=True, help="End with 1 where there are warnings.")
@source_options
@family_option
@netns_option
@node_address_option
@flag_options
@output_option
@failing
def command(
    *,
    strict: bool,
    paths: tuple[str, ...],
    context: str,
    family: str,
    netns: str | None,
    node_addresses: tuple[str, ...],
    output: str,
    **flags: tuple[str, ...],
) -> None:
    """
    Look at all objects together and name what yields no rules, or risky ones; write nothing.

    Exit codes: 0 nothing worse than warnings, 3 objects were rejected; with --strict 1 for warnings.

    \b
    Examples:
      kproxy-ipt lint --from manifests/ --hostname-override n1
      kproxy-ipt lint --kubeconfig ~/.kube/config --strict --output json
    """
    request = request_of(paths, context, flags)
    objects = request.read_objects()
    node = own_node(objects, request.config, request.node_name)
    families = families_of(family)
    machine = MachineFacts(interface_addresses=interface_addresses_of(request.config, node_addresses, netns))
    found = lint(objects, {one: take_snapshot(objects, one, node) for one in families}, request.config, machine)
    code = _exit_code(found, strict=strict)
    print_notes((*request.config_notes, *node_notes(objects, request.config, node, frozenset(families))))
    if output == TEXT:
        _print_text(found, len(objects.services))
    else:
        harmless = [plain(one) for one in found if one.severity is Severity.NOTE]
        document = {"command": "lint", "exit_code": int(code), **findings_document(found), "notes": harmless}
        print_document(document, output)
    raise SystemExit(int(code))


def _exit_code(found: tuple[Finding, ...], *, strict: bool) -> ExitCode:
    if rejected_of(found):
        return ExitCode.OBJECTS_REJECTED
    return ExitCode.DRIFT if strict and warnings(found) else ExitCode.DONE


def _print_text(found: tuple[Finding, ...], services: int) -> None:
    if found:
        print_table(("severity", "object", "field", "found", "consequence"), map(_row, found))
    click.echo(f"{counted(services, 'Service')}: {_summary(found)}")


def _row(one: Finding) -> tuple[str, ...]:
    return (one.severity, one.object, one.field or "-", one.found, one.consequence)


def _summary(found: Iterable[Finding]) -> str:
    counts = Counter(one.severity for one in found)
    words = [(Severity.WARNING, "warning"), (Severity.NOTE, "note")]
    parts = [counted(counts[severity], word) for severity, word in words if counts[severity]]
    if counts[Severity.REJECTED]:
        parts.insert(0, f"{counts[Severity.REJECTED]} rejected")
    return ", ".join(parts) or "nothing to say"
