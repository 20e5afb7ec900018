"""
One sync: objects and kernel in, restore inputs out, stale flows ended, a report of what was done.

While the listing programs run, objects are read and rules are built: the two take about the same time. One family that
fails does not keep the other from being written.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config
from kproxy_ipt.daemon.apply import apply_plan
from kproxy_ipt.daemon.isolate import Applied, PackedStates, applied, write_without_refused
from kproxy_ipt.daemon.log import Log, SilentLog
from kproxy_ipt.daemon.machine import Machine, Target, machine_facts, open_machine, tune_after, tune_before
from kproxy_ipt.daemon.node import node_notes, own_node
from kproxy_ipt.daemon.report import FamilyReport, Progress, RunReport
from kproxy_ipt.errors import KproxyError
from kproxy_ipt.kernel.conntrack import ConntrackOutcome, reconcile
from kproxy_ipt.kernel.iptables import PendingSave
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.objects.model import Objects
from kproxy_ipt.plan.flows import entry_options, former_entries
from kproxy_ipt.plan.plan import Plan, plan_wanted
from kproxy_ipt.plan.wanted import Wanted
from kproxy_ipt.plan.wanted_snapshot import WantedSnapshot, wanted_snapshot
from kproxy_ipt.rules.fallbacks import fallback_notes, set_aside_findings
from kproxy_ipt.rules.names import KUBE_FIREWALL, MAY_BE_EMPTY, TABLES
from kproxy_ipt.rules.options import rule_options
from kproxy_ipt.rules.shared_chains import branched_places
from kproxy_ipt.ruleset.check import check_lines
from kproxy_ipt.ruleset.render import render_sections
from kproxy_ipt.ruleset.scan import SavedTables, scan_save
from kproxy_ipt.state.flows import flow_table
from kproxy_ipt.state.model import MachineFacts, NodeFacts, Snapshot
from kproxy_ipt.state.snapshot import take_snapshot

Clock = Callable[[], float]


class Stopwatch:
    """Seconds by phase."""

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self._clock = clock
        self._start = clock()
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time of the block to *name*."""
        start = self._clock()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + self._clock() - start

    def total(self) -> dict[str, float]:
        """All phases and the `total` since the start."""
        return {**self.seconds, "total": self._clock() - self._start}


class Prepared(msgspec.Struct, frozen=True):
    """Everything that is known before rules are built: the machine, its running listings, objects and facts."""

    machine: Machine
    saves: Mapping[Family, PendingSave]
    objects: Objects
    node: NodeFacts
    facts: MachineFacts
    notes: tuple[str, ...]


def sync_once(
    read_objects: Callable[[], Objects],
    config: Config,
    node_name: str,
    target: Target,
    *,
    dry_run: bool = False,
    log: Log | None = None,
    progress: Progress | None = None,
) -> RunReport:
    """
    Bring the kernel to what the objects say, once.

    Args:
        read_objects: Called in the namespace of the process.
        config: The effective configuration.
        node_name: Own node name.
        target: Where to write.
        dry_run: Plan everything, write nothing.
        log: Gets a line for each step; None for silence.
        progress: Called for each transaction.

    Returns:
        A report; a family that failed has its error there.

    Raises:
        SourceError: Objects cannot be read; nothing was written.
        ConfigError: The configuration does not fit the node; nothing was written.
        KernelError: The machine cannot be used at all; nothing was written.
    """
    watch = Stopwatch()
    log = log or SilentLog()
    prepared = prepare(read_objects, config, node_name, target, watch, write=not dry_run, log=log)
    findings = prepared.objects.findings
    with watch.phase("read"):
        snapshots = {family: take_snapshot(prepared.objects, family, prepared.node) for family in prepared.saves}
        prepared = msgspec.structs.replace(prepared, objects=Objects())  # they are large, and have said all
    run = _Run(prepared, config, log, is_dry=dry_run, progress=progress)
    with inside(target.netns):
        reports = {family: _sync_family(run, snapshots.pop(family)) for family in [*snapshots]}
    choice = prepared.machine.choice
    return RunReport(
        backend=choice.backend,
        reason=choice.reason,
        node=node_name,
        families=reports,
        unavailable=choice.unavailable,
        findings=findings,
        notes=prepared.notes,
        seconds=watch.total(),
        dry_run=dry_run,
    )


def prepare(
    read_objects: Callable[[], Objects],
    config: Config,
    node_name: str,
    target: Target,
    watch: Stopwatch,
    *,
    write: bool,
    log: Log,
) -> Prepared:
    """
    Gather everything that rules are built from, while the kernel's tables are being listed.

    Args:
        read_objects: Called in the namespace of the process.
        config: The effective configuration.
        node_name: Own node name.
        target: The machine.
        watch: Gets the phases `machine` and `read`.
        write: Whether settings and accounting objects that rules need may be made.
        log: Gets a line for each step.

    Raises:
        SourceError: Objects cannot be read.
        ConfigError: The configuration does not fit the node.
        KernelError: The machine cannot be used at all.
    """
    with watch.phase("machine"), inside(target.netns):
        machine = open_machine(target)
        saves = {family: iptables.start_save(TABLES) for family, iptables in machine.iptables.items()}
        log.info("backend", backend=machine.choice.backend, reason=machine.choice.reason)
    with watch.phase("read"):
        objects = read_objects()
        log.info("objects", services=len(objects.services), endpoint_slices=len(objects.endpoint_slices))
    node = own_node(objects, config, node_name)
    notes = node_notes(objects, config, node, frozenset(saves))
    with watch.phase("machine"), inside(target.netns):
        untuned = tune_before(config) if write else ()
        facts = machine_facts(machine, ensure=write)
    rejected = tuple(set_aside_findings(objects.services, facts))
    objects = msgspec.structs.replace(objects, findings=(*objects.findings, *rejected))
    return Prepared(machine, saves, objects, node, facts, (*machine.choice.oddities, *notes, *untuned))


