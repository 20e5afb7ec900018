"""`sync --once` from the command line: what it prints, and that it touches what it should and nothing else."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import yaml
from click.testing import Result

from kproxy_ipt.kernel.netns import inside

pytestmark = pytest.mark.kernel

Invoke = Callable[..., Result]
Program = Callable[..., subprocess.CompletedProcess[str]]
Saved = Callable[..., str]
Lab = tuple[str, ...]
Shim = Callable[[str, str], Mapping[str, str]]

_PROGRAM = Path(sys.executable).with_name("kproxy-ipt")
_FIELDS = {"transactions", "bytes", "chains_written", "chains_deleted", "rules", "services", "endpoints", "rejected"}
_REJECTED = """
{apiVersion: v1, kind: Service, metadata: {name: bad, namespace: demo}, spec: {ports: [{port: 70000}]}}
"""
_TWO_FAMILIES = """
apiVersion: v1
kind: Service
metadata: {name: a-first, namespace: demo}
spec: {type: LoadBalancer, clusterIP: 10.96.7.1, ports: [{port: 80}]}
status: {loadBalancer: {ingress: [{ip: 192.0.2.9}, {ip: "2001:db8::9"}]}}
"""
_PLAIN = """
---
{{apiVersion: v1, kind: Service, metadata: {{name: plain-{n}, namespace: demo}},
 spec: {{clusterIP: 10.96.8.{n}, ports: [{{port: 80}}]}}}}
