"""`kproxy-ipt check`."""

from collections.abc import Iterable
from typing import Any

import click
from kproxy_ipt.ruleset.diff import ChainDifference

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.check import CheckReport, FamilyCheck, check
from kproxy_ipt.errors import KproxyError
from kproxy_ipt_cli._exit_codes import ExitCode
from kproxy_ipt_cli._failures import describe, fail, print_error
from kproxy_ipt_cli._options import flag_options, output_option, request_of, source_options, target_of, target_options
from kproxy_ipt_cli._output import (
    TEXT,
    Plain,
    plain,
    print_document,
    print_findings,
    print_notes,
    print_table,
    rejected,
)
from kproxy_ipt_cli._reports import findings_document

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
    if output == TEXT:
        print_notes((*request.config_notes, *report.notes))
        print_findings(report.findings)
        _print_text(report)
    else:
        print_document(_document(report, request.config_notes, code), output)
    for one in report.families.values():
        if one.error:
            print_error(one.error)
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
    for family, reason in report.unavailable.items():
        print_notes((f"{family.api_name} is left out: {reason}",))
    rows = [
        (family, difference.table, difference.chain, difference.owner or "-", str(difference.kind))
        for family, one in report.families.items()
        for difference in one.differences
    ]
    if rows:
        print_table("", ("family", "table", "chain", "owner", "what"), rows)
        _print_rules(report)
    for family, one in report.families.items():
        click.echo(_family_line(family, one))


def _print_rules(report: CheckReport) -> None:
    for family, one in report.families.items():
        for difference in one.differences:
            _print_lines(family, difference, "-", "missing", difference.missing, "red")
            _print_lines(family, difference, "+", "not ours to have", difference.extra, "green")


def _print_lines(
    family: Family, difference: ChainDifference, sign: str, what: str, lines: tuple[str, ...], colour: str
) -> None:
    if not lines:
        return
    click.echo(f"{family} {difference.table}: {what}")
    for line in lines[:_SHOWN_RULES]:
        click.secho(f"  {sign} {line}", fg=colour)
    if len(lines) > _SHOWN_RULES:
        click.echo(f"    ... and {len(lines) - _SHOWN_RULES} more")


def _family_line(family: Family, report: FamilyCheck) -> str:
    if report.error:
        return f"{family}: cannot tell"
    compared = f"{report.chains} chains, {report.rules} rules compared"
    if report.differences:
        return f"{family}: {len(report.differences)} differences ({compared})"
    return f"{family}: the kernel does what the objects say ({compared})"
