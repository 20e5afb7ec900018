"""The loop of one family with a machine in memory and a clock that stands."""

import asyncio
from collections.abc import Awaitable, Callable

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config, IptablesConfig
from kproxy_ipt.daemon.drift import no_window
from kproxy_ipt.daemon.family import FamilySync, ProcessNote, SyncOutcome
from kproxy_ipt.daemon.family_loop import Clocks, FamilyLoop
from kproxy_ipt.daemon.health import ProxyHealth
from kproxy_ipt.daemon.kernel_thread import KernelThread
from kproxy_ipt.daemon.log import SilentLog
from kproxy_ipt.daemon.machine import Machine
from kproxy_ipt.daemon.metrics import Metrics
from kproxy_ipt.daemon.quarantine import Refusal
from kproxy_ipt.daemon.schedule import SyncSchedule
from kproxy_ipt.objects.events import Kind, Put
from kproxy_ipt.objects.model import Service
from kproxy_ipt.plan.flows import entry_options
from kproxy_ipt.rules.options import rule_options
from kproxy_ipt.state.model import MachineFacts, NodeFacts
from kproxy_ipt.state.tracker import ObjectStore, Pending, StateTracker
from kproxy_ipt.testing.clock import ManualClock
from kproxy_ipt.testing.desired import ApiObject
from kproxy_ipt.testing.fake_machine import FakeMachine
from kproxy_ipt.testing.objects import endpoint_slice, service

V4 = Family.IPV4


class LoopedFamily:
    """One family with a machine in memory and a clock that stands."""

    def __init__(self, min_gap_s: float = 1.0) -> None:
        self.machine, self.clock = FakeMachine(), ManualClock()
        self.store, self.tracker = ObjectStore(), StateTracker(V4, "node1")
        self.metrics = Metrics()
        self.health = ProxyHealth([V4], sync_period_s=5, clock=self.clock, wall_clock_ns=self.clock.wall_ns)
        self.thread = KernelThread(None, "kernel-test")
        self.outcomes: list[SyncOutcome] = []
        self.refusals: list[Refusal] = []
        self.on_synced: Callable[[], None] = lambda: None
        machine = Machine(self.machine.choice, self.machine.iptables, 5)
        self.loop = FamilyLoop(
            FamilySync(machine, V4, SilentLog(), ProcessNote()),
            self.tracker,
            self.thread,
            SyncSchedule(min_gap_s=min_gap_s, retry_cap_s=30.0),
            health=self.health,
            metrics=self.metrics,
            log=SilentLog(),
            clocks=Clocks(self.clock, lambda: self.clock.wall_ns() / 1e9),
            window=no_window,
            before_sync=self._before,
            after_sync=self._after,
            on_refusal=self.refusals.append,
        )

    async def _before(self, _: Pending) -> None:
        pass

    async def _after(self, outcome: SyncOutcome, _: Pending) -> None:
        self.outcomes.append(outcome)
        self.on_synced()

    def set_options(self, *, masquerade_all: bool = False) -> None:
        """What rules depend on."""
        iptables = IptablesConfig(masquerade_all=masquerade_all, localhost_node_ports=False)
        config = Config(iptables=iptables)
        options = rule_options(config, NodeFacts(name="node1"), MachineFacts(), V4, endpoint_count=0)
        self.loop.set_options(options, entry_options(options, ()))

    def put(self, *objects: ApiObject) -> None:
        """Take in objects, and ask for a sync."""
        for one in objects:
            kind = Kind.SERVICES if isinstance(one, Service) else Kind.ENDPOINT_SLICES
            self.tracker.refresh(self.store, self.store.apply(Put(kind, one)), now_s=self.clock())
        self.loop.request()

    @property
    def text(self) -> str:
        """What the kernel has."""
        return self.machine.kernels[V4].save()


def running(test: Callable[[LoopedFamily], Awaitable[None]], min_gap_s: float = 1.0) -> None:
    """Run a test in a loop, with one Service written."""

    async def run() -> None:
        looped = LoopedFamily(min_gap_s)
        looped.set_options()
        looped.put(service("web"), endpoint_slice("web"))
        await looped.loop.sync()
        try:
            await test(looped)
        finally:
            looped.thread.close()

    asyncio.run(run())
