"""`takeover` from the command line: what it lists, what it removes, and that nothing foreign is touched."""

import json
import subprocess
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import yaml
from click.testing import Result

from kproxy_ipt.kernel.netns import inside

pytestmark = pytest.mark.kernel

Invoke = Callable[..., Result]
Saved = Callable[..., str]
Iptables = Callable[..., str]
Lab = tuple[str, ...]
_XLB = "KUBE-XLB-ABCDEFGHIJKLMNOP"


def _run(netns: str, *command: str) -> str:
    with inside(netns):
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _leave(netns: str, iptables: Iptables) -> None:
    """What a kube-proxy of another mode and an old one left, and things of others that look alike."""
    _run(netns, "nft", "add table ip kube-proxy")
    _run(netns, "nft", "add table ip6 kube-proxy")
    for name in ("KUBE-CLUSTER-IP", "KUBE-CUSTOM", "MINE"):
        _run(netns, "ipset", "create", name, "hash:ip,port")
    for chain in ("KUBE-LOAD-BALANCER", _XLB, "KUBE-SVC-MYOWN", "KUBE-CUSTOM-x"):
        iptables("-t", "nat", "-N", chain)
    iptables("-t", "nat", "-A", "KUBE-LOAD-BALANCER", "-m", "set", "--match-set", "KUBE-CLUSTER-IP", "dst,dst")
    iptables("-t", "nat", "-A", "OUTPUT", "-d", "198.51.100.1", "-j", "KUBE-SVC-MYOWN")


def _rows(ran: Result) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = json.loads(ran.stdout)["leftovers"]
    return found


def _fates(ran: Result, *kinds: str) -> set[tuple[str, str, str]]:
    """Kind, first name and fate."""
    return {(row["kind"], row["names"][0], row["fate"]) for row in _rows(ran) if row["kind"] in kinds}


def test_plan_lists_and_takeover_removes_the_same(
    invoke: Invoke, lab: Lab, netns: str, saved: Saved, iptables: Iptables
) -> None:
    """Exit code 1 while something would go; the plan changes nothing; a second takeover finds nothing to remove."""
    _leave(netns, iptables)
    invoke("sync", "--once", *lab)
    before = saved(netns)
    plan = invoke("takeover", "--plan", "--netns", netns, "--backend", "nft", "-o", "json")
    unchanged = saved(netns)
    done = invoke("takeover", "--netns", netns, "--backend", "nft", "-o", "json")
    again = invoke("takeover", "--plan", "--netns", netns, "--backend", "nft")

    assert (plan.exit_code, done.exit_code, again.exit_code) == (1, 0, 0)
    assert before == unchanged
    assert _rows(plan) == _rows(done)
    assert _fates(plan, "ipvs mode", "nftables mode", "older version") == {
        ("ipvs mode", "KUBE-LOAD-BALANCER", "removed"),
        ("ipvs mode", "KUBE-CLUSTER-IP", "removed"),
        ("nftables mode", "kube-proxy", "removed"),
        ("older version", _XLB, "removed"),
    }
    assert again.stdout.splitlines()[-1] == "nothing to remove"


def test_nothing_foreign_is_touched(invoke: Invoke, lab: Lab, netns: str, saved: Saved, iptables: Iptables) -> None:
    """C100: sets, tables, chains with names like ours and rules of others are there afterwards, ours as well."""
    invoke("sync", "--once", *lab)
    ours = saved(netns)
    _leave(netns, iptables)
    _run(netns, "nft", "add table inet kube-proxy")
    invoke("takeover", "--netns", netns, "--backend", "nft")

    after = saved(netns)
    foreign = {":KUBE-SVC-MYOWN -", ":KUBE-CUSTOM-x -", "-A OUTPUT -d 198.51.100.1/32 -j KUBE-SVC-MYOWN"}
    assert set(after.splitlines()) - set(ours.splitlines()) == foreign
    assert set(ours.splitlines()) <= set(after.splitlines())
    assert sorted(_run(netns, "ipset", "list", "-n").split()) == ["KUBE-CUSTOM", "MINE"]
    assert "table inet kube-proxy" in _run(netns, "nft", "list", "tables")
    assert "table ip kube-proxy" not in _run(netns, "nft", "list", "tables")


@pytest.mark.parametrize(("used", "other"), [("nft", "legacy"), ("legacy", "nft")])
def test_rules_in_the_other_backend_go(
    used: str, other: str, invoke: Invoke, lab: Lab, netns: str, saved: Saved
) -> None:
    """Those of the backend in use stay to the letter."""
    for backend in (other, used):
        invoke("sync", "--once", *lab[:-1], backend)
    before = saved(netns, used)
    ran = invoke("takeover", "--netns", netns, "--backend", used)

    assert (0, "removed") == (ran.exit_code, ran.stdout.splitlines()[-1])
    assert before == saved(netns, used)
    assert "KUBE" not in saved(netns, other)


def test_nothing_goes_before_our_rules_stand(
    invoke: Invoke, lab: Lab, netns: str, saved: Saved, iptables: Iptables
) -> None:
    """The rules of the other backend may be all that answers for Services."""
    invoke("sync", "--once", *lab[:-1], "legacy")
    _leave(netns, iptables)
    before = saved(netns, "legacy")
    ran = invoke("takeover", "--netns", netns, "--backend", "nft", "-o", "json")

    assert 0 == ran.exit_code
    assert {"kept"} == {row["fate"] for row in _rows(ran)}
    assert before == saved(netns, "legacy")
    assert "KUBE-CLUSTER-IP" in _run(netns, "ipset", "list", "-n")


