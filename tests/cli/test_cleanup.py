"""`cleanup` from the command line: everything of ours goes, nothing else, and nothing is needed for it."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

pytestmark = pytest.mark.kernel

Invoke = Callable[..., Result]
Program = Callable[..., subprocess.CompletedProcess[str]]
Saved = Callable[..., str]
Iptables = Callable[..., str]
Lab = tuple[str, ...]


def _foreign(iptables: Iptables) -> None:
    """Rules of others: a chain with a name like ours, a firewall rule."""
    iptables("-t", "nat", "-N", "KUBE-SVC-MYOWN")
    iptables("-t", "nat", "-N", "KUBE-CUSTOM-x")
    iptables("-t", "nat", "-A", "OUTPUT", "-d", "198.51.100.1", "-j", "KUBE-SVC-MYOWN")
    iptables("-A", "INPUT", "-s", "198.51.100.2", "-j", "DROP")


def test_tables_are_as_before_the_first_sync(
    invoke: Invoke, lab: Lab, netns: str, saved: Saved, iptables: Iptables
) -> None:
    """C95, C100: jumps, all kinds of chains and the tables that came with them go in one go, foreign rules stay."""
    _foreign(iptables)
    before = saved(netns)
    invoke("sync", "--once", *lab)
    first = invoke("cleanup", "--netns", netns)
    after = saved(netns)
    second = invoke("cleanup", "--netns", netns)

    assert (first.exit_code, second.exit_code) == (0, 0)
    assert after == before == saved(netns)
    assert first.stdout.splitlines()[-1] == "removed"
    assert second.stdout.splitlines()[-1] == "nothing to do: none of our chains is here"


def test_empty_namespace_is_empty_again(invoke: Invoke, lab: Lab, netns: str, saved: Saved) -> None:
    """Tables that came into being with our rules go as well."""
    invoke("sync", "--once", *lab)
    invoke("cleanup", "--netns", netns)

    assert saved(netns) == ""


def test_damaged_rules_go_too(invoke: Invoke, lab: Lab, netns: str, saved: Saved, iptables: Iptables) -> None:
    """C95: some chains are gone already, others are empty."""
    invoke("sync", "--once", *lab)
    iptables("-t", "nat", "-F", "KUBE-SERVICES")
    iptables("-t", "nat", "-F", "PREROUTING")
    iptables("-t", "nat", "-F", "KUBE-SVC-XRY76EGRC3BSCIIJ")
    iptables("-t", "nat", "-X", "KUBE-SVC-XRY76EGRC3BSCIIJ")

    assert invoke("cleanup", "--netns", netns).exit_code == 0
    assert saved(netns) == ""


def test_dry_run_tells_and_writes_nothing(invoke: Invoke, lab: Lab, netns: str, saved: Saved) -> None:
    """The numbers are those of the clean-up that follows."""
    invoke("sync", "--once", *lab)
    before = saved(netns)
    dry = invoke("cleanup", "--netns", netns, "--dry-run")
    unchanged = saved(netns)
    real = invoke("cleanup", "--netns", netns)

    assert unchanged == before
    assert dry.stdout.splitlines()[:-1] == real.stdout.splitlines()[:-1]
    assert dry.stdout.splitlines()[-1] == "this would be removed"


def test_both_backends_are_cleaned(invoke: Invoke, lab: Lab, netns: str, saved: Saved) -> None:
    """Rules that an earlier run left in the other backend go with them."""
    for backend in ("legacy", "nft"):
        invoke("sync", "--once", *lab[:-1], backend)
    document = json.loads(invoke("cleanup", "--netns", netns, "--output", "json").stdout)

    assert sorted(report["backend"] for report in document["backends"]) == ["legacy", "nft"]
    assert all(report["chains_deleted"] > 20 for report in document["backends"])
    assert "KUBE" not in saved(netns) + saved(netns, "legacy")


@pytest.mark.parametrize("foreign_chain", ["KUBE-HP-ABC", "CNI-HOSTPORT-SETMARK"])
def test_chain_that_others_use_stays_and_is_named(
    foreign_chain: str, invoke: Invoke, lab: Lab, netns: str, saved: Saved, iptables: Iptables
) -> None:
    """C97: a foreign jump to KUBE-MARK-MASQ keeps that chain, with its rule; the note names who jumps."""
    invoke("sync", "--once", *lab)
    iptables("-t", "nat", "-N", foreign_chain)
    iptables("-t", "nat", "-A", foreign_chain, "-s", "198.51.100.0/24", "-j", "KUBE-MARK-MASQ")
    ran = invoke("cleanup", "--netns", netns)

    left = saved(netns)
    assert ran.exit_code == 0
    assert f"note: chain KUBE-MARK-MASQ of table nat stays: chain {foreign_chain}, which is not ours" in ran.stderr
    assert f"-A {foreign_chain} -s 198.51.100.0/24 -j KUBE-MARK-MASQ\n" in left
    assert "-A KUBE-MARK-MASQ -j MARK" in left
    assert "KUBE-SVC" not in left


@pytest.mark.parametrize("broken", ["", "this: is: no: configuration"])
def test_nothing_is_needed(
    broken: str, program: Program, invoke: Invoke, lab: Lab, netns: str, saved: Saved, tmp_path: Path
) -> None:
    """C96: no configuration, no kubeconfig, no objects, no name of a node; a broken file in the way does not matter."""
    invoke("sync", "--once", *lab)
    kubeconfig = tmp_path / "broken.conf"
    kubeconfig.write_text(broken)
    ran = program("cleanup", "--netns", netns, env={"KUBECONFIG": str(kubeconfig)})

    assert (ran.returncode, ran.stderr) == (0, "")
    assert saved(netns) == ""


def test_family_can_be_chosen(invoke: Invoke, lab: Lab, netns: str, iptables: Iptables) -> None:
    """`--family ipv6` leaves the rules of IPv4."""
    invoke("sync", "--once", *lab)
    invoke("cleanup", "--netns", netns, "--family", "ipv6")

    assert "KUBE" not in iptables(word="ip6tables-nft-save")
    assert "KUBE-SVC" in iptables(word="iptables-nft-save")


def test_failure_is_told_and_not_taken_for_an_empty_table(
    program: Program, invoke: Invoke, lab: Lab, netns: str, shim: Callable[..., dict[str, str]]
) -> None:
    """A listing that fails is exit code 8, never `nothing to do`."""
    invoke("sync", "--once", *lab)
    ran = program("cleanup", "--netns", netns, "--backend", "nft", env=shim("iptables-nft-save", "exit 1"))

    assert ran.returncode == 8
    assert ran.stdout.splitlines()[-1] == "not everything could be removed"
    assert "error: ipv4: iptables-nft-save failed while listing the tables" in ran.stderr
