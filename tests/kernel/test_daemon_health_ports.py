"""Health check node ports and policy Local of a running daemon: real HTTP, real packets, counters of rules."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.objects.model import Service
from kproxy_ipt.testing.daemon_process import DaemonProcess, lab_arguments, wait_until
from kproxy_ipt.testing.lab import Lab
from kproxy_ipt.testing.lab_objects import (
    NODE_PORT,
    balancer_ip,
    cluster_ip,
    endpoint,
    endpoints,
    open_service,
    own_node,
)
from kproxy_ipt.testing.object_folder import ObjectFolder
from kproxy_ipt.testing.objects import service, service_port
from kproxy_ipt.testing.probe_netns import probe_netns
from kproxy_ipt.testing.steady_traffic import SteadyConnections
from kproxy_ipt.testing.traffic import Outcome

pytestmark = pytest.mark.kernel

_V4 = Family.IPV4
_CHECK_PORT = 32000


@pytest.fixture
def folder(tmp_path: Path) -> ObjectFolder:
    """What the daemon follows: the Node only."""
    return ObjectFolder(tmp_path / "objects", own_node())


@pytest.fixture
def daemon(lab: Lab, backend: str, folder: ObjectFolder) -> Iterator[DaemonProcess]:
    """A daemon of IPv4 in step with the folder."""
    with DaemonProcess(lab.node.netns, *lab_arguments(folder.path, backend)) as made:
        made.wait_in_step()
        yield made


@pytest.fixture
def status(lab: Lab) -> Callable[..., int]:
    """What the balancer gets from a health check node port, 0 where nobody listens, or nobody any more."""

    def ask(port: int = _CHECK_PORT) -> int:
        try:
            return probe_netns(lab.client.netns, "192.0.2.10", port).status
        except ConnectionError:
            return 0

    return ask


def _local(
    name: str = "web", *, number: int = 10, check_port: int = _CHECK_PORT, node_port: int = NODE_PORT
) -> Service:
    """An open Service with external policy Local and a health check node port."""
    made = open_service(_V4, name, number=number, node_port=node_port, external_policy="Local")
    spec = msgspec.structs.replace(made.spec, health_check_node_port=check_port)
    return msgspec.structs.replace(made, spec=spec)


@pytest.mark.usefixtures("daemon")
def test_health_port_counts_local_endpoints(lab: Lab, folder: ObjectFolder, status: Callable[..., int]) -> None:
    """200 with local endpoints and their number in the body, 503 without, closed once the Service is gone."""
    web = _local()
    folder.put(web, endpoints(web, _V4, *lab.pods[:2], lab.remote))
    wait_until(lambda: status() == 200, "local endpoints")
    body = msgspec.json.decode(probe_netns(lab.client.netns, "192.0.2.10", _CHECK_PORT).body)
    folder.put(endpoints(web, _V4, lab.remote))
    wait_until(lambda: status() == 503, "no local endpoint")
    folder.remove(web)
    wait_until(lambda: status() == 0, "port closed")

    assert ({"namespace": "default", "name": "web"}, 2) == (body["service"], body["localEndpoints"])


@pytest.mark.usefixtures("daemon")
def test_health_turns_before_rules_while_a_terminating_endpoint_serves(
    lab: Lab, folder: ObjectFolder, status: Callable[..., int]
) -> None:
    """The last local endpoint terminates: 503 at once, connections still succeed; it vanishes: none goes elsewhere."""
    web = _local()
    folder.put(web, endpoints(web, _V4, lab.pods[1], lab.remote))
    wait_until(lambda: status() == 200, "a local endpoint")
    with SteadyConnections(lab.client, balancer_ip(_V4), 80) as client:
        leaving = endpoint(lab.pods[1], _V4, ready=False, serving=True)
        folder.put(endpoints(web, _V4, leaving, lab.remote))
        wait_until(lambda: status() == 503, "terminating")
        seen = len(client.exchanges)
        wait_until(lambda: len(client.exchanges) > seen + 20, "more connections")

    folder.put(endpoints(web, _V4, lab.remote))
    wait_until(lambda: not lab.client.send(balancer_ip(_V4), 80, timeout_s=0.2).names, "no local endpoint")
    assert ({}, 0, {"podB"}) == (dict(client.failures), client.sent_again, {each.name for each in client.exchanges})


@pytest.mark.usefixtures("daemon")
def test_health_port_is_let_in_though_input_drops(
    lab: Lab, backend: str, folder: ObjectFolder, status: Callable[..., int]
) -> None:
    """With INPUT policy DROP probes are answered through a rule for that TCP port, which goes with the Service."""
    web = _local()
    folder.put(web, endpoints(web, _V4, lab.pods[1]))
    wait_until(lambda: status() == 200, "open")
    rules = f"iptables-{backend}"
    lab.node.run(rules, "-A", "INPUT", "-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED", "-j", "ACCEPT")
    lab.node.run(rules, "-P", "INPUT", "DROP")
    try:
        accepted = [line for line in _rules(lab, backend, "KUBE-NODEPORTS") if "-A" in line]

        assert 200 == status()
        assert [True] == ["-p tcp" in line and f"--dport {_CHECK_PORT}" in line for line in accepted]
    finally:
        lab.node.run(rules, "-P", "INPUT", "ACCEPT")
        lab.node.run(rules, "-F", "INPUT")
    folder.remove(web)
    wait_until(lambda: not [line for line in _rules(lab, backend, "KUBE-NODEPORTS") if "-A" in line], "rule gone")


@pytest.mark.parametrize("check_first", [True, False])
def test_health_port_loses_to_a_node_port_in_either_order(
    lab: Lab, folder: ObjectFolder, daemon: DaemonProcess, *, check_first: bool
) -> None:
    """The node port wins, both Services and the port are named, a third Service works, the daemon goes on."""
    checked, taken = _local("a", check_port=30073, node_port=30081), open_service(_V4, "b", number=11, node_port=30073)
    third = open_service(_V4, "c", number=12, node_port=30082)
    order = [checked, taken, third] if check_first else [third, taken, checked]
    for one in order:
        folder.put(one, endpoints(one, _V4, lab.pods[1]))
    line = daemon.wait_for_log("health check node port not served")
    wait_until(lambda: lab.client.send("192.0.2.10", 30082, timeout_s=0.2).names, "third Service")
    wait_until(lambda: lab.client.send("192.0.2.10", 30073, timeout_s=0.2).names, "the node port")

    assert all(word in str(line["problem"]) for word in ("default/a", "default/b", "30073"))
    assert 200 == daemon.get("/livez").status


def test_health_port_moves_to_and_fro(
    lab: Lab, folder: ObjectFolder, daemon: DaemonProcess, status: Callable[..., int]
) -> None:
    """Ten times the port changes and the Service is re-created: one listener, current answers, never 'in use'."""
    for round_number in range(10):
        old, new = _CHECK_PORT + round_number % 2, _CHECK_PORT + (round_number + 1) % 2
        web = _local(check_port=new)
        folder.put(web, endpoints(web, _V4, *lab.pods[: 1 + round_number % 2]))
        wait_until(lambda port=new: status(port) == 200, "new port")  # type: ignore[misc]  # bound at once
        wait_until(lambda port=old: status(port) == 0, "old port closed")  # type: ignore[misc]  # bound at once
        if round_number == 5:
            folder.remove(web)
            wait_until(lambda port=new: status(port) == 0, "gone")  # type: ignore[misc]  # bound at once

    assert [] == daemon.log("health check node port not served")


def test_no_local_endpoint_drops_and_no_endpoint_rejects_with_counters(
    lab: Lab, backend: str, folder: ObjectFolder, daemon: DaemonProcess
) -> None:
    """Policy Local without a local endpoint is a silent drop, without any endpoint a refusal; both rules count."""
    web = open_service(_V4, external_policy="Local", internal_policy="Local")
    folder.put(web, endpoints(web, _V4, lab.remote))
    gauge = "kubeproxy_sync_proxy_rules_no_local_endpoints_total"
    wait_until(lambda: daemon.metric(gauge) == 2, "policies without local endpoints")
    dropped = [
        lab.pods[0].send(cluster_ip(_V4), 80, timeout_s=0.2).outcomes,
        lab.client.send(balancer_ip(_V4), 80, timeout_s=0.2).outcomes,
    ]
    drops = _packets(_rules(lab, backend, "KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES"), "DROP")
    folder.put(endpoints(web, _V4))
    wait_until(lambda: daemon.metric(gauge) == 0, "no endpoints at all")
    refused = [lab.pods[0].send(cluster_ip(_V4), 80).outcomes, lab.client.send(balancer_ip(_V4), 80).outcomes]
    rejects = _packets(_rules(lab, backend, "KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES"), "REJECT")

    assert ([{Outcome.TIMEOUT: 1}] * 2, [{Outcome.REFUSED: 1}] * 2) == (dropped, refused)
    assert drops >= 2
    assert rejects >= 2


@pytest.mark.usefixtures("daemon")
def test_new_udp_and_tcp_ports_of_one_number_live_together(lab: Lab, folder: ObjectFolder) -> None:
    """One Service with TCP and UDP on the same number answers both, each entry counted by its protocol."""
    ports = [service_port(53, name="tcp"), service_port(53, name="udp", protocol="UDP")]
    dns = service("dns", cluster_ip=cluster_ip(_V4), ports=ports)
    folder.put(dns, endpoints(dns, _V4, lab.pods[1]))

    for protocol in ("tcp", "udp"):
        wait_until(
            lambda chosen=protocol: lab.pods[0].send(cluster_ip(_V4), 53, protocol=chosen, timeout_s=0.2).names,  # type: ignore[misc]
            protocol,
        )


def _rules(lab: Lab, backend: str, *chains: str) -> list[str]:
    """Rules of chains of the filter table, with counters."""
    saved = lab.node.run(f"iptables-{backend}-save", "-c", "-t", "filter").splitlines()
    return [line for line in saved if line.startswith("[") and line.split()[2] in chains]


def _packets(rules: list[str], target: str) -> int:
    counts = (re.match(r"\[(\d+):", line) for line in rules if f"-j {target}" in line)
    return sum(int(found[1]) for found in counts if found)
