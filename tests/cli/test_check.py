"""`check` from the command line: what it finds, how it tells it, and its exit codes."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import Result

from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.testing.namespaces import temporary_namespace

pytestmark = pytest.mark.kernel

Invoke = Callable[..., Result]
Lab = tuple[str, ...]
Iptables = Callable[..., str]

_WEB = "KUBE-SVC-XRY76EGRC3BSCIIJ"
_CLUSTER_IP = "10.96.0.80"


@pytest.fixture(scope="module")
def netns() -> Iterator[str]:
    """One namespace for all tests, each of which repairs it first."""
    with temporary_namespace("check") as name:
        yield name


@pytest.fixture(autouse=True)
def _synced(invoke: Invoke, lab: Lab) -> None:
    """The kernel holds what the examples say."""
    assert invoke("sync", "--once", *lab).exit_code == 0


def test_rules_that_stand_are_0(invoke: Invoke, lab: Lab) -> None:
    """After a sync there is nothing to say but that."""
    ran = invoke("check", *lab)

    assert ran.exit_code == 0
    assert ran.stdout.splitlines()[1].startswith("ipv4: the kernel does what the objects say (")
    assert json.loads(invoke("check", *lab, "--output", "json").stdout)["drift"] is False


@pytest.mark.parametrize(
    ("damage", "table", "chain", "owner", "what"),
    [
        (["-t", "nat", "-D", _WEB, "2"], "nat", _WEB, "demo/web:http", "1 rule missing"),
        (["-t", "nat", "-F", _WEB], "nat", _WEB, "demo/web:http", "3 rules missing"),
        (["-t", "nat", "-A", _WEB, "-j", "RETURN"], "nat", _WEB, "demo/web:http", "1 rule extra"),
        (["-t", "nat", "-F", "KUBE-NODEPORTS"], "nat", "KUBE-NODEPORTS", "demo/public:http, demo/web-local:http", ""),
        (["-t", "nat", "-N", "KUBE-SVC-AAAAAAAAAAAAAAAA"], "nat", "KUBE-SVC-AAAAAAAAAAAAAAAA", "", "extra chain"),
        (["-t", "filter", "-F", "KUBE-FORWARD"], "filter", "KUBE-FORWARD", "", "3 rules missing"),
        (["-t", "nat", "-F", "OUTPUT"], "nat", "OUTPUT", "", "1 rule missing"),
    ],
)
def test_damage_is_named(
    damage: list[str], table: str, chain: str, owner: str, what: str, invoke: Invoke, lab: Lab, iptables: Iptables
) -> None:
    """Exit code 1, and a row with table, chain, what is wrong, and the service port that it belongs to."""
    iptables(*damage)
    ran = invoke("check", *lab, "--family", "ipv4")
    row = next(line for line in ran.stdout.splitlines() if line.startswith("ipv4 ") and f" {chain} " in f"{line} ")

    assert ran.exit_code == 1
    assert row.split()[:3] == ["ipv4", table, chain]
    assert what in row
    assert owner in row


def test_lost_service_is_named_in_a_dispatch_chain(invoke: Invoke, lab: Lab, iptables: Iptables) -> None:
    """A rule of KUBE-SERVICES belongs to the service that it leads to, a REJECT rule to the one in its comment."""
    rules = [line for line in iptables("-t", "nat", "-S", "KUBE-SERVICES").splitlines() if _CLUSTER_IP in line]
    iptables("-t", "nat", "-F", "KUBE-SERVICES")
    document = json.loads(invoke("check", *lab, "--family", "ipv4", "--output", "json").stdout)

    difference = next(found for found in document["families"]["ipv4"]["differences"])
    assert (difference["chain"], difference["kind"]) == ("KUBE-SERVICES", "changed")
    assert difference["owner"].startswith("demo/")
    assert len(rules) == 1
    assert rules[0] in difference["missing"]


def test_missing_chain_is_named_without_its_rules(invoke: Invoke, lab: Lab, iptables: Iptables) -> None:
    """Nobody wants to read all rules of all missing chains; the JSON object has them."""
    for table in ("nat", "filter"):
        iptables("-t", table, "-F")
        iptables("-t", table, "-X")
    ran = invoke("check", *lab, "--family", "ipv4")

    assert ran.exit_code == 1
    assert f"ipv4    nat     {_WEB}" in ran.stdout
    assert f"-A {_WEB}" not in ran.stdout
    assert ran.stdout.splitlines()[-1].startswith("ipv4: drift in ")


def test_other_spelling_is_no_drift(invoke: Invoke, lab: Lab, iptables: Iptables) -> None:
    """Options in another order, with another mask and without the module of the protocol: the same rule."""
    line = next(
        line for line in iptables("-t", "nat", "-S", "KUBE-SERVICES").splitlines() if f"-d {_CLUSTER_IP}/32" in line
    )
    assert line.split()[1:6] == ["KUBE-SERVICES", "-d", f"{_CLUSTER_IP}/32", "-p", "tcp"]
    rule = ["-m", "tcp", "-p", "tcp", "--dport", "80", "-d", f"{_CLUSTER_IP}/255.255.255.255"]
    comment = ["-m", "comment", "--comment", "demo/web:http cluster IP"]
    iptables("-t", "nat", "-R", "KUBE-SERVICES", _position(iptables, line), *rule, *comment, "-j", _WEB)

    assert line not in iptables("-t", "nat", "-S", "KUBE-SERVICES")
    assert invoke("check", *lab).exit_code == 0


def _position(iptables: Iptables, line: str) -> str:
    lines = iptables("-t", "nat", "-S", "KUBE-SERVICES").splitlines()
    return str(lines.index(line))


def test_what_is_not_ours_is_no_drift(invoke: Invoke, lab: Lab, iptables: Iptables) -> None:
    """Foreign chains and rules do not count, nor the kubelet's rule in KUBE-FIREWALL, which it shares with us."""
    iptables("-t", "nat", "-N", "KUBE-SVC-MYOWN")
    iptables("-t", "nat", "-I", "OUTPUT", "-j", "KUBE-SVC-MYOWN")
    iptables("-t", "filter", "-A", "KUBE-FIREWALL", "-m", "mark", "--mark", "0x8000/0x8000", "-j", "DROP")

    assert invoke("check", *lab).exit_code == 0

    iptables("-t", "filter", "-D", "KUBE-FIREWALL", "1")
    document = json.loads(invoke("check", *lab, "--family", "ipv4", "--output", "json").stdout)
    (difference,) = document["families"]["ipv4"]["differences"]
    assert (difference["chain"], len(difference["missing"]), difference["extra"]) == ("KUBE-FIREWALL", 1, [])


