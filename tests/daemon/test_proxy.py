"""The assembled daemon in a namespace of its own: sources in, rules out, and what ends it."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

import msgspec
import pytest

from kproxy_ipt.config.model import Config, DetectLocalMode, IptablesConfig
from kproxy_ipt.daemon.cluster_events import ClusterEvents
from kproxy_ipt.daemon.family import FamilySync
from kproxy_ipt.daemon.family_loop import Clocks
from kproxy_ipt.daemon.health_ports import HealthPorts
from kproxy_ipt.daemon.log import SilentLog
from kproxy_ipt.daemon.machine import Target
from kproxy_ipt.daemon.main import run_daemon
from kproxy_ipt.daemon.metrics_pages import Process
from kproxy_ipt.daemon.proxy import Proxy
from kproxy_ipt.daemon.settings import Settings
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.objects.events import Event, Kind, Listed
from kproxy_ipt.testing.clock import ManualClock
from kproxy_ipt.testing.desired import KINDS, ApiObject, put_of
from kproxy_ipt.testing.objects import endpoint_slice, node, service, service_port

pytestmark = pytest.mark.kernel

Look = Callable[..., str]
WEB = service("web", service_type="NodePort", ports=[service_port(node_port=30080)])
CONFIG = Config(
    healthz_bind_address="", metrics_bind_address="", iptables=IptablesConfig(min_sync_period_s=0.0, sync_period_s=30.0)
)


class Told(SilentLog):
    """Lets one wait for a line of the log."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, Mapping[str, object]]] = []
        self._news = asyncio.Event()

    def debug(self, event: str, **fields: object) -> None:
        """Keep a line."""
        self.lines.append((event, fields))
        self._news.set()

    info = warning = debug

    async def until(self, event: str, *, count: int = 1, **wanted: object) -> None:
        """Wait until *event* was told *count* times with these fields, since `forget`."""
        async with asyncio.timeout(30.0):
            while sum(name == event and wanted.items() <= fields.items() for name, fields in self.lines) < count:
                self._news.clear()
                await self._news.wait()

    def forget(self) -> None:
        """Begin anew."""
        self.lines.clear()


class Scripted:
    """A source that says what a test wants."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Event | Exception] = asyncio.Queue()

    async def run(self, deliver: Callable[[Event], None]) -> None:
        """Deliver what comes, or fail as told."""
        while True:
            event = await self._queue.get()
            if isinstance(event, Exception):
                raise event
            deliver(event)

    def say(self, *events: Event | Exception) -> None:
        """Let the source say it."""
        for event in events:
            self._queue.put_nowait(event)

    def put(self, *objects: ApiObject) -> None:
        """Let it say that objects changed."""
        self.say(*map(put_of, objects))

    def lists(self, *objects: ApiObject) -> None:
        """Let it list everything."""
        self.say(*(Listed(kind, tuple(one for one in objects if isinstance(one, of))) for of, kind in KINDS.items()))


class Running:
    """A daemon that runs."""

    def __init__(self, target: Target, config: Config = CONFIG) -> None:
        self.log, self.source = Told(), Scripted()
        self.settings = Settings(
            config=config,
            node_name="node1",
            target=target,
            process=Process(flags={}, command_line=(), started_ns=0, set_verbosity=lambda _: None),
        )
        clock = ManualClock()
        self.clocks = Clocks(lambda: asyncio.get_running_loop().time(), lambda: clock.wall_ns() / 1e9)
        self.proxy = Proxy(self.settings, self.source, self.log, self.clocks)


@asynccontextmanager
async def daemon(target: Target, config: Config = CONFIG, *objects: ApiObject) -> AsyncIterator[Running]:
    """Run it with *objects*, default one Service with an endpoint, until they are in the kernel."""
    running = Running(target, config)
    work = asyncio.create_task(running.proxy.run())
    running.source.lists(*(objects or (WEB, endpoint_slice(WEB), node())))
    await running.log.until("in step")
    running.log.forget()
    try:
        yield running
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


def only_ipv4(target: Target) -> Target:
    """One family is enough for most facts."""
    return msgspec.structs.replace(target, families=target.families[:1])


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run a test in a loop."""

    async def go() -> None:
        await test()

    asyncio.run(go())


