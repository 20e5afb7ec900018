"""Noticing that others changed the tables, and how often that may cost a comparison."""

import asyncio
import contextlib
import itertools
from collections.abc import Callable

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon import drift
from kproxy_ipt.daemon.drift import OWN_CHAINS, LegacyWatch, Ration, TableWatch, no_window
from kproxy_ipt.daemon.kernel_thread import KernelThread
from kproxy_ipt.daemon.log import SilentLog
from kproxy_ipt.errors import KernelError
from kproxy_ipt.kernel.command import SubprocessRunner
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.testing.namespaces import temporary_namespace

V4, V6 = Family.IPV4, Family.IPV6
_SVC = "KUBE-SVC-LOLE4ISW44XBNF3G"


@pytest.mark.parametrize(
    ("table", "chain", "concerns"),
    [
        ("nat", "KUBE-SERVICES", True),
        ("nat", _SVC, True),
        ("nat", "PREROUTING", True),
        ("filter", "FORWARD", True),
        ("filter", "KUBE-FIREWALL", True),
        ("nat", "DOCKER", False),
        ("filter", "ufw-user-input", False),
    ],
)
def test_chains_that_concern_us_are_ours_and_those_that_hold_our_jumps(
    table: str, chain: str, *, concerns: bool
) -> None:
    """What somebody does elsewhere costs no comparison."""
    assert (chain in OWN_CHAINS[table]) is concerns


def test_first_comparison_is_allowed_at_once() -> None:
    """Nothing was spent yet."""
    assert Ration().wait_s(1000.0) == 0.0


def test_comparisons_take_a_sixth_of_the_time_at_most() -> None:
    """Asked for all the time, with 2 s for each: after the first two, one every 12 s."""
    ration, now_s, began = Ration(), 100.0, []
    for _ in range(6):
        now_s += ration.wait_s(now_s)
        began.append(now_s)
        now_s += 2.0
        ration.ended(now_s, 2.0)

    gaps = [later - earlier for earlier, later in itertools.pairwise(began)]
    assert gaps == pytest.approx([2.2, 11.8, 12.0, 12.0, 12.0])


def test_second_comparison_after_a_quiet_time_waits_for_nothing() -> None:
    """The first may have taken long and just have missed what happened; quiet pays for both."""
    ration = Ration(least_s=0.2)
    ration.ended(100.0, 2.0)
    waits = [ration.wait_s(100.0)]
    ration.ended(102.2, 2.0)
    waits.append(ration.wait_s(102.2))
    ration.ended(1000.0, 2.0)

    assert [*waits, ration.wait_s(1000.0)] == pytest.approx([0.2, 9.8, 0.2])


def test_quick_comparisons_keep_a_least_distance() -> None:
    """A program that writes in a loop does not make us read in a loop."""
    ration = Ration(least_s=0.2)
    ration.ended(100.0, 0.001)

    assert ration.wait_s(100.0) == pytest.approx(0.2)


def test_while_a_sync_runs_none_is_asked_for() -> None:
    """It may be a comparison, and how long it takes is not known yet."""
    ration = Ration(least_s=0.2)
    ration.began()
    waits = [ration.wait_s(1000.0)]
    ration.ended(1000.0, None)

    assert [*waits, ration.wait_s(1000.0)] == [0.2, 0.0]


def test_without_a_listener_programs_of_ours_are_noted_nowhere() -> None:
    """The window is a set that nobody reads."""
    with no_window() as process_ids:
        process_ids.add(1)

    assert process_ids == {1}


Foreign = Callable[[str], None]


