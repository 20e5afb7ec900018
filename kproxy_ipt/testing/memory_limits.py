"""
Too little memory for a process: a control group, of version 1 or 2, or a limit of its address space.

A group counts what is used, by programs that the process starts too, and lets the kernel kill who goes beyond. A limit
of the address space refuses the next request instead, so that the process itself has to do with it.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from kproxy_ipt.testing.fault_lab import run

NO_GROUPS = "no control group for memory can be made here: neither of version 1, nor is +memory in that of version 2"


class _Groups(msgspec.Struct, frozen=True):
    """
    A hierarchy of control groups.

    Attributes:
        root: Where it is mounted.
        controllers: As `/proc/PID/cgroup` names them.
        limit: File of the limit; *unlimited* takes it away.
        shortages: File that counts them, in its line *count*.
    """

    root: Path
    controllers: str
    limit: str
    unlimited: str
    shortages: str
    count: str

    @property
    def can_be_made(self) -> bool:
        """Whether a group can be made in which memory is limited."""
        if self.controllers:
            return (self.root / self.limit).exists() and os.access(self.root, os.W_OK)
        enabled = self.root / "cgroup.subtree_control"
        return enabled.exists() and "memory" in enabled.read_text().split() and os.access(self.root, os.W_OK)

    @property
    def own(self) -> Path:
        """The group of this process; the root where its own is not shown, as in many containers."""
        lines = (line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines())
        path = next(path for _, controllers, path in lines if controllers == self.controllers)
        own = self.root / path.lstrip("/")
        return own if own.exists() else self.root


_VERSION_1 = _Groups(Path("/sys/fs/cgroup/memory"), "memory", "memory.limit_in_bytes", "-1", "memory.failcnt", "")
_VERSION_2 = _Groups(Path("/sys/fs/cgroup"), "", "memory.max", "max", "memory.events", "max")


class MemoryGroup:
    """A group with a limit, made anew."""

    def __init__(self, groups: _Groups, name: str, limit_bytes: int) -> None:
        self._groups = groups
        self._path = groups.root / name
        self._path.mkdir()
        (self._path / groups.limit).write_text(str(limit_bytes))

    def add(self, process_id: int) -> None:
        """Put a process into it; what it starts later is in it too."""
        (self._path / "cgroup.procs").write_text(str(process_id))

    @property
    def was_short(self) -> bool:
        """Whether somebody wanted more than the limit."""
        lines = (self._path / self._groups.shortages).read_text().splitlines()
        words = (line.split() for line in lines)
        return any(int(found[-1]) > 0 for found in words if " ".join(found[:-1]) == self._groups.count)

    def lift(self) -> None:
        """Take the limit away."""
        (self._path / self._groups.limit).write_text(self._groups.unlimited)

    def is_emptied(self) -> bool:
        """Move whoever is left to where this process is; returns whether nobody stayed."""
        for number in (self._path / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):
                (self._groups.own / "cgroup.procs").write_text(number)
        return not (self._path / "cgroup.procs").read_text().strip()

    def remove(self) -> None:
        """Remove it, empty."""
        self._path.rmdir()


def memory_group(name: str, limit_bytes: int) -> MemoryGroup | None:
    """A group of that name in which nobody is yet, or None where none can be made: see `NO_GROUPS`."""
    groups = _usable_groups()
    return None if groups is None else MemoryGroup(groups, name, limit_bytes)


def can_limit_memory() -> bool:
    """Whether `memory_group` gives one."""
    return _usable_groups() is not None


def _usable_groups() -> _Groups | None:
    return next((groups for groups in (_VERSION_1, _VERSION_2) if groups.can_be_made), None)


@contextmanager
def address_space(process_id: int, limit_bytes: int) -> Iterator[None]:
    """
    No more address space than *limit_bytes* for a process and what it starts, and what it had again in the end.

    What it has already stays its own; it may have ended when the limit is lifted.
    """
    show = ("--raw", "--noheadings", "--output", "SOFT,HARD")
    soft, hard = run("prlimit", "--pid", str(process_id), "--as", *show).split()
    run("prlimit", "--pid", str(process_id), f"--as={limit_bytes}:{hard}")
    try:
        yield
    finally:
        if Path(f"/proc/{process_id}").exists():
            run("prlimit", "--pid", str(process_id), f"--as={soft}:{hard}")
