"""Others change the tables while a daemon runs: what is ours comes back soon, what is theirs stays."""

import signal
import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.testing.daemon_process import DaemonProcess, lab_arguments, wait_until
from kproxy_ipt.testing.lab import Lab
from kproxy_ipt.testing.lab_objects import cluster_ip, endpoints, open_service, own_node
from kproxy_ipt.testing.object_folder import ObjectFolder
from kproxy_ipt.testing.promptness import quickest
from kproxy_ipt.testing.traffic import Outcome

pytestmark = pytest.mark.kernel

_REPAIRS = "kproxy_ipt_drift_repairs_total"
_BOUND_S = {"nft": 2.0, "legacy": 2.5}
_FOREIGN = (("nat", "POSTROUTING", "198.51.100.7"), ("filter", "INPUT", "198.51.100.8"))


@pytest.fixture
def daemon(lab: Lab, backend: str, tmp_path: Path) -> Iterator[DaemonProcess]:
    """A daemon in step for one Service of one endpoint, both families."""
    web = open_service(Family.IPV4)
    folder = ObjectFolder(tmp_path / "objects", own_node(), web, endpoints(web, Family.IPV4, lab.pods[1]))
    with DaemonProcess(lab.node.netns, *lab_arguments(folder.path, backend, family=None)) as made:
        made.wait_in_step()
        yield made


def _saved(lab: Lab, backend: str) -> list[str]:
    """All rules of both tables."""
    found = lab.node.run(f"iptables-{backend}-save", "-t", "nat") + lab.node.run(
        f"iptables-{backend}-save", "-t", "filter"
    )
    return [line.split(" [")[0] for line in found.splitlines() if line.startswith("-A")]


_FLUSHES = {
    "rules of nat": "iptables-{backend} -t nat -F",
    # At once: chains that are back between two commands could not be deleted.
    "rules and chains of nat": "printf '*nat\\nCOMMIT\\n' | iptables-{backend}-restore",
    "one jump": "iptables-{backend}-save -t nat | grep -v 'A PREROUTING.*KUBE' | iptables-{backend}-restore -T nat",
    "a service chain": (
        "iptables-{backend} -t nat -F $(iptables-{backend} -t nat -S | grep -om1 'KUBE-SVC-[A-Z0-9]*' | head -n1)"
    ),
}


@pytest.mark.parametrize("what", _FLUSHES)
def test_flushed_rules_are_back_within_the_bound(lab: Lab, backend: str, daemon: DaemonProcess, what: str) -> None:
    """Flushes of different size are noticed and repaired within 2 s (legacy: 2.5 s), and said and counted."""
    wanted = sorted(_saved(lab, backend))

    def flush() -> float:
        lab.node.run("sh", "-c", _FLUSHES[what].format(backend=backend))
        return wait_until(lambda: wanted == sorted(_saved(lab, backend)), f"{what} repaired")

    assert quickest(flush, _BOUND_S[backend]) < _BOUND_S[backend]
    assert lab.client.send("192.0.2.10", 30080).outcomes == {Outcome.ANSWERED: 1}
    daemon.wait_for_metric(_REPAIRS, 1)
    assert daemon.wait_for_log("drift repaired")


def test_everything_flushed_is_back_within_the_bound(lab: Lab, backend: str, daemon: DaemonProcess) -> None:
    """Five times all tables are gone: each time rules, and with them new connections, are back within 2 s (nft)."""
    if backend == "legacy":
        pytest.skip("nft flush ruleset knows no legacy tables")
    daemon.wait_for_metric("kproxy_ipt_syncs_total", 2)
    wanted = sorted(_saved(lab, backend))

    def flush() -> float:
        lab.node.run("nft", "flush", "ruleset")
        return wait_until(lambda: wanted == sorted(_saved(lab, backend)), "everything repaired")

    for _ in range(5):
        assert quickest(flush, _BOUND_S[backend]) < _BOUND_S[backend]
        assert {Outcome.ANSWERED: 1} == lab.pods[0].send(cluster_ip(Family.IPV4), 80).outcomes


