"""`kproxy-ipt preflight`."""

from collections.abc import Iterable, Iterator
from typing import Any

import click

from kproxy_ipt.addresses import Family
from kproxy_ipt.errors import KproxyError
from kproxy_ipt.kernel.command import SubprocessRunner
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.kernel.preflight import Fitness, FormResult, PreflightReport, Trial, preflight
from kproxy_ipt_cli._exit_codes import ExitCode
from kproxy_ipt_cli._failures import fail
from kproxy_ipt_cli._options import backend_option, families_of, family_option, netns_option, output_option
from kproxy_ipt_cli._output import TEXT, Plain, plain, print_document, print_notes, print_table

_VERDICTS = {
    Fitness.COMPLETE: "everything is there",
    Fitness.REDUCED: "it works, with less than everything: see above",
    Fitness.UNFIT: "it cannot work here: see above",
}


@click.command(name="preflight", short_help="Try whether this machine can do what the rules need; touch nothing.")
@netns_option
@backend_option("Which iptables to try; auto tries both, and judges the one that would be used.")
@family_option
@output_option
def command(*, netns: str | None, backend: Any, family: str, output: str) -> None:
    """
    Write every form of rule that we have into namespaces made for that, and say what is missing and what it costs.

    Needs no cluster, configuration or objects. Tables and settings of the namespace are only read.

    Exit codes: 0 everything is there, 1 something optional is missing and replaced, 2 it cannot work or cannot be told.

    \b
    Examples:
      kproxy-ipt preflight
      kproxy-ipt preflight --backend nft --family ipv4 --output json
    """
    try:
        with inside(netns):
            report = preflight(SubprocessRunner(), backend, families_of(family))
    except KproxyError as error:
        fail(error, ExitCode.CANNOT_TELL, output)
    if output == TEXT:
        _print_text(report)
    else:
        fitness = report.fitness
        document: dict[str, Plain] = {
            "command": "preflight",
            "exit_code": int(fitness),
            "verdict": fitness.name.lower(),
        }
        found = plain(report)
        assert isinstance(found, dict)
        print_document({**document, **found}, output)
    raise SystemExit(int(report.fitness))


def _print_text(report: PreflightReport) -> None:
    click.echo(f"kernel {report.kernel}, backend {report.backend}: {report.reason}\n")
    used = {(one.family, one.backend): "?" if one.rules is None else str(one.rules) for one in report.in_use}
    print_table(
        ("family", "backend", "rules", "program", "version"),
        [
            (
                str(trial.family),
                f"{trial.backend}{' (used)' if trial.is_chosen else ''}",
                used.get((trial.family, trial.backend), "-"),
                _program(trial),
                trial.version,
            )
            for trial in report.trials
        ],
    )
    click.echo()
    tried = [trial for trial in report.trials if trial.results]
    if tried:
        _print_forms(tried)
        click.echo()
    print_table(("setting", "value", "meaning"), [(one.name, one.value or "-", one.meaning) for one in report.settings])
    click.echo()
    for line in _gaps(report.trials):
        click.echo(line)
    print_notes(_notes(report))
    click.echo(_VERDICTS[report.fitness])


def _program(trial: Trial) -> str:
    return trial.program if trial.program == trial.resolved else f"{trial.program} -> {trial.resolved}"


def _print_forms(tried: list[Trial]) -> None:
    """Forms as rows, backends and families as columns."""
    columns = ("form", *(f"{trial.family} {trial.backend}" for trial in tried), "kernel option")
    rows = zip(*(trial.results for trial in tried), strict=True)
    print_table(columns, [(row[0].name, *(_word(each) for each in row), _options(row)) for row in rows])


def _word(result: FormResult) -> str:
    if result.is_there:
        return "yes"
    return "no, replaced" if result.part else "NO"


def _options(results: Iterable[FormResult]) -> str:
    shown = (f"{one.option}={one.configured}" if one.configured else one.option for one in results)
    return ", ".join(dict.fromkeys(shown))


def _gaps(trials: Iterable[Trial]) -> Iterator[str]:
    """What is missing, what for, and what is done about it."""
    for trial in trials:
        whose = f"{trial.family} {trial.backend}"
        if trial.problem:
            yield f"{whose}: {trial.problem}"
        for result in trial.results:
            if not result.is_there:
                instead = result.instead or "nothing can replace it"
                yield f"{whose} lacks {result.name}: {result.reason}"
                yield f"  concerns: {result.concerns}"
                yield f"  instead: {instead}"


def _notes(report: PreflightReport) -> Iterator[str]:
    """What does not decide, but a person should know."""
    yield from (f"not tried: {line}" for line in report.untried)
    if report.conflict:
        yield f"{report.conflict}; a packet passes both, and each reader sees one"
    for family, found in report.plain.items():
        if found and found != report.backend:
            word = "iptables" if family is Family.IPV4 else "ip6tables"
            yield f"the program {word} is the {found} one: it does not show rules of {report.backend}"
    yield from (f"{one.name} = {one.value}: {one.doubt}" for one in report.settings if one.doubt)
    yield from (f"{one.family} {one.backend} cannot be listed: {one.problem}" for one in report.in_use if one.problem)
