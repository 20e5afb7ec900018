"""`kproxy-ipt sync --once`."""

from typing import Any

import click

from kproxy_ipt.daemon.report import FamilyReport, RunReport
from kproxy_ipt.daemon.sync import sync_once
from kproxy_ipt_cli._exit_codes import ExitCode, exit_code_of
from kproxy_ipt_cli._failures import failing, print_error
from kproxy_ipt_cli._options import (
    flag_options,
    log_of,
    output_option,
    request_of,
    source_options,
    target_of,
    target_options,
)
from kproxy_ipt_cli._output import (
    TEXT,
    print_document,
    print_findings,
    print_notes,
    print_table,
    rejected,
)
from kproxy_ipt_cli._progress import progress_bar
from kproxy_ipt_cli._reports import report_document, report_notes


@click.command(name="sync", short_help="Bring the kernel to what the objects say.")
@click.option("--once", is_flag=True, required=True, help="Sync once and end.")
@click.option("--dry-run", is_flag=True, help="Say what would be written; write nothing.")
@source_options
@target_options
@flag_options
@output_option
@failing
def command(
    *,
    once: bool,  # noqa: ARG001 - the only way there is
    dry_run: bool,
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
    Write what differs between the objects and the kernel, and nothing else.

    Flows of UDP that contradict the new rules are ended; TCP connections stay with their endpoint. Health check node
    ports are not served once this command has ended.

    \b
    Examples:
      kproxy-ipt sync --once --from manifests/ --netns lab --hostname-override n1
      kubectl get svc,endpointslices,nodes -A -o json | kproxy-ipt sync --once --from - --dry-run
      kproxy-ipt sync --once --kubeconfig ~/.kube/config --cluster-cidr 10.244.0.0/16 --output json
    """
    request = request_of(paths, context, flags)
    target = target_of(netns=netns, backend=backend, family=family, lock_wait=lock_wait)
    log = log_of(request.config)
    with progress_bar() as progress:
        report = sync_once(
            request.read_objects,
            request.config,
            request.node_name,
            target,
            dry_run=dry_run,
            log=log,
            progress=progress,
        )
    code = _exit_code(report)
    print_notes((*request.config_notes, *report_notes(report)))
    print_findings(report.findings)
    if output == TEXT:
        _print_text(report)
    else:
        document = report_document(report, request.config_notes)
        print_document({"command": "sync", "exit_code": int(code), **document}, output)
    print_errors(report)
    raise SystemExit(int(code))


def _exit_code(report: RunReport) -> ExitCode:
    if report.error:
        return exit_code_of(report.error)
    if any(one.set_aside for one in report.families.values()):
        return ExitCode.SERVICES_REFUSED
    return ExitCode.OBJECTS_REJECTED if rejected(report.findings) else ExitCode.DONE


def print_errors(report: RunReport) -> None:
    """Print the error of every family that has one, and the Services that the kernel refuses."""
    for family, family_report in report.families.items():
        for one in family_report.set_aside:
            line = f"error: {family}: Service {one.service} is set aside, rules: {one.rules}: {one.reason}"
            click.secho(line, err=True, fg="red", bold=True)
        if family_report.error:
            print_error(family_report.error, family)


def _print_text(report: RunReport) -> None:
    click.echo(f"node {report.node}, backend {report.backend}: {report.reason}")
    columns = ("family", "services", "endpoints", "rules", "chains+", "chains-", "transactions", "seconds")
    print_table(columns, [_row(family, one) for family, one in report.families.items()])
    if flows := sum(one.flows_deleted for one in report.families.values()):
        click.echo(f"stale flows of UDP ended: {flows}")
    click.echo(_outcome(report))


def _row(family: str, report: FamilyReport) -> tuple[str, ...]:
    numbers = (
        report.services,
        report.endpoints,
        report.rules,
        report.chains_written,
        report.chains_deleted,
        report.transactions,
    )
    # Of a family that failed nothing is known for sure.
    cells = ("-" if report.error else str(number) for number in numbers)
    return (family, *cells, f"{report.seconds['total']:.2f}")


def _outcome(report: RunReport) -> str:
    if report.error:
        return "not everything could be written"
    if any(one.set_aside for one in report.families.values()):
        return "everything else was written"
    if not any(one.transactions for one in report.families.values()):
        return "nothing to do: the kernel has these rules already"
    return "this would be written" if report.dry_run else "written"
