"""Saving and restoring with the real programs of both backends, in an empty namespace for each test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.kernel.backend import Backend, Programs
from kproxy_ipt.kernel.command import SubprocessRunner
from kproxy_ipt.kernel.iptables import Iptables
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.kernel.programs import installed_programs
from kproxy_ipt.testing.namespaces import temporary_namespace


@pytest.fixture(autouse=True)
def namespace() -> Iterator[str]:
    """Each test has tables of its own."""
    with temporary_namespace("ipt") as name, inside(name):
        yield name


def _programs(backend: Backend) -> Programs:
    return installed_programs(SubprocessRunner(), (Family.IPV4,))[Family.IPV4].programs[backend]


@pytest.fixture(params=list(Backend))
def iptables(request: pytest.FixtureRequest) -> Iptables:
    """The programs of each backend in turn."""
    return Iptables(SubprocessRunner(), _programs(request.param), 1)


@pytest.fixture
def legacy() -> Iptables:
    """The programs of the legacy backend, which wait one second for the lock."""
    return Iptables(SubprocessRunner(), _programs(Backend.LEGACY), 1)


@pytest.fixture
def nft() -> Iptables:
    """The programs of the nft backend."""
    return Iptables(SubprocessRunner(), _programs(Backend.NFT), 1)


@pytest.fixture
def with_script(tmp_path: Path) -> Callable[[Iptables, str], Iptables]:
    """
    The same programs, but saving and restoring is done by a script.

    The real programs are `$SAVE` and `$RESTORE`.
    """

    def wrap(iptables: Iptables, script: str) -> Iptables:
        path, programs = tmp_path / "program", iptables.programs
        path.write_text(f"#!/bin/sh\nSAVE={programs.save[0]} RESTORE={programs.restore[0]}\n{script}\n")
        path.chmod(0o755)
        wrapped = Programs(
            programs.backend, programs.family, programs.command, (str(path),), (str(path),), programs.version, "script"
        )
        return Iptables(SubprocessRunner(), wrapped, 1)

    return wrap
