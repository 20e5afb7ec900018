"""Odd objects, Node facts and quiet times of a running daemon: what the kernel gets, and when it gets nothing."""

import json
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path

import msgspec
import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.objects.model import SERVICE_PROXY_NAME_LABEL, EndpointSlice, Service
from kproxy_ipt.testing.daemon_process import DaemonProcess, lab_arguments, wait_until
from kproxy_ipt.testing.lab import NODE_NAME, Lab
from kproxy_ipt.testing.lab_objects import (
    NODE_PORT,
    TARGET_PORT,
    cluster_ip,
    endpoint,
    endpoints,
    open_service,
    own_node,
)
from kproxy_ipt.testing.object_folder import ObjectFolder, manifest
from kproxy_ipt.testing.objects import endpoint_slice, node, service, service_port, slice_endpoint, slice_port
from kproxy_ipt.testing.promptness import quickest

pytestmark = pytest.mark.kernel

_V4 = Family.IPV4
_SYNCS = "kproxy_ipt_syncs_total"


@pytest.fixture(scope="module", params=["nft"])
def backend(request: pytest.FixtureRequest) -> str:
    """What objects mean does not depend on the backend."""
    return str(request.param)


@pytest.fixture
def folder(tmp_path: Path) -> ObjectFolder:
    """What the daemon follows: the Node only."""
    return ObjectFolder(tmp_path / "objects", own_node())


@pytest.fixture
def run(lab: Lab, folder: ObjectFolder) -> Iterator[Callable[..., DaemonProcess]]:
    """Start a daemon of IPv4 with further arguments and wait until it is in step."""
    started: list[DaemonProcess] = []

    def start(*arguments: str, node_name: str = NODE_NAME) -> DaemonProcess:
        daemon = DaemonProcess(lab.node.netns, *lab_arguments(folder.path, "nft"), *arguments, node_name=node_name)
        daemon.start()
        started.append(daemon)
        daemon.wait_in_step()
        return daemon

    yield start
    for daemon in started:
        daemon.__exit__()


def _answering(lab: Lab) -> set[str]:
    """Who answers on the cluster IP."""
    return set(lab.pods[0].send(cluster_ip(_V4), 80, count=8, timeout_s=0.2).names)


def _with_labels(one: Service, labels: dict[str, str]) -> Service:
    return msgspec.structs.replace(one, metadata=msgspec.structs.replace(one.metadata, labels=labels))


@pytest.mark.parametrize("in_two_slices", [False, True])
@pytest.mark.parametrize("dead_first", [False, True])
def test_usable_endpoint_wins_over_a_dead_one_of_the_same_address(
    lab: Lab, folder: ObjectFolder, run: Callable[..., DaemonProcess], *, in_two_slices: bool, dead_first: bool
) -> None:
    """A new pod that reuses the address of a stuck terminating one gets the traffic, in every order and layout."""
    run()
    web = open_service(_V4)
    dead = endpoint(lab.pods[1], _V4, ready=False, serving=False)
    entries = [dead, endpoint(lab.pods[1], _V4)][:: 1 if dead_first else -1]
    groups = [[one] for one in entries] if in_two_slices else [entries]
    folder.put(web)
    for number, group in enumerate(groups):
        folder.put(endpoint_slice(web, group, name=f"web-{number}", ports=[TARGET_PORT]))

    wait_until(lambda: _answering(lab) == {"podB"}, "the endpoint that lives")
    assert 1 == lab.node.run("iptables-nft", "-t", "nat", "-S").count(f"--to-destination {lab.pods[1].address()}:")


def test_ports_match_by_name_and_the_number_is_that_of_the_slice(
    lab: Lab, folder: ObjectFolder, run: Callable[..., DaemonProcess]
) -> None:
    """A slice whose port has another name serves nothing; its number, not targetPort, is where packets go."""
    run()
    web = service(cluster_ip=cluster_ip(_V4), ports=[service_port(80, target_port=9)])
    entries = [lab.pods[1].address()]
    folder.put(web, endpoint_slice(web, entries, ports=[slice_port(TARGET_PORT, name="web")]))
    wait_until(lambda: "REJECT" in lab.node.run("iptables-nft", "-S", "KUBE-SERVICES"), "no endpoint matches")
    folder.put(endpoint_slice(web, entries, ports=[slice_port(TARGET_PORT, name="")]))

    wait_until(lambda: _answering(lab) == {"podB"}, "the name matches")


