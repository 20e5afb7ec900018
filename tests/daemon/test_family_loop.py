"""The loop of one family: what is asked for again after a failure, and what arrives during a sync."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config, IptablesConfig
from kproxy_ipt.daemon.drift import no_window
from kproxy_ipt.daemon.family import EVERYTHING, FamilySync, ProcessNote, SyncOutcome
from kproxy_ipt.daemon.family_loop import Clocks, FamilyLoop
from kproxy_ipt.daemon.health import ProxyHealth, family_details
from kproxy_ipt.daemon.kernel_thread import KernelThread
from kproxy_ipt.daemon.log import SilentLog
from kproxy_ipt.daemon.machine import Machine
from kproxy_ipt.daemon.metrics import Metrics
from kproxy_ipt.daemon.quarantine import Refusal
from kproxy_ipt.daemon.schedule import SyncSchedule
from kproxy_ipt.errors import KernelError, LockTimeoutError
from kproxy_ipt.objects.events import Kind, Put
from kproxy_ipt.objects.model import Service
from kproxy_ipt.plan.flows import entry_options
from kproxy_ipt.rules.options import rule_options
from kproxy_ipt.state.model import MachineFacts, NodeFacts
from kproxy_ipt.state.tracker import ObjectStore, Pending, StateTracker
from kproxy_ipt.testing.clock import ManualClock
from kproxy_ipt.testing.desired import ApiObject
from kproxy_ipt.testing.fake_kernel import FakeKernel
from kproxy_ipt.testing.fake_machine import FakeMachine
from kproxy_ipt.testing.objects import endpoint_slice, service

V4 = Family.IPV4
BROKEN = KernelError("broken")


class Looped:
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


def running(test: Callable[[Looped], Awaitable[None]], min_gap_s: float = 1.0) -> None:
    """Run a test in a loop, with one Service written."""

    async def run() -> None:
        looped = Looped(min_gap_s)
        looped.set_options()
        looped.put(service("web"), endpoint_slice("web"))
        await looped.loop.sync()
        try:
            await test(looped)
        finally:
            looped.thread.close()

    asyncio.run(run())


@asynccontextmanager
async def held(looped: Looped) -> AsyncIterator[threading.Event]:
    """A sync that stands still between the kernel's yes and its end; it goes on when the event is set."""
    began, go_on = threading.Event(), threading.Event()

    def wait(_: FakeKernel) -> None:
        began.set()
        go_on.wait(10.0)

    kernel = looped.machine.kernels[V4]
    kernel.on_commit = wait
    work = asyncio.create_task(looped.loop.sync())
    await asyncio.to_thread(began.wait, 10.0)
    kernel.on_commit = None
    yield go_on
    go_on.set()
    with contextlib.suppress(asyncio.CancelledError):
        await work


def test_failed_sync_keeps_changes_and_says_so() -> None:
    """They stay dirty, health knows their age, and a retry is due soon without a new request."""

    async def test(looped: Looped) -> None:
        looped.put(endpoint_slice("web", ["10.0.0.1"]))
        looped.machine.broken = BROKEN
        await looped.loop.sync()
        looped.clock.advance(11.0)
        seen = (looped.tracker.dirty_count, looped.health.is_healthy(), looped.loop.schedule.failures)
        looped.machine.broken = None
        await looped.loop.sync()

        assert seen == (1, False, 1)
        assert (looped.tracker.dirty_count, looped.health.is_healthy()) == (0, True)
        assert "10.0.0.1:80" in looped.text

    running(test)


def test_change_during_a_sync_is_for_the_next() -> None:
    """It stays dirty though the sync that runs succeeds."""

    async def test(looped: Looped) -> None:
        looped.put(endpoint_slice("web", ["10.0.0.1"]))
        async with held(looped):
            looped.put(endpoint_slice("web", ["10.0.0.2"]))
        dirty, due_s = looped.tracker.dirty_count, looped.loop.schedule.due_s()
        await looped.loop.sync()

        assert (dirty, due_s) == (1, looped.clock() + 1.0)
        assert ("10.0.0.1:80" in looped.text, "10.0.0.2:80" in looped.text) == (False, True)

    running(test)


def test_options_that_change_during_a_sync_that_fails_win() -> None:
    """The older ones are not put back."""

    async def test(looped: Looped) -> None:
        looped.put(endpoint_slice("web", ["10.0.0.1"]))
        looped.machine.refused = {"KUBE-MARK-DROP", "-j MASQUERADE"}
        looped.machine.kernels[V4].restore("*nat\n:KUBE-POSTROUTING - [0:0]\nCOMMIT\n")
        looped.set_options(masquerade_all=True)
        looped.loop.request("the configuration changed")
        await looped.loop.sync()
        looped.set_options(masquerade_all=False)
        looped.machine.refused = set()
        await looped.loop.sync()

        assert "10.0.0.1:80" in looped.text
        assert '"default/web cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ' not in looped.text

    running(test)