def test_rejected_object_is_3_only_without_drift(invoke: Invoke, lab: Lab, tmp_path: Path, iptables: Iptables) -> None:
    """Drift counts more."""
    bad = tmp_path / "bad.yaml"
    bad.write_text(
        "{apiVersion: v1, kind: Service, metadata: {name: Bad!, namespace: demo}, spec: {ports: [{port: 1}]}}"
    )
    first = invoke("check", "--from", bad, *lab)
    iptables("-t", "nat", "-F", _WEB)
    second = invoke("check", "--from", bad, *lab)

    assert (first.exit_code, second.exit_code) == (3, 1)
    assert "rejected: Service demo/Bad!" in first.stderr


@pytest.mark.parametrize(
    "arguments", [["--from", "no-such-file"], ["--netns", "no-such-netns"], ["--cluster-cidr", "nonsense"]]
)
def test_what_cannot_be_read_is_2(arguments: list[str], invoke: Invoke, lab: Lab) -> None:
    """A check that could not look has not found drift."""
    ran = invoke("check", *lab, *arguments, "--output", "json")

    assert ran.exit_code == 2
    assert json.loads(ran.stdout)["exit_code"] == 2
    assert ran.stderr.startswith("error: ")


def test_check_writes_nothing(invoke: Invoke, lab: Lab, netns: str) -> None:
    """Neither rules nor accounting objects: an empty namespace stays empty."""
    with temporary_namespace("empty") as empty:
        ran = invoke("check", *(empty if word == netns else word for word in lab))
        with inside(empty):
            ruleset = subprocess.run(["nft", "list", "ruleset"], capture_output=True, text=True, check=True).stdout

    assert (ran.exit_code, ruleset) == (1, "")
