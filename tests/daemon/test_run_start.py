"""The life of the process `kproxy-ipt run`: what it waits for, whom it tells, how it ends."""

import json
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from kproxy_ipt.daemon.machine import Target
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.testing.api_faults import Fault
from kproxy_ipt.testing.api_server import ApiServer
from kproxy_ipt.testing.daemon_process import (
    METRICS_PORT,
    PATIENCE_S,
    DaemonProcess,
    lab_arguments,
    run_to_end,
    wait_until,
)
from kproxy_ipt.testing.lab_objects import own_node
from kproxy_ipt.testing.object_folder import ObjectFolder
from kproxy_ipt.testing.objects import endpoint_slice, service
from kproxy_ipt.testing.shims import Shims

pytestmark = pytest.mark.kernel

_WEB = service()
_OBJECTS = (own_node(), _WEB, endpoint_slice(_WEB))


@pytest.fixture
def folder(tmp_path: Path) -> ObjectFolder:
    """A Node and a Service with one endpoint."""
    return ObjectFolder(tmp_path / "objects", *_OBJECTS)


@pytest.fixture
def netns(target: Target) -> str:
    """The namespace of the test."""
    return str(target.netns)


@pytest.mark.parametrize("resource", ["services", "endpointslices", "nodes"])
def test_nothing_is_written_before_all_lists_are_complete(
    netns: str, tmp_path: Path, look: Callable[..., str], resource: str
) -> None:
    """While one list is late the daemon runs, is asked, and calls no restore; then it writes all at once."""
    shims = Shims(tmp_path / "shims")
    shims.install("iptables-nft-restore")
    with ApiServer() as server:
        server.put(*_OBJECTS)
        server.schedule(Fault.hang(), path=f"/{resource}", times=1)
        with DaemonProcess(netns, *lab_arguments(server.url, "nft"), shims=shims.folder) as daemon:
            daemon.wait_for_log("listening", server="healthz")
            wait_until(lambda: len(_heard_of(daemon)) >= 2, "the other lists are there")
            unready = (daemon.log("in step"), shims.restores(), look("iptables-nft-save"))
            heard = _heard_of(daemon)
            server.unschedule()
            server.stop()
            server.start()
            daemon.wait_in_step()

            assert ([], 0, "") == unready
            assert resource not in heard
            assert "KUBE-SVC" in look("iptables-nft-save")


def test_rules_stay_as_they_are_until_everything_is_known(
    netns: str, folder: ObjectFolder, look: Callable[..., str]
) -> None:
    """A restart whose slices come late keeps the rules of the former life in force meanwhile."""
    with DaemonProcess(netns, *lab_arguments(folder.path, "nft")) as daemon:
        daemon.wait_in_step()
    before = look("iptables-nft-save").splitlines()[1:]
    with ApiServer() as server:
        server.put(*_OBJECTS)
        server.schedule(Fault.slow(1.0), path="/endpointslices")
        with DaemonProcess(netns, *lab_arguments(server.url, "nft")) as daemon:
            wait_until(lambda: any("/endpointslices" in one.path for one in server.requests), "slices asked for")
            meanwhile = look("iptables-nft-save").splitlines()[1:]
            daemon.wait_in_step()
            written = daemon.metric("kproxy_ipt_transactions_total")

    assert ([], 0) == (_differences(before, meanwhile), written)
    assert [] == _differences(before, look("iptables-nft-save").splitlines()[1:])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_it_well(
    netns: str, folder: ObjectFolder, look: Callable[..., str], number: signal.Signals
) -> None:
    """Exit code 0, no traceback, rules stay."""
    with DaemonProcess(netns, *lab_arguments(folder.path, "nft")) as daemon:
        daemon.wait_in_step()
        code = daemon.stop(number)

    assert (0, "they stay") == (code, daemon.log("stopped")[0]["rules"])
    assert not [line for line in daemon.lines if "Traceback" in line]
    assert "KUBE-SVC" in look("iptables-nft-save")


def test_signal_before_anything_is_known_ends_it(netns: str) -> None:
    """Without an API server in reach SIGTERM ends it all the same, in a moment."""
    with DaemonProcess(netns, "--master", "http://127.0.0.1:9", "--backend", "nft") as daemon:
        daemon.wait_for_log("source")

        assert 0 == daemon.stop(timeout_s=5)


def test_signal_in_the_middle_of_a_restore_lets_it_finish(
    netns: str, folder: ObjectFolder, tmp_path: Path, look: Callable[..., str]
) -> None:
    """A restore that runs when SIGTERM comes is finished, so no half of a plan stays."""
    shims = Shims(tmp_path / "shims")
    shims.install("iptables-nft-restore")
    shims.act("iptables-nft-restore", 'case "$*" in *--noflush*) sleep 1;; esac')
    with DaemonProcess(netns, *lab_arguments(folder.path, "nft"), shims=shims.folder) as daemon:
        wait_until(shims.restores, "the restore began")

        assert 0 == daemon.stop()
    assert "KUBE-SVC" in look("iptables-nft-save")


