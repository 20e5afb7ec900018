"""The command line, called in this process or as the installed program, and namespaces for it to work in."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.testing.namespaces import temporary_namespace
from kproxy_ipt_cli.main import cli

_ROOT = Path(__file__).parents[2]
_PROGRAM = Path(sys.executable).with_name("kproxy-ipt")
_HIDE = 'mount --bind "$0" /usr/sbin && exec "$@"'
_IRRELEVANT = (
    "KUBECONFIG",
    "KUBERNETES_SERVICE_HOST",
    "KUBERNETES_SERVICE_PORT",
    "NO_COLOR",
    "http_proxy",
    "HTTP_PROXY",
)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty home, and none of the variables that decide about clusters and colours."""
    for name in _IRRELEVANT:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def invoke() -> Callable[..., Result]:
    """Call the command line in this process: `invoke("render", "--from", path, stdin=b"")`."""

    def call(*arguments: str | Path, stdin: bytes | str | None = None) -> Result:
        return CliRunner().invoke(cli, [str(argument) for argument in arguments], input=stdin, prog_name="kproxy-ipt")

    return call


@pytest.fixture
def program() -> Callable[..., subprocess.CompletedProcess[str]]:
    """
    Run the installed program with its real streams.

    `prefix` holds words in front of it (`ip netns exec ...`), `sbin` a folder to see in the place of /usr/sbin, `env`
    variables to add.
    """

    def run(
        *arguments: str | Path,
        prefix: tuple[str, ...] = (),
        sbin: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
    ) -> subprocess.CompletedProcess[str]:
        hidden = ("unshare", "-m", "sh", "-c", _HIDE, str(sbin)) if sbin else ()
        command = [*prefix, *hidden, str(_PROGRAM), *(str(argument) for argument in arguments)]
        return subprocess.run(
            command, input=stdin, capture_output=True, text=True, check=False, timeout=60, env=os.environ | (env or {})
        )

    return run


@pytest.fixture
def netns() -> Iterator[str]:
    """A namespace for one test."""
    with temporary_namespace("cli") as name:
        yield name


@pytest.fixture
def saved() -> Callable[..., str]:
    """What the save programs of both families print in a namespace: `saved(netns, backend="nft")`, without comments."""

    def save(netns: str, backend: str = "nft") -> str:
        with inside(netns):
            texts = [
                subprocess.run([f"{word}-{backend}-save"], capture_output=True, text=True, check=True).stdout
                for word in ("iptables", "ip6tables")
            ]
        lines = (line for text in texts for line in text.splitlines() if not line.startswith("#"))
        return "".join(f"{line.partition(' [')[0] if line.startswith(':') else line}\n" for line in lines)

    return save


@pytest.fixture
def iptables(netns: str) -> Callable[..., str]:
    """Run an iptables program in the namespace of the test: `iptables("-t", "nat", "-L")`."""

    def run(*arguments: str, word: str = "iptables-nft") -> str:
        with inside(netns):
            return subprocess.run([word, *arguments], capture_output=True, text=True, check=True).stdout

    return run


@pytest.fixture
def examples() -> Path:
    """The manifests of the documentation: 6 Services and the Node n1."""
    return _ROOT / "manifests" / "examples"


@pytest.fixture
def lab(examples: Path, netns: str) -> tuple[str, ...]:
    """Options that all commands which look at objects and kernel share: the examples, on nft, in the namespace."""
    return ("--from", str(examples), "--hostname-override", "n1", "--netns", netns, "--backend", "nft")


@pytest.fixture
def shim(tmp_path: Path) -> Callable[[str, str], Mapping[str, str]]:
    """Put a shell script in the place of a program (the real one is `$REAL`); gives the environment that finds it."""

    def write(name: str, script: str) -> Mapping[str, str]:
        folder = tmp_path / "shims"
        folder.mkdir(exist_ok=True)
        path = folder / name
        path.write_text(f"#!/bin/sh\nREAL=/usr/sbin/{name}\n{script}\n")
        path.chmod(0o755)
        return {"PATH": f"{folder}:{os.environ['PATH']}"}

    return write


@pytest.fixture
def counted(invoke: Callable[..., Result], lab: tuple[str, ...], netns: str) -> tuple[str, ...]:
    """The examples, and counters as if connections had come; options that name the namespace."""
    ran = invoke("sync", "--once", *lab)
    assert ran.exit_code == 0, ran.output
    with inside(netns):
        saved = subprocess.run(["iptables-nft-save"], capture_output=True, text=True, check=True).stdout
        counts = {"-> 10.244.1.13:8080": 105, "-> 10.244.1.14:8080": 30, "-> 10.244.2.21:8080": 15}
        lines = [
            f"[{_packets(line, counts)}:0] {line}" if line.startswith("-A") else line for line in saved.splitlines()
        ]
        subprocess.run(["iptables-nft-restore", "--counters"], input="\n".join(lines) + "\n", text=True, check=True)
    return ("--netns", netns, "--backend", "nft")


def _packets(line: str, counts: dict[str, int]) -> int:
    if "demo/web:http" in line and "--to-destination 10.244.1.13:8080" in line:
        return 150
    return next((count for part, count in counts.items() if part in line and "demo/web:http " in line), 0)
