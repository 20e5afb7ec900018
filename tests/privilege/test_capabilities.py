"""Which capabilities are needed, for each backend and user: what is enough, and that less is not."""

import json
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.testing.daemon_process import PATIENCE_S, wait_until

pytestmark = pytest.mark.kernel

Start = Callable[..., "subprocess.Popen[str]"]
NOBODY = 65534

# Backend, user, capabilities, further arguments. Asking which backend is in use takes the list of legacy tables, which
# belongs to root: a user who may not read it names the backend.
ENOUGH = [
    ("nft", 0, ("NET_ADMIN",), ()),
    ("nft", NOBODY, ("NET_ADMIN",), ("--backend", "nft")),
    ("nft", NOBODY, ("NET_ADMIN", "DAC_READ_SEARCH"), ()),
    ("legacy", 0, ("NET_ADMIN", "NET_RAW"), ()),
    ("legacy", NOBODY, ("NET_ADMIN", "NET_RAW", "DAC_READ_SEARCH"), ()),
]
TOO_LITTLE = [
    (backend, user, tuple(name for name in capabilities if name != missing), arguments, missing)
    for backend, user, capabilities, arguments in ENOUGH
    for missing in capabilities
]
_PRIVILEGE = 7
_STALE = ("-p", "udp", "-s", "10.244.1.77", "--sport", "4711", "-d", "10.96.0.53", "--dport", "53")


def _save(host: str, backend: str) -> str:
    with inside(host):
        printed = subprocess.run([f"iptables-{backend}-save"], capture_output=True, text=True, check=True).stdout
    return re.sub(r"^#.*\n|\[\d+:\d+\]", "", printed, flags=re.MULTILINE)


def _run(host: str, *command: str) -> str:
    with inside(host):
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _status(process: "subprocess.Popen[str]") -> dict[str, str]:
    """What the kernel says of the process."""
    text = Path(f"/proc/{process.pid}/status").read_text()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}


def _bits(capabilities: tuple[str, ...]) -> int:
    numbers = {"DAC_READ_SEARCH": 2, "NET_ADMIN": 12, "NET_RAW": 13}
    return sum(1 << numbers[name] for name in capabilities)


@pytest.mark.parametrize(("backend", "user", "capabilities", "arguments"), ENOUGH)
def test_daemon_does_all_its_work_with_these(
    backend: str,
    user: int,
    capabilities: tuple[str, ...],
    arguments: tuple[str, ...],
    host: str,
    start: Start,
    objects: Path,
    log: Path,
) -> None:
    """Rules written, stale flows ended, lost rules repaired; and it really holds nothing else."""
    _run(host, "conntrack", "-I", *_STALE, "--timeout", "600")
    process = start(user, capabilities, "run", "--from", str(objects), "--hostname-override", "n1", *arguments)
    try:
        wait_until(lambda: '"in step"' in log.read_text() or process.poll() is not None, "in step")
        assert process.poll() is None
        written = _save(host, backend)
        assert "demo/web:http cluster IP" in written
        status = _status(process)
        assert {int(status[name], 16) for name in ("CapEff", "CapPrm", "CapBnd")} == {_bits(capabilities)}
        assert status["NoNewPrivs"] == "1"
        assert {*status["Uid"].split(), *status["Gid"].split()} == {str(user)}
        wait_until(lambda: not _run(host, "conntrack", "-L", *_STALE), "the stale flow ends")
        _run(host, f"iptables-{backend}", "-t", "nat", "-F", "KUBE-SERVICES")
        wait_until(lambda: _save(host, backend) == written, "what was lost is repaired", timeout_s=2 * PATIENCE_S)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    except (AssertionError, TimeoutError) as error:
        raise AssertionError(f"{error}\n{log.read_text()}") from error


@pytest.mark.parametrize(("backend", "user", "capabilities", "arguments"), ENOUGH[:4])
def test_what_is_lost_with_them_is_named(
    backend: str,  # noqa: ARG001 - of the host
    user: int,
    capabilities: tuple[str, ...],
    arguments: tuple[str, ...],
    start: Start,
    objects: Path,
    log: Path,
) -> None:
    """Kernel settings that could not be made stand in the log with their names and with what follows."""
    process = start(user, capabilities, "run", "--from", str(objects), "--hostname-override", "n1", *arguments)
    wait_until(lambda: '"in step"' in log.read_text() or process.poll() is not None, "in step")

    lines = [json.loads(line) for line in log.read_text().splitlines()]
    problems = [str(line.get("problem") or line.get("note")) for line in lines if line["level"] == "warning"]

    lost = [problem for problem in problems if "cannot set" in problem]
    assert any("route_localnet" in line and "node ports do not answer on 127.0.0.1" in line for line in lost)
    assert any("nf_conntrack_tcp_timeout_established" in line for line in lost)
    assert not any("Traceback" in problem for problem in problems)


@pytest.mark.parametrize(("backend", "user", "capabilities", "arguments", "missing"), TOO_LITTLE)
@pytest.mark.parametrize("command", [("run",), ("sync", "--once")], ids=" ".join)
def test_without_one_of_them_it_ends_and_names_what_is_missing(
    command: tuple[str, ...],
    backend: str,
    user: int,
    capabilities: tuple[str, ...],
    arguments: tuple[str, ...],
    missing: str,
    host: str,
    start: Start,
    objects: Path,
    log: Path,
) -> None:
    """The code says privilege, the words say which, nothing is written."""
    before = _save(host, backend)

    code = start(user, capabilities, *command, "--from", str(objects), "--hostname-override", "n1", *arguments).wait(
        PATIENCE_S
    )

    text = log.read_text()
    assert code == _PRIVILEGE, text
    assert f"CAP_{missing}" in text
    assert "Traceback" not in text
    assert _save(host, backend) == before