def test_log_is_json_when_nobody_sits_at_a_terminal(netns: str, folder: ObjectFolder) -> None:
    """Every line of standard error is a JSON object with event, level and time."""
    with DaemonProcess(netns, *lab_arguments(folder.path, "nft"), "-v", "2") as daemon:
        daemon.wait_in_step()
        daemon.stop()

    lines = [json.loads(line) for line in daemon.lines]
    assert all({"event", "level", "timestamp"} <= line.keys() for line in lines)
    assert ["start", "stopped"] == [lines[0]["event"], lines[-1]["event"]]


def test_systemd_is_told_ready_after_the_first_sync_and_stopping_at_the_end(
    netns: str, folder: ObjectFolder, look: Callable[..., str], tmp_path: Path
) -> None:
    """READY=1 comes when rules are in the kernel, not before; STOPPING=1 comes with the signal."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(str(tmp_path / "notify"))
        supervisor.settimeout(PATIENCE_S)
        environment = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
        with DaemonProcess(netns, *lab_arguments(folder.path, "nft"), environment=environment) as daemon:
            first = supervisor.recv(1000)
            rules = look("iptables-nft-save")
            daemon.stop()
            last = supervisor.recv(1000)

    assert (True, True) == (b"READY=1" in first, b"STOPPING=1" in last)
    assert "KUBE-SVC" in rules


def test_it_can_run_as_a_process_of_the_namespace(netns: str, folder: ObjectFolder, look: Callable[..., str]) -> None:
    """Started in the namespace without --netns it does the same, as it will on a node."""
    arguments = [argument for argument in lab_arguments(folder.path, "nft") if argument]
    with inside(netns):
        daemon = DaemonProcess("", *arguments)
        daemon.command = [part for part in daemon.command if part not in ("--netns", "")]
        daemon.start()
    try:
        daemon.wait_in_step()

        assert "KUBE-SVC" in look("iptables-nft-save")
    finally:
        daemon.stop()


def test_version_is_that_of_kube_proxy() -> None:
    """`--version` prints one line that programs know from kube-proxy."""
    ended = run_to_end("--version")

    assert (0, True) == (ended.returncode, ended.stdout.startswith("Kubernetes v1."))


def test_configuration_is_written_and_read_again(tmp_path: Path) -> None:
    """`--write-config-to` writes what is in force and ends; written anew from that file it is the same."""
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    ended = [
        run_to_end("--cluster-cidr", "10.0.0.0/8", "--iptables-min-sync-period", "2s", "--write-config-to", str(first)),
        run_to_end("--config", str(first), "--write-config-to", str(second)),
    ]

    assert [0, 0] == [one.returncode for one in ended]
    assert ("10.0.0.0/8", first.read_text()) == (yaml.safe_load(first.read_text())["clusterCIDR"], second.read_text())


def test_cleanup_takes_all_rules_away(netns: str, folder: ObjectFolder, look: Callable[..., str]) -> None:
    """`--cleanup`, twice: nothing of ours is left, exit code 0."""
    with DaemonProcess(netns, *lab_arguments(folder.path, "nft")) as daemon:
        daemon.wait_in_step()
    codes = [run_to_end("--cleanup", "--netns", netns).returncode for _ in range(2)]

    assert ([0, 0], False) == (codes, "KUBE" in look("iptables-nft-save"))


def test_init_only_makes_kernel_settings_and_ends(netns: str, look: Callable[..., str]) -> None:
    """`--init-only` sets what needs privileges, writes no rule, and ends with 0."""
    with inside(netns):
        Path("/proc/sys/net/ipv4/conf/all/route_localnet").write_text("0")

    code = run_to_end("--init-only", "--netns", netns, "--backend", "nft").returncode

    with inside(netns):
        assert "1" == Path("/proc/sys/net/ipv4/conf/all/route_localnet").read_text().strip()
    assert (0, "") == (code, look("iptables-nft-save"))


def test_second_daemon_keeps_asking_for_the_ports(netns: str, folder: ObjectFolder) -> None:
    """Ports that the former life still has are not fatal: rules are written, and ports taken once free."""
    with DaemonProcess(netns, *lab_arguments(folder.path, "nft")) as first:
        first.wait_in_step()
        with DaemonProcess(netns, *lab_arguments(folder.path, "nft")) as second:
            second.wait_in_step()
            second.wait_for_log("cannot listen", server="healthz")
            first.stop()

            wait_until(lambda: second.log("listening", server="metrics"), "port taken over")
            assert 200 == second.get("/metrics", METRICS_PORT).status


def test_program_of_this_interpreter_is_tested() -> None:
    """The program under test belongs to the interpreter that runs the tests."""
    assert Path(sys.executable).with_name("kproxy-ipt").exists()


def _heard_of(daemon: DaemonProcess) -> list[str]:
    """Kinds of which the daemon heard anything."""
    api = json.loads(daemon.get("/healthz?verbose").body)["api"]
    return [kind for kind, status in api.items() if status["lastContact"]]


def _differences(before: list[str], after: list[str]) -> list[str]:
    """Rules and chains that differ; headers tell the time."""
    return [line for line in {*before} ^ {*after} if not line.startswith(("#", ":"))]
