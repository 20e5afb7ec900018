"""What a running daemon costs: bytes for one change, memory under churn."""

import asyncio
import gc
from collections.abc import Iterator

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config
from kproxy_ipt.daemon.api_status import ApiStatus
from kproxy_ipt.daemon.inputs import Inputs
from kproxy_ipt.daemon.log import SilentLog
from kproxy_ipt.daemon.machine import Target
from kproxy_ipt.daemon.metrics import Metrics
from kproxy_ipt.daemon.service_summaries import ServiceSummaries
from kproxy_ipt.objects.events import Event, Gone, Kind, Listed, Put
from kproxy_ipt.plan.family_rules import FamilyRules
from kproxy_ipt.plan.flows import entry_options
from kproxy_ipt.rules.options import rule_options
from kproxy_ipt.ruleset.scan import SavedTables
from kproxy_ipt.state.flow_memory import FlowMemory
from kproxy_ipt.state.model import MachineFacts, NodeFacts
from kproxy_ipt.testing.api_server import ApiServer
from kproxy_ipt.testing.clock import ManualClock
from kproxy_ipt.testing.daemon_process import DaemonProcess, lab_arguments
from kproxy_ipt.testing.lab_objects import own_node
from kproxy_ipt.testing.objects import endpoint_slice, service, service_port

_V4 = Family.IPV4
_LIVE = 20
_SLICES = 20_000
_BYTES = "kproxy_ipt_restore_bytes_total"
_OPTIONS = rule_options(Config(), NodeFacts(name="node1"), MachineFacts(), _V4, endpoint_count=0)


def _bytes_of_one_change(netns: str, count: int) -> float:
    """Bytes that a daemon with *count* Services writes when one endpoint of one of them changes."""
    with ApiServer() as server:
        services = [
            service(f"s{number}", cluster_ip=f"10.96.{number // 200}.{number % 200 + 1}") for number in range(count)
        ]
        server.put(own_node(), *services, *(endpoint_slice(one, ["10.244.1.2", "10.244.1.3"]) for one in services))
        with DaemonProcess(netns, *lab_arguments(server.url, "nft")) as daemon:
            daemon.wait_in_step()
            before, syncs = daemon.metric(_BYTES), daemon.metric("kproxy_ipt_syncs_total", kind="partial")
            server.put(endpoint_slice(services[7], ["10.244.1.2", "10.244.1.4"]))
            daemon.wait_for_metric("kproxy_ipt_syncs_total", syncs + 1, kind="partial")
            return daemon.metric(_BYTES) - before


@pytest.mark.kernel
def test_bytes_of_one_change_do_not_grow_with_the_cluster(target: Target) -> None:
    """One endpoint of one Service: as many bytes for 20 Services as for 400, about those of three chains."""
    few, many = (_bytes_of_one_change(str(target.netns), count) for count in (20, 400))

    assert few == many
    assert 0 < few < 2000


class _Follower:
    """All that keeps state in a daemon for one family, without a kernel."""

    def __init__(self) -> None:
        clock = ManualClock()
        self.metrics = Metrics()
        self.inputs = Inputs(
            (_V4,),
            "node1",
            clock=clock,
            started_unix_s=0.0,
            metrics=self.metrics,
            api_status=ApiStatus(Kind, clock=clock, wall_clock_ns=clock.wall_ns),
            log=SilentLog(),
            on_dirty=lambda _: None,
            on_node=lambda _: None,
        )
        self.rules, self.flows, self.summaries = FamilyRules(), FlowMemory(), ServiceSummaries()
        self.rules.set_options(_OPTIONS)
        self.flows.set_options(entry_options(_OPTIONS, ()))

    async def take(self, events: Iterator[Event]) -> None:
        """Take events in as the daemon does, with a sync after each hundred of them."""
        follow = asyncio.create_task(self.inputs.follow())
        for number, event in enumerate(events):
            self.inputs.deliver(event)
            if number % 100 == 99:
                await self._settle()
        await self._settle()
        follow.cancel()

    async def _settle(self) -> None:
        while not self.inputs._queue.empty():
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        tracker = self.inputs.trackers[_V4]
        pending = tracker.pending()
        self.rules.update(pending.changes)
        if self.rules.needs_full:
            self.rules.plan_full(SavedTables({}), staged=True)
        else:
            self.rules.plan_partial(staged=True)
        self.rules.commit()
        self.flows.update(pending.changes)
        self.flows.reconciled(self.flows.pending())
        self.summaries.update(pending.changes, _OPTIONS.node)
        tracker.commit(pending)

    def sizes(self) -> dict[str, int]:
        """Number of keys of every container of the parts, and of their parts, by attribute."""
        parts = (self.inputs, self.inputs.store, self.inputs.trackers[_V4], self.rules, self.flows, self.summaries)
        return {
            f"{type(part).__name__}.{name}": len(found)
            for part in parts
            for name, found in vars(part).items()
            if isinstance(found, dict | set | list)
        }


def _lists() -> Iterator[Event]:
    services = tuple(
        service(f"s{number}", cluster_ip=f"10.96.0.{number + 1}", ports=[service_port(53, protocol="UDP")])
        for number in range(_LIVE)
    )
    yield Listed(Kind.NODES, ())
    yield Listed(Kind.SERVICES, services)
    yield Listed(Kind.ENDPOINT_SLICES, tuple(endpoint_slice(one) for one in services))


def _churn(first: int, count: int) -> Iterator[Event]:
    """Slices and Services that come and go, none of them twice."""
    for number in range(first, first + count):
        name, address = f"gone-{number}", f"10.244.{number // 250 % 250}.{number % 250 + 1}"
        passing = service(name, cluster_ip=f"10.97.{number // 250 % 250}.{number % 250 + 1}", external_ips=[address])
        yield Put(Kind.ENDPOINT_SLICES, endpoint_slice(passing, [address]))
        if number % 10 == 0:
            yield Put(Kind.SERVICES, passing)
            yield Gone(Kind.SERVICES, "default", name)
        yield Gone(Kind.ENDPOINT_SLICES, "default", f"{name}-ipv4")


def test_slices_that_come_and_go_leave_no_keys_behind() -> None:
    """20,000 different slices, a tenth with a Service: all containers end as small as after the first ten per cent."""
    follower = _Follower()

    async def scenario() -> tuple[dict[str, int], int, dict[str, int], int]:
        await follower.take(_lists())
        await follower.take(_churn(0, _SLICES // 10))
        gc.collect()
        early, early_objects = follower.sizes(), len(gc.get_objects())
        await follower.take(_churn(_SLICES // 10, _SLICES - _SLICES // 10))
        gc.collect()
        return early, early_objects, follower.sizes(), len(gc.get_objects())

    early, early_objects, late, late_objects = asyncio.run(scenario())

    assert early == late
    assert late_objects < early_objects + 500
    store = follower.inputs.store
    assert (_LIVE, _LIVE) == (len([*store.services()]), len([*store.endpoint_slices()]))
    assert f"endpoint_changes_total {2.0 * _SLICES + _LIVE}" in follower.metrics.text().decode()
