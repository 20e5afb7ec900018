"""Objects that are valid and mean harm, or are just huge: what becomes of them, in how much time and memory."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config
from kproxy_ipt.plan.flows import entry_options
from kproxy_ipt.rules.options import rule_options
from kproxy_ipt.state.flows import entries_of
from kproxy_ipt.state.model import MachineFacts
from kproxy_ipt.testing.desired import desired_for, rule_lines, snapshot_of
from kproxy_ipt.testing.objects import endpoint_slice, service, service_port

_PROGRAM = str(Path(sys.executable).with_name("kproxy-ipt"))
_MOST_MIB, _MOST_S = 600, 90.0
_LISTED = Config(external_ip_ranges=("192.0.2.0/28", "2001:db8::/64"))


def _dispatch(*addresses: str, config: Config = _LISTED, family: Family = Family.IPV4, ready: bool = True) -> list[str]:
    """The rules that a Service with these external IPs has in shared chains for them."""
    ips = ["10.96.0.10", "fd00::10"]
    web = service(cluster_ips=ips, external_ips=addresses)
    pod = "10.244.1.2" if family is Family.IPV4 else "fd00:1::2"
    desired = desired_for(web, endpoint_slice(web, [pod] if ready else []), family=family, config=config)
    chains = (("nat", "KUBE-SERVICES"), ("filter", "KUBE-EXTERNAL-SERVICES"))
    lines = [line for table, chain in chains for line in rule_lines(desired, table, chain)]
    return [
        line.split()[3] for line in lines if " -d " in line and not any(ip in line for ip in ips) and "! -d" not in line
    ]


@pytest.mark.parametrize("ready", [True, False])
def test_external_ip_outside_of_the_list_gets_no_rule(ready: bool) -> None:  # noqa: FBT001 - a case
    """Neither one that sends traffic on nor one that refuses it; without a list every address has rules."""
    addresses = ("192.0.2.1", "192.0.2.16", "2001:db8::1", "2001:db8:1::1")

    assert _dispatch(*addresses, ready=ready) == ["192.0.2.1/32"]
    assert _dispatch(*addresses, ready=ready, family=Family.IPV6) == ["2001:db8::1/128"]
    assert _dispatch(*addresses, ready=ready, config=Config()) == ["192.0.2.1/32", "192.0.2.16/32"]


def test_gate_counts_before_the_list() -> None:
    """Where external IPs are off, a list does not turn any of them on."""
    config = msgspec.structs.replace(_LISTED, feature_gates={"AllowServiceExternalIPs": False})

    assert _dispatch("192.0.2.1", config=config) == []


def test_external_ip_outside_of_the_list_is_no_entry() -> None:
    """Connections to it are not ours: nobody's flows are ended in its name."""
    web = service(external_ips=["192.0.2.1", "198.51.100.1"])
    snapshot = snapshot_of(web, endpoint_slice(web))
    options = rule_options(_LISTED, snapshot.node, MachineFacts(), Family.IPV4, endpoint_count=1)
    (state,) = snapshot.services.values()

    found = [entry.address for entry in entries_of(state.service_port, entry_options(options, ()))]

    assert found == ["10.96.0.10", "192.0.2.1"]


@pytest.mark.parametrize("address", ["0.0.0.0", "127.0.0.1", "255.255.255.255", "169.254.1.1", "224.0.0.1"])
def test_odd_address_of_a_load_balancer_touches_nothing_else(address: str) -> None:
    """It has the rules of that very address, as with kube-proxy: `0.0.0.0` never means every address."""
    web = service(ports=[service_port(80)], ingress=[address], source_ranges=["10.0.0.0/8"])
    desired = desired_for(web, endpoint_slice(web))
    lines = [*rule_lines(desired, "nat", "KUBE-SERVICES"), *rule_lines(desired, "filter", "KUBE-PROXY-FIREWALL")]

    assert [line.split()[3] for line in lines if "loadbalancer IP" in line or "not accepted" in line] == [
        f"{address}/32",
        f"{address}/32",
    ]


@pytest.mark.parametrize("text", ["0.0.0.0/0", " 0.0.0.0/0", "0.0.0.0/0\t", "\n 1.2.3.4/0 "])
def test_source_range_of_everybody_with_blanks_restricts_nobody(text: str) -> None:
    """As with kube-proxy, which trims: no firewall chain at all."""
    web = service(ingress=["192.0.2.9"], source_ranges=["10.0.0.0/8", text])

    desired = desired_for(web, endpoint_slice(web))

    assert not [chain for chain in desired.ruleset.tables["nat"].chains if chain.startswith("KUBE-FW-")]


def _many_ports(count: int) -> Iterator[dict[str, object]]:
    names = [{"name": f"p{number}", "port": number + 1, "protocol": "TCP"} for number in range(count)]
    spec = {"type": "ClusterIP", "clusterIP": "10.96.0.1", "ports": names}
    yield {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "a"}, "spec": spec}
    yield _slice(0, [f"10.244.0.{number + 1}" for number in range(3)]) | {"ports": names}


def _many_endpoints(count: int) -> Iterator[dict[str, object]]:
    spec = {"type": "ClusterIP", "clusterIP": "10.96.0.1", "ports": [{"port": 80}]}
    yield {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "a"}, "spec": spec}
    addresses = [f"10.{128 + number // 65536}.{number // 256 % 256}.{number % 256}" for number in range(count)]
    for number in range(count // 1000):
        yield _slice(number, addresses[number * 1000 : number * 1000 + 1000])


def _slice(number: int, addresses: list[str]) -> dict[str, object]:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": f"web-{number}", "namespace": "a", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}} for address in addresses],
        "ports": [{"name": "", "port": 8080, "protocol": "TCP"}],
    }


@pytest.mark.parametrize(
    ("objects", "rules", "longest"),
    [(_many_ports(10_000), 100_000, 17), (_many_endpoints(100_000), 300_000, 512)],
    ids=["10,000 ports", "100,000 endpoints"],
)
def test_huge_service_is_bounded(
    objects: Iterator[dict[str, object]], rules: int, longest: int, tmp_path: Path
) -> None:
    """With everything at its default: time, memory, and rules that a new connection may meet in one chain."""
    path, output = tmp_path / "objects.json", tmp_path / "rules"
    path.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": list(objects)}))
    with output.open("w") as stream:
        command = [_PROGRAM, "render", "--from", str(path), "--family", "ipv4"]
        process = subprocess.Popen(command, stdout=stream, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    took_s = usage.ru_utime + usage.ru_stime
    sizes = Counter(line.split(" ", 2)[1] for line in output.read_text().splitlines() if line.startswith("-A "))

    assert process.returncode == 0
    assert took_s < _MOST_S
    assert usage.ru_maxrss / 1024 < _MOST_MIB
    assert sizes.total() > rules
    assert max(sizes.values()) <= longest
