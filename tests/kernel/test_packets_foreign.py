"""What is not ours stays as it is: rules of others, and those of our own chains that do not change."""

import os
import subprocess
from collections.abc import Callable
from contextlib import suppress

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.cleanup import clean_up
from kproxy_ipt.daemon.machine import BackendWish, Target
from kproxy_ipt.daemon.report import RunReport
from kproxy_ipt.testing.lab import Lab
from kproxy_ipt.testing.lab_objects import cluster_ip, endpoints, open_service
from kproxy_ipt.testing.traffic import Outcome

pytestmark = pytest.mark.kernel

Sync = Callable[..., RunReport]
Iptables = Callable[..., str]

_FOREIGN = """*filter
:CNI-FORWARD - [0:0]
:KUBE-ROUTER-FORWARD - [0:0]
-A INPUT -p tcp --dport 22 -m comment --comment "let the KUBE-SERVICES admin in" -j ACCEPT
-A FORWARD -j CNI-FORWARD
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A CNI-FORWARD -s {pods} -j ACCEPT
-A KUBE-ROUTER-FORWARD -p tcp -j RETURN
COMMIT
*nat
:DOCKER - [0:0]
:CNI-HOSTPORT - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A DOCKER -p tcp --dport 8088 -j DNAT --to-destination {target}
-A CNI-HOSTPORT -p udp --dport 53 -j RETURN
-A POSTROUTING -s {bridge} ! -o docker0 -j MASQUERADE
COMMIT
*mangle
:TUNNEL - [0:0]
-A FORWARD -j TUNNEL
-A TUNNEL -p tcp --dport 443 -j MARK --set-xmark 0x1/0xff
COMMIT
"""
_PARTS = {
    Family.IPV4: {"pods": "10.244.0.0/16", "target": "172.17.0.2:80", "bridge": "172.17.0.0/16"},
    Family.IPV6: {"pods": "fd00:10:244::/56", "target": "[fd00:17::2]:80", "bridge": "fd00:17::/64"},
}


def _normal(saved: str) -> dict[str, tuple[list[str], dict[str, list[str]]]]:
    """A listing without comments and counters: of each table its chains, sorted, and the rules of each in order."""
    tables: dict[str, tuple[list[str], dict[str, list[str]]]] = {}
    for line in saved.splitlines():
        if line.startswith("*"):
            tables[line] = ([], {})
        elif line.startswith(":"):
            chains = tables[next(reversed(tables))][0]
            chains.append(line.rpartition(" ")[0])
            chains.sort()
        elif line.startswith("-A"):
            tables[next(reversed(tables))][1].setdefault(line.split()[1], []).append(line)
    return tables


def _sync_everything(lab: Lab, sync: Sync, family: Family, *, policy: str | None = None) -> RunReport:
    """Write rules of every kind: with and without endpoints, source ranges, policies, affinity aside."""
    ranged = open_service(family, "ranged", number=10, source_ranges=("198.18.0.0/24", "2001:db8:18::/120"))
    local = open_service(family, "local", number=11, node_port=30081, external_policy=policy, internal_policy=policy)
    empty = open_service(family, "empty", number=12, node_port=30082)
    slices = [endpoints(ranged, family, lab.pod("podB"), lab.remote), endpoints(local, family, lab.remote)]
    return sync(ranged, local, empty, *slices, into=lab)


def _clean(lab: Lab, backend: BackendWish, family: Family) -> None:
    for report in clean_up(Target(netns=lab.node.netns, backend=backend, families=(family,))):
        assert report.error is None


def test_foreign_rules_survive_syncs_and_clean_up_restores_the_tables(
    fresh: Lab, sync: Sync, iptables: Iptables, backend: BackendWish, family: Family
) -> None:
    """Foreign chains and rules in filter, nat and mangle stay in place and order; clean-up leaves what was there."""
    iptables(fresh, "--noflush", suffix="-restore", stdin=_FOREIGN.format_map(_PARTS[family]))
    before = _normal(iptables(fresh, suffix="-save"))
    for policy in (None, "Local"):
        _sync_everything(fresh, sync, family, policy=policy)
    during = _normal(iptables(fresh, suffix="-save"))

    for _ in range(2):
        _clean(fresh, backend, family)
        assert _normal(iptables(fresh, suffix="-save")) == before
    for table, (chains, rules) in before.items():
        assert set(chains) <= set(during[table][0])
        for chain, lines in rules.items():
            assert [line for line in during[table][1][chain] if line in lines] == lines


@pytest.mark.parametrize("family", [Family.IPV4, Family.IPV6], ids=str)
def test_clean_up_of_an_empty_namespace_leaves_it_empty(
    fresh: Lab, sync: Sync, iptables: Iptables, backend: BackendWish, family: Family
) -> None:
    """Where nobody has rules, none and no chain is left; on nf_tables not even a table, as it was before."""
    before = iptables(fresh, suffix="-save")
    _sync_everything(fresh, sync, family)

    _clean(fresh, backend, family)

    after = _normal(iptables(fresh, suffix="-save"))
    assert before == ""
    if backend == "nft":
        assert after == {}
        assert fresh.node.run("nft", "list", "tables") == ""
    assert [chain for chains, _ in after.values() for chain in chains if chain.endswith(" -")] == []
    assert [rules for _, rules in after.values() if rules] == []


