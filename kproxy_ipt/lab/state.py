"""What a lab says of itself on disk, and whether it lives."""

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from kproxy_ipt.lab.layout import Layout

_POLL_S = 0.02
_KILL_AFTER_S = 10.0
_SESSION_FIELD = 3
"""Of `/proc/PID/stat`, counted behind the name of the program."""


class LabState(msgspec.Struct, frozen=True, kw_only=True):
    """
    What the supervisor writes down.

    Attributes:
        session: Its process id, which is that of its session: everything it starts belongs to it.
        port: Where the API listens on 127.0.0.1, 0 as long as it does not.
        error: Why it ended, "" while all is well.
    """

    session: int
    port: int = 0
    error: str = ""

    @property
    def url(self) -> str:
        """The address of the API."""
        return f"http://127.0.0.1:{self.port}"


def write_state(layout: Layout, state: LabState) -> None:
    """Write the state down, whole or not at all."""
    new = layout.state.with_suffix(".new")
    new.write_bytes(msgspec.json.encode(state))
    new.replace(layout.state)


def read_state(layout: Layout) -> LabState | None:
    """The state, or None where there is no lab of that name, or nothing that can be read."""
    try:
        return msgspec.json.decode(layout.state.read_bytes(), type=LabState)
    except (OSError, msgspec.MsgspecError):
        return None


def is_alive(layout: Layout, state: LabState) -> bool:
    """Whether the supervisor runs."""
    return state.session in _processes(layout, state.session)


def kill_processes(layout: Layout, session: int) -> None:
    """End all processes of a lab; the supervisor, if it lives, has ten seconds to end the others in good order."""
    running = _processes(layout, session)
    _send(signal.SIGCONT, running)  # a process that was stopped would not hear that it is to end
    _send(signal.SIGTERM, {session} & running or running)
    deadline_s = time.monotonic() + _KILL_AFTER_S
    while _processes(layout, session) and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
    while running := _processes(layout, session):
        _send(signal.SIGKILL, running)
        time.sleep(_POLL_S)


def send_to_daemon(layout: Layout, state: LabState, node: str, number: signal.Signals) -> None:
    """Send a signal to the kproxy-ipt of a node; one that is not there is no error."""
    mark = f"\0{layout.netns(node)}\0".encode()
    for pid in _processes(layout, state.session):
        with suppress(OSError):
            if mark in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, number)


def _send(number: signal.Signals, pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _processes(layout: Layout, session: int) -> set[int]:
    """
    The processes of a lab: those of the session of its supervisor that name a file or namespace of it.

    A process that is a stranger to the lab and got the number of a dead one does neither.
    """
    marks = (str(layout.folder).encode(), f"\0{layout.name}-".encode())
    found = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        with suppress(OSError, IndexError, ValueError):
            behind_name = (entry / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
            is_dead = behind_name[0] == "Z"
            if not is_dead and int(behind_name[_SESSION_FIELD]) == session:
                command = (entry / "cmdline").read_bytes()
                if any(mark in command for mark in marks):
                    found.add(int(entry.name))
    return found