def test_altered_rule_is_repaired_and_foreign_rules_stay(lab: Lab, backend: str, daemon: DaemonProcess) -> None:
    """A rule put into a chain of ours goes; rules of others in built-in chains stay in their place."""
    for table, chain, source in _FOREIGN:
        lab.node.run(f"iptables-{backend}", "-t", table, "-I", chain, "-s", source, "-j", "ACCEPT")
    daemon.signal(signal.SIGHUP)
    wanted = _saved(lab, backend)

    def alter() -> float:
        lab.node.run(f"iptables-{backend}", "-t", "nat", "-I", "KUBE-SERVICES", "-s", "198.51.100.9", "-j", "RETURN")
        return wait_until(lambda: wanted == _saved(lab, backend), "altered chain repaired")

    assert quickest(alter, _BOUND_S[backend]) < _BOUND_S[backend]
    for table, chain, source in _FOREIGN:
        lab.node.run(f"iptables-{backend}", "-t", table, "-D", chain, "-s", source, "-j", "ACCEPT")


def test_hangup_compares_everything(daemon: DaemonProcess) -> None:
    """SIGHUP leads to a full sync that writes nothing where nothing differs."""
    before = daemon.metric("kproxy_ipt_syncs_total", kind="full", outcome="skipped")
    written = daemon.metric("kproxy_ipt_transactions_total")
    daemon.signal(signal.SIGHUP)
    daemon.wait_for_metric("kproxy_ipt_syncs_total", before + 2, kind="full", outcome="skipped")

    assert written == daemon.metric("kproxy_ipt_transactions_total")
    assert [] == daemon.log("drift repaired")


def test_changes_of_others_elsewhere_cost_nothing(lab: Lab, backend: str, daemon: DaemonProcess) -> None:
    """A thousand writes of others to chains that hold none of our rules lead to no comparison (nft)."""
    if backend == "legacy":
        pytest.skip("the legacy backend tells no chain")
    before = daemon.metric("kproxy_ipt_syncs_total")
    rules = "".join(f"-A THEIRS -s 198.51.100.{number} -j RETURN\n" for number in range(20))
    for _ in range(50):
        lab.node.run("iptables-nft-restore", "--noflush", stdin=f"*filter\n:THEIRS -\n{rules}COMMIT\n")
    deadline_s = time.monotonic() + 0.5
    wait_until(lambda: time.monotonic() > deadline_s, "time for a comparison")

    assert before == daemon.metric("kproxy_ipt_syncs_total")


def test_flush_after_a_sync_of_its_own_is_noticed(
    lab: Lab, backend: str, daemon: DaemonProcess, tmp_path: Path
) -> None:
    """What others do right after, or between, syncs of the daemon is not taken for its own doing."""
    folder, web = ObjectFolder(tmp_path / "objects"), open_service(Family.IPV4)
    places = cycle(lab.pods[1:4])

    def change_and_flush() -> float:
        pod = next(places)
        folder.put(endpoints(web, Family.IPV4, pod))
        wait_until(lambda: _leads_to(lab, backend, pod.address()), "the change")
        lab.node.run(f"iptables-{backend}", "-t", "nat", "-F")
        return wait_until(lambda: _leads_to(lab, backend, pod.address()), "the repair")

    for _ in range(3):
        assert quickest(change_and_flush, _BOUND_S[backend]) < _BOUND_S[backend]
    assert not daemon.log("sync failed")


def test_own_writes_lead_to_no_comparison(lab: Lab, backend: str, daemon: DaemonProcess, tmp_path: Path) -> None:
    """Fifteen changes in a row are partial syncs all, whatever moment the tables are looked at in."""
    folder, web = ObjectFolder(tmp_path / "objects"), open_service(Family.IPV4)
    full = daemon.metric("kproxy_ipt_syncs_total", kind="full", outcome="written")
    skipped = daemon.metric("kproxy_ipt_syncs_total", kind="full", outcome="skipped")
    for number in range(15):
        folder.put(endpoints(web, Family.IPV4, f"10.244.2.{100 + number}"))
        wait_until(lambda last=number: _leads_to(lab, backend, f"10.244.2.{100 + last}"), "the change")  # type: ignore[misc]  # bound at once

    assert full == daemon.metric("kproxy_ipt_syncs_total", kind="full", outcome="written")
    assert skipped == daemon.metric("kproxy_ipt_syncs_total", kind="full", outcome="skipped")


def _leads_to(lab: Lab, backend: str, address: str) -> bool:
    return f"{address}:" in lab.node.run(f"iptables-{backend}", "-t", "nat", "-S")