@pytest.mark.parametrize(("first", "second"), [(EVERYTHING, "drift"), ("drift", EVERYTHING)])
def test_comparison_of_everything_is_not_forgotten_for_a_smaller_one(first: str, second: str) -> None:
    """Two reasons become one sync, and it is the one that looks at flows too."""

    async def test(looped: Looped) -> None:
        looped.loop.request(first)
        looped.loop.request(second)

        assert looped.loop._reason == EVERYTHING
        await looped.loop.sync()
        assert looped.outcomes[-1].full

    running(test)


def test_comparison_that_failed_is_asked_for_again() -> None:
    """The retry compares, and still knows that everything was wanted."""

    async def test(looped: Looped) -> None:
        looped.loop.request(EVERYTHING)
        looped.machine.broken = BROKEN
        await looped.loop.sync()
        kept = looped.loop._reason
        looped.machine.broken = None
        await looped.loop.sync()

        assert (kept, looped.loop._reason, looped.outcomes[-1].full) == (EVERYTHING, "", True)

    running(test)


def test_cancelled_in_the_middle_the_kernel_has_all_or_nothing() -> None:
    """The restore is finished; the change stays dirty, so whoever goes on writes it again."""

    async def test(looped: Looped) -> None:
        looped.put(endpoint_slice("web", ["10.0.0.1"]))
        async with held(looped):
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await asyncio.sleep(0)
        looped.thread.close()

        assert "10.0.0.1:80" in looped.text
        assert looped.tracker.dirty_count == 1

    running(test)


def test_loop_syncs_on_request_and_not_without() -> None:
    """Without a gap requests follow back to back; a loop that waits costs nothing."""

    async def test(looped: Looped) -> None:
        synced = asyncio.Event()
        looped.on_synced = synced.set
        work = asyncio.create_task(looped.loop.run())
        for number in range(3):
            looped.put(endpoint_slice("web", [f"10.0.0.{number}"]))
            async with asyncio.timeout(10.0):
                await synced.wait()
            synced.clear()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)

        assert work.cancelled()
        assert len(looped.outcomes) == 4
        assert "10.0.0.2:80" in looped.text

    running(test, min_gap_s=0.0)


def test_loop_waits_for_options() -> None:
    """Nothing can be written before it is known what rules depend on."""

    async def run() -> int:
        looped = Looped(0.0)
        work = asyncio.create_task(looped.loop.run())
        looped.put(service("web"))
        await asyncio.sleep(0)
        before = len(looped.outcomes)
        synced = asyncio.Event()
        looped.on_synced = synced.set
        looped.set_options()
        async with asyncio.timeout(10.0):
            await synced.wait()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        looped.thread.close()
        return before

    assert asyncio.run(run()) == 0


def test_shorter_gap_counts_at_once() -> None:
    """A loop that waits for the end of a long gap looks again."""

    async def test(looped: Looped) -> None:
        synced = asyncio.Event()
        looped.on_synced = synced.set
        looped.put(endpoint_slice("web", ["10.0.0.1"]))
        work = asyncio.create_task(looped.loop.run())
        for _ in range(3):
            await asyncio.sleep(0)
        looped.loop.reschedule(min_gap_s=0.0, retry_cap_s=30.0)
        async with asyncio.timeout(10.0):
            await synced.wait()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)

        assert "10.0.0.1:80" in looped.text

    running(test, min_gap_s=3600.0)


def test_sync_takes_the_changes_that_wait() -> None:
    """What waits for a sync does so no longer."""

    async def test(looped: Looped) -> None:
        looped.metrics.changes_pending(services=3, endpoint_slices=4)
        await looped.loop.sync()
        text = looped.metrics.text().decode()

        assert "kubeproxy_sync_proxy_rules_service_changes_pending 0.0" in text
        assert "kubeproxy_sync_proxy_rules_endpoint_changes_pending 0.0" in text

    running(test)


def test_failures_and_services_set_aside_are_counted() -> None:
    """What an operator watches."""

    async def test(looped: Looped) -> None:
        looped.machine.broken = LockTimeoutError("held")
        looped.put(endpoint_slice("web", ["10.0.0.1"]))
        await looped.loop.sync()
        looped.machine.broken, looped.machine.refused = None, {"10.0.0.1"}
        await looped.loop.sync()
        text = looped.metrics.text().decode()

        assert 'kproxy_ipt_quarantined_services{ip_family="IPv4"} 1.0' in text
        assert 'kubeproxy_sync_proxy_rules_iptables_restore_failures_total{ip_family="IPv4"} 1.0' in text

    running(test)