"""
_FLOW = (
    "conntrack -I -p udp -s 10.244.1.5 -d 10.96.0.53 --sport 4000 --dport 53 "
    "-r 10.244.2.53 -q 10.244.1.5 --reply-port-src 5353 --reply-port-dst 4000 --timeout 100"
)
_NO_NAT = """[ "$1" = --version ] && exec $REAL "$@"
echo "can't initialize ip6tables table \\`nat': Table does not exist" >&2
exit 3"""


def test_object_holds_the_documented_fields(invoke: Invoke, lab: Lab) -> None:
    """`--output json` prints one object with the numbers of the run, as sums and by family."""
    ran = invoke("sync", "--once", *lab, "--output", "json")
    document = json.loads(ran.stdout)

    assert ran.exit_code == document["exit_code"] == 0
    assert set(document) > _FIELDS | {"families", "seconds", "warnings", "notes", "unavailable", "backend", "reason"}
    phases = {"machine", "read", "list", "build", "plan", "restore", "conntrack", "total"}
    assert set(document["seconds"]) == phases
    assert set(document["families"]) == {"ipv4", "ipv6"}
    assert (document["services"], document["endpoints"]) == (6, 21)
    for field in _FIELDS - {"services", "rejected"}:
        assert document[field] == sum(family[field] for family in document["families"].values())


def test_yaml_says_what_json_says(invoke: Invoke, lab: Lab) -> None:
    """The two forms of a run that has nothing to do differ in measured times alone."""
    invoke("sync", "--once", *lab)
    texts = [invoke("sync", "--once", *lab, "--output", form).stdout for form in ("json", "yaml")]
    first, second = json.loads(texts[0]), yaml.safe_load(texts[1])

    for document in (first, second):
        for part in (document, *document["families"].values()):
            del part["seconds"]
    assert first == second
    assert first["transactions"] == 0


def test_dry_run_writes_nothing_and_says_so(invoke: Invoke, lab: Lab, netns: str, saved: Saved) -> None:
    """The numbers are those of a sync, the tables stay as they are."""
    before = saved(netns)
    ran = invoke("sync", "--once", "--dry-run", *lab)

    assert ran.exit_code == 0
    assert ran.stdout.splitlines()[-1] == "this would be written"
    assert saved(netns) == before


def test_text_is_a_table_and_one_word(invoke: Invoke, lab: Lab) -> None:
    """First the choice of the backend with its reason (C78), then a row for each family, then the outcome."""
    lines = invoke("sync", "--once", *lab).stdout.splitlines()

    assert lines[0] == "node n1, backend nft: the backend nft is pinned by the configuration"
    assert [line.split()[0] for line in lines[1:4]] == ["family", "ipv4", "ipv6"]
    assert lines[-1] == "written"
    assert max(len(line) for line in lines) <= 80
    assert invoke("sync", "--once", *lab).stdout.splitlines()[-1].startswith("nothing to do: ")


def test_chosen_backend_is_told_with_its_reason(invoke: Invoke, lab: Lab) -> None:
    """C78: `auto` looks at the kernel; a pinned backend wins over what it finds."""
    automatic = lab[:-2]
    invoke("sync", "--once", *automatic, "--backend", "legacy")
    found = json.loads(invoke("sync", "--once", *automatic, "--output", "json").stdout)
    pinned = json.loads(invoke("sync", "--once", "--dry-run", *lab, "--output", "json").stdout)

    assert (found["backend"], found["reason"]) == ("legacy", "our chains are in the legacy tables")
    assert (found["transactions"], pinned["backend"]) == (0, "nft")
    assert pinned["transactions"] > 0


def test_family_can_be_chosen(invoke: Invoke, lab: Lab, iptables: Callable[..., str]) -> None:
    """`--family ipv4` leaves ip6tables alone."""
    ran = invoke("sync", "--once", *lab, "--family", "ipv4", "--output", "json")

    assert list(json.loads(ran.stdout)["families"]) == ["ipv4"]
    assert "KUBE-SVC" in iptables(word="iptables-nft-save")
    assert iptables(word="ip6tables-nft-save") == ""


def test_namespace_can_be_a_path(invoke: Invoke, lab: Lab, netns: str, iptables: Callable[..., str]) -> None:
    """`--netns /run/netns/NAME` is the namespace of that file."""
    options = [f"/run/netns/{netns}" if word == netns else word for word in lab]

    assert invoke("sync", "--once", *options).exit_code == 0
    assert "KUBE-SVC" in iptables(word="iptables-nft-save")


def test_results_and_remarks_go_different_ways(program: Program, lab: Lab, tmp_path: Path) -> None:
    """Standard output holds one JSON object; notes, rejections and warnings stand on standard error."""
    (tmp_path / "bad.yaml").write_text(_REJECTED)
    ran = program("sync", "--once", "--from", tmp_path / "bad.yaml", *lab, "--output", "json")

    document = json.loads(ran.stdout)
    assert ran.returncode == document["exit_code"] == 3
    assert document["rejected"][0].items() >= {"object": "Service demo/bad", "field": "spec.ports[0].port"}.items()
    assert {"found", "expected"} <= set(document["rejected"][0])
    assert document["transactions"] > 0
    assert "rejected: Service demo/bad: spec.ports[0].port: found 70000, expected " in ran.stderr
    assert "note: " in ran.stderr


def test_no_colour_in_a_pipe_nor_where_it_is_not_wanted(program: Program, lab: Lab, tmp_path: Path) -> None:
    """Colour is for terminals, and NO_COLOR switches it off there too."""
    (tmp_path / "bad.yaml").write_text(_REJECTED)
    arguments = ("sync", "--once", "--from", str(tmp_path / "bad.yaml"), *lab)
    piped = program(*arguments)
    on_terminal = {no_color: _on_terminal(arguments, no_color) for no_color in ("", "1")}

    assert "\033" not in piped.stdout + piped.stderr
    assert "\033[31mrejected" in on_terminal[""]
    assert "\033" not in on_terminal["1"]
    assert "rejected" in on_terminal["1"]


def _on_terminal(arguments: tuple[str, ...], no_color: str) -> str:
    """What a person sees who works with NO_COLOR set so."""
    command = " ".join(f"'{word}'" for word in (_PROGRAM, *arguments))
    environment = {**os.environ, "NO_COLOR": no_color, "TERM": "xterm"}
    ran = subprocess.run(
        ["script", "-qec", command, "/dev/null"], env=environment, capture_output=True, text=True, check=False
    )
    return ran.stdout


def test_kernel_without_address_translation_for_ipv6_gets_ipv4(
    program: Program, lab: Lab, shim: Shim, saved: Saved, netns: str
) -> None:
    """C47: the nat table of ip6tables is missing: one note with the reason, IPv4 is programmed, exit code 0."""
    ran = program("sync", "--once", *lab, "--output", "json", env=shim("ip6tables-nft", _NO_NAT))

    document = json.loads(ran.stdout)
    assert (ran.returncode, list(document["families"])) == (0, ["ipv4"])
    assert "nat" in document["unavailable"]["ipv6"]
    assert ran.stderr.count("IPv6 is left out") == 1
    assert "KUBE-SVC" in saved(netns)


def test_machine_without_ip6tables_gets_ipv4(program: Program, lab: Lab, tmp_path: Path) -> None:
    """C47: no ip6tables program at all."""
    only_ipv4 = tmp_path / "sbin"
    only_ipv4.mkdir()
    for name in ("iptables-nft", "iptables-nft-save", "iptables-nft-restore"):
        (only_ipv4 / name).write_bytes(Path("/usr/sbin/xtables-nft-multi").read_bytes())
        (only_ipv4 / name).chmod(0o755)
    ran = program("sync", "--once", *lab, sbin=only_ipv4)

    assert ran.returncode == 0
    assert ran.stdout.splitlines()[-1] == "written"
    assert ran.stderr.count("IPv6 is left out: there is no ip6tables program of the backend nft") == 1
    assert program("sync", "--once", *lab, "--family", "ipv6", sbin=only_ipv4).returncode == 6


def test_address_of_the_other_family_costs_nothing_else(
    invoke: Invoke, lab: Lab, tmp_path: Path, iptables: Callable[..., str]
) -> None:
    """C43: an IPv6 ingress address of an IPv4 Service is named once; it and ten Services after it work for IPv4."""
    (tmp_path / "services.yaml").write_text(_TWO_FAMILIES + "".join(_PLAIN.format(n=n) for n in range(1, 11)))
    options = ("--from", tmp_path / "services.yaml", *lab[2:])
    ran = invoke("sync", "--once", *options)

    assert ran.exit_code == 0
    assert ran.stderr.count("2001:db8::9") == 1
    rules = iptables(word="iptables-nft-save")
    assert [n for n in range(1, 11) if f"-d 10.96.8.{n}/32 " not in rules] == []
    assert "-d 192.0.2.9/32 " in rules
    assert "2001:db8::9" not in iptables(word="ip6tables-nft-save")


def test_settings_are_made_only_where_rules_need_them(invoke: Invoke, lab: Lab, netns: str) -> None:
    """route_localnet is set by a sync that opens node ports on localhost, and not by a dry run."""
    settings = []
    for options in (("--dry-run", *lab), ("--iptables-localhost-nodeports=false", *lab), lab):
        assert invoke("sync", "--once", *options).exit_code == 0
        with inside(netns):
            settings.append(Path("/proc/sys/net/ipv4/conf/all/route_localnet").read_text().strip())

    assert settings == ["0", "0", "1"]


def test_a_deleted_file_ends_the_flows_of_its_service(
    invoke: Invoke, lab: Lab, netns: str, examples: Path, tmp_path: Path
) -> None:
    """C04: a run without the file learns from the rules that go which flows were the Service's, and counts them."""
    options = ("--from", tmp_path, *lab[2:])
    for name in ("dns.yaml", "web.yaml"):
        (tmp_path / name).write_bytes((examples / name).read_bytes())
    assert invoke("sync", "--once", *options).exit_code == 0
    with inside(netns):
        subprocess.run(_FLOW.split(), capture_output=True, check=True)
    kept = json.loads(invoke("sync", "--once", *options, "--output", "json").stdout)
    (tmp_path / "dns.yaml").unlink()
    lines = invoke("sync", "--once", *options).stdout.splitlines()

    assert (kept["flows_listed"], kept["flows_deleted"]) == (1, 0)
    assert lines[-2:] == ["stale flows of UDP ended: 1", "written"]


def test_a_dry_run_ends_no_flow(invoke: Invoke, lab: Lab, netns: str) -> None:
    """A record that contradicts the rules to come outlives a dry run and goes with the sync."""
    with inside(netns):
        subprocess.run(_FLOW.replace("10.244.2.53", "10.244.2.99").split(), capture_output=True, check=True)
    deleted = [
        json.loads(invoke("sync", "--once", *options, *lab, "--output", "json").stdout)["families"]["ipv4"]
        for options in (("--dry-run",), (), ())
    ]

    assert [report["flows_deleted"] for report in deleted] == [0, 1, 0]
