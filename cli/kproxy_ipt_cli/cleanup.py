"""`kproxy-ipt cleanup`."""

from typing import Any

import click

from kproxy_ipt.daemon.cleanup import clean_up
from kproxy_ipt.daemon.report import RunReport
from kproxy_ipt_cli._exit_codes import ExitCode, exit_code_of
from kproxy_ipt_cli._failures import failing
from kproxy_ipt_cli._options import output_option, target_of, target_options
from kproxy_ipt_cli._output import TEXT, Plain, print_document, print_notes, print_table
from kproxy_ipt_cli._reports import report_document, report_notes
from kproxy_ipt_cli.sync import print_errors


@click.command(name="cleanup", short_help="Remove all of our chains and jumps, and nothing else.")
@click.option("--dry-run", is_flag=True, help="Say what would be removed; remove nothing.")
@target_options
@output_option
@failing
def command(*, dry_run: bool, netns: str | None, backend: Any, family: str, lock_wait: int, output: str) -> None:
    """
    Take the rules of kproxy-ipt or kube-proxy (iptables mode) off this machine.

    Needs no cluster, no configuration and no objects. With `--backend auto` both backends are looked at. Foreign rules
    stay; a chain that somebody else jumps to stays as well, and is named. Kernel settings and accounting objects stay.

    \b
    Examples:
      kproxy-ipt cleanup --dry-run
      kproxy-ipt cleanup --netns lab
    """
    reports = clean_up(target_of(netns=netns, backend=backend, family=family, lock_wait=lock_wait), dry_run=dry_run)
    errors = [report.error for report in reports if report.error]
    code = exit_code_of(errors[0]) if errors else ExitCode.DONE
    for report in reports:
        print_notes(report_notes(report))
    if output == TEXT:
        _print_text(reports, dry_run=dry_run)
    else:
        backends = [report_document(report) for report in reports]
        document: dict[str, Plain] = {
            "command": "cleanup",
            "dry_run": dry_run,
            "exit_code": int(code),
            "backends": backends,
        }
        print_document(document, output)
    for report in reports:
        print_errors(report)
    raise SystemExit(int(code))


def _print_text(reports: tuple[RunReport, ...], *, dry_run: bool) -> None:
    rows = []
    for report in reports:
        for family, one in report.families.items():
            cells = ("-", "-") if one.error else (str(one.chains_deleted), str(one.rules_deleted))
            rows.append((report.backend, family, *cells))
    print_table(("backend", "family", "chains", "jumps"), rows)
    if any(report.error for report in reports):
        click.echo("not everything could be removed")
    elif not any(one.transactions for report in reports for one in report.families.values()):
        click.echo("nothing to do: none of our chains is here")
    else:
        click.echo("this would be removed" if dry_run else "removed")
