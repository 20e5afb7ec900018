"""Events of a source become dirty families, findings in the log, and numbers."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.api_status import ApiStatus
from kproxy_ipt.daemon.inputs import Inputs
from kproxy_ipt.daemon.log import SilentLog
from kproxy_ipt.daemon.metrics import Metrics
from kproxy_ipt.errors import Finding, Severity
from kproxy_ipt.objects.events import Contact, Event, Gone, Kind, Listed, Put, Trouble
from kproxy_ipt.objects.model import Node
from kproxy_ipt.testing.clock import ManualClock
from kproxy_ipt.testing.objects import endpoint_slice, node, service

V4, V6 = Family.IPV4, Family.IPV6
LISTS = (
    Listed(Kind.SERVICES, (service("web"),)),
    Listed(Kind.ENDPOINT_SLICES, (endpoint_slice("web"),)),
    Listed(Kind.NODES, (node("node1"), node("node2"))),
)
ODD = Finding(
    object="Service default/web", field="spec", found="x", expected="y", consequence="z", severity=Severity.REJECTED
)


class Told(SilentLog):
    """Keeps warnings as `event` and its most telling field."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, object]] = []

    def warning(self, event: str, **fields: object) -> None:
        """Keep one."""
        self.lines.append((event, fields.get("finding", fields.get("trouble"))))


class Taken:
    """Inputs with everything that they tell."""

    def __init__(self) -> None:
        self.clock, self.log, self.metrics = ManualClock(), Told(), Metrics()
        self.dirty: list[Family] = []
        self.nodes: list[Node | None] = []

    async def deliver(self, events: Sequence[Event]) -> Inputs:
        """Deliver everything and let it be taken in."""
        inputs = Inputs(
            Family,
            "node1",
            clock=self.clock,
            started_unix_s=0.0,
            metrics=self.metrics,
            api_status=ApiStatus(Kind, clock=self.clock, wall_clock_ns=self.clock.wall_ns),
            log=self.log,
            on_dirty=self.dirty.append,
            on_node=self.nodes.append,
        )
        for event in events:
            inputs.deliver(event)
        work = asyncio.create_task(inputs.follow())
        await inputs.settled()
        work.cancel()
        return inputs

    def take(self, *events: Event) -> Inputs:
        """The same in a loop of its own."""
        return asyncio.run(self.deliver(events))


@pytest.fixture
def taken() -> Taken:
    """Inputs of a node called node1 with both families."""
    return Taken()


@pytest.mark.parametrize("missing", range(3))
def test_nothing_is_dirty_before_all_kinds_are_known(taken: Taken, missing: int) -> None:
    """Rules of half a cluster would take endpoints away."""
    inputs = taken.take(*LISTS[:missing], *LISTS[missing + 1 :])

    assert (inputs.ready.is_set(), taken.dirty) == (False, [])


def test_complete_lists_make_every_family_dirty(taken: Taken) -> None:
    """An empty cluster too has rules: those that are left from before must go."""
    inputs = taken.take(*(Listed(kind, ()) for kind in Kind))

    assert (inputs.ready.is_set(), taken.dirty) == (True, [V4, V6])


def test_change_of_one_family_makes_that_one_dirty(taken: Taken) -> None:
    """IPv6 has nothing to do for an IPv4 pod."""
    taken.take(*LISTS, Put(Kind.ENDPOINT_SLICES, endpoint_slice("web", ["10.0.0.1"])))

    assert taken.dirty == [V4, V6, V4]


def test_changes_that_wait_for_a_sync_are_counted(taken: Taken) -> None:
    """Events that mean nothing are none; a sync takes them all."""
    taken.take(*LISTS)
    taken.metrics.changes_taken()
    taken.take(*LISTS, Put(Kind.ENDPOINT_SLICES, endpoint_slice("web", ["10.0.0.1"])))
    waiting = taken.metrics.text().decode()
    taken.metrics.changes_taken()
    taken_by_a_sync = taken.metrics.text().decode()

    assert "kubeproxy_sync_proxy_rules_service_changes_pending 1.0" in waiting
    assert "kubeproxy_sync_proxy_rules_endpoint_changes_pending 2.0" in waiting
    assert "kubeproxy_sync_proxy_rules_endpoint_changes_pending 0.0" in taken_by_a_sync