@pytest.mark.kernel
@pytest.mark.parametrize(
    ("ruleset", "expected"),
    [
        ("*nat\n:KUBE-SERVICES - [0:0]\nCOMMIT\n", [V4]),
        ("*nat\n-A PREROUTING -j ACCEPT\nCOMMIT\n", [V4]),
        ("*nat\n:DOCKER - [0:0]\n-A DOCKER -j RETURN\nCOMMIT\n", []),
        ("*mangle\n:KUBE-SERVICES - [0:0]\nCOMMIT\n", []),
    ],
)
def test_foreign_transaction_asks_for_a_comparison_if_it_concerns_us(ruleset: str, expected: list[Family]) -> None:
    """On nf_tables the kernel tells about each, with the name of the program."""
    found: list[tuple[Family, str]] = []
    created = "".join(f"*{table}\n:PREROUTING ACCEPT [0:0]\nCOMMIT\n" for table in ("nat", "mangle"))

    async def run(netns: str) -> None:
        with inside(netns):
            SubprocessRunner().run(["iptables-nft-restore", "--noflush"], stdin=created)
        watch = TableWatch(lambda family, reason: found.append((family, reason)), (V4, V6), netns=netns)
        own: list[int] = []
        with watch.own_changes() as process_ids, inside(netns):
            SubprocessRunner(own.append).run(["iptables-nft-restore", "--noflush"], stdin=ruleset)
        watch.close()
        assert process_ids == set()

    with temporary_namespace("drift") as netns:
        asyncio.run(run(netns))
    assert [family for family, _ in found] == expected
    assert all("iptables" in reason for _, reason in found)


@pytest.mark.kernel
def test_transaction_of_ours_asks_for_nothing() -> None:
    """Process ids that were noted in the window are ours."""
    found: list[Family] = []

    async def run(netns: str) -> None:
        watch = TableWatch(lambda family, _: found.append(family), (V4,), netns=netns)
        with watch.own_changes() as process_ids, inside(netns):
            runner = SubprocessRunner(process_ids.add)
            runner.run(["iptables-nft-restore", "--noflush"], stdin="*nat\n:KUBE-SERVICES - [0:0]\nCOMMIT\n")
        watch.close()

    with temporary_namespace("drift") as netns:
        asyncio.run(run(netns))
    assert found == []


@pytest.mark.kernel
def test_shape_of_legacy_tables_tells_of_others_and_not_of_us() -> None:
    """What was learnt after a sync of ours is as it should be; a rule that came since is not, and is told once."""
    found: list[str] = []
    rule = "*nat\n-A PREROUTING -j ACCEPT\nCOMMIT\n"

    async def run(netns: str) -> list[int]:
        thread = KernelThread(netns, "kernel-test")
        watch = LegacyWatch(lambda _, reason: found.append(reason), V4, thread, SilentLog())
        told: list[int] = []
        for learns in (True, True, False):
            await thread.call(SubprocessRunner().run, ["iptables-legacy-restore", "--noflush"], stdin=rule)
            if learns:
                await watch.learn({"nat": len(told) + 1}, {"nat": 0})
            await watch.look()
            told.append(len(found))
        await watch.learn({"nat": 2}, {"nat": 0})
        await watch.look()
        thread.close()
        return [*told, len(found)]

    with temporary_namespace("drift") as netns:
        assert asyncio.run(run(netns)) == [0, 0, 1, 1]


@pytest.mark.kernel
@pytest.mark.parametrize(
    ("theirs", "told"),
    [
        ("", []),
        ("-A PREROUTING -j ACCEPT", ["another program changed the tables during a sync"]),
        ("-F KUBE-OLD\n-X KUBE-OLD", ["another program changed the tables during a sync"]),
    ],
    ids=["ours alone", "a rule of theirs", "a chain of ours is gone"],
)
def test_others_who_write_during_a_sync_on_legacy_are_noticed(theirs: str, told: list[str]) -> None:
    """What the tables have beside ours is the same before and after a sync, or somebody else wrote."""
    found: list[str] = []
    first = ":KUBE-OLD -\n:KUBE-SERVICES -\n-A KUBE-OLD -j ACCEPT\n-A KUBE-SERVICES -j ACCEPT"

    async def run(netns: str) -> None:
        thread = KernelThread(netns, "kernel-test")
        watch = LegacyWatch(lambda _, reason: found.append(reason), V4, thread, SilentLog())
        for rules, text in enumerate((first, f"-A KUBE-SERVICES -j ACCEPT\n{theirs}"), 2):
            await watch.before_sync()
            await thread.call(
                SubprocessRunner().run,
                ["iptables-legacy-restore", "--noflush"],
                stdin=f"*nat\n{text}\nCOMMIT\n",
            )
            await watch.learn({"nat": rules}, {"nat": 2})
        await watch.look()
        thread.close()

    with temporary_namespace("drift") as netns:
        asyncio.run(run(netns))
    assert told == found


