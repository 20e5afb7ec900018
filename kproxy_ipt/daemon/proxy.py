"""
The daemon: sources in, rules out, and the truth about it told to whoever asks.

One event loop holds everything that waits: watching, scheduling, health, metrics. What blocks runs in one thread for
each family. Order of the start: the machine, then the servers (so that probes are answered at once), then the sources;
nothing is written before Services, EndpointSlices and Nodes are known completely. Order of the end: no new sync, the
one that runs is finished, then ports are closed. Rules stay.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config
from kproxy_ipt.daemon.drift import LegacyWatch, TableWatch, no_window
from kproxy_ipt.daemon.family import EVERYTHING, ProcessNote
from kproxy_ipt.daemon.family_loop import Clocks
from kproxy_ipt.daemon.family_parts import FamilyParts
from kproxy_ipt.daemon.health_ports import HealthPortProblem, HealthPorts
from kproxy_ipt.daemon.inputs import Inputs
from kproxy_ipt.daemon.instruments import Instruments
from kproxy_ipt.daemon.kernel_thread import KernelThread
from kproxy_ipt.daemon.log import Log
from kproxy_ipt.daemon.machine import Machine, machine_facts, open_machine, tune_before, with_runner
from kproxy_ipt.daemon.node_watch import NodeWatch
from kproxy_ipt.daemon.quarantine import Refusal
from kproxy_ipt.daemon.reload import reload_config
from kproxy_ipt.daemon.schedule import SyncSchedule
from kproxy_ipt.daemon.settings import Settings, Source
from kproxy_ipt.daemon.status.scene import Watched
from kproxy_ipt.daemon.status.server import for_pages
from kproxy_ipt.daemon.tuning import tune_conntrack
from kproxy_ipt.errors import KernelError
from kproxy_ipt.kernel.addresses import interface_addresses
from kproxy_ipt.kernel.backend import Backend
from kproxy_ipt.kernel.command import SubprocessRunner
from kproxy_ipt.kernel.notify_addresses import AddressMonitor
from kproxy_ipt.kernel.sysctls import tcp_be_liberal
from kproxy_ipt.objects.model import Node
from kproxy_ipt.plan.flows import entry_options
from kproxy_ipt.rules.fallbacks import FALLBACKS
from kproxy_ipt.rules.options import rule_options
from kproxy_ipt.state.model import MachineFacts


class Proxy:
    """
    One daemon.

    Attributes:
        health: Whether rules are up to date.
        inputs: The objects as they are known.
        metrics: What is counted.
        backend: The one in use; None until the machine is open.
        traffic: Counts connections, unless the configuration says that nothing does.
    """

    def __init__(
        self,
        settings: Settings,
        source: Source,
        log: Log,
        clocks: Clocks,
        *,
        report: Callable[[HealthPortProblem], None] = lambda _: None,
        on_refusal: Callable[[Refusal], None] = lambda _: None,
        on_ready: Callable[[str], None] = lambda _: None,
    ) -> None:
        """
        Put the parts together; nothing is opened yet, but a loop must be running.

        Args:
            settings: See there.
            source: Of the objects.
            log: Told what happens.
            clocks: Time.
            report: Told about health check node ports that are not served.
            on_refusal: Told about Services that the kernel refuses.
            on_ready: Called once, after the first sync of every family, with a line about it.
        """
        self._settings, self._config = settings, settings.config
        self._source, self._log, self._clocks = source, log, clocks
        self._on_refusal, self._on_ready = on_refusal, on_ready
        self._node = NodeWatch(settings.node_name, settings.config, log, clocks.monotonic)
        self._instruments = Instruments(settings, log, clocks, in_background=self._in_background)
        self.health, self.metrics = self._instruments.health, self._instruments.metrics
        self.traffic = self._instruments.traffic
        self._health_ports = HealthPorts(
            self.health.is_healthy, node_name=settings.node_name, netns=settings.target.netns, report=report, log=log
        )
        self.inputs = Inputs(
            settings.target.families,
            settings.node_name,
            clock=clocks.monotonic,
            started_unix_s=clocks.unix_s(),
            metrics=self.metrics,
            api_status=self._instruments.api,
            log=log,
            on_dirty=self._dirty,
            on_node=self._node_seen,
        )
        self._know_no_machine()

    def _know_no_machine(self) -> None:
        """What `run` will find out and begin."""
        self.backend: Backend | None = None
        self._machine: Machine | None = None
        self._facts = MachineFacts()
        self._threads: dict[Family, KernelThread] = {}
        self._parts: dict[Family, FamilyParts] = {}
        self._tables: TableWatch | None = None
        self._comparing: set[Family] = set()
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """
        Work until cancelled; then finish the sync that runs, close ports, leave the rules.

        Raises:
            KernelError: The machine cannot be used at all.
            ListenError: With `bindAddressHardFail`.
        """
        servers = self._instruments.servers(self._watched())
        address_monitor = None
        try:
            await self._open_machine()
            await servers.start()
            address_monitor = self._watch_addresses()
            self._watch_tables()
            async with asyncio.TaskGroup() as group:
                self._group = group
                for work in self._work():
                    group.create_task(work)
        finally:
            self._group = None
            await servers.close()
            await self._health_ports.close()
            for monitor in (address_monitor, self._tables):
                if monitor is not None:
                    monitor.close()
            self._instruments.close()
            for thread in self._threads.values():
                thread.close()

    def _watched(self) -> Watched:
        return Watched(
            inputs=self.inputs,
            node=self._node,
            health=self.health,
            api=self._instruments.api,
            history=self._instruments.status.history,
            config=lambda: self._config,
            machine_facts=lambda: self._facts,
            machine=lambda: self._machine,
            unix_s=self._clocks.unix_s,
        )

    def _work(self) -> list[Coroutine[None, None, None]]:
        work = [self.inputs.follow(), self._source.run(self.inputs.deliver), self._compare_by_schedule(), self._start()]
        work.extend(self._run_family(part) for part in self._parts.values())
        work.extend(part.legacy.run() for part in self._parts.values() if part.legacy is not None)
        return work

    async def _open_machine(self) -> None:
        """Choose the backend, make kernel settings, learn what the machine is like."""
        target = self._settings.target
        self._threads = {family: KernelThread(target.netns, f"kernel-{family}") for family in target.families}
        first = next(iter(self._threads.values()))
        machine = await first.call(open_machine, target)
        self._machine = for_pages(machine)
        self._log.info("backend", backend=str(machine.choice.backend), reason=machine.choice.reason)
        self.backend = machine.choice.backend
        for oddity in machine.choice.oddities:
            self._log.warning("iptables program", problem=oddity)
        self.metrics.backend_chosen(str(machine.choice.backend), machine.choice.reason)
        for family, reason in machine.choice.unavailable.items():
            self._log.warning("family is left out", family=family, reason=reason)
            self.health.leave_out(family)
        await self._tune(first)
        self._facts = await first.call(machine_facts, machine, ensure=True)
        for family, part in sorted(self._facts.lacking):
            self._log.warning("missing part", family=family, lacking=str(part), now=FALLBACKS[part].instead)
        for family in machine.iptables:
            self._parts[family] = self._family(family, machine)
        self.traffic.serve(with_runner(machine, SubprocessRunner()))

    async def _tune(self, thread: KernelThread) -> None:
        problems = (
            *await thread.call(tune_conntrack, self._config.conntrack),
            *await thread.call(tune_before, self._config),
        )
        for problem in problems:
            self._log.warning("kernel setting", problem=problem)

    def _family(self, family: Family, machine: Machine) -> FamilyParts:
        iptables = self._config.iptables
        thread, processes = self._threads[family], ProcessNote()
        part = FamilyParts(
            family,
            with_runner(machine, SubprocessRunner(processes.started)),
            processes,
            thread,
            self.inputs.trackers[family],
            SyncSchedule(min_gap_s=iptables.min_sync_period_s, retry_cap_s=iptables.sync_period_s),
            health=self.health,
            health_ports=self._health_ports,
            metrics=self.metrics,
            log=self._log,
            clocks=self._clocks,
            window=self._own_changes,
            on_refusal=self._on_refusal,
            on_synced=self._instruments.status.on_synced,
            traffic=self.traffic,
        )
        if machine.choice.backend is Backend.LEGACY:
            part.legacy = LegacyWatch(self.compare, family, thread, self._log)
        return part

    def _own_changes(self) -> AbstractContextManager[set[int]]:
        return self._tables.own_changes() if self._tables is not None else no_window()

    def _watch_addresses(self) -> AddressMonitor | None:
        try:
            return AddressMonitor(self._addresses_changed, netns=self._settings.target.netns)
        except KernelError as error:
            self._log.warning("addresses of interfaces are read at start only", error=str(error))
            return None

    def _watch_tables(self) -> None:
        if any(part.legacy is not None for part in self._parts.values()):
            return
        try:
            self._tables = TableWatch(
                self.compare, tuple(self._parts), netns=self._settings.target.netns, on_ended_rule=self.traffic.ended
            )
            self.traffic.take_waiting = self._tables.take_waiting
        except KernelError as error:
            self._log.warning("drift is found by schedule only", error=str(error))

    async def _start(self) -> None:
        """Let families begin once everything is known, and say so once all are in step and losses would be noticed."""
        await self.inputs.ready.wait()
        self._update_options("first sync")
        while not (self.health.has_synced() and all(part.is_watched for part in self._parts.values())):
            await asyncio.sleep(0.05)
        counts = f"{len(self.inputs.store.names())} Services, {len(self._parts)} families"
        self._log.info("in step", services=len(self.inputs.store.names()))
        self._on_ready(counts)

    async def _run_family(self, part: FamilyParts) -> None:
        await self.inputs.ready.wait()
        await part.loop.run()

    def _dirty(self, family: Family) -> None:
        part = self._parts.get(family)
        if part is not None and not self._node.blocked:
            part.loop.request()

    def _node_seen(self, node: Node | None) -> None:
        self.health.node_seen(node)
        if self._node.seen(node) and self.inputs.ready.is_set():
            self._update_options("the Node changed")

    def _addresses_changed(self) -> None:
        self._in_background(self._read_addresses())

    def _in_background(self, work: Coroutine[None, None, None]) -> None:
        """Let *work* run beside; if it fails, the daemon does."""
        if self._group is None:
            work.close()
            return
        try:
            self._group.create_task(work)
        except RuntimeError:  # the daemon ends: nothing is begun any more
            work.close()

    def _update_options(self, reason: str) -> None:
        """Rules follow configuration, node and machine; nothing is written while the node is not known well enough."""
        self._node.remind()
        if self._node.blocked:
            return
        self._node.tell_ranges(frozenset(self._parts))
        for family, part in self._parts.items():
            options = rule_options(self._config, self._node.facts, self._facts, family, endpoint_count=0)
            part.set_options(options, entry_options(options, self._facts.interface_addresses), reason)
            if self.inputs.trackers[family].dirty_count:
                part.loop.request()  # what changed while nothing could be written

    async def _read_addresses(self) -> None:
        try:
            addresses = await next(iter(self._threads.values())).call(interface_addresses)
        except KernelError as error:
            self._log.warning("addresses of interfaces", error=str(error), now="the last known ones are used")
            return
        if addresses != self._facts.interface_addresses:
            self._facts = msgspec.structs.replace(self._facts, interface_addresses=addresses)
            if self.inputs.ready.is_set():
                self._update_options("addresses of interfaces changed")

    def compare(self, family: Family, reason: str) -> None:
        """Compare everything with the kernel and repair it, as soon as the ration allows."""
        part = self._parts.get(family)
        if part is None or not self.inputs.ready.is_set() or self._node.blocked or family in self._comparing:
            return
        self._comparing.add(family)
        self._in_background(self._compare(part, reason))

    async def _compare(self, part: FamilyParts, reason: str) -> None:
        while (wait_s := part.compare_in_s()) > 0:
            await asyncio.sleep(wait_s)
        self._comparing.discard(part.family)
        part.loop.request(reason)

    def compare_all(self, reason: str) -> None:
        """The same for all families."""
        for family in self._parts:
            self.compare(family, reason)

    async def _compare_by_schedule(self) -> None:
        while True:
            await asyncio.sleep(self._settings.compare_period_s)
            self.compare_all(EVERYTHING)
            self._node.remind()

    async def reload(self, wanted: Config) -> None:
        """Take over from a new configuration what counts at once, and name the rest."""
        reload = reload_config(self._config, wanted)
        self._log.warning("configuration", taken_over=list(reload.changed), after_a_restart_only=list(reload.restart))
        self._config = self._node.config = reload.config
        iptables = reload.config.iptables
        for part in self._parts.values():
            part.loop.reschedule(min_gap_s=iptables.min_sync_period_s, retry_cap_s=iptables.sync_period_s)
        self.health.limit_s = 2 * iptables.sync_period_s
        if "conntrack" in reload.changed and self._threads:
            thread = next(iter(self._threads.values()))
            await self._tune(thread)
            self._facts = msgspec.structs.replace(self._facts, tcp_be_liberal=await thread.call(tcp_be_liberal))
        if "logging" in reload.changed:
            self._settings.process.set_verbosity(reload.config.logging.verbosity)
        if self.inputs.ready.is_set():
            self._update_options("the configuration changed")
