"""
Other programs write the same tables while the daemon runs: the lock is waited for, and nobody loses anything.

How long somebody holds the lock is `KPROXY_IPT_LOCK_HELD_S`; its default is short, 60 is what cases in the wild have.
"""

import fcntl
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.testing.daemon_process import DaemonProcess, HealthAnswer, lab_arguments, wait_until
from kproxy_ipt.testing.lab import Lab
from kproxy_ipt.testing.lab_objects import cluster_ip, endpoints, open_service, own_node
from kproxy_ipt.testing.object_folder import ObjectFolder
from kproxy_ipt.testing.promptness import quickest
from kproxy_ipt.testing.steady_traffic import SteadyConnections

pytestmark = pytest.mark.kernel

_HELD_S = float(os.environ.get("KPROXY_IPT_LOCK_HELD_S", "5"))
_LOCK_WAIT_S = 1
_SYNC_PERIOD_S = 1
"""Also the longest pause between two attempts; health turns bad when a change is twice as old."""
_LIMIT_S = 2 * _SYNC_PERIOD_S
_COMPARE_PERIOD_S = 4
_WRITES = 300
_WEB = open_service(Family.IPV4)


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    """An xtables lock for one test, so that nobody else on the machine has to wait."""
    return tmp_path / "xtables.lock"


@pytest.fixture
def folder(tmp_path: Path, lab: Lab) -> ObjectFolder:
    """A Service with one endpoint."""
    return ObjectFolder(tmp_path / "objects", own_node(), _WEB, endpoints(_WEB, Family.IPV4, lab.pods[1]))


@pytest.fixture
def daemon(lab: Lab, backend: str, folder: ObjectFolder, lock: Path) -> Iterator[DaemonProcess]:
    """A daemon that waits a second for the lock and tries again after another one at most; not started."""
    arguments = (*lab_arguments(folder.path, backend), "--lock-wait", str(_LOCK_WAIT_S))
    periods = ("--iptables-sync-period", f"{_SYNC_PERIOD_S}s")
    made = DaemonProcess(lab.node.netns, *arguments, *periods, environment={"XTABLES_LOCKFILE": str(lock)})
    try:
        yield made
    finally:
        made.__exit__()