def test_legacy_tables_do_not_come_into_being(invoke: Invoke, lab: Lab, netns: str) -> None:
    """Looking at the other backend leaves no trace."""
    invoke("sync", "--once", *lab)
    invoke("takeover", "--netns", netns)

    assert "" == _run(netns, "cat", "/proc/thread-self/net/ip_tables_names")


def test_listing_that_fails_is_told_and_removes_nothing(
    program: Callable[..., "subprocess.CompletedProcess[str]"],
    invoke: Invoke,
    lab: Lab,
    netns: str,
    saved: Saved,
    shim: Callable[..., dict[str, str]],
) -> None:
    """C82: exit code 8; the tables that could not be listed are as they were."""
    for backend in ("legacy", "nft"):
        invoke("sync", "--once", *lab[:-1], backend)
    before = saved(netns, "legacy")
    ran = program("takeover", "--netns", netns, "--backend", "nft", env=shim("iptables-legacy-save", "kill -SEGV $$"))

    assert 8 == ran.returncode
    assert "error: legacy ipv4: iptables-legacy-save was ended by signal 11" in ran.stderr
    assert "not everything could be looked at or removed" == ran.stdout.splitlines()[-1]
    assert before.partition("*nat")[0].count("KUBE") == saved(netns, "legacy").partition("*nat")[0].count("KUBE")


def test_table_that_the_program_cannot_show_is_told_and_left(invoke: Invoke, lab: Lab, netns: str) -> None:
    """A table nat that another program made of nf_tables beside a legacy node: exit code 8, the rest is looked at."""
    invoke("sync", "--once", *lab[:-1], "legacy")
    _run(netns, "nft", "add table ip nat")
    _run(netns, "nft", "add chain ip nat theirs")
    _run(netns, "nft", "add rule ip nat theirs numgen inc mod 2 0 accept")
    before = _run(netns, "nft", "list", "ruleset")
    ran = invoke("takeover", "--netns", netns, "--backend", "legacy")

    assert 8 == ran.exit_code
    assert "error: nft ipv4: iptables-nft-save cannot show the table nat" in ran.stderr
    assert "legacy ipv6 nat" in ran.stdout
    assert before == _run(netns, "nft", "list", "ruleset")


def test_yaml_says_what_json_says(invoke: Invoke, lab: Lab, netns: str) -> None:
    """Kind, place, all names, fate and reason of each."""
    invoke("sync", "--once", *lab)
    arguments = ("takeover", "--plan", "--netns", netns, "-o")
    document = json.loads(invoke(*arguments, "json").stdout)

    assert document == yaml.safe_load(invoke(*arguments, "yaml").stdout)
    assert ("takeover", True, 0, "nft") == tuple(document[key] for key in ("command", "plan", "exit_code", "backend"))
    assert {"kind", "place", "names", "fate", "why"} == set(document["leftovers"][0])


_IPVS = """*nat
:KUBE-LOAD-BALANCER - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-SERVICES - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-LOAD-BALANCER -j KUBE-MARK-MASQ
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-POSTROUTING -m set --match-set KUBE-LOOP-BACK dst,dst,src -j MASQUERADE
-A KUBE-SERVICES -m set --match-set KUBE-LOAD-BALANCER dst,dst -j KUBE-LOAD-BALANCER
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT
-A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT
COMMIT
*filter
:KUBE-IPVS-FILTER - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SOURCE-RANGES-FIREWALL - [0:0]
-A INPUT -m comment --comment "kubernetes ipvs access filter" -j KUBE-IPVS-FILTER
-A INPUT -m comment --comment "kube-proxy firewall rules" -j KUBE-PROXY-FIREWALL
-A INPUT -m comment --comment "kubernetes health check rules" -j KUBE-NODE-PORT
-A KUBE-IPVS-FILTER -m conntrack --ctstate NEW -m set --match-set KUBE-IPVS-IPS dst -j REJECT
-A KUBE-PROXY-FIREWALL -j KUBE-SOURCE-RANGES-FIREWALL
-A KUBE-SOURCE-RANGES-FIREWALL -j DROP
COMMIT
"""
_IPVS_SETS = {
    "KUBE-LOOP-BACK": "hash:ip,port,ip",
    "KUBE-LOAD-BALANCER": "hash:ip,port",
    "KUBE-CLUSTER-IP": "hash:ip,port",
    "KUBE-IPVS-IPS": "hash:ip",
}


def test_node_of_the_ipvs_mode_is_taken_over_by_a_sync_and_a_takeover(
    invoke: Invoke, lab: Lab, netns: str, saved: Saved
) -> None:
    """Before the sync nothing goes; after it and the takeover the tables are those of a node that was always ours."""
    invoke("sync", "--once", *lab)
    wanted = saved(netns)
    invoke("cleanup", "--netns", netns)
    for name, kind in _IPVS_SETS.items():
        _run(netns, "ipset", "create", name, kind)
    with inside(netns):
        subprocess.run(["iptables-nft-restore", "--noflush"], input=_IPVS, text=True, check=True)
    early = invoke("takeover", "--netns", netns, "--backend", "nft", "-o", "json")
    invoke("sync", "--once", *lab)
    done = invoke("takeover", "--netns", netns, "--backend", "nft")

    assert {"kept", "replaced"} == {row["fate"] for row in _rows(early)}
    assert (0, "removed") == (done.exit_code, done.stdout.splitlines()[-1])
    assert "" == _run(netns, "ipset", "list", "-n")
    extra = set(saved(netns).splitlines()) ^ set(wanted.splitlines())
    assert extra <= {
        '-A INPUT -m comment --comment "kube-proxy firewall rules" -j KUBE-PROXY-FIREWALL',
        ":KUBE-PROXY-CANARY -",
    }
    assert 0 == invoke("check", *lab).exit_code
