"""
Saving and restoring rules with the iptables programs of one family.

What is guaranteed about writing: one `*table ... COMMIT` section is one transaction: all of it is taken, or none.
An input with several sections is applied section by section in order; the first refused section ends the run, those
before it stay in force, and none after it is tried (`RestoreError.committed` counts them). Nothing is half-written:
rules of one section are never seen without the others.

The xtables lock: legacy programs hold `/run/xtables.lock` while they write and wait for it up to the seconds of `-w`;
nft programs need no lock and ignore the option. No program tells how long it waited, so the time is part of
`RestoreOutcome.seconds`. Saving takes no lock.

A listing that failed or was cut off is an error, never an empty listing: what is missing from a listing gets deleted or
written again by those who read it.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from kproxy_ipt.errors import KernelError, MissingPrivilegeError
from kproxy_ipt.kernel.command import DEFAULT_TIMEOUT_S, Completed, Runner, Running
from kproxy_ipt.kernel.programs import Backend, Programs, features
from kproxy_ipt.kernel.refusals import is_about_privilege, needed_privilege, refusal
from kproxy_ipt.kernel.xtables_proc import legacy_tables

_INCOMPATIBLE = re.compile(r"^# Table `([^']+)' is incompatible, use 'nft' tool\.$", re.MULTILINE)
_WARNING = re.compile(r"^# (?:Warning: .*|Table `[^']+' (?:is|contains) incompatible.*)$", re.MULTILINE)


class RestoreOutcome(msgspec.Struct, frozen=True):
    """
    A restore that was applied completely.

    Attributes:
        transactions: Number of sections of the input.
        bytes: Length of the input in UTF-8.
        seconds: Of the whole run, waiting for the lock included.
        warnings: What the program had to say all the same.
    """

    transactions: int
    bytes: int
    seconds: float
    warnings: tuple[str, ...] = ()


class PendingSave:
    """A listing that is being made by another process; `text` waits for it."""

    def __init__(
        self,
        runner: Runner,
        programs: Programs,
        tables: tuple[str, ...] | None,
        timeout_s: float,
        *,
        counters: bool = False,
    ) -> None:
        self._runner = runner
        self._programs = programs
        self._options = ("-c",) if counters else ()
        self._wanted = tables
        self._timeout_s = timeout_s
        self._text: str | None = None
        self._warnings: list[str] = []
        self._running: Running | None = None
        if self._asked() != ():
            self._running = runner.start(self._arguments(tables), timeout_s=timeout_s)

    def text(self) -> str:
        """
        The listing, complete; further calls give the same text.

        Returns:
            Text in the form of `iptables-save`, without tables that were not asked for; "" if none of them exists.

        Raises:
            MissingPrivilegeError: The tables may not be read.
            KernelError: The program failed, its output is cut off, or one of the wanted tables cannot be shown.
        """
        if self._text is None:
            self._text = self._read(self._running.wait()) if self._running else ""
            self._running = None
        return self._text

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the program says about tables that it does not show; complete once `text` was called."""
        return tuple(self._warnings)

    def _asked(self) -> tuple[str, ...] | None:
        """The wanted tables; on legacy only those that exist, since asking for one creates it."""
        if self._wanted is None or self._programs.backend is Backend.NFT:
            return self._wanted
        present = legacy_tables(self._programs.family)
        return tuple(table for table in self._wanted if table in present)

    def _arguments(self, tables: tuple[str, ...] | None) -> list[str]:
        """One table is asked for by name; for several, all are read: nft reads everything in any case."""
        one = ["-t", tables[0]] if tables and len(tables) == 1 else []
        return [*self._programs.save, *self._options, *one]

    def _read(self, completed: Completed) -> str:
        tables = self._wanted
        if tables is None or len(tables) == 1:
            return self._checked(completed)
        try:
            text = self._checked(completed)
        except MissingPrivilegeError:
            raise
        except KernelError:
            # A table of somebody else may be what the program stumbles over: each wanted one by itself, then.
            asked = self._asked() or ()
            self._warnings.append(f"{self._programs.save[0]} cannot list all tables together")
            return "".join(self._checked(self._runner.run(self._arguments((table,)))) for table in asked)
        found = [table for table, _ in _bounds(text, self._programs)]
        if "# Table `" not in text and all(table in tables for table in found):
            return text  # as it is: it may be large
        return "".join(text[bounds] for table, bounds in _bounds(text, self._programs) if table in tables)

    def _checked(self, completed: Completed) -> str:
        """The output of a save program, if it is a whole listing of the wanted tables."""
        program, stdout = completed.arguments[0], completed.stdout
        if completed.exit_status != 0:
            raise _save_failure(completed)
        for _ in _bounds(stdout, self._programs):
            pass
        comments = _comments(stdout)
        for name in _INCOMPATIBLE.findall(comments):
            if name in (self._wanted or ()):
                raise KernelError(f"{program} cannot show the table {name}: another program put foreign rules into it")
        self._warnings += [line[2:] for line in _WARNING.findall(f"{completed.stderr}\n{comments}")]
        return stdout