def test_nothing_is_written_before_everything_is_listed(target: Target, look: Look) -> None:
    """Services without slices would be refused; nodes are awaited too."""

    async def test() -> None:
        running = Running(target)
        work = asyncio.create_task(running.proxy.run())
        running.source.say(Listed(Kind.SERVICES, (WEB,)), Listed(Kind.ENDPOINT_SLICES, ()))
        await running.log.until("backend")
        before = look("nft", "list", "ruleset")
        running.source.say(Listed(Kind.NODES, ()))
        await running.log.until("in step")
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)

        assert "KUBE" not in before
        assert "KUBE-SERVICES" in look("ip6tables-nft-save")

    run(test)


def test_change_reaches_the_kernel_and_rules_stay_after_the_end(target: Target, look: Look) -> None:
    """An end takes nothing away."""

    async def test() -> None:
        async with daemon(only_ipv4(target)) as running:
            running.source.put(endpoint_slice(WEB, ["10.244.1.9"]))
            await running.log.until("synced", kind="partial")

    run(test)
    assert "10.244.1.9:80" in look("iptables-nft-save")
    assert "10.244.1.2:80" not in look("iptables-nft-save")


def test_rules_that_somebody_flushed_come_back_at_once(target: Target, look: Look) -> None:
    """No change of the cluster and no period is needed."""

    async def test() -> None:
        async with daemon(only_ipv4(target)) as running:
            look("iptables-nft", "-t", "nat", "-F", "KUBE-SERVICES")
            await running.log.until("drift repaired", table="nat")

    run(test)
    assert "10.96.0.10/32" in look("iptables-nft-save")


def test_changes_while_the_node_has_no_ranges_are_written_when_it_has_them_again(target: Target, look: Look) -> None:
    """In mode NodeCIDR nothing is written meanwhile, and nothing is lost though the options end as they were."""
    config = msgspec.structs.replace(CONFIG, detect_local_mode=DetectLocalMode.NODE_CIDR)

    async def test() -> None:
        async with daemon(only_ipv4(target), config) as running:
            running.source.put(node(pod_cidrs=[]), endpoint_slice(WEB, ["10.244.1.9"]))
            await running.log.until("node")
            await running.proxy.inputs.settled()
            before = look("iptables-nft-save")
            running.source.put(node())
            await running.log.until("synced")

            assert "10.244.1.9:80" not in before

    run(test)
    assert "10.244.1.9:80" in look("iptables-nft-save")


def test_new_address_of_an_interface_answers_node_ports(target: Target, look: Look) -> None:
    """Without any event of the cluster."""
    config = msgspec.structs.replace(CONFIG, node_port_addresses=("198.51.100.0/24",))

    async def test() -> None:
        async with daemon(only_ipv4(target), config) as running:
            look("ip", "address", "add", "198.51.100.7/32", "dev", "lo")
            await running.log.until("synced")

    run(test)
    assert "-d 198.51.100.7/32" in look("iptables-nft-save", "-t", "nat")


def test_configuration_that_changes_is_followed(target: Target, look: Look) -> None:
    """Every rule is made anew; what needs a restart is named."""

    async def test() -> None:
        async with daemon(only_ipv4(target)) as running:
            iptables = IptablesConfig(masquerade_all=True)
            wanted = msgspec.structs.replace(CONFIG, iptables=iptables, oom_score_adj=-1)
            await running.proxy.reload(wanted)
            await running.log.until("synced", kind="full")

            assert running.log.lines[0][1]["after_a_restart_only"] == ["oom_score_adj"]

    run(test)
    assert '"default/web cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ' in look("iptables-nft-save")


def test_family_that_the_node_lacks_is_left_out(target: Target, look: Look) -> None:
    """IPv6 that is switched off is told, and neither stops IPv4 nor makes the node unhealthy."""
    look("sysctl", "-w", "net.ipv6.conf.all.disable_ipv6=1")

    async def test() -> None:
        async with daemon(target) as running:
            running.source.put(endpoint_slice(WEB, ["10.244.1.9"]))
            await running.log.until("synced", kind="partial")

            assert running.proxy.health.is_healthy()

    run(test)
    assert "KUBE" not in look("ip6tables-nft-save")


