"""What the kernel tells: changes of nf_tables and of addresses; and the shape of legacy tables."""

import asyncio
import os
import subprocess
from collections.abc import Callable, Coroutine, Iterator
from typing import TypeVar

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.errors import NamespaceError
from kproxy_ipt.kernel.command import SubprocessRunner
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.kernel.notify_addresses import AddressMonitor
from kproxy_ipt.kernel.notify_legacy import legacy_fingerprint
from kproxy_ipt.kernel.notify_tables import MAX_TOUCHED, TableChange, TableMonitor, Touched
from kproxy_ipt.testing.namespaces import temporary_namespace

pytestmark = pytest.mark.kernel

T = TypeVar("T")
_WAIT_S = 60.0
_OURS = "*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-SVC-A - [0:0]\n-A KUBE-SERVICES -j KUBE-SVC-A\nCOMMIT\n"


@pytest.fixture
def namespace() -> Iterator[str]:
    """Each test has tables and interfaces of its own; the thread stays outside."""
    with temporary_namespace("notify") as name:
        yield name


@pytest.fixture
def run(namespace: str) -> Callable[..., int]:
    """Run a program in the namespace to its end, and give its process id."""

    def run_program(*arguments: str, stdin: str = "") -> int:
        with inside(namespace):
            program = subprocess.Popen(arguments, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        _, complaints = program.communicate(stdin, timeout=60)
        assert program.returncode == 0, complaints
        return program.pid

    return run_program


class _Watched:
    """A `TableMonitor` whose reports wait in a queue."""

    def __init__(self, namespace: str) -> None:
        self._reports: asyncio.Queue[TableChange] = asyncio.Queue()
        self.monitor = TableMonitor(self._reports.put_nowait, netns=namespace)

    async def next(self) -> TableChange:
        """The next report."""
        return await asyncio.wait_for(self._reports.get(), _WAIT_S)

    async def nothing_before(self, run: Callable[..., int]) -> None:
        """Fail unless the next report is about a change that is made now."""
        run("nft", "add", "table", "ip", "last")
        assert {touched.table for touched in (await self.next()).touched} == {"last"}


@pytest.fixture
def watch(namespace: str) -> Callable[[Callable[[_Watched], Coroutine[None, None, T]]], T]:
    """Run a scenario on a loop, with a monitor that is closed at its end."""

    def run_scenario(scenario: Callable[[_Watched], Coroutine[None, None, T]]) -> T:
        async def with_monitor() -> T:
            watched = _Watched(namespace)
            try:
                return await scenario(watched)
            finally:
                watched.monitor.close()

        return asyncio.run(with_monitor())

    return run_scenario


Run = Callable[..., int]
Watch = Callable[[Callable[[_Watched], Coroutine[None, None, object]]], object]


@pytest.mark.parametrize(("family", "program"), [(Family.IPV4, "iptables-nft"), (Family.IPV6, "ip6tables-nft")])
def test_inserted_rule_is_told_with_chain_and_process(watch: Watch, run: Run, family: Family, program: str) -> None:
    """A rule that somebody inserts in front of ours is told, in both families."""

    async def scenario(watched: _Watched) -> None:
        process_id = run(program, "-t", "nat", "-I", "OUTPUT", "-j", "ACCEPT")
        change = await watched.next()

        assert Touched(family, "nat", "OUTPUT") in change.touched
        assert (change.process_id, change.process_name) == (process_id, program)
        assert change.concerns(family, "nat", {"OUTPUT"})
        assert not change.concerns(family, "filter", {"OUTPUT"})

    watch(scenario)


def test_flush_of_a_table_names_the_chains_that_lost_rules(watch: Watch, run: Run) -> None:
    """`iptables -F` by somebody else names our chain."""

    async def scenario(watched: _Watched) -> None:
        with watched.monitor.own_changes() as process_ids:
            process_ids.add(run("iptables-nft-restore", "--noflush", stdin=_OURS))
        run("iptables-nft", "-t", "nat", "-F")

        assert (await watched.next()).touched == {Touched(Family.IPV4, "nat", "KUBE-SERVICES")}

    watch(scenario)


def test_flush_of_everything_names_chains_and_tables(watch: Watch, run: Run) -> None:
    """`nft flush ruleset` takes rules, chains and tables; each is named."""

    async def scenario(watched: _Watched) -> None:
        with watched.monitor.own_changes() as process_ids:
            process_ids.add(run("iptables-nft-restore", "--noflush", stdin=_OURS))
        run("nft", "flush", "ruleset")
        change = await watched.next()

        assert change.concerns(Family.IPV4, "nat", {"KUBE-SVC-A"})
        assert Touched(Family.IPV4, "nat", "") in change.touched
        assert change.process_name == "nft"

    watch(scenario)


def test_own_restore_is_not_foreign(watch: Watch, run: Run) -> None:
    """Several transactions of one program of ours are not told."""

    async def scenario(watched: _Watched) -> None:
        with watched.monitor.own_changes() as process_ids:
            text = _OURS + "*filter\n:KUBE-FORWARD - [0:0]\nCOMMIT\n"
            process_ids.add(run("iptables-nft-restore", "--noflush", stdin=text))
            process_ids.add(run("ip6tables-nft-restore", "--noflush", stdin=text))

        await watched.nothing_before(run)

    watch(scenario)


def test_foreign_change_during_own_restore_is_told_afterwards(watch: Watch, run: Run) -> None:
    """Between two restores of ours somebody flushes: told once ours are done, though the loop ran meanwhile."""

    async def scenario(watched: _Watched) -> None:
        with watched.monitor.own_changes() as process_ids:
            process_ids.add(run("iptables-nft-restore", "--noflush", stdin=_OURS))
            foreign = run("iptables-nft", "-t", "nat", "-F", "KUBE-SERVICES")
            await asyncio.to_thread(
                lambda: process_ids.add(run("iptables-nft-restore", "--noflush", stdin=_OURS)),
            )
        change = await watched.next()

        assert change.process_id == foreign
        assert change.touched == {Touched(Family.IPV4, "nat", "KUBE-SERVICES")}
        await watched.nothing_before(run)

    watch(scenario)


def test_overlapping_own_changes_wait_for_the_last_that_saw_it(watch: Watch, run: Run) -> None:
    """A change of the second window is not taken for foreign when the first one ends."""

    async def scenario(watched: _Watched) -> None:
        with watched.monitor.own_changes():
            second = watched.monitor.own_changes()
            later_ids = second.__enter__()
            process_id = run("iptables-nft-restore", "--noflush", stdin=_OURS)
        later_ids.add(process_id)
        second.__exit__(None, None, None)

        await watched.nothing_before(run)

    watch(scenario)


def test_own_change_is_known_in_another_pid_namespace(watch: Watch, run: Run) -> None:
    """In a container process ids count from 1; then the port of the netlink socket tells whose change it is."""

    async def scenario(watched: _Watched) -> None:
        watched.monitor._counts_globally = False
        with watched.monitor.own_changes() as process_ids:
            run("unshare", "--fork", "--pid", "iptables-nft", "-t", "nat", "-N", "OURS")
            process_ids.add(1)

        await watched.nothing_before(run)

    watch(scenario)


def test_other_families_are_not_told(watch: Watch, run: Run) -> None:
    """Tables of `inet` are no business of ours."""

    async def scenario(watched: _Watched) -> None:
        run("nft", "add", "table", "inet", "firewalld")

        await watched.nothing_before(run)

    watch(scenario)


def test_flood_is_bounded(watch: Watch, run: Run) -> None:
    """50,000 new rules in 5,000 chains are one report that names at most 1,000 chains and says that there are more."""
    chains = [f"X{number}" for number in range(5_000)]
    lines = [f"add chain ip flood {chain}" for chain in chains]
    lines += [f"add rule ip flood {chain} ip saddr 10.0.0.{n} accept" for chain in chains for n in range(10)]

    async def scenario(watched: _Watched) -> None:
        run("nft", "-f", "-", stdin="\n".join(["add table ip flood", *lines, ""]))
        change = await watched.next()

        assert change.many
        assert not change.lost
        assert len(change.touched) == MAX_TOUCHED
        assert change.concerns(Family.IPV4, "nat", {"KUBE-SERVICES"})
        await watched.nothing_before(run)

    watch(scenario)


def test_lost_messages_are_told(watch: Watch, run: Run) -> None:
    """When the receive buffer overruns, anything may have changed."""

    async def scenario(watched: _Watched) -> None:
        channel = watched.monitor._listener._socket
        channel.setsockopt(1, 33, 4096)
        for number in range(40):
            run("nft", "add", "table", "ip", f"t{number}")
        change = await watched.next()

        assert change.lost
        assert change.concerns(Family.IPV6, "filter", ())

    watch(scenario)


def test_missing_namespace_is_an_error(namespace: str) -> None:
    """Nothing is listened to where nothing is."""

    async def scenario() -> None:
        TableMonitor(lambda _: None, netns=f"{namespace}-absent")

    with pytest.raises(NamespaceError):
        asyncio.run(scenario())


@pytest.mark.parametrize(
    "command",
    [
        "ip address add 10.1.2.3/24 dev d0",
        "ip address add fd00::1/64 dev d0 nodad",
        "ip address del 10.9.9.9/24 dev d0",
        "ip link del d0",
    ],
)
def test_address_that_appears_or_vanishes_is_told(namespace: str, run: Run, command: str) -> None:
    """Both families, removal, and removal with the interface."""
    run("ip", "link", "add", "d0", "type", "veth", "peer", "d1")
    run("ip", "address", "add", "10.9.9.9/24", "dev", "d0")

    async def scenario() -> None:
        changed = asyncio.Event()
        monitor = AddressMonitor(changed.set, netns=namespace)
        run(*command.split())
        await asyncio.wait_for(changed.wait(), _WAIT_S)
        monitor.close()

    asyncio.run(scenario())


def test_address_changes_that_arrive_together_are_told_once(namespace: str, run: Run) -> None:
    """A hundred new addresses are one call; a link that only goes down is none."""

    async def scenario() -> list[int]:
        calls: list[int] = []
        changed = asyncio.Event()

        def on_change() -> None:
            calls.append(1)
            changed.set()

        monitor = AddressMonitor(on_change, netns=namespace)
        run("ip", "-batch", "-", stdin="".join(f"address add 10.2.0.{n + 1}/16 dev lo\n" for n in range(100)))
        await asyncio.wait_for(changed.wait(), _WAIT_S)
        run("ip", "link", "add", "d0", "type", "veth", "peer", "d1")
        await asyncio.to_thread(run, "ip", "link", "set", "d0", "down")
        monitor.close()
        return calls

    assert asyncio.run(scenario()) == [1]


@pytest.mark.parametrize(("family", "program"), [(Family.IPV4, "iptables-legacy"), (Family.IPV6, "ip6tables-legacy")])
def test_legacy_fingerprint_shows_flush_and_insertion(namespace: str, run: Run, family: Family, program: str) -> None:
    """Each change of the number of rules gives another fingerprint, and going back gives the first one."""
    with inside(namespace):
        assert legacy_fingerprint(family) == ()
        run(program, "-t", "nat", "-N", "KUBE-SERVICES")
        before = legacy_fingerprint(family)
        run(program, "-t", "nat", "-I", "OUTPUT", "-j", "KUBE-SERVICES")
        inserted = legacy_fingerprint(family)
        run(program, "-t", "nat", "-F", "OUTPUT")

        assert [table.name for table in before] == ["nat"]
        assert inserted != before
        assert inserted[0].entries == before[0].entries + 1
        assert legacy_fingerprint(family) == before


def test_legacy_fingerprint_makes_no_table(namespace: str) -> None:
    """Asking leaves no trace, so that a host of the other backend stays clean."""
    with inside(namespace):
        legacy_fingerprint(Family.IPV4)
        completed = SubprocessRunner().run(["cat", f"/proc/{os.getpid()}/task/{os.getpid()}/net/ip_tables_names"])

        assert (completed.stdout, completed.exit_status) == ("", 0)
