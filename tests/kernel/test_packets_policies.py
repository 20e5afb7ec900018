"""Traffic policies and states of endpoints, with real packets: whose connections go where, and which are dropped."""

from collections.abc import Callable, Mapping
from itertools import product

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.report import RunReport
from kproxy_ipt.testing.lab import Lab
from kproxy_ipt.testing.lab_objects import (
    NODE_PORT,
    SECOND_NODE_ADDRESS,
    balancer_ip,
    cluster_ip,
    endpoint,
    endpoints,
    open_service,
    remote_pod,
    stranger,
)
from kproxy_ipt.testing.objects import endpoint_slice, slice_endpoint, slice_port
from kproxy_ipt.testing.shares import assert_shares
from kproxy_ipt.testing.sockets import Protocol
from kproxy_ipt.testing.topology import BOTH
from kproxy_ipt.testing.traffic import Outcome

pytestmark = pytest.mark.kernel

Sync = Callable[..., RunReport]
_DROPPED_S = 0.3
_ENOUGH = 64
"""Connections after which each of three endpoints was met, but once in 10^10 times."""


def _entries(lab: Lab, family: Family) -> list[tuple[str, int]]:
    """Every address for traffic from outside."""
    return [(lab.node.address(family), NODE_PORT), (balancer_ip(family, 8), 80), (balancer_ip(family, 28), 80)]


@pytest.mark.parametrize("protocol", ["tcp", "udp"])
def test_external_policy_local_keeps_the_source_and_uses_local_endpoints(
    lab: Lab, sync: Sync, family: Family, protocol: Protocol
) -> None:
    """From outside each entry leads to the endpoint of this node alone, which sees the client's own address."""
    web = open_service(family, external_policy="Local", protocol=protocol.upper())
    sync(web, endpoints(web, family, lab.pod("podB"), lab.remote))

    for address, port in _entries(lab, family):
        traffic = lab.client.send(address, port, protocol=protocol, count=10)

        assert traffic.names == {"podB": 10}, address
        assert traffic.seen_addresses == {lab.client.address(family): 10}, address


def test_external_policy_local_without_local_endpoint_drops_the_outside_alone(
    lab: Lab, sync: Sync, family: Family
) -> None:
    """A client hears nothing; pods keep their address and the node is masqueraded on the way to the other node."""
    web = open_service(family, external_policy="Local")
    sync(web, endpoints(web, family, lab.remote))
    pod, own = lab.pod("podA"), SECOND_NODE_ADDRESS[family]

    for address, port in _entries(lab, family):
        outside = lab.client.send(address, port, timeout_s=_DROPPED_S)
        assert outside.outcomes == {Outcome.TIMEOUT: 1}, address
        assert pod.send(address, port).seen_addresses == {pod.address(family): 1}, address
        from_node = lab.node.send(address, port, sources=[own])
        assert from_node.seen_addresses == {lab.node.address(family): 1}, address


def test_external_policy_local_does_not_touch_the_cluster_ip(lab: Lab, sync: Sync, family: Family) -> None:
    """With one local and two remote endpoints a pod meets each for a third of its connections to the cluster IP."""
    second = remote_pod(family, 22 if family is Family.IPV4 else 0x22)
    server = lab.remote.serve(8080, name="second", addresses=[second])
    web = open_service(family, external_policy="Local")
    sync(web, endpoints(web, family, lab.pod("podB"), lab.remote, second))

    def ask() -> Mapping[str, int]:
        traffic = lab.pod("podA").send(cluster_ip(family), 80, count=300)
        assert traffic.outcomes == {Outcome.ANSWERED: 300}
        return traffic.names

    assert_shares(ask, {"podB": 1, "remote": 1, "second": 1})
    server.stop()


@pytest.fixture(scope="module", autouse=True)
def uplink(lab: Lab) -> None:
    """Somebody at the end of the node's default route answers for one cluster IP: packets that slip out are seen."""
    for address in (cluster_ip(family, 40) for family in BOTH):
        lab.client.run("ip", "address", "add", address, "dev", "lo")
        lab.client.serve(80, name="uplink", addresses=[address])


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        (("podB", "remote"), {"podB"}),
        (("podB", "podC", "remote"), {"podB", "podC"}),
        (("remote",), set()),
    ],
    ids=["one-local", "two-local", "none-local"],
)
def test_internal_policy_local_uses_local_endpoints_or_drops(
    lab: Lab, sync: Sync, family: Family, places: tuple[str, ...], expected: set[str]
) -> None:
    """Pod and node reach the endpoints of this node by the cluster IP; without one, their packets do not leave it."""
    web = open_service(family, internal_policy="Local", number=40)
    sync(web, endpoints(web, family, *(lab.remote if name == "remote" else lab.pod(name) for name in places)))

    for place in (lab.pod("podA"), lab.node):
        traffic = place.send(cluster_ip(family, 40), 80, count=_ENOUGH, timeout_s=3.0 if expected else _DROPPED_S)

        assert set(traffic.names) == expected, place.name
        assert traffic.outcomes == {Outcome.ANSWERED if expected else Outcome.TIMEOUT: _ENOUGH}, place.name
    assert lab.client.send(lab.node.address(family), NODE_PORT).outcomes == {Outcome.ANSWERED: 1}


