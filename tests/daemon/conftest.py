"""A namespace to sync into, shims in front of the iptables programs, and what the kernel holds."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kproxy_ipt.daemon.machine import Target
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.testing.namespaces import temporary_namespace


@pytest.fixture
def target() -> Iterator[Target]:
    """The nft tables of a namespace of one test."""
    with temporary_namespace("daemon") as netns:
        yield Target(netns=netns, backend="nft")


@pytest.fixture
def look(target: Target) -> Callable[..., str]:
    """Run a program in the namespace of the test: `look("iptables-nft-save")`."""

    def run(*command: str) -> str:
        with inside(target.netns):
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    return run


@pytest.fixture
def shim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Put a shell script in the place of a program; the real one is `$REAL`."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def write(name: str, script: str) -> None:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\nREAL=/usr/sbin/{name}\n{script}\n")
        path.chmod(0o755)

    return write
