"""A lab begins and ends: `up`, `down`."""

import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from kproxy_ipt.errors import KernelError, MissingPrivilegeError, MissingProgramError
from kproxy_ipt.lab import network
from kproxy_ipt.lab.layout import NODES, Layout
from kproxy_ipt.lab.state import LabState, is_alive, kill_processes, read_state
from kproxy_ipt.lab.status import LabStatus, read_status

START_S = 30.0
"""How long the start of a lab may take."""
_POLL_S = 0.05
_FOR_ALL = 0o755
"""Kubectl is run by ordinary users too, whatever the umask of root."""
_PROGRAMS = {"ip": "iproute2", "iptables-save": "iptables", "ip6tables-save": "iptables"}
_SYSTEM_PATH = "/usr/local/sbin:/usr/sbin:/sbin"
_WITHOUT_ROOT = (
    "a lab needs root to make network namespaces: sudo kproxy-ipt lab up, or, as an ordinary user, in a shell of "
    "unshare --map-root-user --net --mount sh -c 'mount -t tmpfs tmpfs /run && ip link set lo up && exec bash'"
)
Progress = Callable[[str], None]


def up(layout: Layout, *, port: int, backend: str = "auto", with_web: bool = True, progress: Progress) -> LabStatus:
    """
    Start a lab and wait until its pods and rules are ready; one that runs is left as it is.

    Args:
        layout: Which lab.
        port: Of the API on the loopback; 0 lets the system choose.
        backend: Of iptables on the nodes.
        with_web: Whether it begins with the Service `web` and its pods.
        progress: Told what happens, a line for each step.

    Raises:
        KernelError: Root or a program is missing, the port is taken, or it did not start.
        ConfigError: See `layout_of`.
    """
    _check_machine()
    with _alone(layout):
        state = read_state(layout)
        if state is not None and is_alive(layout, state):
            progress(f"lab {layout.name} is up already")
            return read_status(layout)
        if _remove(layout):
            progress(f"removed what a dead lab {layout.name} had left")
        return _make(layout, port, backend, with_web=with_web, progress=progress)


def down(layout: Layout) -> bool:
    """
    Remove a lab, living or dead: its processes, namespaces and files.

    Returns:
        Whether there was one.

    Raises:
        MissingPrivilegeError: Not root.
    """
    if not layout.folder.exists():
        return False
    if os.geteuid() != 0:
        raise MissingPrivilegeError("removing a lab needs root, as making it did")
    with _alone(layout):
        removed = _remove(layout)
        with suppress(OSError):  # other labs are in there
            layout.folder.parent.rmdir()
        return removed


@contextmanager
def _alone(layout: Layout) -> Iterator[None]:
    """Let no other command start or end a lab meanwhile."""
    root = layout.folder.parent
    root.mkdir(parents=True, exist_ok=True)
    root.chmod(_FOR_ALL)
    lock = os.open(root, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _make(layout: Layout, port: int, backend: str, *, with_web: bool, progress: Progress) -> LabStatus:
    began_s = time.monotonic()
    layout.namespaces.mkdir(parents=True)
    layout.folder.chmod(_FOR_ALL)
    process = _start(layout, port, backend, with_web=with_web)
    try:
        state = _wait_for_api(layout, process)
        progress(f"nodes {', '.join(node.name for node in NODES)} and a client are there; API on {state.url}")
        status = _wait_until_settled(layout)
    except BaseException:
        kill_processes(layout, process.pid)
        _remove(layout)
        raise
    progress(f"{len(status.pods)} pods answer, rules are written ({time.monotonic() - began_s:.1f} s)")
    return status


def _remove(layout: Layout) -> bool:
    if not layout.folder.exists():
        return False
    state = read_state(layout)
    if state is not None:
        kill_processes(layout, state.session)
    network.remove_all(layout)
    shutil.rmtree(layout.folder)
    return True


def _check_machine() -> None:
    if os.geteuid() != 0:
        raise MissingPrivilegeError(_WITHOUT_ROOT)
    path = f"{os.environ.get('PATH', '')}:{_SYSTEM_PATH}"
    missing = sorted({package for program, package in _PROGRAMS.items() if shutil.which(program, path=path) is None})
    if missing:
        raise MissingProgramError(f"a lab needs the programs of {' and '.join(missing)}; please install them")


def _start(layout: Layout, port: int, backend: str, *, with_web: bool) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "kproxy_ipt.lab.supervisor", str(layout.folder), str(port), backend]
    environment = {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:{_SYSTEM_PATH}"}
    with layout.log("supervisor").open("ab") as log:
        return subprocess.Popen(
            [*command, *([] if with_web else ["empty"])],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=environment,
            start_new_session=True,
        )


def _wait_for_api(layout: Layout, process: "subprocess.Popen[bytes]") -> LabState:
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s:
        state = read_state(layout)
        if state is not None and state.error:
            raise KernelError(state.error)
        if state is not None and state.port:
            return state
        if process.poll() is not None:
            log = layout.log("supervisor").read_text(encoding="utf-8", errors="replace")
            raise KernelError("the lab ended while it started:\n" + "\n".join(log.splitlines()[-20:]))
        time.sleep(_POLL_S)
    raise KernelError(f"the lab did not start within {START_S:.0f} s")


def _wait_until_settled(layout: Layout) -> LabStatus:
    deadline_s = time.monotonic() + START_S
    while True:
        status = read_status(layout)
        if status.is_settled:
            return status
        if time.monotonic() > deadline_s:
            raise KernelError(f"the lab is not ready after {START_S:.0f} s: {_what_is_missing(layout, status)}")
        time.sleep(_POLL_S)


def _what_is_missing(layout: Layout, status: LabStatus) -> str:
    missing = [f"pod {pod.name} is not ready" for pod in status.pods if not pod.ready]
    for node in status.nodes:
        if node.proxy != "healthy":
            log = layout.log(node.name)
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
            missing.append(f"kproxy-ipt of {node.name} is {node.proxy}; its log ends with: {' / '.join(lines[-3:])}")
    return "; ".join(missing)
