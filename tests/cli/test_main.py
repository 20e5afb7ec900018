"""The program as a whole: help, unknown words, and what happens when it is interrupted or wrong."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from kproxy_ipt_cli.main import _COMMANDS

Invoke = Callable[..., Result]
Program = Callable[..., subprocess.CompletedProcess[str]]

_PROGRAM = Path(sys.executable).with_name("kproxy-ipt")
_WITH_A_BUG = """
import sys, types, click
from kproxy_ipt_cli import main
main._COMMANDS["boom"] = "A command with a bug."
sys.modules["kproxy_ipt_cli.boom"] = types.SimpleNamespace(command=click.Command("boom", callback=lambda: [][1]))
sys.argv = ["kproxy-ipt", "boom"]
main.main()
"""


@pytest.mark.parametrize("command", list(_COMMANDS))
def test_help_of_every_command_shows_an_example(command: str, invoke: Invoke) -> None:
    """`--help` and `-h` print usage, and at least one line that can be copied."""
    shown = invoke(command, "--help")

    assert shown.exit_code == 0
    assert shown.stdout == invoke(command, "-h").stdout
    assert f"  kproxy-ipt {command} " in shown.stdout.partition("Example")[2]


def test_first_help_lists_every_command_and_exit_code(invoke: Invoke) -> None:
    """Who knows nothing sees the commands with a line each, examples, and what exit codes mean."""
    shown = invoke("--help").stdout

    assert [command for command in _COMMANDS if f"\n  {command} " not in shown] == []
    assert "kproxy-ipt sync --once --from web.yaml --netns lab" in shown
    assert "Exit codes: 0 done" in shown


def test_short_help_is_that_of_the_command(invoke: Invoke) -> None:
    """The list of commands, which is written down twice so that none is imported, says what the commands say."""
    from kproxy_ipt_cli.main import cli

    found = {name: cli.get_command(cli.make_context("x", ["version"]), name) for name in _COMMANDS}

    assert _COMMANDS == {name: command.short_help for name, command in found.items() if command}
    assert invoke().exit_code == 2


@pytest.mark.parametrize(
    "arguments", [("fly",), ("sync",), ("sync", "--once", "--family", "ipv5"), ("render", "--wings"), ()]
)
def test_wrong_usage_ends_in_2_with_a_hint(arguments: tuple[str, ...], program: Program) -> None:
    """Usage goes to standard error, and standard output stays empty."""
    ran = program(*arguments)

    assert (ran.returncode, ran.stdout) == (2, "")
    assert "Usage: kproxy-ipt" in ran.stderr


def test_bug_is_a_short_message_and_exit_code_70() -> None:
    """An exception that nobody foresaw is told in words, with what to report."""
    ran = subprocess.run([sys.executable, "-c", _WITH_A_BUG], capture_output=True, text=True, check=False)

    assert ran.returncode == 70
    assert ran.stderr.splitlines()[0] == "error: IndexError: list index out of range"
    assert "KPROXY_IPT_TRACEBACK=1" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_bug_is_shown_with_its_traceback_on_demand() -> None:
    """KPROXY_IPT_TRACEBACK brings the traceback."""
    environment = os.environ | {"KPROXY_IPT_TRACEBACK": "1"}
    command = [sys.executable, "-c", _WITH_A_BUG]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    assert ran.returncode == 70
    assert "Traceback (most recent call last)" in ran.stderr


def test_interrupt_ends_in_130_without_a_traceback(tmp_path: Path) -> None:
    """Ctrl-C while objects are read: one word, and not the exit code 1 that means drift."""
    fifo = tmp_path / "objects"
    os.mkfifo(fifo)
    # Whoever starts the tests in the background of a script has the signal ignored.
    command = ["env", "--default-signal=INT", str(_PROGRAM), "render", "--from", str(fifo)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with process, fifo.open("wb"):  # opens when the other side does
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=30)

    assert process.returncode == 130
    assert (stdout, stderr.split()) == ("", ["interrupted"])


def test_reader_that_goes_away_is_no_error(examples: Path) -> None:
    """`| head`: no traceback, and the exit code of a broken pipe, not 1, which means drift."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [
        str(_PROGRAM),
        "render",
        "--from",
        str(examples),
        "--hostname-override",
        "n1",
        "--cluster-cidr",
        "::/1,0.0.0.0/1",
    ]
    ran = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)

    assert (ran.returncode, ran.stderr) == (141, "")


@pytest.mark.parametrize(("shell", "check"), [("bash", "bash"), ("zsh", ""), ("fish", "")])
def test_completion_script_is_one_of_that_shell(shell: str, check: str, invoke: Invoke) -> None:
    """Each names the program's variable; bash can parse its own."""
    script = invoke("completion", shell)

    assert script.exit_code == 0
    assert "_KPROXY_IPT_COMPLETE" in script.stdout
    if check:
        assert subprocess.run([check, "-n"], input=script.stdout, text=True, check=False).returncode == 0


def test_completion_knows_the_commands() -> None:
    """What the bash script calls gives the names of commands."""
    environment = os.environ | {
        "_KPROXY_IPT_COMPLETE": "bash_complete",
        "COMP_WORDS": "kproxy-ipt c",
        "COMP_CWORD": "1",
    }
    ran = subprocess.run([_PROGRAM], capture_output=True, text=True, check=False, env=environment)

    wanted = ["check", "cleanup", "completion", "config", "conform"]
    assert [line.partition(",")[2] for line in ran.stdout.split()] == wanted
