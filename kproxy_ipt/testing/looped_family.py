"""The loop of one family with a machine in memory and a clock that stands."""

import asyncio
from collections.abc import Awaitable, Callable

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config, IptablesConfig
from kproxy_ipt.daemon.drift import no_window
from kproxy_ipt.daemon.family import SyncOutcome
from kproxy_ipt.daemon.family_loop import Clocks, FamilyLoop
from kproxy_ipt.daemon.health import ProxyHealth
from kproxy_ipt.daemon.kernel_thread import KernelThread
from kproxy_ipt.daemon.log import SilentLog
from kproxy_ipt.daemon.metrics import Metrics
from kproxy_ipt.daemon.quarantine import Refusal
from kproxy_ipt.daemon.schedule import SyncSchedule
from kproxy_ipt.state.tracker import Pending
from kproxy_ipt.testing.desired import ApiObject
from kproxy_ipt.testing.objects import endpoint_slice, service
from kproxy_ipt.testing.synced_family import FamilyInMemory


class LoopedFamily:
    """A family in memory whose loop decides when it syncs."""

    def __init__(self, min_gap_s: float = 1.0) -> None:
        self._family = FamilyInMemory()
        self.machine, self.clock, self.tracker = self._family.machine, self._family.clock, self._family.tracker
        self.metrics = Metrics()
        self.health = ProxyHealth([Family.IPV4], sync_period_s=5, clock=self.clock, wall_clock_ns=self.clock.wall_ns)
        self.thread = KernelThread(None, "kernel-test")
        self.outcomes: list[SyncOutcome] = []
        self.refusals: list[Refusal] = []
        self.on_synced: Callable[[], None] = lambda: None
        self.loop = FamilyLoop(
            self._family.sync_of_family,
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
        self._family.set_options(
            Config(iptables=IptablesConfig(masquerade_all=masquerade_all, localhost_node_ports=False))
        )
        self.loop.set_options(self._family.options, self._family.entries)

    def put(self, *objects: ApiObject) -> None:
        """Take in objects, and ask for a sync."""
        self._family.put(*objects)
        self.loop.request()

    @property
    def text(self) -> str:
        """What the kernel has."""
        return self._family.text


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