_READY, _SERVING, _GONE = (True, True), (False, True), (False, False)
_STATES = {
    "ready": {"podB": _READY, "podC": _SERVING, "podD": _GONE, "remote": _READY},
    "local ones serve on": {"podB": _SERVING, "podC": _SERVING, "podD": _GONE, "remote": _READY},
    "all serve on": {"podB": _SERVING, "podC": _SERVING, "remote": _SERVING},
    "remote one serves on": {"remote": _SERVING},
    "all gone": {"podB": _GONE, "remote": _GONE},
}
# Case and external policy -> from a pod to the cluster IP, and from outside to the load balancer IP.
_REACHED: dict[tuple[str, str], tuple[str, str]] = {
    ("ready", "Cluster"): ("podB remote", "podB remote"),
    ("ready", "Local"): ("podB remote", "podB"),
    ("local ones serve on", "Cluster"): ("remote", "remote"),
    ("local ones serve on", "Local"): ("remote", "podB podC"),
    ("all serve on", "Cluster"): ("podB podC remote", "podB podC remote"),
    ("all serve on", "Local"): ("podB podC remote", "podB podC"),
    ("remote one serves on", "Cluster"): ("remote", "remote"),
    ("remote one serves on", "Local"): ("remote", "timeout"),
    ("all gone", "Cluster"): ("refused", "refused"),
    ("all gone", "Local"): ("refused", "refused"),
}


def test_terminating_endpoints_serve_where_no_ready_one_is_left(lab: Lab, sync: Sync, family: Family) -> None:
    """Each policy falls back to its serving and terminating endpoints by itself, never to those that do not serve."""
    cases = list(product(_STATES, ("Cluster", "Local")))
    services = [
        open_service(family, f"s{number}", number=number, node_port=30000 + number, external_policy=policy)
        for number, (_, policy) in enumerate(cases, 10)
    ]
    slices = []
    for each, (state, _) in zip(services, cases, strict=True):
        states = _STATES[state].items()
        places = [(lab.remote if name == "remote" else lab.pod(name), flags) for name, flags in states]
        entries = [endpoint(place, family, ready=ready, serving=serving) for place, (ready, serving) in places]
        slices.append(endpoints(each, family, *entries))
    sync(*services, *slices)

    observed = {}
    for number, case in enumerate(cases, 10):
        inside = lab.pod("podA").send(cluster_ip(family, number), 80, count=_ENOUGH)
        outside = lab.client.send(balancer_ip(family, number - 2), 80, count=_ENOUGH)
        observed[case] = tuple(" ".join(sorted(each.names or each.outcomes)) for each in (inside, outside))

    assert observed == _REACHED


@pytest.mark.parametrize("order", [1, -1], ids=["dead-first", "dead-last"])
@pytest.mark.parametrize("slice_count", [1, 2])
def test_address_of_a_dead_pod_serves_its_successor(
    lab: Lab, sync: Sync, family: Family, order: int, slice_count: int
) -> None:
    """An address that is listed as terminating and as ready, in any order and in one slice or two, is one endpoint."""
    address = lab.pod("podB").address(family)
    dead = slice_endpoint(address, node_name="n1", ready=False, serving=False, terminating=True)
    alive = slice_endpoint(address, node_name="n1", ready=True)
    other = slice_endpoint(lab.remote.address(family), node_name="n2")
    entries = [dead, alive][::order]
    groups = [[*entries, other]] if slice_count == 1 else [[entries[0]], [entries[1], other]]
    web = open_service(family)
    slices = [
        endpoint_slice(web, group, name=f"web-{number}", ports=[slice_port(8080)])
        for number, group in enumerate(groups)
    ]
    sync(web, *slices)

    def ask() -> Mapping[str, int]:
        traffic = lab.client.send(cluster_ip(family), 80, count=300, sources=[stranger(family)])
        assert traffic.outcomes == {Outcome.ANSWERED: 300}
        return traffic.names

    assert_shares(ask, {"podB": 1, "remote": 1})


def test_drop_and_refusal_are_counted_by_their_rules(
    lab: Lab, sync: Sync, iptables: Callable[..., str], family: Family
) -> None:
    """A drop for want of local endpoints and a refusal for want of any are two rules, each counts its own packets."""
    services = [
        open_service(family, "local", number=10, internal_policy="Local"),
        open_service(family, "empty", number=11, node_port=30081),
    ]
    sync(*services, endpoints(services[0], family, lab.remote), endpoints(services[1], family))

    dropped = lab.pod("podA").send(cluster_ip(family, 10), 80, timeout_s=_DROPPED_S)
    refused = lab.pod("podA").send(cluster_ip(family, 11), 80)

    assert (dropped.outcomes, refused.outcomes) == ({Outcome.TIMEOUT: 1}, {Outcome.REFUSED: 1})
    saved = iptables(lab, "-c", "-t", "filter", suffix="-save").splitlines()
    rules = [line for line in saved if "-A KUBE-SERVICES " in line and not line.startswith("[0:0]")]
    assert [("no local endpoints" in line, "-j DROP" in line) for line in rules if "default/local" in line] == [
        (True, True)
    ]
    assert ["-j REJECT" in line for line in rules if "default/empty" in line] == [True]
