"""The parts of a daemon that its status page looks at, over a machine in memory and a clock that stands."""

import asyncio
from collections.abc import Mapping, Sequence

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config, IptablesConfig
from kproxy_ipt.daemon.answers import Answer, Request
from kproxy_ipt.daemon.api_status import ApiStatus
from kproxy_ipt.daemon.family import FamilySync, ProcessNote, SyncRequest
from kproxy_ipt.daemon.health import ProxyHealth
from kproxy_ipt.daemon.inputs import Inputs
from kproxy_ipt.daemon.log import SilentLog
from kproxy_ipt.daemon.machine import Machine
from kproxy_ipt.daemon.metrics import Metrics
from kproxy_ipt.daemon.node_watch import NodeWatch
from kproxy_ipt.daemon.quarantine import Quarantine
from kproxy_ipt.daemon.status.desk import PLACES, Desk
from kproxy_ipt.daemon.status.history import History
from kproxy_ipt.daemon.status.pages import StatusPages
from kproxy_ipt.daemon.status.scene import Scene, Watched, take_scene
from kproxy_ipt.objects.events import Kind, Put
from kproxy_ipt.objects.model import EndpointSlice, Service
from kproxy_ipt.plan.flows import entry_options
from kproxy_ipt.rules.options import rule_options
from kproxy_ipt.state.model import MachineFacts
from kproxy_ipt.stats.model import TrafficSource
from kproxy_ipt.testing.clock import ManualClock
from kproxy_ipt.testing.desired import ApiObject
from kproxy_ipt.testing.fake_machine import FakeMachine

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
        self.config = Config(iptables=IptablesConfig(localhost_node_ports=False))
        self.facts = MachineFacts(interface_addresses=("192.0.2.10",))
        self.clock, self.machine = ManualClock(), FakeMachine(families)
        self._families = tuple(families)
        self._machine = Machine(self.machine.choice, self.machine.iptables, 5)
        self._syncs = {
            family: FamilySync(self._machine, family, SilentLog(), ProcessNote()) for family in self._families
        }
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
            kind = Kind.SERVICES if isinstance(one, Service) else Kind.ENDPOINT_SLICES
            touched = self.inputs.store.apply(Put(kind, one))
            for tracker in self.inputs.trackers.values():
                tracker.refresh(self.inputs.store, touched, now_s=self.clock())

    def sync(self, reason: str = "") -> None:
        """Write what changed, in all families; with a reason everything."""
        for family, sync in self._syncs.items():
            tracker = self.inputs.trackers[family]
            pending = tracker.pending()
            options = rule_options(self.config, self.node.facts, self.facts, family, endpoint_count=0)
            entries = entry_options(options, self.facts.interface_addresses)
            request = SyncRequest(changes=pending.changes, options=options, entries=entries, reason=reason)
            self.health.sync_began(family)
            outcome = sync.run(request, set())
            self.history.note(family, request, outcome)
            self._quarantines[family].refused(outcome.set_aside, outcome.aside, self.clock())
            self.health.set_aside(family, self._quarantines[family].refusals)
            if outcome.error is None:
                tracker.commit(pending)
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
