"""`kproxy-ipt conform`."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import click

from kproxy_ipt.errors import KproxyError
from kproxy_ipt.testing.conform import (
    ConformResult,
    Trial,
    cases_with_flows,
    check_program,
    conform_case,
    require_root,
)
from kproxy_ipt.testing.flow_table import CaseError
from kproxy_ipt.testing.junit import junit_xml
from kproxy_ipt_cli._exit_codes import ExitCode
from kproxy_ipt_cli._failures import fail
from kproxy_ipt_cli._options import families_of, output_option
from kproxy_ipt_cli._output import TEXT, Plain, counted, plain, print_document, print_table
from kproxy_ipt_cli._progress import progress_bar

_BACKENDS = ("nft", "legacy")


@click.command(name="conform", short_help="Send the packets of flow tables, and compare what happens to them.")
@click.argument("folders", nargs=-1, required=True, metavar="DIR...", type=click.Path(path_type=Path))
@click.option(
    "--program",
    default="",
    metavar="COMMAND",
    help="What writes the rules, with {netns}, {objects}, {config}, {family}, {backend} and {node} where they belong. "
    "Default: kproxy-ipt sync --once.",
)
@click.option(
    "--settle",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="SECONDS",
    help="For a command that goes on, a daemon: its rules stand after so long. Default: when it has ended.",
)
@click.option(
    "--backend",
    type=click.Choice([*_BACKENDS, "both"]),
    default="both",
    show_default=True,
    help="Where rules live; both tries one after the other.",
)
@click.option(
    "--family",
    type=click.Choice(["ipv4", "ipv6", "both"]),
    default="both",
    show_default=True,
    help="Leave the flows of the other family out.",
)
@click.option("--all", "show_all", is_flag=True, help="Show the flows that are as expected too.")
@click.option(
    "--junit",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Write a JUnit XML report too.",
)
@output_option
def command(
    *,
    folders: tuple[Path, ...],
    program: str,
    settle: float,
    backend: str,
    family: str,
    show_all: bool,
    junit: Path | None,
    output: str,
) -> None:
    """
    Hold the rules that a program writes against the flow tables (flows.yaml) of all cases at or below DIR.

    For each case a node, its clients and its endpoints are made of network namespaces, the program writes its rules,
    and real connections show where every flow ends, with which source address and in which shares. Root is needed.
    Exit codes: 0 as expected, 1 something else was seen, 2 cannot tell (no root, unreadable case, failed program).

    \b
    Examples:
      kproxy-ipt conform tests/flows --backend nft
      kproxy-ipt conform cases/web --all --output json
      kproxy-ipt conform tests/flows --settle 10 --backend nft --program \\
        'ip netns exec {netns} ./other-proxy --config {config} --objects {objects}'
    """
    try:
        if program:
            check_program(program)
        cases = cases_with_flows(folders)
        require_root()
    except KproxyError as error:
        fail(error, ExitCode.CANNOT_TELL, output)
    trials = [
        Trial(program=program, backend=one, families=families_of(family), settle_s=settle)
        for one in (_BACKENDS if backend == "both" else (backend,))
    ]
    results: list[ConformResult] = []
    with progress_bar() as progress:
        for folder, trial in product(cases, trials):
            results.append(conform_case(folder, trial))
            progress("trials", len(results), len(cases) * len(trials))
    code = _exit_code(results)
    if junit is not None:
        _write_report(junit, results, output)
    if output == TEXT:
        _print_results(results, show_all=show_all)
    else:
        print_document(
            {
                "command": "conform",
                "exit_code": int(code),
                **_counts(results),
                "cases": [_document(result) for result in results],
            },
            output,
        )
    for text in (text for result in results for text in result.errors):
        click.secho(f"error: {text}", err=True, fg="red", bold=True)
    raise SystemExit(int(code))


def _exit_code(results: Sequence[ConformResult]) -> ExitCode:
    if any(result.errors for result in results):
        return ExitCode.CANNOT_TELL
    is_wrong = any(flow.problems for result in results for flow in result.flows)
    return ExitCode.DRIFT if is_wrong else ExitCode.DONE


def _write_report(path: Path, results: Sequence[ConformResult], output: str) -> None:
    try:
        path.write_text(junit_xml([result.as_case() for result in results], command="conform"), encoding="utf-8")
    except OSError as error:
        fail(CaseError((f"--junit {path}: {error.strerror or error}",)), ExitCode.CANNOT_TELL, output)


def _counts(results: Sequence[ConformResult]) -> dict[str, int]:
    flows = [flow for result in results for flow in result.flows]
    different = sum(bool(flow.problems) for flow in flows)
    skipped = sum(bool(flow.skipped) for flow in flows)
    return {"as_expected": len(flows) - different - skipped, "different": different, "skipped": skipped}


def _document(result: ConformResult) -> Plain:
    return {
        "folder": str(result.folder),
        "backend": result.backend,
        "title": result.title,
        "errors": list(result.errors),
        "flows": [plain(flow) for flow in result.flows],
    }


def _print_results(results: Sequence[ConformResult], *, show_all: bool) -> None:
    rows = [
        (result.name, flow.name, flow.expected, f"skipped: {flow.skipped}" if flow.skipped else flow.seen)
        for result in results
        for flow in result.flows
        if show_all or flow.problems or flow.skipped
    ]
    if rows:
        print_table(("case", "flow", "expected", "seen"), rows)
    for result in results:
        for flow in result.flows:
            for problem in flow.problems:
                click.secho(f"{result.name}: {flow.name}: {problem}", fg="red")
    counts = _counts(results)
    failed = sum(bool(result.errors) for result in results)
    parts = [
        f"{counted(counts['as_expected'], 'flow')} as expected",
        f"{counts['different']} different",
        f"{counts['skipped']} skipped",
        *([f"{counted(failed, 'case')} not judged"] if failed else []),
    ]
    click.echo(f"{counted(len(results), 'trial')}: {', '.join(parts)}")
