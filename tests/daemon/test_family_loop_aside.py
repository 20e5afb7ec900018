"""The loop of one family while the kernel refuses Services: counted, tried again with back-off, told by health."""

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.family import EVERYTHING
from kproxy_ipt.daemon.health import family_details
from kproxy_ipt.errors import KernelError, LockTimeoutError
from kproxy_ipt.testing.looped_family import LoopedFamily, running
from kproxy_ipt.testing.objects import endpoint_slice, service

V4 = Family.IPV4
BROKEN = KernelError("broken")


def test_failures_and_services_set_aside_are_counted() -> None:
    """What an operator watches."""

    async def test(looped: LoopedFamily) -> None:
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

    async def test(looped: LoopedFamily) -> None:
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

    async def test(looped: LoopedFamily) -> None:
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

    async def test(looped: LoopedFamily) -> None:
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

    async def test(looped: LoopedFamily) -> None:
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

    async def test(looped: LoopedFamily) -> None:
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