def test_refused_service_is_tried_again_with_back_off() -> None:
    """After 1, 2, 4, 8, 10, 10 minutes, without any change; each refusal is told, with its reason."""

    async def test(looped: Looped) -> None:
        looped.machine.refused = {"10.0.0.1"}
        looped.put(endpoint_slice("web", ["10.0.0.1"]))
        await looped.loop.sync()
        waits: list[float] = []
        for _ in range(6):
            due_s = looped.loop.due_s()
            assert due_s is not None
            waits.append(due_s - looped.clock())
            looped.clock.advance(waits[-1])
            await looped.loop.sync()

        assert waits == [60.0, 120.0, 240.0, 480.0, 600.0, 600.0]
        assert [one.failures for one in looped.refusals] == [1, 2, 3, 4, 5, 6, 7]
        assert "10.0.0.1" in looped.refusals[0].reason

    running(test)


def test_sync_meanwhile_does_not_try_again() -> None:
    """A change of another Service, or a comparison, asks the kernel nothing about the one that is set aside."""

    async def test(looped: Looped) -> None:
        looped.machine.refused = {"10.0.0.1"}
        looped.put(endpoint_slice("web", ["10.0.0.1"]))
        await looped.loop.sync()
        before = len(looped.machine.inputs)
        looped.put(service("api", cluster_ip="10.96.0.20"))
        await looped.loop.sync()
        looped.loop.request(EVERYTHING)
        await looped.loop.sync()

        assert [text for text in looped.machine.inputs[before:] if "10.0.0.1" in text] == []
        assert len(looped.refusals) == 1

    running(test)


def test_service_that_changes_is_tried_at_once_and_waits_anew() -> None:
    """Its back-off is that of what it means now; once it is written nothing is due."""

    async def test(looped: Looped) -> None:
        looped.machine.refused = {"10.0.0.1", "10.0.0.2"}
        looped.put(endpoint_slice("web", ["10.0.0.1"]))
        await looped.loop.sync()
        looped.clock.advance(60.0)
        await looped.loop.sync()
        looped.put(endpoint_slice("web", ["10.0.0.2"]))
        await looped.loop.sync()
        due_s = looped.loop.due_s()
        looped.put(endpoint_slice("web", ["10.0.0.3"]))
        await looped.loop.sync()

        assert [one.failures for one in looped.refusals] == [1, 2, 1]
        assert (due_s, looped.loop.due_s()) == (looped.clock() + 60.0, None)
        assert "10.0.0.3:80" in looped.text

    running(test)


def test_retry_that_fails_for_another_reason_is_no_loop() -> None:
    """A machine that is broken just then is asked again by the schedule of failed syncs; back-off goes on."""

    async def test(looped: Looped) -> None:
        looped.machine.refused = {"10.0.0.1"}
        looped.put(endpoint_slice("web", ["10.0.0.1"]))
        await looped.loop.sync()
        looped.clock.advance(60.0)
        looped.machine.broken = BROKEN
        await looped.loop.sync()
        due_s = looped.loop.due_s()
        looped.machine.broken = None
        looped.clock.advance(1.0)
        await looped.loop.sync()

        assert due_s == looped.clock()
        assert [one.failures for one in looped.refusals] == [1, 2]

    running(test)


def test_health_names_services_set_aside_and_stays_good() -> None:
    """`/livez?verbose` says which, why, what they have and when they are tried again; then it says nothing more."""

    async def test(looped: Looped) -> None:
        looped.machine.refused = {"10.0.0.1"}
        looped.put(endpoint_slice("web", ["10.0.0.1"]))
        await looped.loop.sync()
        looped.clock.advance(10.0)
        health = looped.health.judge()
        [told] = family_details(health)["IPv4"]["setAside"]  # type: ignore[index]
        looped.put(endpoint_slice("web", ["10.0.0.3"]))
        await looped.loop.sync()

        assert (health.healthy, told["service"], told["rules"]) == (True, "default/web", "none")
        assert ("10.0.0.1" in told["reason"], told["retryInSeconds"]) == (True, 50.0)
        assert "setAside" not in family_details(looped.health.judge())["IPv4"]  # type: ignore[operator]

    running(test)


def test_bug_in_a_sync_ends_the_loop() -> None:
    """It goes up to whoever ends the process; no task ends in silence."""

    async def test(looped: Looped) -> None:
        looped.machine.broken = ZeroDivisionError("a bug")  # type: ignore[assignment]
        looped.put(endpoint_slice("web", ["10.0.0.1"]))
        with pytest.raises(ZeroDivisionError, match="a bug"):
            await asyncio.wait_for(looped.loop.run(), 10.0)

    running(test, min_gap_s=0.0)


def test_failing_comparisons_are_rationed_too() -> None:
    """A kernel that refuses everything while others write is not read in a loop."""

    async def test(looped: Looped) -> None:
        looped.loop.request("drift")
        looped.machine.broken = BROKEN
        await looped.loop.sync()

        assert looped.loop.ration.wait_s(looped.clock()) > 0.0

    running(test)