class _Run(msgspec.Struct, frozen=True):
    """What is the same for all families."""

    prepared: Prepared
    config: Config
    log: Log
    is_dry: bool
    progress: Progress | None


def _sync_family(run: _Run, snapshot: Snapshot) -> FamilyReport:
    watch, family, pending = Stopwatch(), snapshot.family, run.prepared.saves[snapshot.family]
    written, flows, notes = Applied(), ConntrackOutcome(), list[str]()
    with watch.phase("build"):
        built = wanted_snapshot(snapshot, run.config, run.prepared.facts)
        lacking = run.prepared.facts.lacking_in(family)
        notes.extend(fallback_notes(lacking, snapshot.services.values(), snapshot.node))
    try:
        with watch.phase("list"):
            actual = scan_save(pending.text())
            notes.extend(pending.warnings)
        with watch.phase("plan"):
            if branched := built.keeping & branched_places(actual):
                built = wanted_snapshot(snapshot, run.config, run.prepared.facts, branched)
            # Only these may have stale flows; the others need not stay in memory as they are.
            packed, snapshot = PackedStates(snapshot.services.values()), _of_protocol(snapshot, "udp")
            plan = plan_wanted(built.wanted, actual, staged=run.prepared.machine.is_staged)
            notes.extend(plan.notes)
            if plan.transactions:
                check_lines(built.wanted.tables, may_be_empty=MAY_BE_EMPTY)
            run.log.info("planned", family=family, chains=plan.chains_written, deleted=plan.chains_deleted)
        if run.is_dry:
            size = sum(len(section.encode()) for section in render_sections(plan.restore_input))
            written = applied(plan, actual, size)
        else:
            with watch.phase("restore"):
                written = _apply(run, built.wanted, plan, actual, packed)
            notes.extend(tune_after(localhost_node_ports=KUBE_FIREWALL in built.wanted.tables["filter"]))
            with watch.phase("conntrack"):
                flows = _end_stale_flows(snapshot, run.config, run.prepared.facts, written)
            notes.extend([flows.problem] if flows.problem else [])
            if flows.listed:
                run.log.info("conntrack", family=family, listed=flows.listed, deleted=flows.deleted)
    except KproxyError as error:
        return FamilyReport(error=error, seconds=watch.total(), notes=tuple(notes))
    return _report(built, written, flows, notes=tuple(notes), seconds=watch.total())


def _of_protocol(snapshot: Snapshot, protocol: str) -> Snapshot:
    services = {key: state for key, state in snapshot.services.items() if state.service_port.protocol == protocol}
    return msgspec.structs.replace(snapshot, services=services)


def _apply(run: _Run, wanted: Wanted, plan: Plan, actual: SavedTables, states: PackedStates) -> Applied:
    prepared, family = run.prepared, wanted.family
    machine = prepared.machine
    options = rule_options(run.config, prepared.node, prepared.facts, family, endpoint_count=0)
    return apply_plan(
        machine,
        family,
        plan,
        actual,
        owners=wanted.owners,
        isolate=lambda: write_without_refused(machine, family, states, options, run.log),
        log=run.log,
        progress=run.progress,
    )


def _end_stale_flows(snapshot: Snapshot, config: Config, facts: MachineFacts, written: Applied) -> ConntrackOutcome:
    """
    Delete records of flows that contradict the state; nothing is listed where no service port has such flows.

    What was served before is told only by the rules that have just gone: a run knows nothing of the one before it.
    """
    options = rule_options(config, snapshot.node, facts, snapshot.family, endpoint_count=0)
    # Lines of other protocols need not be read: of those there may be thousands.
    leaving = (line for line in written.leaving if " udp " in line)
    # Rules of Services that are set aside are those of another state.
    aside = {one.service for one in written.set_aside}
    ports = ((state, state.service_port) for state in snapshot.services.values())
    table = flow_table(
        [state for state, port in ports if f"{port.namespace}/{port.name}" not in aside],
        entry_options(options, facts.interface_addresses),
        former=former_entries(leaving, snapshot.family),
    )
    return reconcile(snapshot.family, table)


def _report(
    built: WantedSnapshot,
    written: Applied,
    flows: ConntrackOutcome,
    *,
    notes: tuple[str, ...],
    seconds: dict[str, float],
) -> FamilyReport:
    return FamilyReport(
        transactions=written.transactions,
        bytes=written.bytes,
        chains_written=written.chains_written,
        chains_deleted=written.chains_deleted,
        rules_written=written.rules_written,
        rules_deleted=written.rules_deleted,
        chains=built.chain_count,
        rules=built.rule_count,
        services=built.service_count,
        service_ports=built.service_port_count,
        endpoints=built.endpoint_count,
        flows_listed=flows.listed,
        flows_deleted=flows.deleted,
        seconds=seconds,
        notes=notes,
        set_aside=written.set_aside,
    )