def test_second_address_of_an_endpoint_is_not_used(
    lab: Lab, folder: ObjectFolder, run: Callable[..., DaemonProcess]
) -> None:
    """Only the first address counts, and the other one is told."""
    daemon = run()
    web = open_service(_V4)
    both = slice_endpoint(lab.pods[1].address(), lab.pods[2].address(), node_name=NODE_NAME)
    folder.put(web, endpoint_slice(web, [both], ports=[TARGET_PORT]))

    wait_until(lambda: _answering(lab) == {"podB"}, "the first address")
    wait_until(lambda: lab.pods[2].address() in _findings(daemon) or "2 addresses" in _findings(daemon), "a finding")


_ODD: dict[str, Callable[[Service, Lab], bytes | EndpointSlice]] = {
    "no-label": lambda web, lab: msgspec.structs.replace(
        endpoint_slice(web, [lab.pods[1].address()], name="no-label", ports=[TARGET_PORT]),
        metadata=msgspec.structs.replace(endpoint_slice(web, name="no-label").metadata, labels=None),
    ),
    "no-ports": lambda web, lab: endpoint_slice(web, [lab.pods[1].address()], name="no-ports", ports=[]),
    "no-number": lambda web, lab: endpoint_slice(
        web, [lab.pods[1].address()], name="no-number", ports=[slice_port(None)]
    ),
    "fqdn": lambda web, _: endpoint_slice(web, ["example.com"], name="fqdn", address_type="FQDN", ports=[TARGET_PORT]),
    "no-address": lambda web, _: endpoint_slice(web, [slice_endpoint()], name="no-address", ports=[TARGET_PORT]),
}


@pytest.mark.parametrize("what", _ODD)
def test_odd_slice_adds_nothing_and_spoils_nothing(
    lab: Lab, folder: ObjectFolder, run: Callable[..., DaemonProcess], what: str
) -> None:
    """A slice without label, ports, port number, address or IP addresses leaves the Service to its good slice."""
    web = open_service(_V4)
    odd = _ODD[what](web, lab)
    folder.put(web, endpoints(web, _V4, lab.pods[2]))
    folder.write("odd.json", odd if isinstance(odd, bytes) else manifest(odd))
    run()

    assert {"podC"} == _answering(lab)


def test_label_for_another_proxy_takes_rules_away_and_brings_them_back(
    lab: Lab, folder: ObjectFolder, run: Callable[..., DaemonProcess]
) -> None:
    """service-proxy-name on a Service removes its rules within one sync, its removal brings them back."""
    run()
    web = open_service(_V4)
    folder.put(web, endpoints(web, _V4, lab.pods[1]))
    wait_until(lambda: _answering(lab) == {"podB"}, "served")
    folder.put(_with_labels(web, {SERVICE_PROXY_NAME_LABEL: "other"}))
    wait_until(lambda: "KUBE-SVC" not in lab.node.run("iptables-nft", "-t", "nat", "-S"), "rules are gone")
    folder.put(web)

    wait_until(lambda: _answering(lab) == {"podB"}, "rules are back")


def test_changes_without_meaning_lead_to_no_sync(
    lab: Lab, folder: ObjectFolder, run: Callable[..., DaemonProcess]
) -> None:
    """Annotations and resource versions of a hundred objects change ten times: nothing is synced."""
    services = [service(f"s{number}", cluster_ip=cluster_ip(_V4, number + 10)) for number in range(50)]
    slices = [endpoints(one, _V4, lab.pods[1]) for one in services]
    folder.put(*services, *slices)
    daemon = run()
    seen = "kubeproxy_sync_proxy_rules_endpoint_changes_total"
    syncs, changes = daemon.metric(_SYNCS), daemon.metric(seen)
    for number in range(10):
        touched: list[Service | EndpointSlice] = [*services, *slices]
        for one in touched:
            document = json.loads(manifest(one))
            document["metadata"] |= {"annotations": {"renewed": str(number)}, "resourceVersion": str(1000 + number)}
            folder.write(folder.file(one).name, json.dumps(document).encode())
    daemon.wait_for_metric(seen, changes + 50)

    assert syncs == daemon.metric(_SYNCS)


@pytest.mark.parametrize("gap", ["0s", "1s"])
def test_single_change_after_quiet_is_written_at_once(
    lab: Lab, folder: ObjectFolder, run: Callable[..., DaemonProcess], gap: str
) -> None:
    """Whatever minSyncPeriod is: after a quiet time a change is in the kernel within a second."""
    run("--iptables-min-sync-period", gap)
    web, bound_s = open_service(_V4), 1.0 if gap == "0s" else 2.0
    places = cycle(lab.pods[1:3])

    def change() -> float:
        pod = next(places)
        folder.put(web, endpoints(web, _V4, pod))
        return wait_until(lambda: _answering(lab) == {pod.name}, "written")

    assert quickest(change, bound_s) < bound_s