def test_change_without_meaning_makes_nothing_dirty(taken: Taken) -> None:
    """Whatever labels and annotations say."""
    taken.take(*LISTS, Put(Kind.ENDPOINT_SLICES, endpoint_slice("web", labels={"a": "b"})))

    assert taken.dirty == [V4, V6]


def test_watch_that_starts_over_costs_nothing_and_is_counted(taken: Taken) -> None:
    """The same list again is no change."""
    taken.take(*LISTS, *LISTS)
    text = taken.metrics.text().decode()

    assert taken.dirty == [V4, V6]
    assert 'kproxy_ipt_watch_restarts_total{resource="services"} 1.0' in text


def test_own_node_is_handed_on_and_no_other(taken: Taken) -> None:
    """Where it is not there, that is handed on."""
    taken.take(LISTS[2], Gone(Kind.NODES, "", "node1"))

    assert [one.metadata.name if one else None for one in taken.nodes] == ["node1", None]


def test_very_many_objects_do_not_keep_the_loop(taken: Taken) -> None:
    """Others run between pieces of a list of a thousand Services."""
    turns = 0

    async def run() -> None:
        nonlocal turns
        services = tuple(service(f"s{n}", cluster_ip=f"10.97.{n // 250}.{n % 250}") for n in range(1000))
        work = asyncio.create_task(taken.deliver([Listed(Kind.SERVICES, services)]))
        while not work.done():
            await asyncio.sleep(0)
            turns += 1

    asyncio.run(run())
    assert turns >= 1000 // 200


def test_finding_is_told_once_as_long_as_it_stands(taken: Taken) -> None:
    """A broken object that is delivered every minute does not fill the log."""
    taken.take(*(Gone(Kind.SERVICES, "default", "web", (ODD,)) for _ in range(3)))

    assert taken.log.lines == [("object", str(ODD))]


def test_findings_of_objects_that_are_gone_are_forgotten(taken: Taken) -> None:
    """What was told is remembered for what stands, so a cluster that makes new oddities for ever fills no memory."""
    others = [msgspec.structs.replace(ODD, object=f"Service default/s{number}") for number in range(1001)]
    come_and_gone = [
        event
        for number, finding in enumerate(others)
        for event in (
            Gone(Kind.SERVICES, "default", f"s{number}", (finding,)),
            Gone(Kind.SERVICES, "default", f"s{number}"),
        )
    ]
    taken.take(*come_and_gone, Gone(Kind.SERVICES, "default", "s0", (others[0],)))

    assert len(taken.log.lines) == 1001 + 1
    assert taken.log.lines[-1] == taken.log.lines[0]


def test_finding_of_a_contact_is_told(taken: Taken) -> None:
    """A file that is cut off is odd though no object changed."""
    taken.take(Contact(Kind.SERVICES, (ODD,)))

    assert taken.log.lines == [("object", str(ODD))]


def test_conflict_between_services_is_told(taken: Taken) -> None:
    """Two Services that claim one address are found when all are listed."""
    both = (service("a", cluster_ip="10.96.0.1"), service("b", cluster_ip="10.96.0.1"))
    taken.take(Listed(Kind.SERVICES, both))

    assert len(taken.log.lines) == 1
    assert "10.96.0.1" in str(taken.log.lines[0][1])


def test_trouble_of_a_source_is_told_and_changes_nothing(taken: Taken) -> None:
    """An API server that is away leaves everything as it is."""
    inputs = taken.take(*LISTS, Trouble(Kind.SERVICES, "connection refused", 1.0))

    assert taken.log.lines == [("source", "connection refused")]
    assert inputs.store.service(("default", "web")) is not None