def test_second_sync_runs_no_transaction(fresh: Lab, sync: Sync, iptables: Iptables, family: Family) -> None:
    """With the same objects nothing is written."""
    first = _sync_everything(fresh, sync, family)
    listing = _normal(iptables(fresh, suffix="-save"))

    second = _sync_everything(fresh, sync, family)

    assert first.families[family].transactions > 0
    written = second.families[family]
    assert (written.transactions, written.bytes, written.chains_written, written.chains_deleted) == (0, 0, 0, 0)
    assert _normal(iptables(fresh, suffix="-save")) == listing


def test_change_of_an_endpoint_writes_the_chains_of_its_service_alone(
    lab: Lab, sync: Sync, iptables: Iptables, family: Family
) -> None:
    """A replaced endpoint rewrites one service chain and adds one endpoint chain; counters of the dispatch go on."""
    services = [open_service(family, f"s{number}", number=number, node_port=30000 + number) for number in (10, 11, 12)]
    slices = [endpoints(each, family, lab.pod("podB")) for each in services]
    sync(*services, *slices)
    assert lab.pod("podA").send(cluster_ip(family), 80, count=7).outcomes == {Outcome.ANSWERED: 7}

    def dispatch() -> list[str]:
        saved = iptables(lab, "-c", "-t", "nat", suffix="-save").splitlines()
        return [line for line in saved if "-A KUBE-SERVICES " in line or "-A KUBE-NODEPORTS " in line]

    before = dispatch()
    report = sync(*services, endpoints(services[0], family, lab.pod("podC")), *slices[1:])

    written = report.families[family]
    assert (written.transactions, written.chains_written, written.chains_deleted) == (1, 2, 1)
    assert dispatch() == before
    assert any(line.startswith("[7:") for line in before)
    assert lab.pod("podA").send(cluster_ip(family), 80).names == {"podC": 1}


_WRITER = """set -e
for table in nat filter; do {program} -w -t $table -N FOREIGN; done
for number in $(seq 1 40); do
  if [ $((number % 6)) = 0 ]; then read -r; fi  # one more sync is over
  for table in nat filter; do
    {program} -w -t $table -A FOREIGN -p tcp --dport $number -j RETURN
    if [ $((number % 3)) = 0 ]; then {program} -w -t $table -D FOREIGN -p tcp --dport $((number - 1)) -j RETURN; fi
  done
done
"""


def test_rules_that_another_process_writes_meanwhile_are_kept(
    fresh: Lab, sync: Sync, iptables: Iptables, backend: str, family: Family
) -> None:
    """While syncs run, a process adds and deletes rules in a chain of its own in the same tables: none is lost."""
    web = open_service(family)
    places = [fresh.pod("podB"), fresh.pod("podC"), fresh.remote]
    sync(web, endpoints(web, family, *places), into=fresh)
    program = f"{'ip6tables' if family is Family.IPV6 else 'iptables'}-{backend}"
    enter = ["nsenter", f"--net=/run/netns/{fresh.node.netns}", "bash", "-c", _WRITER.format(program=program)]
    reports: list[RunReport] = []
    with subprocess.Popen(enter, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as writer:
        assert writer.stdin is not None
        assert writer.stderr is not None
        while writer.poll() is None:
            reports.append(sync(web, endpoints(web, family, *places[: len(reports) % 3]), into=fresh))
            with suppress(BrokenPipeError):
                os.write(writer.stdin.fileno(), b"\n")
        assert (writer.wait(), writer.stderr.read()) == (0, "")

    tables = _normal(iptables(fresh, suffix="-save"))
    kept = [f"-A FOREIGN -p tcp -m tcp --dport {number} -j RETURN" for number in range(1, 41) if number % 3 != 2]
    assert [tables[table][1]["FOREIGN"] for table in ("*nat", "*filter")] == [kept, kept]
    assert len(reports) > 5
    assert all(report.families[family].transactions for report in reports)


@pytest.mark.parametrize("table", ["nat", "filter"])
def test_lost_rule_is_found_and_one_sync_brings_it_back(
    fresh: Lab, sync: Sync, iptables: Iptables, family: Family, table: str
) -> None:
    """After somebody flushed a chain of ours the next sync writes that chain alone, and traffic is as before."""
    _sync_everything(fresh, sync, family)
    before = _normal(iptables(fresh, suffix="-save"))
    iptables(fresh, "-t", table, "-F", "KUBE-SERVICES")

    report = _sync_everything(fresh, sync, family)

    written = report.families[family]
    assert (written.transactions, written.chains_written) == (1, 1)
    assert _normal(iptables(fresh, suffix="-save")) == before
    assert fresh.pod("podA").send(cluster_ip(family, 11), 80).names == {"remote": 1}
    assert fresh.pod("podA").send(cluster_ip(family, 12), 80).outcomes == {Outcome.REFUSED: 1}
