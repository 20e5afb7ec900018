"""From errors to messages and exit codes."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import click

from kproxy_ipt.errors import ConfigError, KproxyError, RestoreError
from kproxy_ipt_cli._exit_codes import exit_code_of
from kproxy_ipt_cli._output import TEXT, Plain, print_document


def failing(command: Callable[..., Any]) -> Callable[..., Any]:
    """Let *command* end with a message and the documented exit code where it raises one of our errors."""

    @functools.wraps(command)
    def run(**options: Any) -> Any:
        try:
            return command(**options)
        except KproxyError as error:
            fail(error, exit_code_of(error), str(options.get("output", TEXT)))

    return run


def fail(error: KproxyError, code: int, output: str) -> NoReturn:
    """Say what went wrong, as an object too if objects were asked for, and end."""
    if output != TEXT:
        print_document({"error": describe(error), "exit_code": int(code)}, output)
    print_error(error)
    raise SystemExit(int(code))


def describe(error: KproxyError) -> Mapping[str, Plain]:
    """An error as plain values."""
    fields = {name: value for name, value in vars(error).items() if name != "finding" and value not in ("", None)}
    notes = fields.pop("__notes__", [])
    return {"kind": type(error).__name__, "message": str(error), **fields, **({"notes": notes} if notes else {})}


def print_error(error: KproxyError, context: str = "") -> None:
    """
    Print an error for people, led by its *context* (a family).

    Each problem of a configuration is a line of its own; of a refused rule, the rule and whose it is stand below.
    """
    lines = error.problems if isinstance(error, ConfigError) else (str(error),)
    details: list[str] = []
    if isinstance(error, RestoreError) and error.rule:
        lines = (f"line {error.line}: {error.message}",)
        details = [f"rule: {error.rule}", *([f"service port: {error.owner}"] if error.owner else [])]
    for line in lines:
        click.secho(f"error: {context}: {line}" if context else f"error: {line}", err=True, fg="red", bold=True)
    for line in (*details, *getattr(error, "__notes__", ())):
        click.echo(f"       {line}", err=True)
