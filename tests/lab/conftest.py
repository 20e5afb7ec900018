"""Labs of their own for these tests, run as a user runs them: the program in one process, the lab in others."""

import secrets
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from kproxy_ipt.lab.layout import Layout, layout_of
from kproxy_ipt.testing.daemon_process import kproxy_ipt_program

Done = subprocess.CompletedProcess[str]
_TIMEOUT_S = 60.0


class RunningLab:
    """The commands of a lab, and kubectl for it."""

    def __init__(self, name: str) -> None:
        self.layout: Layout = layout_of(name)

    def run(self, *arguments: str) -> Done:
        """Run `kproxy-ipt lab ARGUMENTS` for this lab, whatever becomes of it."""
        command, *rest = arguments
        return _run([kproxy_ipt_program(), "lab", command, "--name", self.layout.name, *rest])

    def up(self, *arguments: str) -> Done:
        """Start the lab with a free port."""
        done = self.run("up", "--port", "0", *arguments)
        assert done.returncode == 0, done.stderr
        return done

    def kubectl(self, *arguments: str, stdin: str = "") -> str:
        """What kubectl prints; it must not fail."""
        program = shutil.which("kubectl")
        assert program is not None, "kubectl is missing: Debian package kubernetes-client"
        cache = str(self.layout.folder / "cache")
        done = _run([program, "--kubeconfig", str(self.layout.kubeconfig), "--cache-dir", cache, *arguments], stdin)
        assert done.returncode == 0, f"{arguments}: {done.stderr}"
        return done.stdout

    def answers(self, *arguments: str) -> dict[str, int]:
        """Who answered `lab curl` how often; requests that nobody answered stand under `""`."""
        done = self.run("curl", *arguments, "--output", "json")
        assert done.returncode in (0, 1), done.stderr
        report = msgspec.json.decode(done.stdout)["curl"]
        found = {str(each["name"]): int(each["count"]) for each in report["answers"]}
        missing = sum(report["failures"].values())
        return found | ({"": missing} if missing else {})

    def namespaces(self) -> list[str]:
        """Names of the network namespaces that look like the lab's."""
        prefix = f"{self.layout.name}-"
        return sorted(each.name for each in Path("/run/netns").glob(f"{prefix}*"))

    def processes(self) -> list[str]:
        """Command lines of the processes that name this lab."""
        mark = self.layout.name.encode()
        found = []
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                command = entry.read_bytes()
            except OSError:
                continue
            if mark in command:
                found.append(command.replace(b"\0", b" ").decode())
        return found


def _run(command: list[str], stdin: str = "") -> Done:
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)


@pytest.fixture
def unborn_lab() -> Iterator[RunningLab]:
    """A lab that is not up yet, and down at the end."""
    lab = RunningLab(f"t{secrets.token_hex(4)}")
    yield lab
    lab.run("down")


@pytest.fixture(scope="module")
def lab() -> Iterator[RunningLab]:
    """A lab with the Service `web`, for all tests of a module."""
    made = RunningLab(f"t{secrets.token_hex(4)}")
    made.up()
    try:
        yield made
    finally:
        made.run("down")