@contextmanager
def _held(lock: Path) -> Iterator[None]:
    """Somebody holds the lock."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _leads_to(lab: Lab, backend: str, address: str) -> bool:
    return f"{address}:" in lab.node.run(f"iptables-{backend}-save", "-t", "nat")


def _answers_for(daemon: DaemonProcess, seconds: float) -> list[HealthAnswer]:
    """What it says about its health so long, and until it is unhealthy."""
    until_s, found = time.monotonic() + seconds, [daemon.health()]

    def is_over() -> bool:
        found.append(daemon.health())
        return time.monotonic() > until_s and found[-1].status == 503

    wait_until(is_over, "unhealthy at last", poll_s=0.05)
    return found


def _only_legacy(backend: str) -> None:
    if backend == "nft":
        pytest.skip("the nf_tables backend has no lock")


def test_sync_is_late_and_not_lost_while_somebody_holds_the_lock(
    lab: Lab, backend: str, daemon: DaemonProcess, folder: ObjectFolder, lock: Path
) -> None:
    """C74: healthy up to the limit, unhealthy after it, in step within one retry of the release; waits are counted."""
    _only_legacy(backend)
    daemon.start()
    daemon.wait_in_step()
    began_s = time.monotonic()
    with _held(lock):
        folder.put(endpoints(_WEB, Family.IPV4, lab.pods[2]))
        answers = _answers_for(daemon, _HELD_S)
        still = _leads_to(lab, backend, lab.pods[1].address())
        failures = len(daemon.log("sync failed"))
        held_s = time.monotonic() - began_s
    wait_until(lambda: _leads_to(lab, backend, lab.pods[2].address()), "the change")
    daemon.wait_for_metric("kproxy_ipt_syncs_total", 2, outcome="written")

    assert still
    assert [] == [answer for answer in answers if not answer.is_right or answer.limit_s != _LIMIT_S]
    assert {200, 503} == {answer.status for answer in answers}
    assert 200 == daemon.get("/healthz").status
    _is_tried_again_soon(daemon, failures)
    _waits_are_counted(daemon, held_s)


def _is_tried_again_soon(daemon: DaemonProcess, failures: int) -> None:
    """The attempt that was under way at the release may fail, the next one does not, and pauses are short."""
    failed = daemon.log("sync failed")

    assert len(failed) <= failures + 1
    assert max(float(str(line["retry_in_s"])) for line in failed) <= _SYNC_PERIOD_S


def _waits_are_counted(daemon: DaemonProcess, held_s: float) -> None:
    """Each attempt waited as long as it may, and says so."""
    timeouts = daemon.metric("kproxy_ipt_lock_timeouts_total")
    waited_s = daemon.metric("kproxy_ipt_lock_wait_seconds_total")
    failed = daemon.log("sync failed")

    assert timeouts >= (_HELD_S - 1) // (_LOCK_WAIT_S + _SYNC_PERIOD_S) - 1 > 0
    assert timeouts * _LOCK_WAIT_S <= waited_s <= held_s + 2 * _LOCK_WAIT_S
    assert timeouts == len(failed)
    assert all("another program holds the xtables lock" in str(line["error"]) for line in failed)


def test_short_hold_is_waited_for_and_is_no_failure(
    lab: Lab, backend: str, daemon: DaemonProcess, folder: ObjectFolder, lock: Path
) -> None:
    """C74: a hold shorter than `--lock-wait` costs its time alone, and is part of the restore duration."""
    _only_legacy(backend)
    daemon.start()
    daemon.wait_in_step()
    before_s = daemon.metric("kproxy_ipt_restore_duration_seconds_sum")
    with _held(lock):
        folder.put(endpoints(_WEB, Family.IPV4, lab.pods[2]))
        time.sleep(0.6)
    wait_until(lambda: _leads_to(lab, backend, lab.pods[2].address()), "the change")
    daemon.wait_for_metric("kproxy_ipt_restore_duration_seconds_sum", before_s + 0.3)

    assert [] == daemon.log("sync failed")


def test_lock_that_is_held_at_the_start_delays_the_start_alone(
    lab: Lab, backend: str, daemon: DaemonProcess, lock: Path
) -> None:
    """C77: unhealthy once the limit has passed, in step within one retry of the release, without a restart."""
    _only_legacy(backend)
    lab.node.run("iptables-legacy", "-t", "nat", "-F")
    with _held(lock):
        daemon.start()
        daemon.wait_for_log("sync failed")
        wait_until(lambda: daemon.get("/healthz").status == 503, "the limit of health")
        failures = len(daemon.log("sync failed"))
    daemon.wait_in_step()

    assert 200 == daemon.get("/healthz").status
    _is_tried_again_soon(daemon, failures)
    assert _leads_to(lab, backend, lab.pods[1].address())


class _Writer:
    """Another program that writes chains of its own into the tables that we use, as fast as it can."""

    def __init__(self, lab: Lab, backend: str, lock: Path) -> None:
        self.done = 0
        self.failures: list[str] = []
        self._environment = {**os.environ, "XTABLES_LOCKFILE": str(lock)}
        self._prefix = ["nsenter", f"--net=/run/netns/{lab.node.netns}"]
        self._backend = backend
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        self.restore("*nat\n:THEIRS - [0:0]\n-I OUTPUT -d 198.51.100.0/24 -j THEIRS\nCOMMIT\n")
        for number in range(_WRITES):
            source = f"198.18.{number // 250}.{number % 250 + 1}"
            if number % 2:
                self._call(f"iptables-{self._backend}", "-w", "5", "-t", "nat", "-A", "THEIRS", "-s", source)
            else:
                self.restore(f"*nat\n-A THEIRS -s {source}\nCOMMIT\n")
            self.done += 1

    def restore(self, text: str) -> None:
        """Feed a restore program."""
        self._call(f"iptables-{self._backend}-restore", "-w", "5", "--noflush", stdin=text)

    def _call(self, *command: str, stdin: str = "") -> None:
        ran = subprocess.run(
            [*self._prefix, *command],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            env=self._environment,
        )
        if ran.returncode:
            self.failures.append(f"{command}: {ran.stderr.strip()}")


def test_neither_writer_loses_anything(
    lab: Lab, backend: str, daemon: DaemonProcess, folder: ObjectFolder, lock: Path
) -> None:
    """300 writes of another program into nat during our churn: each of their rules is there, in order, and all ours."""
    daemon.start()
    daemon.wait_in_step()
    writer = _Writer(lab, backend, lock)
    with SteadyConnections(lab.pods[0], cluster_ip(Family.IPV4), 80) as client:
        writer.thread.start()
        rounds = 0
        while writer.thread.is_alive():
            rounds += 1
            folder.put(endpoints(_WEB, Family.IPV4, lab.pods[1], lab.pods[2 + rounds % 3]))
            time.sleep(0.02)
        folder.put(endpoints(_WEB, Family.IPV4, lab.pods[4]))
        wait_until(lambda: {lab.pods[4].address()} == _destinations(lab, backend), "the last change")

    theirs = lab.node.run(f"iptables-{backend}", "-t", "nat", "-S", "THEIRS").splitlines()[1:]
    wanted = [f"-A THEIRS -s 198.18.{number // 250}.{number % 250 + 1}/32" for number in range(_WRITES)]
    assert ([], _WRITES, wanted) == (writer.failures, writer.done, theirs)
    assert "-A OUTPUT -d 198.51.100.0/24 -j THEIRS" in lab.node.run(f"iptables-{backend}", "-t", "nat", "-S", "OUTPUT")
    assert {} == dict(client.failures)
    assert rounds > 20
    assert [] == daemon.log("sync failed")
    _forget_theirs(lab, backend)


def _destinations(lab: Lab, backend: str) -> set[str]:
    """Addresses that connections are sent to."""
    return set(re.findall(r"--to-destination ([0-9.]+):", lab.node.run(f"iptables-{backend}-save", "-t", "nat")))


def _forget_theirs(lab: Lab, backend: str) -> None:
    for command in ("-D OUTPUT -d 198.51.100.0/24 -j THEIRS", "-F THEIRS", "-X THEIRS"):
        lab.node.run(f"iptables-{backend}", "-t", "nat", *command.split())


def _roll_back(lab: Lab, backend: str, change: Callable[[], None]) -> None:
    """An agent saves whole tables, something changes, and the agent restores what it saved."""
    old = {table: lab.node.run(f"iptables-{backend}-save", "-t", table) for table in ("nat", "filter")}
    change()
    lab.node.run(f"iptables-{backend}-restore", stdin="".join(old.values()))


def test_tables_that_are_rolled_back_are_set_right_at_once(
    lab: Lab, backend: str, daemon: DaemonProcess, folder: ObjectFolder
) -> None:
    """C76: our chains are as wanted again within 2.5 s, and the log names them."""
    daemon.start()
    daemon.wait_in_step()
    addresses = {lab.pods[number].address() for number in (2, 3)}

    def change() -> None:
        folder.put(endpoints(_WEB, Family.IPV4, lab.pods[2], lab.pods[3]))
        wait_until(lambda: addresses == _destinations(lab, backend), "the change")

    def roll_back() -> float:
        folder.put(endpoints(_WEB, Family.IPV4, lab.pods[1]))
        wait_until(lambda: {lab.pods[1].address()} == _destinations(lab, backend), "the rules of before")
        _roll_back(lab, backend, change)
        return wait_until(lambda: addresses == _destinations(lab, backend), "the repair")

    assert quickest(roll_back, 2.5) < 2.5
    repaired = daemon.wait_for_log("drift repaired", table="nat")
    assert any(str(chain).startswith("KUBE-SVC-") for chain in _first(repaired))


def test_rollback_to_tables_of_the_same_size_is_set_right_by_the_next_comparison(
    lab: Lab, backend: str, daemon: DaemonProcess, folder: ObjectFolder
) -> None:
    """C76: the legacy backend tells only sizes, so there it may take `--compare-period`; nft tells at once."""
    daemon.command += ["--compare-period", str(_COMPARE_PERIOD_S)]
    daemon.start()
    daemon.wait_in_step()
    address = lab.pods[3].address()

    def change() -> None:
        folder.put(endpoints(_WEB, Family.IPV4, lab.pods[3]))
        wait_until(lambda: {address} == _destinations(lab, backend), "the change")

    def roll_back() -> float:
        folder.put(endpoints(_WEB, Family.IPV4, lab.pods[1]))
        wait_until(lambda: {lab.pods[1].address()} == _destinations(lab, backend), "the rules of before")
        _roll_back(lab, backend, change)
        return wait_until(lambda: {address} == _destinations(lab, backend), "the repair")

    bound_s = 2.5 if backend == "nft" else _COMPARE_PERIOD_S + 1.5
    assert quickest(roll_back, bound_s) < bound_s
    assert daemon.wait_for_log("drift repaired", table="nat")


def _first(line: Mapping[str, object]) -> list[object]:
    chains = line["first"]
    return chains if isinstance(chains, list) else []


def test_endpoint_that_comes_and_goes_leaves_nothing_and_is_never_missed(
    lab: Lab, backend: str, daemon: DaemonProcess, folder: ObjectFolder
) -> None:
    """C98: 50 rounds of the same endpoint and the same Service leaving and coming back: no error, no chain too many."""
    daemon.start()
    daemon.wait_in_step()
    extra = open_service(Family.IPV4, "extra", number=12, node_port=30090)
    before = _chains(lab, backend)
    with SteadyConnections(lab.pods[0], cluster_ip(Family.IPV4), 80) as client:
        for _ in range(50):
            folder.put(endpoints(_WEB, Family.IPV4, lab.pods[1], lab.pods[2]), extra)
            folder.put(endpoints(extra, Family.IPV4, lab.pods[2]))
            time.sleep(0.03)
            folder.remove(endpoints(extra, Family.IPV4), extra)
            folder.put(endpoints(_WEB, Family.IPV4, lab.pods[1]))
            time.sleep(0.03)
        wait_until(lambda: before == _chains(lab, backend), "the chains of the beginning")

    assert {} == dict(client.failures)
    assert [] == daemon.log("sync failed")


def _chains(lab: Lab, backend: str) -> set[str]:
    text = lab.node.run(f"iptables-{backend}-save", "-t", "nat")
    return {line.split()[0] for line in text.splitlines() if line.startswith(":KUBE-")}


def test_legacy_rules_beside_nft_are_told_at_the_start(fresh: Lab, backend: str, tmp_path: Path) -> None:
    """C78: rules of others in the backend that is not in use are named with their tables, kept, and counted."""
    other = "legacy" if backend == "nft" else "nft"
    fresh.node.run(f"iptables-{other}", "-A", "FORWARD", "-s", "198.51.100.1", "-j", "DROP")
    folder = ObjectFolder(tmp_path / "fresh", own_node(), _WEB, endpoints(_WEB, Family.IPV4, fresh.pods[1]))
    with DaemonProcess(fresh.node.netns, *lab_arguments(folder.path, backend)) as daemon:
        line = daemon.wait_for_log("leftover", kind="foreign")
        daemon.wait_for_metric("kproxy_ipt_leftovers", 1)
        told = daemon.metric("kproxy_ipt_leftovers", kind="foreign", fate="kept")

    assert (f"{other} ipv4 filter", "kept", ["FORWARD"], 1.0) == (line["place"], line["fate"], line["first"], told)
    assert "198.51.100.1/32 -j DROP" in fresh.node.run(f"iptables-{other}-save", "-t", "filter")
