"""Running programs: what comes back, what becomes of input, output, time limits and children."""

import _thread
import os
import signal
import time
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path

import pytest

from kproxy_ipt.errors import KernelError, MissingPrivilegeError, MissingProgramError
from kproxy_ipt.kernel.command import SubprocessRunner, program_environment

_MEBIBYTE = 1 << 20


@pytest.fixture
def runner() -> SubprocessRunner:
    """The real runner."""
    return SubprocessRunner()


def test_exit_status_and_both_outputs_come_back(runner: SubprocessRunner) -> None:
    """A failing program is an answer, not an exception."""
    completed = runner.run(["sh", "-c", "echo out; echo err >&2; exit 3"])

    assert (completed.exit_status, completed.stdout, completed.stderr) == (3, "out\n", "err\n")
    assert completed.arguments[0] == "sh"


def test_signal_is_a_negative_exit_status(runner: SubprocessRunner) -> None:
    """A program that is killed tells by which signal."""
    assert runner.run(["sh", "-c", "kill -9 $$"]).exit_status == -signal.SIGKILL


def test_large_input_and_output_do_not_block_each_other(runner: SubprocessRunner) -> None:
    """Four mebibytes go through `cat` at once, far more than a pipe holds."""
    text = "x" * (4 * _MEBIBYTE)

    assert runner.run(["cat"], stdin=text, timeout_s=30).stdout == text


def test_input_that_is_not_read_is_no_error(runner: SubprocessRunner) -> None:
    """A program that ends without reading its input still gives its answer."""
    assert runner.run(["sh", "-c", "exec 0<&-; exit 5"], stdin="y" * _MEBIBYTE, timeout_s=30).exit_status == 5


def test_pieces_are_made_while_the_program_reads_those_before(runner: SubprocessRunner, tmp_path: Path) -> None:
    """The second piece is what the program did with the first one, so it had that before the second was made."""
    answer = tmp_path / "answer"
    os.mkfifo(answer)

    def pieces() -> Iterator[str]:
        yield "x" * _MEBIBYTE
        yield answer.read_text()

    completed = runner.feed(
        ["sh", "-c", f"head -c {_MEBIBYTE} >/dev/null; echo read > {answer}; cat"], pieces(), timeout_s=30
    )

    assert (completed.exit_status, completed.stdout) == (0, "read\n")


def test_pieces_that_nobody_reads_are_not_made(runner: SubprocessRunner) -> None:
    """A program that ends early gives its answer, and endless input ends with it."""
    assert runner.feed(["sh", "-c", "head -c 3; exit 5"], repeat("y" * _MEBIBYTE), timeout_s=30).exit_status == 5


def test_time_limit_ends_a_program_that_does_not_read_its_pieces(runner: SubprocessRunner) -> None:
    """The pipe is full and stays so: the limit counts all the same."""
    with pytest.raises(KernelError, match=r"no end after 0\.3 s"):
        runner.feed(["sleep", "60"], repeat("y" * _MEBIBYTE), timeout_s=0.3)


def test_piece_that_cannot_be_made_ends_the_program(tmp_path: Path) -> None:
    """The error of the maker comes through, and the program is killed: what it has is only a part."""
    process_ids: list[int] = []

    def pieces() -> Iterator[str]:
        yield "x"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        SubprocessRunner(process_ids.append).feed(["sh", "-c", f"cat; touch {tmp_path}/done"], pieces())

    assert len(process_ids) == 1
    assert not (tmp_path / "done").exists()


def test_octets_that_are_no_utf8_survive(runner: SubprocessRunner) -> None:
    """Foreign comments may hold any octets; written back they are the same."""
    printed = runner.run(["printf", r"a\377b\303\244"]).stdout

    assert printed == "a\udcffbä"
    assert runner.run(["cat"], stdin=printed).stdout == printed


def test_missing_program_is_named(runner: SubprocessRunner) -> None:
    """The error names the program that is not installed, for both ways to start it."""
    with pytest.raises(MissingProgramError, match="iptables-of-nobody"):
        runner.run(["iptables-of-nobody", "-V"])
    with pytest.raises(MissingProgramError, match="iptables-of-nobody"):
        runner.start(["iptables-of-nobody", "-V"])


def test_program_that_may_not_be_started_is_a_missing_privilege(runner: SubprocessRunner, tmp_path: Path) -> None:
    """A file without the execute bit cannot be started."""
    (tmp_path / "program").write_text("#!/bin/sh\n")

    with pytest.raises(MissingPrivilegeError, match="may not be started"):
        runner.run([str(tmp_path / "program")])


def test_time_limit_kills_the_program_and_its_children(runner: SubprocessRunner) -> None:
    """A child that would outlive its parent and keep the output open is killed too; the error tells the limit."""
    started = time.monotonic()
    with pytest.raises(KernelError, match=r"no end after 0\.3 s"):
        runner.run(["sh", "-c", "sleep 60 & wait"], timeout_s=0.3)

    assert time.monotonic() - started < 20


def test_started_program_runs_while_we_do_something_else(runner: SubprocessRunner, tmp_path: Path) -> None:
    """The program fills its output before anybody waits for it."""
    done = tmp_path / "done"
    os.mkfifo(done)
    running = runner.start(["sh", "-c", f"head -c {4 * _MEBIBYTE} /dev/zero | tr '\\0' x; echo end > {done}"])

    assert done.read_text() == "end\n"
    assert len(running.wait().stdout) == 4 * _MEBIBYTE
    assert running.wait() is running.wait()


def test_time_limit_of_a_started_program_is_told_when_waiting(runner: SubprocessRunner) -> None:
    """The error comes from `wait`, each time."""
    running = runner.start(["sleep", "60"], timeout_s=0.2)

    for _ in range(2):
        with pytest.raises(KernelError, match=r"sleep 60: no end after 0\.2 s"):
            running.wait()


def test_messages_are_untranslated_and_system_folders_are_on_the_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What iptables prints is read by us, so its language is fixed; a short PATH does not hide it."""
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.setenv("PATH", "/usr/bin")

    environment = program_environment()

    assert environment["LC_ALL"] == "C"
    assert environment["PATH"] == "/usr/bin:/usr/sbin:/sbin"


def test_program_that_nobody_can_read_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no more threads may be, starting a program fails, and leaves none behind."""
    started: list[int] = []

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    with pytest.raises(KernelError, match="the program sleep cannot be read: can't start new thread"):
        SubprocessRunner(started.append).start(["sleep", "60"])

    assert [False] == [Path(f"/proc/{number}").exists() for number in started]


def test_reader_that_dies_for_want_of_memory_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that was made and never begins costs its program, and no more time than that may take."""
    started: list[int] = []
    monkeypatch.setattr(_thread, "start_new_thread", lambda *_: 1)
    with pytest.raises(KernelError, match="the program sleep cannot be read: a thread does not begin"):
        SubprocessRunner(started.append).start(["sleep", "60"], timeout_s=0.1)

    assert [False] == [Path(f"/proc/{number}").exists() for number in started]