class Iptables:
    """The iptables programs of one family and backend, in the network namespace of the thread that calls."""

    def __init__(
        self, runner: Runner, programs: Programs, lock_wait_s: float = 5.0, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> None:
        self.programs = programs
        self._runner = runner
        self._lock_wait_s = lock_wait_s
        self._timeout_s = timeout_s

    def start_save(self, tables: tuple[str, ...] | None = None, *, counters: bool = False) -> PendingSave:
        """
        Start listing tables, without creating any.

        Args:
            tables: Names, not empty; None means all that exist.
            counters: Whether each rule begins with what it counted, `[PACKETS:BYTES]`.

        Raises:
            MissingProgramError: The save program is not installed.
            MissingPrivilegeError: It may not be started, or the legacy tables may not be read.
        """
        return PendingSave(self._runner, self.programs, tables, self._timeout_s, counters=counters)

    def restore(self, text: str, *, owner_of: Callable[[str], str] = lambda _: "") -> RestoreOutcome:
        """
        Apply a restore input with `--noflush`.

        Args:
            text: Sections, each closed by COMMIT; "" runs nothing.
            owner_of: The service port text of a chain, "" for chains that belong to none; used for errors.

        Raises:
            LockTimeoutError: Another program held the lock too long; nothing was written.
            MissingPrivilegeError: Nothing was written.
            RestoreError: A line was refused; as `RestoreFeatureError` if that is for want of a match, target or object.
            MissingFeatureError: The kernel lacks a table or the backend as a whole.
            KernelError: The program was killed, took too long, or the kernel is short of memory.
        """
        return self._apply(text, owner_of, [])

    def restore_sections(
        self, sections: Callable[[], Iterable[str]], *, owner_of: Callable[[str], str] = lambda _: ""
    ) -> RestoreOutcome:
        """
        Apply a restore input as `restore` does, without ever holding its whole text.

        The program takes a section while the next one is being made.

        Args:
            sections: Gives the sections in order, the same at each call: once to write them, and once more to find the
                line that was refused. None at all runs nothing.
            owner_of: As for `restore`.

        Raises:
            As `restore`.
        """
        counted = _Counted(sections())
        if counted.is_empty:
            return RestoreOutcome(0, 0, 0.0)
        completed = self._runner.feed(self._restore_arguments(), counted, timeout_s=self._timeout_s)
        if completed.exit_status != 0:
            raise refusal(completed, "".join(sections()), self.programs, owner_of)
        warnings = tuple(_WARNING.findall(completed.stderr))
        return RestoreOutcome(counted.transactions, counted.bytes, completed.seconds, warnings)

    def test(self, text: str, *, owner_of: Callable[[str], str] = lambda _: "") -> RestoreOutcome:
        """
        Let the program read a restore input without applying it; the errors are those of `restore`.

        It finds errors of syntax, not what the kernel would refuse; nft overlooks jumps to missing chains too.
        """
        return self._apply(text, owner_of, ["--test"])

    def _apply(self, text: str, owner_of: Callable[[str], str], options: Sequence[str]) -> RestoreOutcome:
        if not text:
            return RestoreOutcome(0, 0, 0.0)
        arguments = [*self._restore_arguments(), *options]
        completed = self._runner.run(arguments, stdin=text, timeout_s=self._timeout_s)
        if completed.exit_status != 0:
            raise refusal(completed, text, self.programs, owner_of)
        warnings = tuple(_WARNING.findall(completed.stderr))
        return RestoreOutcome(_count_transactions(text), _count_bytes(text), completed.seconds, warnings)

    def _restore_arguments(self) -> list[str]:
        seconds = str(max(1, math.ceil(self._lock_wait_s)))
        wait = ["-w", seconds] if features(self.programs).restore_wait else []
        return [*self.programs.restore, *wait, "--noflush"]


class _Counted:
    """Sections on their way to the program, and how much of them has passed."""

    def __init__(self, sections: Iterable[str]) -> None:
        self._rest = iter(sections)
        self._next = next(self._rest, "")
        self.is_empty = not self._next
        self.transactions = 0
        self.bytes = 0

    def __iter__(self) -> Iterator[str]:
        while self._next:
            self.transactions += _count_transactions(self._next)
            self.bytes += _count_bytes(self._next)
            yield self._next
            self._next = next(self._rest, "")


def _count_transactions(text: str) -> int:
    return text.count("\nCOMMIT\n") + text.endswith("\nCOMMIT")


def _count_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogateescape"))


def _save_failure(completed: Completed) -> KernelError:
    program = completed.arguments[0]
    lines = [line for line in completed.stderr.splitlines() if line and not line.startswith("#")]
    words = lines[0] if lines else "no message"
    if is_about_privilege(completed.stderr):
        return MissingPrivilegeError(f"{words}; {needed_privilege(program)}")
    if completed.exit_status < 0:
        return KernelError(f"{program} was ended by signal {-completed.exit_status} while listing the tables: {words}")
    return KernelError(f"{program} failed while listing the tables (exit status {completed.exit_status}): {words}")


def _bounds(text: str, programs: Programs) -> Iterator[tuple[str, slice]]:
    """Each table of a listing: its name, and where it stands from `*name` to `COMMIT`; one without end is an error."""
    start = 0 if text.startswith("*") else _after_newline(text, "*", 0)
    while start >= 0:
        end = text.find("\nCOMMIT\n", start)
        if end < 0:
            raise KernelError(f"the output of {programs.save[0]} is cut off: a table has no end")
        end += len("\nCOMMIT\n")
        yield text[start + 1 : text.index("\n", start)], slice(start, end)
        start = _after_newline(text, "*", end - 1)
    if text and not text.startswith("#", text.rfind("\n", 0, len(text) - 1) + 1):
        raise KernelError(f"the output of {programs.save[0]} is cut off: the closing comment is missing")


def _after_newline(text: str, mark: str, start: int) -> int:
    """Where the first line after *start* begins that begins with *mark*, or -1."""
    found = text.find("\n" + mark, start)
    return found + 1 if found >= 0 else -1


def _comments(text: str) -> str:
    """The comment lines of a listing; there are few, so that this is cheaper than going through all lines."""
    lines: list[str] = []
    start = 0 if text.startswith("#") else _after_newline(text, "#", 0)
    while start >= 0:
        end = text.find("\n", start)
        lines.append(text[start:end] if end >= 0 else text[start:])
        start = _after_newline(text, "#", start)
    return "\n".join(lines)