@pytest.mark.kernel
def test_legacy_rule_of_the_same_size_is_noticed() -> None:
    """A rule replaced by one of the same length is told, counters that grew are not."""
    found: list[str] = []
    rules = ["*nat", "-A PREROUTING -s 198.51.100.{} -j ACCEPT", "COMMIT", ""]
    now_s = [0.0]

    async def run(netns: str) -> list[int]:
        thread = KernelThread(netns, "kernel-test")
        watch = LegacyWatch(lambda _, reason: found.append(reason), V4, thread, SilentLog(), monotonic=lambda: now_s[0])
        told: list[int] = []
        for number in (1, 1, 2):
            text = "\n".join(rules).format(number)
            await thread.call(SubprocessRunner().run, ["iptables-legacy-restore"], stdin=text)
            if not told:
                await watch.learn({}, {})
            now_s[0] += 3.0
            await watch.look()
            told.append(len(found))
        thread.close()
        return told

    with temporary_namespace("drift") as netns:
        assert [0, 0, 1] == asyncio.run(run(netns))


@pytest.mark.kernel
@pytest.mark.parametrize(("reading_s", "noticed"), [(0.0, 1), (0.05, 0)])
def test_legacy_rules_are_read_around_each_sync_where_that_costs_little(reading_s: float, noticed: int) -> None:
    """Time of the processor counts: on a busy machine a change right after a sync is noticed as well."""
    found: list[str] = []
    now_s, used_s = itertools.count(0.0, 3.0), itertools.count(0.0, reading_s)

    async def run(netns: str) -> None:
        thread = KernelThread(netns, "kernel-test")
        watch = LegacyWatch(
            lambda _, reason: found.append(reason),
            V4,
            thread,
            SilentLog(),
            monotonic=lambda: next(now_s),
            processor=lambda: next(used_s),
        )
        for number, syncs in ((1, 2), (2, 0)):
            text = f"*nat\n-A PREROUTING -s 198.51.100.{number} -j ACCEPT\nCOMMIT\n"
            await thread.call(SubprocessRunner().run, ["iptables-legacy-restore"], stdin=text)
            for _ in range(syncs):
                await watch.learn({}, {})
        await watch.look()
        thread.close()

    with temporary_namespace("drift") as netns:
        asyncio.run(run(netns))
    assert noticed == len(found)


def test_legacy_tables_that_cannot_be_looked_at_are_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking goes on meanwhile; the next trouble after it worked is told anew."""
    monkeypatch.setattr(drift, "POLL_S", 0.0)
    told: list[str] = []
    looks = iter((False, False, True, True, False))

    class Told(SilentLog):
        """Keeps warnings."""

        def warning(self, event: str, **fields: object) -> None:
            """Keep one."""
            told.append(f"{event}: {fields['error']}")

    class Refusing(LegacyWatch):
        """Nothing can be seen at times."""

        async def look(self) -> None:
            """Refuse, or not."""
            can_look = next(looks, None)
            if can_look is None:
                raise asyncio.CancelledError
            if not can_look:
                raise KernelError("no")

    async def run() -> None:
        thread = KernelThread(None, "kernel-test")
        with contextlib.suppress(asyncio.CancelledError):
            await Refusing(lambda *_: None, V4, thread, Told()).run()
        thread.close()

    asyncio.run(run())
    assert ["legacy tables: no"] * 2 == told
