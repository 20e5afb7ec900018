"""Shares of endpoints as real connections show them, and connections made while endpoints come and go."""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.report import RunReport
from kproxy_ipt.testing.lab import Lab, Place
from kproxy_ipt.testing.lab_objects import NODE_PORT, cluster_ip, endpoints, open_service, remote_pod
from kproxy_ipt.testing.shares import assert_shares
from kproxy_ipt.testing.sockets import Protocol
from kproxy_ipt.testing.traffic import Exchange, Outcome

pytestmark = pytest.mark.kernel

Sync = Callable[..., RunReport]
_AT_FULL_SPEED, _PAUSE_S = 8_000, 0.05
"""A closed connection keeps its port for a minute, half of 28,000 are found soon, and a busy machine syncs slowly."""


def _assert_even(
    lab: Lab, place: Place, address: str, count: int, names: Iterable[str], protocol: Protocol = "tcp"
) -> None:
    """Connections are spread evenly, *count* in each round of `assert_shares`."""

    def ask() -> Counter[str]:
        if protocol == "udp":
            lab.node.run("conntrack", "-F")  # a port that an earlier round had makes a new flow then
        traffic = place.send(address, 80, count=count, protocol=protocol, timeout_s=5.0)
        assert traffic.outcomes == {Outcome.ANSWERED: count}
        return traffic.names

    assert_shares(ask, dict.fromkeys(names, 1.0))


@pytest.mark.parametrize("protocol", ["tcp", "udp"])
def test_three_endpoints_get_a_third_of_three_thousand_connections(
    lab: Lab, sync: Sync, family: Family, protocol: Protocol
) -> None:
    """Two local endpoints and a remote one are met equally often, over TCP and over UDP."""
    web = open_service(family, protocol=protocol.upper())
    sync(web, endpoints(web, family, lab.pod("podB"), lab.pod("podC"), lab.remote))

    _assert_even(lab, lab.pod("podA"), cluster_ip(family), 3000, ("podB", "podC", "remote"), protocol)


def test_ten_endpoints_get_a_tenth_of_a_thousand_connections(lab: Lab, sync: Sync, family: Family) -> None:
    """The probabilities along a chain of ten endpoints make equal shares, the last one included."""
    addresses = {f"pod-{number}": remote_pod(family, 100 + number) for number in range(10)}
    servers = [lab.remote.serve(8080, name=name, addresses=[address]) for name, address in addresses.items()]
    web = open_service(family)
    sync(web, endpoints(web, family, *addresses.values()))

    _assert_even(lab, lab.pod("podA"), cluster_ip(family), 1000, addresses)

    for server in servers:
        server.stop()


@contextmanager
def _connecting(place: Place, address: str, port: int) -> Iterator[list[Exchange]]:
    """Connect in another thread while the block runs, at first without a pause; afterwards the list is complete."""
    exchanges: list[Exchange] = []
    over = threading.Event()

    def connect() -> None:
        while not over.wait(0.0 if len(exchanges) < _AT_FULL_SPEED else _PAUSE_S):
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
