"""Clean-up of connection tracking with real flows through real rules, mostly by the sync that makes them stale."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config
from kproxy_ipt.daemon.report import RunReport
from kproxy_ipt.kernel.addresses import interface_addresses
from kproxy_ipt.kernel.conntrack import (
    ConntrackOutcome,
    reconcile,
)
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.objects.model import EndpointSlice, Objects, Service
from kproxy_ipt.plan.flows import entry_options
from kproxy_ipt.rules.options import rule_options
from kproxy_ipt.state.flows import Entry, FlowTable, flow_table
from kproxy_ipt.state.model import MachineFacts, NodeFacts, Snapshot
from kproxy_ipt.state.snapshot import take_snapshot
from kproxy_ipt.testing.lab import NODE_NAME, Lab, Place
from kproxy_ipt.testing.lab_objects import NODE_PORT, balancer_ip, cluster_ip, endpoint, endpoints, open_service
from kproxy_ipt.testing.objects import service, service_port
from kproxy_ipt.testing.traffic import Outcome, Session

pytestmark = pytest.mark.kernel

Sync = Callable[..., RunReport]
_SHORT_S = 0.1


def _snapshot(family: Family, *objects: Service | EndpointSlice) -> Snapshot:
    found = Objects(
        services=tuple(each for each in objects if isinstance(each, Service)),
        endpoint_slices=tuple(each for each in objects if isinstance(each, EndpointSlice)),
    )
    return take_snapshot(found, family, NodeFacts(name=NODE_NAME))


def _table(lab: Lab, family: Family, *objects: Service | EndpointSlice) -> FlowTable:
    with inside(lab.node.netns):
        addresses = interface_addresses()
    machine = MachineFacts(interface_addresses=addresses)
    options = rule_options(Config(), NodeFacts(name=NODE_NAME), machine, family, endpoint_count=0)
    states = _snapshot(family, *objects).services.values()
    return flow_table(states, entry_options(options, addresses))


def _clean(lab: Lab, family: Family, *objects: Service | EndpointSlice) -> ConntrackOutcome:
    with inside(lab.node.netns):
        return reconcile(family, _table(lab, family, *objects))


def _deleted(report: RunReport) -> int:
    return sum(family.flows_deleted for family in report.families.values())


def _udp_session(place: Place, address: str, port: int = 80) -> Session:
    return place.open_session(address, port, protocol="udp")


@pytest.fixture
def web(family: Family) -> Service:
    """A UDP Service that can be entered in every way."""
    return open_service(family, protocol="UDP")


@pytest.fixture
def sessions(lab: Lab, family: Family) -> Iterator[Mapping[str, Session]]:
    """Four sockets of the client that stay open, one for each kind of entry of `web`."""
    entries = {
        "cluster IP": (cluster_ip(family), 80),
        "external IP": (balancer_ip(family, 28), 80),
        "load balancer IP": (balancer_ip(family), 80),
        "node port": (lab.node.address(family), NODE_PORT),
    }
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(_udp_session(lab.client, address, port))
            for name, (address, port) in entries.items()
        }


def _answers(sessions: Mapping[str, Session], timeout_s: float = 1.0) -> dict[str, str]:
    return {name: session.ask(timeout_s).name for name, session in sessions.items()}


def test_a_socket_from_before_the_first_endpoint_reaches_it(lab: Lab, sync: Sync, family: Family, web: Service) -> None:
    """C01: a flow that was tracked without translation goes to the new endpoint after the next sync, others stay."""
    other = service("other", cluster_ip=cluster_ip(family, 11), ports=[service_port(80, protocol="UDP")])
    others = (other, endpoints(other, family, lab.pod("podC"), lab.pod("podD")))
    sync(*others)
    with _udp_session(lab.pod("podA"), cluster_ip(family, 11)) as neighbour, ExitStack() as stack:
        before = neighbour.ask().name
        session = stack.enter_context(_udp_session(lab.pod("podA"), cluster_ip(family)))
        assert Outcome.TIMEOUT == session.ask(_SHORT_S).outcome
        report = sync(*others, web, endpoints(web, family, lab.pod("podB")))

        assert 1 == _deleted(report)
        assert "podB" == session.ask().name
        assert before == neighbour.ask().name


def test_all_entries_of_a_replaced_endpoint_reach_the_new_one(
    lab: Lab, sync: Sync, family: Family, web: Service, sessions: Mapping[str, Session]
) -> None:
    """C05: cluster IP, external IP, load balancer IP and node port are cleaned alike, and once is enough."""
    sync(web, endpoints(web, family, lab.pod("podB")))
    assert dict.fromkeys(sessions, "podB") == _answers(sessions)
    objects = (web, endpoints(web, family, lab.pod("podC")))
    report = sync(*objects)

    assert len(sessions) == _deleted(report)
    assert 0 == _clean(lab, family, *objects).deleted
    assert dict.fromkeys(sessions, "podC") == _answers(sessions)


def test_a_deleted_service_keeps_no_flow(
    lab: Lab, sync: Sync, family: Family, web: Service, sessions: Mapping[str, Session]
) -> None:
    """C04: from the rules that go a run learns all entries; no datagram reaches the endpoint any more."""
    sync(web, endpoints(web, family, lab.pod("podB")))
    assert dict.fromkeys(sessions, "podB") == _answers(sessions)

    assert len(sessions) == _deleted(sync())
    assert "podB" not in _answers(sessions, _SHORT_S).values()


def test_the_last_endpoint_that_goes_takes_its_flows_along(lab: Lab, sync: Sync, family: Family, web: Service) -> None:
    """A client of a Service without endpoints is refused and does not go on to the old pod."""
    sync(web, endpoints(web, family, lab.pod("podB")))
    with _udp_session(lab.pod("podA"), cluster_ip(family)) as session:
        assert "podB" == session.ask().name

        assert 1 == _deleted(sync(web))
        assert Outcome.REFUSED == session.ask().outcome


def test_foreign_flows_to_the_number_of_a_node_port_survive(lab: Lab, sync: Sync, family: Family, web: Service) -> None:
    """Neither a flow of the node nor one of a pod to a host outside is touched, with all records in question."""
    lab.client.serve(NODE_PORT, protocol="udp", addresses=[lab.client.address(family)])
    sync(web)
    with ExitStack() as stack:
        for place in (lab.node, lab.pod("podA")):
            session = stack.enter_context(_udp_session(place, lab.client.address(family), NODE_PORT))
            assert "client" == session.ask().name
        table = _table(lab, family, web)

        with inside(lab.node.netns):
            outcomes = [reconcile(family, each) for each in (table, _with_filler(table))]
        assert 0 == _deleted(sync(web))
    assert [0, 0] == [outcome.deleted for outcome in outcomes]
    assert outcomes[1].listed >= 2


def _with_filler(table: FlowTable) -> FlowTable:
    """The same table with so many entries that the kernel does not search for each."""
    filler = {Entry("203.0.113.1", 1000 + number, "udp"): frozenset[tuple[str, int]]() for number in range(80)}
    return FlowTable(allowed={**table.allowed, **filler}, former=table.former, options=table.options)


def test_answered_flows_stay_with_their_endpoints_at_every_restart(
    lab: Lab, sync: Sync, family: Family, web: Service
) -> None:
    """C06: three runs that know nothing of each other delete none of 48 flows, though everything is new to each."""
    objects = (web, endpoints(web, family, lab.pod("podB"), lab.pod("podC")))
    sync(*objects)
    with ExitStack() as stack:
        opened = [stack.enter_context(_udp_session(lab.pod("podA"), cluster_ip(family))) for _ in range(48)]
        before = [session.ask().name for session in opened]
        reports = [sync(*objects).families[family] for _ in range(3)]

        assert [0, 0, 0] == [report.flows_deleted for report in reports]
        assert min(report.flows_listed for report in reports) >= 48
        assert before == [session.ask().name for session in opened]
    assert {"podB", "podC"} == set(before)


def test_policy_local_moves_a_flow_to_the_new_local_endpoint(lab: Lab, sync: Sync, family: Family) -> None:
    """C07: other nodes have endpoints all the time; the client waits and then meets the new local pod, nobody else."""
    dns = open_service(family, protocol="UDP", internal_policy="Local")
    names = []
    with _udp_session(lab.pod("podA"), cluster_ip(family)) as session:
        for pods in (["podB"], [], ["podC"]):
            sync(dns, endpoints(dns, family, *(lab.pod(pod) for pod in pods), endpoint(lab.remote, family)))
            names.append(session.ask(_SHORT_S).name)

    assert ["podB", "", "podC"] == names


def test_sessions_to_an_endpoint_that_left_go_on(lab: Lab, sync: Sync, family: Family) -> None:
    """TCP is never cleaned: the session stays with its pod, and new connections go to the other one."""
    web = service(cluster_ip=cluster_ip(family))
    sync(web, endpoints(web, family, lab.pod("podB")))
    with lab.pod("podA").open_session(cluster_ip(family), 80) as session:
        assert "podB" == session.ask().name
        sync(web, endpoints(web, family, lab.pod("podC")))

        assert {"podC": 5} == lab.pod("podA").send(cluster_ip(family), 80, count=5).names
        assert "podB" == session.ask().name
