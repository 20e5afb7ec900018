"""`kproxy-ipt golden check` and `golden update`."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from kproxy_ipt.testing.flow_table import CaseError
from kproxy_ipt.testing.golden import (
    CaseResult,
    CaseUpdate,
    Change,
    FamilyResult,
    FlowResult,
    check_cases,
    update_cases,
)
from kproxy_ipt.testing.golden_case import FLOWS_FILE, find_cases
from kproxy_ipt.testing.junit import change_text, junit_xml
from kproxy_ipt_cli._exit_codes import ExitCode
from kproxy_ipt_cli._failures import fail
from kproxy_ipt_cli._options import output_option
from kproxy_ipt_cli._output import TEXT, Plain, counted, plain, print_document, print_findings
from kproxy_ipt_cli._reports import findings_document

_DIFF_COLOURS = {"+": "green", "-": "red", "@": "cyan"}

_folders_argument = click.argument(
    "folders", nargs=-1, required=True, metavar="DIR...", type=click.Path(path_type=Path)
)
_jobs_option = click.option(
    "--jobs",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Processes that share the work. Default: as many as pay; a few hundred cases take less than a second in one.",
)


@click.group(name="golden", short_help="Check expected rules and flows in files, or write them anew.")
def command() -> None:
    """
    Golden cases: folders with objects, configuration and what should come of them. No kernel and no root is needed.

    A case is a folder with case.yaml, objects.yaml and, as there are, config.yaml, the expected rules iptables.txt and
    ip6tables.txt (canonical form) and the expected flows flows.yaml.

    \b
    Examples:
      kproxy-ipt golden update golden/
      kproxy-ipt golden check golden/ --semantic --junit report.xml
    """


def _given_cases(run: Callable[..., int]) -> Callable[..., None]:
    """Find the cases of the folders for *run* and end with the code that it returns."""

    def found(*, folders: tuple[Path, ...], output: str, **options: Any) -> None:
        try:
            cases = find_cases(folders)
        except CaseError as error:
            fail(error, ExitCode.CANNOT_TELL, output)
        raise SystemExit(run(cases, output=output, **options))

    found.__doc__ = run.__doc__
    return found


@command.command(name="check", short_help="Compare built rules and flows with expected ones.")
@_folders_argument
@click.option(
    "--semantic", is_flag=True, help="Only changed behaviour fails: text that treats every packet alike is shown alone."
)
@click.option(
    "--junit",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Write a JUnit XML report too.",
)
@_jobs_option
@output_option
@_given_cases
def check_command(cases: Sequence[Path], *, semantic: bool, junit: Path | None, jobs: int, output: str) -> int:
    """
    Check every case at or below DIR: rules against the expected text, flows against the table.

    Each difference is shown as a unified diff (- expected, + built) and told apart: does any packet notice, or did only
    the text change? Exit codes: 0 as expected, 1 different, 2 cannot tell (a case cannot be read).

    \b
    Examples:
      kproxy-ipt golden check golden/
      kproxy-ipt golden check golden/web --semantic
      kproxy-ipt golden check golden/ --junit report.xml --output json
    """
    results = check_cases(cases, jobs=jobs)
    code = _check_code(results, semantic=semantic)
    if junit is not None:
        _write_report(junit, junit_xml(results, semantic=semantic), output)
    if output == TEXT:
        for result in results:
            _print_result(result)
        click.echo(_check_summary(results, semantic=semantic))
    else:
        print_document(
            {
                "command": "golden check",
                "semantic": semantic,
                "exit_code": int(code),
                "cases": [_result_document(result, semantic=semantic) for result in results],
            },
            output,
        )
    _print_case_errors(results)
    return int(code)


def _check_code(results: Iterable[CaseResult], *, semantic: bool) -> ExitCode:
    if any(result.errors for result in results):
        return ExitCode.CANNOT_TELL
    return ExitCode.DRIFT if any(result.failed(semantic=semantic) for result in results) else ExitCode.DONE


def _write_report(path: Path, text: str, output: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        fail(CaseError((f"--junit {path}: {error.strerror or error}",)), ExitCode.CANNOT_TELL, output)


def _result_document(result: CaseResult, *, semantic: bool) -> Plain:
    return {
        "folder": str(result.folder),
        "title": result.title,
        "failed": result.failed(semantic=semantic) or bool(result.errors),
        "errors": list(result.errors),
        **findings_document(result.findings),
        "families": {str(family.family): plain(family) for family in result.families},
        "flows": [plain(flow) for flow in result.flows],
    }


def _print_result(result: CaseResult) -> None:
    for family in result.families:
        if family.change is not Change.NONE:
            _print_change(result, family)
    for flow in result.flows:
        if flow.problems:
            _print_flow(result, flow)


def _print_change(result: CaseResult, family: FamilyResult) -> None:
    is_behaviour = family.change is Change.BEHAVIOUR
    click.secho(
        f"{result.folder}/{family.file}: {change_text(family)}", fg="red" if is_behaviour else "yellow", bold=True
    )
    for packet in family.packets:
        click.echo(f"  {packet}")
    for line in family.diff:
        click.secho(line, fg=_DIFF_COLOURS.get(line[:1]))


def _print_flow(result: CaseResult, flow: FlowResult) -> None:
    click.secho(f"{result.folder}/{FLOWS_FILE}: {flow.name}: not as expected", fg="red", bold=True)
    click.echo(f"  expected: {flow.expected}\n  found:    {flow.found}")
    for line in flow.path:
        click.secho(f"    {line}", dim=True)


def _print_case_errors(results: Iterable[CaseResult | CaseUpdate]) -> None:
    for result in results:
        print_findings(result.findings)
        for text in result.errors:
            click.secho(f"error: {text}", err=True, fg="red", bold=True)


def _check_summary(results: Sequence[CaseResult], *, semantic: bool) -> str:
    changes = [family.change for result in results for family in result.families]
    flows = [flow for result in results for flow in result.flows]
    alone = "text alone (does not fail)" if semantic else "text alone"
    wrong = (
        (changes.count(Change.BEHAVIOUR), "rule file", "with another behaviour"),
        (changes.count(Change.TEXT), "rule file", f"with another {alone}"),
        (sum(bool(flow.problems) for flow in flows), "flow", "not as expected"),
        (sum(bool(result.errors) for result in results), "case", "not readable"),
    )
    found = [f"{counted(number, noun)} {words}" for number, noun, words in wrong if number]
    checked = f"{counted(len(changes), 'rule file')} and {counted(len(flows), 'flow')} checked"
    return f"{counted(len(results), 'case')}: {', '.join([checked, *(found or ['all as expected'])])}"


@command.command(name="update", short_help="Write the rules that the objects ask for as the expected ones.")
@_folders_argument
@click.option("--create", is_flag=True, help="Make missing rule files too where a case has others, or flows alone.")
@click.option("--dry-run", is_flag=True, help="Write nothing; say what would be written.")
@_jobs_option
@output_option
@_given_cases
def update_command(cases: Sequence[Path], *, create: bool, dry_run: bool, jobs: int, output: str) -> int:
    """
    Write expected rules into every case at or below DIR; read the diff before you commit it.

    Rule files that are there are brought up to date. A case without any gets both, unless it has flows.yaml (never
    written) and so expects something already. Exit codes: 0 done, 2 a case cannot be read or written.

    \b
    Examples:
      kproxy-ipt golden update golden/
      kproxy-ipt golden update golden/web --dry-run
    """
    updates = update_cases(cases, jobs=jobs, create=create, dry_run=dry_run)
    code = ExitCode.CANNOT_TELL if any(update.errors for update in updates) else ExitCode.DONE
    if output == TEXT:
        _print_updates(updates, "would be written" if dry_run else "written")
    else:
        documents = [
            {
                "folder": str(update.folder),
                "written": list(update.written),
                "unchanged": list(update.unchanged),
                "errors": list(update.errors),
                **findings_document(update.findings),
            }
            for update in updates
        ]
        print_document(
            {"command": "golden update", "dry_run": dry_run, "exit_code": int(code), "cases": documents}, output
        )
    _print_case_errors(updates)
    return int(code)


def _print_updates(updates: Sequence[CaseUpdate], word: str) -> None:
    for update in updates:
        for name in update.written:
            click.echo(f"{word}: {update.folder}/{name}")
    written = sum(len(update.written) for update in updates)
    unchanged = sum(len(update.unchanged) for update in updates)
    click.echo(f"{counted(len(updates), 'case')}: {counted(written, 'rule file')} {word}, {unchanged} unchanged")
