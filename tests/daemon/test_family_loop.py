"""The loop of one family: what is asked for again after a failure, and what arrives during a sync."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.family import EVERYTHING, SyncOutcome
from kproxy_ipt.daemon.family_loop import _compared_s
from kproxy_ipt.errors import KernelError
from kproxy_ipt.testing.fake_kernel import FakeKernel
from kproxy_ipt.testing.looped_family import LoopedFamily, running
from kproxy_ipt.testing.objects import endpoint_slice, service

V4 = Family.IPV4
BROKEN = KernelError("broken")


@asynccontextmanager
async def held(looped: LoopedFamily) -> AsyncIterator[threading.Event]:
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

    async def test(looped: LoopedFamily) -> None:
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

    async def test(looped: LoopedFamily) -> None:
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

    async def test(looped: LoopedFamily) -> None:
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

    async def test(looped: LoopedFamily) -> None:
        looped.loop.request(first)
        looped.loop.request(second)

        assert looped.loop._reason == EVERYTHING
        await looped.loop.sync()
        assert looped.outcomes[-1].full

    running(test)


def test_comparison_that_failed_is_asked_for_again() -> None:
    """The retry compares, and still knows that everything was wanted."""

    async def test(looped: LoopedFamily) -> None:
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

    async def test(looped: LoopedFamily) -> None:
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

    async def test(looped: LoopedFamily) -> None:
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
        looped = LoopedFamily(0.0)
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

    async def test(looped: LoopedFamily) -> None:
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

    async def test(looped: LoopedFamily) -> None:
        looped.metrics.changes_pending(services=3, endpoint_slices=4)
        await looped.loop.sync()
        text = looped.metrics.text().decode()

        assert "kubeproxy_sync_proxy_rules_service_changes_pending 0.0" in text
        assert "kubeproxy_sync_proxy_rules_endpoint_changes_pending 0.0" in text

    running(test)


def test_bug_in_a_sync_ends_the_loop() -> None:
    """It goes up to whoever ends the process; no task ends in silence."""

    async def test(looped: LoopedFamily) -> None:
        looped.machine.broken = ZeroDivisionError("a bug")  # type: ignore[assignment]
        looped.put(endpoint_slice("web", ["10.0.0.1"]))
        with pytest.raises(ZeroDivisionError, match="a bug"):
            await asyncio.wait_for(looped.loop.run(), 10.0)

    running(test, min_gap_s=0.0)


def test_failing_comparisons_are_rationed_too() -> None:
    """A kernel that refuses everything while others write is not read in a loop."""

    async def test(looped: LoopedFamily) -> None:
        looped.loop.request("drift")
        looped.machine.broken = BROKEN
        await looped.loop.sync()

        assert looped.loop.ration.wait_s(looped.clock()) > 0.0

    running(test)


@pytest.mark.parametrize(
    ("outcome", "counts_s"),
    [
        (SyncOutcome(full=True, seconds=3.0), 3.0),
        (SyncOutcome(full=True, seconds=0.1, error=BROKEN), 0.1),
        (SyncOutcome(full=True, seconds=120.0, error=BROKEN), 0.4),
        (SyncOutcome(full=False, seconds=3.0), None),
    ],
)
def test_waiting_for_a_program_that_hangs_is_no_work_to_make_up_for(
    outcome: SyncOutcome, counts_s: float | None
) -> None:
    """A comparison that failed after minutes holds up none that comes after it for long."""
    assert _compared_s(outcome) == counts_s
