"""`kproxy-ipt lab break`, `check`, `fix`: a fault to be found."""

import os
from collections.abc import Callable
from typing import Any

import click

from kproxy_ipt.lab.breaking import FaultRecord, Judgement, break_lab, check_lab, fix_lab, read_record
from kproxy_ipt.lab.fault_texts import FAULT_TEXTS, Language, Words
from kproxy_ipt.lab.layout import DEFAULT_NAME, Layout, layout_of
from kproxy_ipt_cli._exit_codes import ExitCode
from kproxy_ipt_cli._failures import failing
from kproxy_ipt_cli._options import output_option
from kproxy_ipt_cli._output import TEXT, print_document, print_table

_ASK_BREAK = Words("Something is broken. A user writes:", "Quelque chose est cassé. Un utilisateur écrit :")
_HOW_TO = Words(
    "Find out why, and put it right. kproxy-ipt lab check judges, with --hint it helps, lab fix gives up.",
    "Trouvez pourquoi, et réparez. kproxy-ipt lab check juge, avec --hint il aide ; lab fix abandonne.",
)
_HEALTHY = Words("the lab is healthy: every request is answered", "le labo va bien : chaque requête reçoit sa réponse")
_NOT_YET = Words("not yet:", "pas encore :")
_HINT = Words("hint", "indice")
_IT_WAS = Words("It was: ", "C'était : ")
_CURE = Words("A cure:", "Un remède :")
_FIXED = Words("the lab is as it was", "le labo est comme avant")


def _lab_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--name", default=DEFAULT_NAME, show_default=True, metavar="NAME", help="Which lab.")(command)


def _language_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--language", type=click.Choice(["en", "fr"]), help="Of the texts; default that of the environment, or en."
    )(command)


@click.command(name="break", short_help="Break a lab in one of ten ways, for you to find out.")
@click.argument("fault", default="")
@_lab_option
@click.option("--seed", type=int, metavar="NUMBER", help="Which fault chance chooses; the same number, the same fault.")
@click.option("--list", "lists", is_flag=True, help="Name the faults, and break nothing.")
@_language_option
@failing
def break_command(*, fault: str, name: str, seed: int | None, lists: bool, language: Language | None) -> None:
    """
    Break a lab in one of ten classic ways, and say what a user would report.

    Without FAULT one is chosen by chance, and not named. Nothing outside of the lab is touched.

    \b
    Examples:
      kproxy-ipt lab break
      kproxy-ipt lab break wrong-selector --language fr
    """
    spoken = language or _language_of_environment()
    if lists:
        print_table(("FAULT", "WHAT"), [(each, words.title.spoken(spoken)) for each, words in FAULT_TEXTS.items()])
        return
    layout = layout_of(name)
    record = break_lab(layout, fault, seed)
    click.echo(f"{_ASK_BREAK.spoken(spoken)}\n\n  {record.text.symptom.spoken(spoken, layout)}\n")
    click.echo(_HOW_TO.spoken(spoken))


@click.command(name="check", short_help="Judge whether a lab is healthy, by real connections.")
@_lab_option
@click.option("--hint", is_flag=True, help="One more hint at each call.")
@click.option("--reveal", is_flag=True, help="Cause and cure.")
@_language_option
@output_option
@failing
def check_command(*, name: str, hint: bool, reveal: bool, language: Language | None, output: str) -> None:
    """
    Judge whether a lab is healthy: by requests from everywhere, by each kproxy-ipt, and by its rules.

    What is wrong is told as symptoms. Exit codes: 0 healthy, 1 not.

    \b
    Examples:
      kproxy-ipt lab check
      kproxy-ipt lab check --hint
    """
    spoken = language or _language_of_environment()
    layout = layout_of(name)
    judgement = check_lab(layout, with_hint=hint)
    code = ExitCode.DRIFT if judgement.symptoms else ExitCode.DONE
    if output == TEXT:
        _print_judgement(judgement, layout, spoken, reveal=reveal)
    else:
        symptoms = [each.spoken(spoken) for each in judgement.symptoms]
        hints = [each.spoken(spoken, layout) for each in judgement.hints]
        print_document({"command": "lab check", "exit_code": int(code), "symptoms": symptoms, "hints": hints}, output)
    raise SystemExit(int(code))


@click.command(name="fix", short_help="Undo what lab break did.")
@_lab_option
@_language_option
@failing
def fix_command(*, name: str, language: Language | None) -> None:
    """
    Undo what `lab break` did, whatever was done since, and say what it was.

    \b
    Example:
      kproxy-ipt lab fix
    """
    spoken = language or _language_of_environment()
    layout = layout_of(name)
    record = read_record(layout)
    if record is not None:
        _print_cause(record, layout, spoken)
    fix_lab(layout)
    click.echo(_FIXED.spoken(spoken))


def _print_judgement(judgement: Judgement, layout: Layout, spoken: Language, *, reveal: bool) -> None:
    record = judgement.record
    if judgement.symptoms:
        click.echo(_NOT_YET.spoken(spoken))
        for symptom in judgement.symptoms:
            click.echo(f"  - {symptom.spoken(spoken)}")
    else:
        click.echo(_HEALTHY.spoken(spoken))
    for number, words in enumerate(judgement.hints, 1):
        click.echo(f"{_HINT.spoken(spoken)} {number}: {words.spoken(spoken, layout)}")
    if record is not None and (reveal or (not judgement.symptoms and not record.solved)):
        _print_cause(record, layout, spoken)
    if record is not None and reveal:
        click.echo(f"{_CURE.spoken(spoken)}\n\n{record.text.cure_in(layout)}\n")


def _print_cause(record: FaultRecord, layout: Layout, spoken: Language) -> None:
    click.echo(
        f"{_IT_WAS.spoken(spoken)}{record.text.title.spoken(spoken)}. {record.text.cause.spoken(spoken, layout)}"
    )


def _language_of_environment() -> Language:
    """As programs of the system choose it: the first of these variables that says something."""
    chosen = next((value for name in ("LC_ALL", "LC_MESSAGES", "LANG") if (value := os.environ.get(name))), "")
    return "fr" if chosen.startswith("fr") else "en"
