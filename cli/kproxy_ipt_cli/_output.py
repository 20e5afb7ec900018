"""
Printing: tables for people, one JSON or YAML document for programs.

Results go to standard output, everything else (notes, findings, errors) to standard error, so that a pipe gets
results alone. Colour only on a terminal, and not where NO_COLOR is set.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import click
import msgspec

from kproxy_ipt.errors import Finding, Severity

if TYPE_CHECKING:
    from rich.console import Console

Plain: TypeAlias = "bool | int | float | str | Sequence[Plain] | Mapping[str, Plain] | None"
"""What JSON can say."""

TEXT, JSON, YAML = "text", "json", "yaml"


def plain(value: object) -> Plain:
    """A value of ours as plain lists, dictionaries and scalars."""
    built: Plain = msgspec.to_builtins(value, str_keys=True)
    return built


def print_document(document: Plain, output: str) -> None:
    """Print one JSON object, or one YAML document."""
    if output == JSON:
        octets = msgspec.json.format(msgspec.json.encode(document), indent=2)
        click.echo(octets.decode())
        return
    import yaml  # only this form needs it, and every command starts faster without

    click.echo(yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=2**16), nl=False)


def console(*, stderr: bool = False) -> "Console":
    """A console of the width of the terminal, or wide enough for anything where there is none."""
    from rich.console import Console  # 50 ms that JSON output does without

    stream = sys.stderr if stderr else sys.stdout
    return Console(
        stderr=stderr, highlight=False, soft_wrap=not stream.isatty(), width=None if stream.isatty() else 400
    )


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table; columns whose cells are all numbers are aligned to the right."""
    from rich import box
    from rich.table import Table

    cells = [list(row) for row in rows]
    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for index, column in enumerate(columns):
        is_number = all(_is_number(row[index]) for row in cells)
        table.add_column(column, justify="right" if is_number else "left", overflow="fold")
    for row in cells:
        table.add_row(*row)
    console().print(table)


def _is_number(cell: str) -> bool:
    return not cell.strip() or cell.replace(",", "").replace(".", "").replace(" ", "").isdigit()


def print_notes(notes: Iterable[str]) -> None:
    """Print lines that a person should know, each once."""
    for note in dict.fromkeys(notes):
        click.secho(f"note: {note}", err=True, dim=True)


def print_findings(findings: Iterable[Finding]) -> None:
    """Print what is odd about objects; rejections stand out."""
    for finding in findings:
        if finding.severity is Severity.REJECTED:
            click.secho(f"rejected: {finding}", err=True, fg="red")
        else:
            click.secho(f"warning: {finding}", err=True, fg="yellow")


def rejected(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Those of *findings* that set an object aside."""
    return tuple(finding for finding in findings if finding.severity is Severity.REJECTED)


def warnings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Those of *findings* that keep the object."""
    return tuple(finding for finding in findings if finding.severity is Severity.WARNING)
