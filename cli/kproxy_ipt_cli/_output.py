"""
Printing: tables for people, one JSON or YAML document for programs.

Results go to standard output, everything else (notes, findings, errors) to standard error, so that a pipe gets
results alone. Colour only on a terminal, and not where NO_COLOR is set.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import click
import msgspec

from kproxy_ipt.errors import Finding, Severity

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


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, unit: str = "") -> None:
    """
    Print a table; columns whose cells are all numbers, or numbers with *unit*, are aligned to the right.

    No cell is ever cut or folded, whatever the width of the terminal: names of chains are there to be copied.
    """
    cells = [list(row) for row in rows]
    widths = [max(len(text) for text in column) for column in zip(columns, *cells, strict=True)]
    is_number = [_are_numbers([row[index].removesuffix(unit) for row in cells]) for index in range(len(columns))]
    header, *body = [
        "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, is_number, strict=True)
        ).rstrip()
        for row in [list(columns), *cells]
    ]
    click.secho(header, bold=True)
    click.echo("".join(f"{line}\n" for line in body), nl=False)


def _are_numbers(cells: Sequence[str]) -> bool:
    """Whether all cells are numbers, but for dashes that stand for unknown ones."""
    known = [cell for cell in cells if cell != "-"]
    return bool(known) and all(cell.replace(".", "", 1).isdigit() for cell in known)


PERCENT = " %"


def percent(share: float | None) -> str:
    """`33.3 %`, a dash for None."""
    return "-" if share is None else f"{100 * share:.1f}{PERCENT}"


def counted(number: int, word: str) -> str:
    """`1 chain`, `2 chains`."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


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
