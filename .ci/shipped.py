"""
What a package brings beside Python: the manual page and the completions, made from the command line itself.

::

    python .ci/shipped.py            # write cli/share anew
    python .ci/shipped.py FOLDER     # the same into another folder

Below the folder stands what an installation has below its prefix: `share/man`, `share/zsh` and so on.
"""

import argparse
import re
from collections import Counter
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from kproxy_ipt_cli import __version__
from kproxy_ipt_cli.main import TRACEBACK_VARIABLE, cli

_PROGRAM = "kproxy-ipt"
_COMPLETIONS = {
    "bash": "bash-completion/completions/kproxy-ipt",
    "fish": "fish/vendor_completions.d/kproxy-ipt.fish",
    "zsh": "zsh/site-functions/_kproxy-ipt",
}
_MANY = 3
"""Options of so many commands, in the same words, are described once."""
_ENVIRONMENT = (
    ("KUBECONFIG", "The kubeconfig file, where no option names one. Without it: ~/.kube/config."),
    ("NO_COLOR", "Set to anything: no colours."),
    (TRACEBACK_VARIABLE, "Set to anything: a bug is shown with its traceback."),
)
_SEE_ALSO = "iptables(8), iptables-save(8), nft(8), conntrack(8), ip-netns(8), kube-proxy(8)"

Option = tuple[str, str]
"""How an option is written, and what it means."""
Found = tuple[click.Context, click.Command]


def _roff(text: str) -> str:
    """*text* as running text of a manual page: nothing in it is taken for a request."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    return re.sub(r"^(?=\.)", r"\\&", escaped, flags=re.MULTILINE)


def _paragraphs(text: str) -> Iterator[str]:
    """The paragraphs of a help text; those after click's backspace keep their lines."""
    for paragraph in re.split(r"\n{2,}", cleandoc(text).strip()):
        kept = paragraph.startswith("\b\n")
        yield ".PP"
        yield from (".nf", _roff(paragraph.removeprefix("\b\n")), ".fi") if kept else (_roff(paragraph),)


def _options(found: Found) -> list[Option]:
    context, command = found
    given = (each for each in command.get_params(context) if isinstance(each, click.Option))
    records = (option.get_help_record(context) for option in given if "--help" not in option.opts)
    return [record for record in records if record]


def _commands(context: click.Context, group: click.Group) -> Iterator[Found]:
    """All commands below *group* that people call, each with its context, in the order of its help."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None:
            continue
        below = click.Context(command, info_name=name, parent=context)
        if isinstance(command, click.Group):
            yield from _commands(below, command)
        else:
            yield below, command


def _described(options: list[Option]) -> Iterator[str]:
    for written, meaning in options:
        yield from (".TP", f"\\fB{_roff(written)}\\fR", _roff(meaning))


def _command_section(found: Found, shared: frozenset[Option]) -> Iterator[str]:
    context, command = found
    options = _options(found)
    usage = " ".join((context.command_path, *command.collect_usage_pieces(context)))
    yield f'.SS "{_roff(usage)}"'
    yield from _paragraphs(command.help or "")
    yield from _described([option for option in options if option not in shared])
    elsewhere = [name for option in options if option in shared for name in re.findall(r"--[\w-]+|-v\b", option[0])]
    if elsewhere:
        yield from (".PP", _roff(f"Shared options: {', '.join(elsewhere)}."))


def manual_page() -> str:
    """kproxy-ipt(1): all commands and options; no date, so that the same commands make the same page."""
    root = click.Context(cli, info_name=_PROGRAM)
    commands = list(_commands(root, cli))
    counted = Counter(option for found in commands for option in _options(found))
    shared = [option for option, count in counted.items() if count >= _MANY]
    lines = [
        f'.TH "{_roff(_PROGRAM.upper())}" "1" "" "{_PROGRAM} {__version__}" "User Commands"',
        ".SH NAME",
        f"{_roff(_PROGRAM)} \\- Kubernetes Services as iptables rules",
        ".SH SYNOPSIS",
        f"\\fB{_roff(_PROGRAM)}\\fR COMMAND [OPTIONS] [ARGUMENTS]",
        ".SH DESCRIPTION",
        *_paragraphs(cli.help or ""),
        ".SH COMMANDS",
    ]
    for found in commands:
        lines += _command_section(found, frozenset(shared))
    lines += [".SH SHARED OPTIONS", *_described(sorted(shared))]
    lines += [".SH EXIT STATUS", _roff((cli.epilog or "").removeprefix("Exit codes: "))]
    lines += [".SH ENVIRONMENT", *_described(list(_ENVIRONMENT))]
    lines += [".SH SEE ALSO", _roff(_SEE_ALSO)]
    return "\n".join(lines) + "\n"


def completion(shell: str) -> str:
    """
    The completion script of *shell*: bash, fish or zsh.

    Raises:
        LookupError: There is none.
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise LookupError(shell)
    return kind(cli, {}, _PROGRAM, "_KPROXY_IPT_COMPLETE").source() + "\n"


def main() -> None:
    """Write the files that the command line names a folder for."""
    parser = argparse.ArgumentParser(description="Write the manual page and the completions.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parents[1] / "cli" / "share")
    folder: Path = parser.parse_args().folder
    texts = {"man/man1/kproxy-ipt.1": manual_page()}
    texts |= {path: completion(shell) for shell, path in _COMPLETIONS.items()}
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
