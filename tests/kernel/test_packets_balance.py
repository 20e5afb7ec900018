"""Shares of endpoints as real connections show them, and connections made while endpoints come and go."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.report import RunReport
from kproxy_ipt.testing.lab import Lab, Place
from kproxy_ipt.testing.lab_objects import NODE_PORT, cluster_ip, endpoints, open_service, remote_pod
from kproxy_ipt.testing.shares import shares_probability
from kproxy_ipt.testing.sockets import Protocol
from kproxy_ipt.testing.traffic import Exchange, Outcome

pytestmark = pytest.mark.kernel

Sync = Callable[..., RunReport]


def _is_even(place: Place, address: str, count: int, names: set[str], protocol: Protocol = "tcp") -> bool:
    """
    Whether connections are spread evenly, with p > 0.001 in a chi-square test.

    A sample that fails is followed by another one: correct balancing then fails once in a million tests, not once in
    a thousand.
    """
    for _ in range(2):
        traffic = place.send(address, 80, count=count, protocol=protocol, timeout_s=5.0)
        assert traffic.outcomes == {Outcome.ANSWERED: count}
        if shares_probability(traffic.names, dict.fromkeys(names, 1.0)) > 0.001:
            return True
    return False


@pytest.mark.parametrize("protocol", ["tcp", "udp"])
def test_three_endpoints_get_a_third_of_three_thousand_connections(
    lab: Lab, sync: Sync, family: Family, protocol: Protocol
) -> None:
    """Two local endpoints and a remote one are met equally often, over TCP and over UDP."""
    web = open_service(family, protocol=protocol.upper())
    sync(web, endpoints(web, family, lab.pod("podB"), lab.pod("podC"), lab.remote))

    assert _is_even(lab.pod("podA"), cluster_ip(family), 3000, {"podB", "podC", "remote"}, protocol)


def test_ten_endpoints_get_a_tenth_of_a_thousand_connections(lab: Lab, sync: Sync, family: Family) -> None:
    """The probabilities along a chain of ten endpoints make equal shares, the last one included."""
    addresses = {f"pod-{number}": remote_pod(family, 100 + number) for number in range(10)}
    servers = [lab.remote.serve(8080, name=name, addresses=[address]) for name, address in addresses.items()]
    web = open_service(family)
    sync(web, endpoints(web, family, *addresses.values()))

    even = _is_even(lab.pod("podA"), cluster_ip(family), 1000, set(addresses))

    for server in servers:
        server.stop()
    assert even


@contextmanager
def _connecting(place: Place, address: str, port: int) -> Iterator[list[Exchange]]:
    """Connect without a pause in another thread while the block runs; afterwards the list holds all exchanges."""
    exchanges: list[Exchange] = []
    over = threading.Event()

    def connect() -> None:
        while not over.is_set():
            exchanges.extend(place.send(address, port, count=20, parallel=4, timeout_s=5.0).exchanges)

    thread = threading.Thread(target=connect)
    thread.start()
    try:
        yield exchanges
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("family", [Family.IPV4], ids=str)
@pytest.mark.parametrize("entry", ["cluster IP", "node port"])
def test_no_connection_is_lost_while_endpoints_come_and_go(lab: Lab, sync: Sync, family: Family, entry: str) -> None:
    """Over 20 syncs that add and remove endpoints every single connection is made at the first attempt."""
    pods = [lab.pod("podB"), lab.pod("podC"), lab.pod("podD"), lab.remote]
    web = open_service(family)
    sync(web, endpoints(web, family, *pods))
    place, target = {
        "cluster IP": (lab.pod("podA"), (cluster_ip(family), 80)),
        "node port": (lab.client, (lab.node.address(family), NODE_PORT)),
    }[entry]

    with _connecting(place, *target) as exchanges:
        reports = [sync(web, endpoints(web, family, *pods[: 1 + step % 4])) for step in range(20)]

    assert all(report.families[family].transactions for report in reports)
    assert {each.outcome for each in exchanges} == {Outcome.ANSWERED}
    assert len(exchanges) > 100
    assert sum(each.sent_again for each in exchanges) == 0


@pytest.mark.parametrize("family", [Family.IPV4], ids=str)
def test_service_is_answered_or_refused_at_every_moment(fresh: Lab, sync: Sync, family: Family) -> None:
    """While its only endpoint comes and goes, no connection hangs, or reaches the host server behind the node port."""
    fresh.node.serve(NODE_PORT, name="host")
    web = open_service(family)
    sync(web, endpoints(web, family), into=fresh)

    with _connecting(fresh.client, fresh.node.address(family), NODE_PORT) as exchanges:
        for step in range(20):
            sync(web, endpoints(web, family, *([fresh.pod("podB")] if step % 2 else [])), into=fresh)

    assert {(each.outcome, each.name) for each in exchanges} == {(Outcome.ANSWERED, "podB"), (Outcome.REFUSED, "")}
    assert sum(each.sent_again for each in exchanges) == 0
