"""`kproxy-ipt check`."""

from collections.abc import Iterable
from typing import Any

import click

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.check import CheckReport, FamilyCheck, check
from kproxy_ipt.errors import KproxyError
from kproxy_ipt.ruleset.diff import ChainDifference, DifferenceKind
from kproxy_ipt_cli._exit_codes import ExitCode
from kproxy_ipt_cli._failures import describe, fail, print_error
from kproxy_ipt_cli._options import flag_options, output_option, request_of, source_options, target_of, target_options
from kproxy_ipt_cli._output import (
    TEXT,
    Plain,
    counted,
    plain,
    print_document,
    print_findings,
    print_notes,
    print_table,
    rejected,
)
from kproxy_ipt_cli._reports import findings_document, unavailable_notes

_SHOWN_RULES = 5
"""Rules of one chain in the text output; JSON has them all."""


@click.command(name="check", short_help="Compare the kernel with the objects: what drifted, and whose it is.")
@source_options
@target_options
@flag_options
@output_option
def command(
    *,
    paths: tuple[str, ...],
    context: str,
    netns: str | None,
    backend: Any,
    family: str,
    lock_wait: int,
    output: str,
    **flags: tuple[str, ...],
) -> None:
    """
    Compare the rules in the kernel with what the objects ask for, by meaning; write nothing.

    Exit codes: 0 same, 1 drift, 2 cannot tell (something could not be read), 3 same, but objects were rejected.

    \b
    Examples:
      kproxy-ipt check --from manifests/ --netns lab --hostname-override n1
      kproxy-ipt check --kubeconfig ~/.kube/config --output json
    """
    try:
        request = request_of(paths, context, flags)
        target = target_of(netns=netns, backend=backend, family=family, lock_wait=lock_wait)
        report = check(request.read_objects, request.config, request.node_name, target)
    except KproxyError as error:
        fail(error, ExitCode.CANNOT_TELL, output)
    code = _exit_code(report)
    print_notes((*request.config_notes, *report.notes, *unavailable_notes(report.unavailable)))
    print_findings(report.findings)
    if output == TEXT:
        _print_text(report)
    else:
        print_document(_document(report, request.config_notes, code), output)
    for name, one in report.families.items():
        if one.error:
            print_error(one.error, name)
    raise SystemExit(int(code))


def _exit_code(report: CheckReport) -> ExitCode:
    if report.has_drift:
        return ExitCode.DRIFT
    if report.error:
        return ExitCode.CANNOT_TELL
    return ExitCode.OBJECTS_REJECTED if rejected(report.findings) else ExitCode.DONE


def _document(report: CheckReport, config_notes: Iterable[str], code: ExitCode) -> dict[str, Plain]:
    return {
        "command": "check",
        "node": report.node,
        "backend": str(report.backend),
        "reason": report.reason,
        "drift": report.has_drift,
        "exit_code": int(code),
        **findings_document(report.findings),
        "notes": [*dict.fromkeys((*config_notes, *report.notes))],
        "unavailable": plain(report.unavailable),
        "families": {str(family): _family_document(one) for family, one in report.families.items()},
    }


def _family_document(report: FamilyCheck) -> dict[str, Plain]:
    return {
        "chains": report.chains,
        "rules": report.rules,
        "differences": [plain(difference) for difference in report.differences],
        "error": describe(report.error) if report.error else None,
    }


def _print_text(report: CheckReport) -> None:
    click.echo(f"node {report.node}, backend {report.backend}: {report.reason}")
    rows = [
        (family, difference.table, difference.chain, difference.owner or "-", _what(difference))
        for family, one in report.families.items()
        for difference in one.differences
    ]
    if rows:
        print_table(("family", "table", "chain", "owner", "what"), rows)
        _print_rules(report)
    for family, one in report.families.items():
        click.echo(_family_line(family, one))


def _what(difference: ChainDifference) -> str:
    if difference.kind is not DifferenceKind.CHANGED:
        return "wrong order" if difference.kind is DifferenceKind.ORDER else str(difference.kind)
    parts = ((len(difference.missing), "missing"), (len(difference.extra), "extra"))
    return ", ".join(f"{counted(number, 'rule')} {word}" for number, word in parts if number)


def _print_rules(report: CheckReport) -> None:
    """The rules of chains that exist; those of a missing chain are as many as nobody wants to read."""
    for family, one in report.families.items():
        for difference in one.differences:
            if difference.kind is DifferenceKind.MISSING_CHAIN:
                continue
            click.echo(f"{family} {difference.table} {difference.chain}:")
            _print_lines("missing", difference.missing, "red")
            _print_lines("extra", difference.extra, "yellow")


def _print_lines(word: str, lines: tuple[str, ...], colour: str) -> None:
    for line in lines[:_SHOWN_RULES]:
        click.secho(f"  {word:<7}  {line}", fg=colour)
    if len(lines) > _SHOWN_RULES:
        click.echo(f"  ... and {len(lines) - _SHOWN_RULES} more (--output json has them all)")


def _family_line(family: Family, report: FamilyCheck) -> str:
    if report.error:
        return f"{family}: cannot tell"
    compared = f"{report.chains} chains, {report.rules} rules compared"
    if report.differences:
        return f"{family}: drift in {counted(len(report.differences), 'chain')} ({compared}); sync repairs it"
    return f"{family}: the kernel does what the objects say ({compared})"
