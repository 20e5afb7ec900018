"""Long work shows how far it has come, on a terminal and nowhere else."""

import os
import pty
import subprocess
from pathlib import Path

import pytest

from kproxy_ipt.testing.big_cluster import cluster
from kproxy_ipt.testing.daemon_process import kproxy_ipt_program
from kproxy_ipt.testing.namespaces import temporary_namespace

pytestmark = pytest.mark.kernel

_SERVICES = 800


def _synced(path: Path, netns: str, stderr: int) -> str:
    """What `sync --once` prints to standard output, its errors going to *stderr*."""
    command = [kproxy_ipt_program(), "sync", "--once", "--from", str(path)]
    options = ["--netns", netns, "--backend", "nft", "--family", "ipv4"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    return subprocess.run(
        [*command, *options], stdout=subprocess.PIPE, stderr=stderr, text=True, check=True, env=environment
    ).stdout


def test_bar_is_on_the_terminal_alone(tmp_path: Path) -> None:
    """The name of the family and a percentage; a file gets neither, and standard output nothing at all."""
    path = tmp_path / "cluster.json"
    path.write_bytes(cluster(_SERVICES))
    ours, theirs = pty.openpty()
    with temporary_namespace("bar") as netns:
        output = _synced(path, netns, theirs)
    os.close(theirs)
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    with temporary_namespace("bar") as netns, (tmp_path / "errors").open("w+") as errors:
        _synced(path, netns, errors.fileno())
        errors.seek(0)
        written = errors.read()

    assert "ipv4 rules" in shown
    assert "%" in shown
    assert "ipv4 rules" not in output + written
