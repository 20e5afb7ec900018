"""`kproxy-ipt takeover`."""

from typing import Any

import click

from kproxy_ipt.daemon.takeover import TakeoverReport, take_over
from kproxy_ipt.plan.takeover import Leftover, Scope
from kproxy_ipt_cli._exit_codes import ExitCode, exit_code_of
from kproxy_ipt_cli._failures import describe, failing, print_error
from kproxy_ipt_cli._options import output_option, target_of, target_options
from kproxy_ipt_cli._output import TEXT, Plain, plain, print_document, print_table

_SHOWN_NAMES = 2


@click.command(
    name="takeover", short_help="List what other proxies, modes and backends left on the node; remove what is to go."
)
@click.option(
    "--plan", "is_plan", is_flag=True, help="List what was found and what would become of it; remove nothing."
)
@target_options
@output_option
@failing
def command(*, is_plan: bool, netns: str | None, backend: Any, family: str, lock_wait: int, output: str) -> None:
    """
    Take a node over from another proxy, mode or backend.

    Rules of kube-proxy in iptables mode have the names of ours: `run` and `sync` replace them in place. This command
    is for the rest: rules in the other backend, tables of the nftables mode, what ipvs mode and older versions left.
    Nothing goes before our own rules stand, and nothing that somebody else uses or made.

    \b
    Exit codes: 0 done, or nothing would be removed; 1 with --plan: something would be removed; others as everywhere.

    \b
    Examples:
      kproxy-ipt takeover --plan
      kproxy-ipt takeover --netns lab
    """
    target = target_of(netns=netns, backend=backend, family=family, lock_wait=lock_wait)
    report = take_over(target, Scope.ALL, dry_run=is_plan)
    code = _exit_code(report)
    if output == TEXT:
        _print_text(report)
    else:
        print_document(_document(report, code), output)
    for place, error in report.errors.items():
        print_error(error, place)
    raise SystemExit(int(code))


def _exit_code(report: TakeoverReport) -> ExitCode:
    if report.errors:
        return exit_code_of(next(iter(report.errors.values())))
    return ExitCode.DRIFT if report.is_plan and report.removed else ExitCode.DONE


def _document(report: TakeoverReport, code: ExitCode) -> Plain:
    return {
        "command": "takeover",
        "plan": report.is_plan,
        "exit_code": int(code),
        "backend": report.backend,
        "reason": report.reason,
        "leftovers": [plain(one) for one in report.leftovers],
        "errors": {place: describe(error) for place, error in report.errors.items()},
    }


def _print_text(report: TakeoverReport) -> None:
    click.echo(f"backend {report.backend}: {report.reason}")
    rows = [(str(one.kind), one.place, _names(one), str(one.fate), one.why) for one in report.leftovers]
    if rows:
        print_table(("found", "where", "names", "fate", "why"), rows)
    if report.errors:
        click.echo("not everything could be looked at or removed")
    elif not report.removed:
        click.echo("nothing to remove")
    else:
        click.echo("this would be removed" if report.is_plan else "removed")


def _names(one: Leftover) -> str:
    more = len(one.names) - _SHOWN_NAMES
    shown = ", ".join(one.names[:_SHOWN_NAMES])
    return f"{shown} and {more} more" if more > 0 else shown
