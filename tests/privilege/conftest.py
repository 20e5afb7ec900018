"""
Processes with as few rights as can be: a user, capabilities, file systems that cannot be written to.

Everything else is as hard as it gets: no new privileges, a bounding set of the same capabilities, a root file system
and `/proc/sys` that are read-only. The only file that can be written is the lock of the legacy programs.
"""

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.testing.namespaces import temporary_namespace

_ROOT = Path(__file__).parents[2]
_PROGRAM = str(Path(sys.executable).with_name("kproxy-ipt"))

# $1 user, $2 capabilities for setpriv, $3 folders that everybody may enter, $4 folders to bring back below them.
_CONFINED = """
set -euo pipefail
user=$1 capabilities=$2 hidden=$3 needed=$4
shift 4
mount -t tmpfs tmpfs /mnt
number=0
for folder in $needed; do
    mkdir /mnt/$((number += 1)); mount --bind "$folder" /mnt/$number
done
for folder in $hidden; do mount -t tmpfs -o mode=755 tmpfs "$folder"; done
number=0
for folder in $needed; do
    number=$((number + 1)); mkdir -p "$folder"; mount --bind /mnt/$number "$folder"
done
mount -t tmpfs -o mode=755 tmpfs /run
touch /run/xtables.lock
chown "$user" /run/xtables.lock
for place in /run/xtables.lock /proc/sys /tmp; do mount --bind "$place" "$place"; done
for place in /proc/sys /tmp /run /; do mount -o remount,bind,ro "$place"; done
keep=(--reuid "$user" --regid "$user" --clear-groups --ambient-caps="-all$capabilities")
exec setpriv --no-new-privs --bounding-set="-all$capabilities" --inh-caps="-all$capabilities" "${keep[@]}" -- "$@"
"""


def _hidden_ancestor(folder: Path) -> Path | None:
    """The topmost folder on the way that only its owner may enter."""
    ways = [folder, *folder.parents]
    return next((way for way in reversed(ways) if not way.stat().st_mode & stat.S_IXOTH), None)


def _places() -> tuple[list[str], list[str]]:
    """Folders to open for everybody, and those below that the program needs: Python, its environment, the source."""
    needed = [Path(sys.base_prefix), Path(sys.prefix), _ROOT]
    found = {folder: _hidden_ancestor(folder) for folder in needed}
    return (
        sorted({str(hidden) for hidden in found.values() if hidden}),
        [str(folder) for folder, hidden in found.items() if hidden],
    )


@pytest.fixture
def host(backend: str) -> Iterator[str]:
    """The network namespace of a node, in which the kubelet has left its trace in the tables of one backend."""
    if shutil.which("setpriv") is None:
        pytest.skip("needs the setpriv program")
    with temporary_namespace("few") as netns:
        with inside(netns):
            subprocess.run([f"iptables-{backend}", "-t", "mangle", "-N", "KUBE-KUBELET-CANARY"], check=True)
        yield netns


@pytest.fixture
def objects() -> Path:
    """The folder of the example Services."""
    return _ROOT / "manifests" / "examples"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Where output of the process goes."""
    return tmp_path / "log"


@pytest.fixture
def start(host: str, log: Path) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Start the program: `start(user, capabilities, *arguments)`; both streams go to the log."""
    started: list[subprocess.Popen[str]] = []
    hidden, needed = _places()

    def run(user: int, capabilities: Sequence[str], *arguments: str) -> subprocess.Popen[str]:
        wanted = "".join(f",+{name.lower()}" for name in capabilities)
        words = [str(user), wanted, " ".join(hidden), " ".join(needed), _PROGRAM, *arguments]
        environment = {"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin", "HOME": "/"}
        with inside(host), log.open("a") as stream:
            process = subprocess.Popen(
                ["unshare", "--mount", "bash", "-c", _CONFINED, "confined", *words],
                stdout=stream,
                stderr=stream,
                text=True,
                env=environment,
                cwd="/",
            )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()
