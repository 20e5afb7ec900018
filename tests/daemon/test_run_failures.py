"""Programs that fail, hang or are killed under a running daemon: nothing that worked stops, health tells the truth."""

import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.testing.daemon_process import HEALTH_PORT, METRICS_PORT, DaemonProcess, wait_until
from kproxy_ipt.testing.lab import Lab
from kproxy_ipt.testing.lab_objects import answering_lab, cluster_ip, endpoints, open_service, own_node
from kproxy_ipt.testing.object_folder import ObjectFolder
from kproxy_ipt.testing.shims import Shims
from kproxy_ipt.testing.steady_traffic import SteadyConnections

pytestmark = pytest.mark.kernel

_V4 = Family.IPV4
_CONFIG = """
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clusterCIDR: 10.244.0.0/16,fd00:10:244::/56
iptables: {syncPeriod: 500ms, minSyncPeriod: 10ms}
"""
_PAGES: dict[str, int] = {"/livez": HEALTH_PORT, "/metrics": METRICS_PORT}
_LIMIT_S = 1.0
"""Twice the sync period."""
_ONLY_RESTORES = 'case "$*" in *--noflush*) {};; esac'
_FAILURES = {
    "exit 1": "exit 1",
    "exit 2": "exit 2",
    "exit 4": "exit 4",
    "killed": "kill -9 $$",
    "half the input": 'head -c 150 | "$REAL" "$@"; exit 1',
}


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Two pods that answer."""
    with answering_lab() as made:
        yield made


@pytest.fixture
def shims(tmp_path: Path) -> Shims:
    """Counting for a start."""
    made = Shims(tmp_path / "shims")
    made.install("iptables-nft-restore", "ip6tables-nft-restore")
    return made


@pytest.fixture
def folder(tmp_path: Path, lab: Lab) -> ObjectFolder:
    """A Node, and a Service with an endpoint."""
    web = open_service(_V4)
    return ObjectFolder(tmp_path / "objects", own_node(), web, endpoints(web, _V4, lab.pods[1]))


@pytest.fixture
def daemon(lab: Lab, tmp_path: Path, folder: ObjectFolder, shims: Shims) -> Iterator[DaemonProcess]:
    """A daemon of both families with a limit of health of one second, in step."""
    (tmp_path / "config.yaml").write_text(_CONFIG)
    arguments = ("--from", str(folder.path), "--backend", "nft", "--config", str(tmp_path / "config.yaml"))
    with DaemonProcess(lab.node.netns, *arguments, shims=shims.folder) as made:
        made.wait_in_step()
        yield made


@pytest.mark.parametrize("how", _FAILURES)
def test_failed_restore_changes_nothing_that_worked(
    lab: Lab, folder: ObjectFolder, daemon: DaemonProcess, shims: Shims, how: str
) -> None:
    """Rules are the same before and after the failure, no connection is lost, the change is there after the retry."""
    before = _rules(lab)
    shims.act("iptables-nft-restore", _ONLY_RESTORES.format(_FAILURES[how]))
    other = open_service(_V4, "other", number=11, node_port=30081)
    with SteadyConnections(lab.pods[0], cluster_ip(_V4), 80) as client:
        folder.put(other, endpoints(other, _V4, lab.pods[1]))
        wait_until(lambda: daemon.log("sync failed") or daemon.log("service set aside"), "the failure")
        after = _rules(lab)
        shims.relent("iptables-nft-restore")
        wait_until(lambda: lab.pods[0].send(cluster_ip(_V4, 11), 80, timeout_s=0.2).names, "the retry")

    assert (before, {}) == (after, dict(client.failures))
    assert client.exchanges


@pytest.mark.parametrize(("program", "family"), [("iptables", "IPv4"), ("ip6tables", "IPv6")])
def test_health_follows_failures_of_each_family(
    folder: ObjectFolder, daemon: DaemonProcess, shims: Shims, program: str, family: str
) -> None:
    """503 after the documented limit, with the failing family and its error named; 200 with the first success."""
    shims.act(f"{program}-nft-restore", _ONLY_RESTORES.format("echo no luck >&2; exit 4"))
    failing = Family(family.lower())
    other = open_service(failing, "other", number=11, node_port=30081)
    folder.put(other, endpoints(other, failing))
    daemon.wait_for_log("sync failed")
    answers = [daemon.health(failing)]

    def is_unhealthy() -> bool:
        answers.append(daemon.health(failing))
        return answers[-1].status == 503

    wait_until(is_unhealthy, "unhealthy")
    body = json.loads(daemon.get("/healthz?verbose").body)
    shims.relent(f"{program}-nft-restore")
    wait_until(lambda: daemon.get("/healthz").status == 200, "healthy again")

    healthy = {name: status["healthy"] for name, status in body["status"].items()}
    assert {"IPv4": family != "IPv4", "IPv6": family != "IPv6"} == healthy
    assert "no luck" in body["families"][family]["lastError"]
    assert [] == [answer for answer in answers if not answer.is_right or answer.limit_s != _LIMIT_S]
    assert 1 <= daemon.metric("kproxy_ipt_syncs_total", outcome="failed", ip_family=family)


def test_idle_daemon_stays_healthy(daemon: DaemonProcess) -> None:
    """With nothing to do for three times the limit every probe is answered 200, and nothing is synced."""
    syncs = daemon.metric("kproxy_ipt_syncs_total")
    until_s = time.monotonic() + 3 * _LIMIT_S
    statuses: set[int] = set()

    def is_over() -> bool:
        statuses.add(daemon.get("/livez").status)
        return time.monotonic() > until_s

    wait_until(is_over, "idle time")
    assert ({200}, syncs) == (statuses, daemon.metric("kproxy_ipt_syncs_total"))


def test_hanging_restore_makes_unhealthy_and_keeps_nobody_waiting(
    folder: ObjectFolder, daemon: DaemonProcess, shims: Shims
) -> None:
    """While a restore hangs both servers answer as fast as before, health turns after its limit and comes back."""
    idle = {port: [_timed(daemon, path, port) for _ in range(10)] for path, port in _PAGES.items()}
    shims.hold("iptables-nft-restore")
    calls = shims.restores()
    other = open_service(_V4, "other", number=11, node_port=30081)
    folder.put(other, endpoints(other, _V4))
    wait_until(lambda: shims.restores() > calls, "the restore began")
    answers = {port: [_timed(daemon, path, port) for _ in range(10)] for path, port in _PAGES.items()}
    wait_until(lambda: daemon.get("/livez").status == 503, "unhealthy")
    shims.relent("iptables-nft-restore")
    wait_until(lambda: daemon.get("/livez").status == 200, "healthy again")

    for port, seconds in answers.items():
        assert statistics.median(seconds) < 0.05 + 3 * statistics.median(idle[port])


def test_lost_program_is_told_and_comes_back(
    lab: Lab, folder: ObjectFolder, daemon: DaemonProcess, shims: Shims
) -> None:
    """A restore program that cannot be run is a failed sync, not the end of the daemon."""
    shims.act("iptables-nft-restore", _ONLY_RESTORES.format("exit 127"))
    other = open_service(_V4, "other", number=11, node_port=30081)
    folder.put(other, endpoints(other, _V4, lab.pods[1]))
    daemon.wait_for_log("sync failed", count=2)
    shims.relent("iptables-nft-restore")

    wait_until(lambda: lab.pods[0].send(cluster_ip(_V4, 11), 80, timeout_s=0.2).names, "written at last")


def test_read_only_program_that_fails_costs_no_rules(
    lab: Lab, folder: ObjectFolder, daemon: DaemonProcess, shims: Shims
) -> None:
    """A save program that fails stops comparisons, not partial syncs, which read nothing."""
    shims.install("iptables-nft-save")
    shims.act("iptables-nft-save", "exit 1")
    other = open_service(_V4, "other", number=11, node_port=30081)
    folder.put(other, endpoints(other, _V4, lab.pods[1]))

    wait_until(lambda: lab.pods[0].send(cluster_ip(_V4, 11), 80, timeout_s=0.2).names, "written without reading")
    assert [] == daemon.log("sync failed")


def _timed(daemon: DaemonProcess, path: str, port: int) -> float:
    started_s = time.monotonic()
    daemon.get(path, port)
    return time.monotonic() - started_s


def _rules(lab: Lab) -> list[str]:
    return [line for line in lab.node.run("iptables-nft-save").splitlines() if line.startswith("-A")]
