"""The parts of a daemon that its status page looks at, over a machine in memory and a clock that stands."""

import asyncio
from collections.abc import Mapping, Sequence

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.answers import Answer, Request
from kproxy_ipt.daemon.api_status import ApiStatus
from kproxy_ipt.daemon.health import ProxyHealth
from kproxy_ipt.daemon.inputs import Inputs
from kproxy_ipt.daemon.log import SilentLog
from kproxy_ipt.daemon.metrics import Metrics
from kproxy_ipt.daemon.node_watch import NodeWatch
from kproxy_ipt.daemon.quarantine import Quarantine
from kproxy_ipt.daemon.status.desk import PLACES, Desk
from kproxy_ipt.daemon.status.history import History
from kproxy_ipt.daemon.status.pages import StatusPages
from kproxy_ipt.daemon.status.scene import Scene, Watched, take_scene
from kproxy_ipt.objects.events import Kind
from kproxy_ipt.objects.model import EndpointSlice, Service
from kproxy_ipt.state.model import MachineFacts
from kproxy_ipt.stats.model import TrafficSource
from kproxy_ipt.testing.clock import ManualClock
from kproxy_ipt.testing.desired import ApiObject, put_of
from kproxy_ipt.testing.fake_machine import FakeMachine
from kproxy_ipt.testing.synced_family import CONFIG, TrackedFamily

LOCALHOST: Mapping[str, str] = {"host": "127.0.0.1:10258"}


class WatchedDaemon:
    """
    A daemon without its loop: objects come by `put`, and `sync` writes them.

    Attributes:
        facts: Of the machine; may be replaced.
        machine: Whose tables are written.
    """

    def __init__(self, *objects: ApiObject, families: Sequence[Family] = (Family.IPV4,)) -> None:
        """Know *objects*, and have written nothing."""
        self.config = CONFIG
        self.facts = MachineFacts(interface_addresses=("192.0.2.10",))
        self.clock, self.machine = ManualClock(), FakeMachine(families)
        self._families = tuple(families)
        self._machine = self.machine.opened()
        self._quarantines = {family: Quarantine(family) for family in self._families}
        self.health = ProxyHealth(self._families, sync_period_s=30, clock=self.clock, wall_clock_ns=self.clock.wall_ns)
        api = ApiStatus(Kind, clock=self.clock, wall_clock_ns=self.clock.wall_ns)
        self.history = History(self.unix_s)
        self.inputs = Inputs(
            self._families,
            "node1",
            clock=self.clock,
            started_unix_s=self.unix_s(),
            metrics=Metrics(),
            api_status=api,
            log=SilentLog(),
            on_dirty=lambda _: None,
            on_node=lambda _: None,
        )
        self._tracked = [TrackedFamily(self._machine, tracker) for tracker in self.inputs.trackers.values()]
        self.node = NodeWatch("node1", self.config, SilentLog(), self.clock)
        self.watched = Watched(
            inputs=self.inputs,
            node=self.node,
            health=self.health,
            api=api,
            history=self.history,
            config=lambda: self.config,
            machine_facts=lambda: self.facts,
            machine=lambda: self._machine,
            unix_s=self.unix_s,
        )
        self.put(*objects)
        self.inputs.ready.set()

    def unix_s(self) -> float:
        """What its clock says, in seconds since 1970."""
        return self.clock.wall_ns() / 1e9

    def put(self, *objects: ApiObject) -> None:
        """Take in Services, EndpointSlices, or the own Node."""
        for one in objects:
            if not isinstance(one, Service | EndpointSlice):
                self.node.seen(one)
                continue
            touched = self.inputs.store.apply(put_of(one))
            for tracker in self.inputs.trackers.values():
                tracker.refresh(self.inputs.store, touched, now_s=self.clock())

    def sync(self, reason: str = "") -> None:
        """Write what changed, in all families; with a reason everything."""
        for tracked in self._tracked:
            family = tracked.tracker.family
            tracked.set_options(self.config, self.facts, self.node.facts)
            request = tracked.request(reason)
            self.health.sync_began(family)
            outcome = tracked.run(request)
            self.history.note(family, request, outcome)
            self._quarantines[family].refused(outcome.set_aside, outcome.aside, self.clock())
            self.health.set_aside(family, self._quarantines[family].refusals)
            if outcome.error is None:
                self.health.updated(family)
            else:
                self.health.failed(family, str(outcome.error))

    @property
    def scene(self) -> Scene:
        """The moment that is now."""
        return take_scene(self.watched)

    def ask(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        headers: Mapping[str, str] = LOCALHOST,
        traffic: TrafficSource | None = None,
        places: int = PLACES,
    ) -> Answer:
        """One answer of its status page."""

        async def answered() -> Answer:
            desk = Desk(None, places=places)
            pages = StatusPages(self.watched, desk, bound_host="127.0.0.1", traffic=traffic)
            try:
                answer = pages.respond(Request(path=path, query=query or {}, headers=headers))
                return answer if isinstance(answer, Answer) else await answer
            finally:
                pages.close()
                desk.close()

        return asyncio.run(answered())
