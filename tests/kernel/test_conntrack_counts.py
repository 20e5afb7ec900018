"""Real connections as connection tracking holds them, by virtual server and real server."""

import subprocess
from collections.abc import Callable, Mapping

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.machine import BackendWish, Target, open_machine
from kproxy_ipt.daemon.report import RunReport
from kproxy_ipt.daemon.traffic_look import look_at_servers
from kproxy_ipt.kernel.conntrack_counts import count_connections
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.state.flows import Entry
from kproxy_ipt.stats.virtual_servers import Connections, VirtualServer
from kproxy_ipt.testing.daemon_process import wait_until
from kproxy_ipt.testing.lab import Lab
from kproxy_ipt.testing.lab_objects import NODE_PORT, cluster_ip, endpoints, open_service
from kproxy_ipt.testing.namespaces import temporary_namespace
from kproxy_ipt.trace.service_views import EntryKind

pytestmark = pytest.mark.kernel

Sync = Callable[..., RunReport]


def _servers(lab: Lab, backend: BackendWish, family: Family) -> Mapping[EntryKind, VirtualServer]:
    with inside(lab.node.netns):
        machine = open_machine(Target(netns=lab.node.netns, backend=backend, families=(family,)))
        found = look_at_servers(machine)
    assert {} == found.problems
    return {one.kind: one for one in found.servers}


def _sums(server: VirtualServer) -> tuple[int, int]:
    every = (*server.real_servers, *server.gone)
    return sum(one.active for one in every), sum(one.inactive for one in every)


def test_tcp_connections_are_active_while_they_are_established(
    lab: Lab, sync: Sync, backend: BackendWish, family: Family
) -> None:
    """At the address that they were sent to, whichever kind it is; closed ones are inactive."""
    web = open_service(family)
    sync(web, endpoints(web, family, *lab.pods))
    with (
        lab.client.open_session(cluster_ip(family), 80),
        lab.client.open_session(lab.node.address(family), NODE_PORT),
        lab.pods[0].open_session(lab.node.address(family), NODE_PORT),
    ):
        lab.client.send(cluster_ip(family), 80, count=7)
        found = _servers(lab, backend, family)

    assert (1, 7) == _sums(found[EntryKind.CLUSTER_IP])
    assert (2, 0) == _sums(found[EntryKind.NODE_PORT])
    assert (0, 0) == _sums(found[EntryKind.EXTERNAL_IP])
    assert 5 == len(found[EntryKind.CLUSTER_IP].real_servers)


def test_udp_is_active_once_both_sides_went_on(lab: Lab, sync: Sync, backend: BackendWish, family: Family) -> None:
    """A single question and its answer are inactive."""
    web = open_service(family, protocol="UDP")
    sync(web, endpoints(web, family, *lab.pods))
    with lab.client.open_session(cluster_ip(family), 80, protocol="udp") as session:
        lab.client.send(cluster_ip(family), 80, count=3, protocol="udp")
        session.ask()
        first = _sums(_servers(lab, backend, family)[EntryKind.CLUSTER_IP])

        def is_stream() -> bool:
            """The kernel takes a flow for a stream that is answered after two seconds."""
            session.ask()
            return _sums(_servers(lab, backend, family)[EntryKind.CLUSTER_IP]) == (1, 3)

        wait_until(is_stream, "a stream", poll_s=0.1)

    assert (0, 4) == first


def test_session_to_an_endpoint_that_left_is_listed_apart(
    lab: Lab, sync: Sync, backend: BackendWish, family: Family
) -> None:
    """It goes on, and nobody new comes to it."""
    web = open_service(family)
    sync(web, endpoints(web, family, lab.pods[0]))
    with lab.client.open_session(cluster_ip(family), 80):
        sync(web, endpoints(web, family, lab.pods[1]))
        found = _servers(lab, backend, family)[EntryKind.CLUSTER_IP]
        (kept,), (gone,) = found.real_servers, found.gone

    assert (0, 1, 0) == (kept.active, gone.active, gone.weight)
    assert lab.pods[0].address(family) in gone.endpoint


def _record(number: int) -> str:
    """The order to make a record: every fifth connection is over; endpoints take turns."""
    client, port = f"10.1.{number // 250}.{number % 250}", number + 1024
    state = "--state ESTABLISHED -u ASSURED" if number % 5 else "--state TIME_WAIT -u SEEN_REPLY"
    return (
        f"-I -s {client} -d 10.96.0.10 -r 10.244.1.{number % 2 + 1} -q {client} -p tcp -t 600 {state} "
        f"--orig-port-src {port} --orig-port-dst 80 --reply-port-src 8080 --reply-port-dst {port}"
    )


@pytest.mark.parametrize("number", [0, 5_000])
def test_many_records_are_all_counted(number: int) -> None:
    """In the right place, records of other destinations and protocols left out."""
    with temporary_namespace("counts") as name, inside(name):
        lines = [_record(one) for one in range(number)]
        subprocess.run(["conntrack", "-R", "-"], input="\n".join(lines), text=True, check=True, capture_output=True)
        entry = Entry("10.96.0.10", 80, "tcp")
        found = count_connections(Family.IPV4, [entry, Entry("", 80, "tcp"), Entry("10.96.0.11", 80, "tcp")])

    half = Connections(number * 2 // 5, number // 10)
    assert ("", number) == (found.problem, found.listed)
    assert ({entry: {"10.244.1.1:8080": half, "10.244.1.2:8080": half}} if number else {}) == found.tally