def test_burst_leads_to_a_handful_of_syncs(folder: ObjectFolder, run: Callable[..., DaemonProcess]) -> None:
    """Two hundred changes in a moment, minSyncPeriod 1 s: few restores, and none of the changes is lost."""
    daemon = run("--iptables-min-sync-period", "1s")
    before, began_s = daemon.metric(_SYNCS), time.monotonic()
    for number in range(200):
        folder.put(service(f"s{number}", cluster_ip=f"10.97.0.{number}"))
    wait_until(lambda: daemon.metric("kubeproxy_sync_proxy_rules_iptables_total", table="filter") > 200, "all written")
    took_s = time.monotonic() - began_s

    assert 1 <= daemon.metric(_SYNCS) - before <= 4 + took_s


def test_zone_label_that_appears_is_followed(lab: Lab, folder: ObjectFolder, run: Callable[..., DaemonProcess]) -> None:
    """Hints count from the moment in which the Node gets its zone."""
    run()
    web = open_service(_V4)
    hinted = [
        slice_endpoint(lab.pods[number].address(), node_name=NODE_NAME, zone_hints=[zone])
        for number, zone in ((1, "a"), (2, "b"))
    ]
    folder.put(web, endpoint_slice(web, hinted, ports=[TARGET_PORT]))
    wait_until(lambda: _answering(lab) == {"podB", "podC"}, "all zones")
    folder.put(node(NODE_NAME, zone="a", addresses=("192.0.2.10",)))

    other_zone = f"{lab.pods[2].address()}:"
    wait_until(lambda: other_zone not in lab.node.run("iptables-nft", "-t", "nat", "-S"), "the own zone")
    assert {"podB"} == _answering(lab)


def test_pod_range_of_the_node_is_followed_and_outlives_the_node(
    lab: Lab, folder: ObjectFolder, run: Callable[..., DaemonProcess]
) -> None:
    """NodeCIDR: a new podCIDR is in the rules within one sync; a deleted Node changes nothing; its successor counts."""
    daemon = run("--detect-local-mode", "NodeCIDR")
    web = open_service(_V4)
    folder.put(web, endpoints(web, _V4, lab.pods[1]))

    def wait_for(cidr: str) -> None:
        wait_until(lambda: f"! -s {cidr}" in lab.node.run("iptables-nft", "-t", "nat", "-S"), cidr)

    wait_for("10.244.1.0/24")
    folder.put(node(NODE_NAME, pod_cidrs=("10.244.7.0/24",)))
    wait_for("10.244.7.0/24")
    before = lab.node.run("iptables-nft", "-t", "nat", "-S")
    folder.remove(own_node())
    daemon.wait_for_log("node")

    assert before == lab.node.run("iptables-nft", "-t", "nat", "-S")
    folder.put(node(NODE_NAME, pod_cidrs=("10.244.9.0/24",)))
    wait_for("10.244.9.0/24")


def test_node_port_follows_addresses_of_interfaces(
    lab: Lab, folder: ObjectFolder, run: Callable[..., DaemonProcess]
) -> None:
    """An address of nodePortAddresses that comes, and is replaced, takes node ports along without a restart."""
    run("--nodeport-addresses", "203.0.113.0/24")
    web = open_service(_V4)
    folder.put(web, endpoints(web, _V4, lab.pods[1]))

    def reachable(host: str) -> bool:
        return bool(lab.client.send(host, NODE_PORT, timeout_s=0.2).names)

    def address(verb: str, host: str) -> None:
        lab.node.run("ip", "address", verb, f"{host}/32", "dev", "lo")

    address("add", "203.0.113.7")
    wait_until(lambda: reachable("203.0.113.7"), "the first address")
    address("del", "203.0.113.7")
    address("add", "203.0.113.8")
    wait_until(lambda: reachable("203.0.113.8"), "the second address")
    rules = lab.node.run("iptables-nft", "-t", "nat", "-S", "KUBE-SERVICES")
    address("del", "203.0.113.8")

    assert ("203.0.113.7" in rules, "203.0.113.8" in rules) == (False, True)


def test_name_that_no_node_has_is_told(lab: Lab, folder: ObjectFolder, run: Callable[..., DaemonProcess]) -> None:
    """With a wrong node name the daemon works on and says why policy Local does not."""
    web = open_service(_V4)
    folder.put(web, endpoints(web, _V4, lab.pods[1]))
    daemon = run(node_name="n1.example.com")

    assert {"podB"} == _answering(lab)
    assert "hostname-override" in str(daemon.wait_for_log("node")["odd"])


def _findings(daemon: DaemonProcess) -> str:
    return "\n".join(str(line["finding"]) for line in daemon.log("object"))