def test_sighup_compares_everything(target: Target, look: Look) -> None:
    """Every family reads its tables."""

    async def test() -> None:
        async with daemon(target) as running:
            look("iptables-nft", "-t", "nat", "-F", "KUBE-SERVICES")
            running.proxy.compare_all("SIGHUP")
            await running.log.until("drift repaired")

    run(test)


def test_changes_of_others_while_the_daemon_ends_are_nobodys_business(target: Target) -> None:
    """The end is no moment to begin a comparison, and not being able to is no bug."""

    async def test() -> None:
        running = Running(only_ipv4(target))
        work = asyncio.create_task(running.proxy.run())
        running.source.lists(WEB, node())
        await running.log.until("in step")
        work.cancel()
        for _ in range(3):
            await asyncio.sleep(0)
            running.proxy.compare_all("somebody else")
        await asyncio.gather(work, return_exceptions=True)
        running.proxy.compare_all("somebody else")

        assert work.cancelled()

    run(test)


@pytest.mark.parametrize("where", ["source", "callback"])
def test_bug_ends_the_daemon_with_a_traceback_in_the_log(target: Target, where: str) -> None:
    """A supervisor sees it and starts anew; no part of the daemon ends in silence."""

    async def test() -> None:
        running = Running(only_ipv4(target))
        events = ClusterEvents("node1")
        work = asyncio.create_task(
            run_daemon(running.settings, running.source, running.log, running.clocks, events=events)
        )
        running.source.lists(WEB, node())
        await running.log.until("in step")
        if where == "source":
            running.source.say(LookupError("a bug"))
        else:
            asyncio.get_running_loop().call_soon(_bug, running.proxy)
        async with asyncio.timeout(30.0):
            with pytest.raises((LookupError, AttributeError)):
                await work
        bugs = [fields for event, fields in running.log.lines if event == "bug"]
        assert "Traceback" in str(bugs[0]["traceback"])

    run(test)


def test_trouble_of_a_library_does_not_end_the_daemon(target: Target) -> None:
    """What fails in a callback without code of ours is told, and that is all."""

    async def test() -> None:
        running = Running(only_ipv4(target))
        work = asyncio.create_task(
            run_daemon(running.settings, running.source, running.log, running.clocks, events=ClusterEvents("node1"))
        )
        running.source.lists(WEB, node())
        await running.log.until("in step")
        asyncio.get_running_loop().call_soon(int, "no number")
        await running.log.until("event loop")
        running.log.forget()
        running.source.put(service("api", cluster_ip="10.96.0.77"))
        await running.log.until("synced")
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)

        assert work.cancelled()

    run(test)


def _bug(proxy: Proxy) -> None:
    """A callback whose code of ours fails."""
    proxy.compare_all.__func__(None, "x")  # type: ignore[attr-defined]


@pytest.mark.parametrize(("owner", "name"), [(FamilySync, "clean_flows"), (HealthPorts, "update")])
def test_bug_in_what_follows_a_sync_is_told_and_rules_go_on(
    target: Target, look: Look, monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    """Connection tracking and health check node ports are extras: the next sync tries them again."""

    def bug(*_: object) -> None:
        raise LookupError("a bug")

    monkeypatch.setattr(owner, name, bug)

    async def test() -> None:
        async with daemon(only_ipv4(target)) as running:
            running.source.put(endpoint_slice(WEB, ["10.244.1.9"]))
            await running.log.until("left undone")

    run(test)
    assert "10.244.1.9:80" in look("iptables-nft-save")


def test_programs_run_in_the_namespace_of_the_target(target: Target) -> None:
    """Nothing is written where the process is."""

    async def test() -> None:
        async with daemon(only_ipv4(target)):
            pass

    run(test)
    with inside(target.netns):
        rules = subprocess.run(["iptables-nft-save"], capture_output=True, text=True, check=True).stdout
    outside = subprocess.run(["iptables-nft-save"], capture_output=True, text=True, check=True).stdout
    assert ("KUBE-SERVICES" in rules, "10.96.0.10/32" in outside) == (True, False)
