"""
Running programs: the one seam between this project and the machine's iptables programs.

Everything that starts a program takes a `Runner`. `SubprocessRunner` is the real one; `kproxy_ipt.testing` has one that
behaves like iptables without a kernel. A program inherits the network namespace of the calling thread (see `netns.py`).

Decided against: asyncio subprocesses (the commands are synchronous, and the daemon calls this from a worker thread),
and output files (the largest `iptables-save` is some 20 MB: it fits into memory).
"""

import _thread
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Protocol

import msgspec

from kproxy_ipt.errors import KernelError, MissingPrivilegeError, MissingProgramError

_THREAD_TIMEOUT_S = 10.0
_SYSTEM_FOLDERS = ("/usr/sbin", "/sbin")
DEFAULT_TIMEOUT_S = 300.0
"""For programs that should answer at once; a save or restore of a full node takes seconds."""


class Completed(msgspec.Struct, frozen=True):
    """
    A program that has ended.

    Attributes:
        arguments: The program and its arguments.
        exit_status: 0 to 255, or minus the number of the signal that ended it.
        stdout: Decoded as UTF-8; bytes that are none are kept as surrogate escapes.
        stderr: Likewise.
        seconds: From start to end, by the wall.
    """

    arguments: tuple[str, ...]
    exit_status: int
    stdout: str
    stderr: str
    seconds: float


class Running(Protocol):
    """A program that was started and whose output is being read."""

    def wait(self) -> Completed:
        """
        Wait for the end; further calls give the same answer.

        Raises:
            KernelError: It took longer than its time limit and was killed.
        """
        ...


class Runner(Protocol):
    """Starts programs; the exit status is the caller's business."""

    def run(self, arguments: Sequence[str], *, stdin: str = "", timeout_s: float = DEFAULT_TIMEOUT_S) -> Completed:
        """
        Run a program to its end.

        Args:
            arguments: The program, by name or path, and its arguments.
            stdin: What it reads; "" is the empty input, never the terminal.
            timeout_s: After this it is killed with all its children.

        Raises:
            MissingProgramError: There is no such program.
            MissingPrivilegeError: It may not be started.
            KernelError: It took longer than *timeout_s*.
        """
        ...

    def feed(
        self, arguments: Sequence[str], pieces: Iterable[str], *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> Completed:
        """
        Run a program to its end, which reads *pieces* one after the other while they are being made.

        What a program leaves unread is dropped, as with `run`; then the remaining pieces are not made.

        Raises:
            As `run`; and whatever making a piece raises, after the program was killed.
        """
        ...

    def start(self, arguments: Sequence[str], *, stdin: str = "", timeout_s: float = DEFAULT_TIMEOUT_S) -> Running:
        """
        Start a program and return at once; its output is read meanwhile, so that it never blocks.

        Raises:
            MissingProgramError: There is no such program.
            MissingPrivilegeError: It may not be started.
        """
        ...


def program_environment() -> dict[str, str]:
    """The environment of programs: ours, with untranslated messages and the system folders on the path."""
    path = os.environ.get("PATH", "/usr/bin:/bin").split(os.pathsep)
    path += [folder for folder in _SYSTEM_FOLDERS if folder not in path]
    return {**os.environ, "LC_ALL": "C", "PATH": os.pathsep.join(path)}


class SubprocessRunner:
    """The real `Runner`: each program in a session of its own, so that a time limit ends its children too."""

    def __init__(self, on_start: Callable[[int], object] = lambda _: None) -> None:
        """Call *on_start* with the process id of each program, in the thread that starts it."""
        self._on_start = on_start

    def run(self, arguments: Sequence[str], *, stdin: str = "", timeout_s: float = DEFAULT_TIMEOUT_S) -> Completed:
        """See `Runner.run`."""
        started = time.monotonic()
        return _finish(self._spawned(arguments), tuple(arguments), _encode(stdin), timeout_s, started)

    def feed(
        self, arguments: Sequence[str], pieces: Iterable[str], *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> Completed:
        """See `Runner.feed`; the time limit ends the program in another thread, and so the writing in this one."""
        process = self._spawned(arguments)
        pipe, process.stdin = process.stdin, None
        assert pipe is not None
        reading = _ReadInThread(process, arguments, b"", timeout_s)
        try:
            with suppress(BrokenPipeError), pipe:
                for piece in pieces:
                    pipe.write(_encode(piece))
                    pipe.flush()
            return reading.wait()
        except BaseException:
            _kill_all(process)
            raise

    def start(self, arguments: Sequence[str], *, stdin: str = "", timeout_s: float = DEFAULT_TIMEOUT_S) -> Running:
        """See `Runner.start`."""
        return _ReadInThread(self._spawned(arguments), arguments, _encode(stdin), timeout_s)

    def _spawned(self, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
        process = _spawn(arguments)
        self._on_start(process.pid)
        return process


class _ReadInThread:
    """
    The program is started by the calling thread (its network namespace counts), read by another.

    Not by a `threading.Thread`: its `start` waits for ever for a thread that dies at once for want of memory.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], arguments: Sequence[str], stdin: bytes, timeout_s: float
    ) -> None:
        self._completed: Completed | None = None
        self._failure: BaseException | None = None
        self._arguments = tuple(arguments)
        self._started = time.monotonic()
        self._begun, self._ended = threading.Event(), threading.Event()
        try:
            _thread.start_new_thread(self._read, (process, stdin, timeout_s))
        except RuntimeError as error:  # as many threads as there may be
            _kill_session(process)
            raise KernelError(f"the program {arguments[0]} cannot be read: {error}") from error
        if not self._begun.wait(min(timeout_s, _THREAD_TIMEOUT_S)):
            _kill_session(process)
            raise KernelError(f"the program {arguments[0]} cannot be read: a thread does not begin; short of memory?")

    def _read(self, process: subprocess.Popen[bytes], stdin: bytes, timeout_s: float) -> None:
        self._begun.set()
        try:
            self._completed = _finish(process, self._arguments, stdin, timeout_s, self._started)
        except BaseException as error:  # noqa: BLE001 - handed over to the thread that waits
            self._failure = error
        finally:
            self._ended.set()

    def wait(self) -> Completed:
        self._ended.wait()
        if self._completed is None:
            raise self._failure or KernelError("the program was never read")
        return self._completed


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _decode(octets: bytes) -> str:
    return octets.decode("utf-8", "surrogateescape")


def _spawn(arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            list(arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=program_environment(),
            start_new_session=True,
        )
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MissingProgramError(f"the program {arguments[0]} is not installed") from error
    except PermissionError as error:
        raise MissingPrivilegeError(f"the program {arguments[0]} may not be started: {error.strerror}") from error
    except OSError as error:
        raise KernelError(f"the program {arguments[0]} cannot be started: {error.strerror}") from error


def _finish(
    process: subprocess.Popen[bytes], arguments: tuple[str, ...], stdin: bytes, timeout_s: float, started: float
) -> Completed:
    try:
        stdout, stderr = process.communicate(stdin, timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        _kill_session(process)
        raise KernelError(f"{' '.join(arguments)}: no end after {timeout_s:g} s, killed") from error
    except BaseException:
        _kill_session(process)
        raise
    return Completed(arguments, process.returncode, _decode(stdout), _decode(stderr), time.monotonic() - started)


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    """Kill the program with its children, and take its pipes away."""
    _kill_all(process)
    process.communicate()


def _kill_all(process: subprocess.Popen[bytes]) -> None:
    """Kill the program with its children unless it has ended and was waited for."""
    if process.returncode is not None:
        return
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        process.kill()
