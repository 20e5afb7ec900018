"""
One moment of the daemon as a value, so that a page can be made in another thread while the daemon goes on.

Taken on the event loop; objects and states are frozen, so that copying the dictionaries that hold them is enough: a
millisecond for 10,000 Services.
"""

from collections.abc import Callable, Mapping

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config
from kproxy_ipt.daemon.api_status import ApiStatus
from kproxy_ipt.daemon.health import Health, ProxyHealth
from kproxy_ipt.daemon.inputs import Inputs
from kproxy_ipt.daemon.machine import Machine
from kproxy_ipt.daemon.node_watch import NodeWatch
from kproxy_ipt.daemon.quarantine import Refusal
from kproxy_ipt.daemon.status.history import History, SyncRecord
from kproxy_ipt.errors import Finding
from kproxy_ipt.objects.model import EndpointSlice, Service
from kproxy_ipt.state.model import MachineFacts, NodeFacts, Snapshot
from kproxy_ipt.state.tracker import ServiceName, States


class Watched(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a daemon that its status page looks at; *machine* is None until it is open."""

    inputs: Inputs
    node: NodeWatch
    health: ProxyHealth
    api: ApiStatus
    history: History
    config: Callable[[], Config]
    machine_facts: Callable[[], MachineFacts]
    machine: Callable[[], Machine | None]
    unix_s: Callable[[], float]


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """
    A moment.

    Attributes:
        blocked: Why no rules may be written, "" if they may.
        is_complete: Whether complete lists of all kinds have arrived.
        machine: None until it is open.
        states: What Services mean, by family.
        unwritten: Services that mean something else than what was written last.
        findings: What is odd about objects.
        api: As `/healthz?verbose` has it.
    """

    now_unix_s: float
    node: NodeFacts
    blocked: str
    is_complete: bool
    config: Config
    machine_facts: MachineFacts
    machine: Machine | None
    health: Health
    api: Mapping[str, object]
    services: Mapping[ServiceName, Service]
    endpoint_slices: tuple[EndpointSlice, ...]
    states: Mapping[Family, Mapping[ServiceName, States]]
    unwritten: frozenset[ServiceName]
    findings: tuple[Finding, ...]
    changed_unix_s: Mapping[ServiceName, float]
    syncs: tuple[SyncRecord, ...]
    notable: tuple[SyncRecord, ...]

    @property
    def families(self) -> tuple[Family, ...]:
        """Those that are served here."""
        return tuple(self.health.families)

    @property
    def backend(self) -> str:
        """`nft` or `legacy`, "" until it was chosen."""
        return str(self.machine.choice.backend) if self.machine else ""

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """Services that the kernel refuses, by family."""
        return tuple(refusal for family in self.health.families.values() for refusal in family.set_aside)


def take_scene(watched: Watched) -> Scene:
    """The moment that is now; to be called on the event loop."""
    inputs = watched.inputs
    health = watched.health.judge()
    return Scene(
        now_unix_s=watched.unix_s(),
        node=watched.node.facts,
        blocked=watched.node.blocked,
        is_complete=inputs.ready.is_set(),
        config=watched.config(),
        machine_facts=watched.machine_facts(),
        machine=watched.machine(),
        health=health,
        api=watched.api.document(),
        services=inputs.store.services_by_name(),
        endpoint_slices=tuple(inputs.store.endpoint_slices()),
        states={family: dict(inputs.trackers[family].states) for family in health.families},
        unwritten=frozenset(name for family in health.families for name in inputs.trackers[family].pending().changes),
        findings=inputs.store.findings(),
        changed_unix_s=dict(watched.history.changed_unix_s),
        syncs=watched.history.syncs,
        notable=watched.history.notable,
    )


def snapshot_of(scene: Scene, family: Family, only: ServiceName | None = None) -> Snapshot:
    """The state of *family* as rules are built from it; of one Service if *only* says so."""
    known = scene.states.get(family, {})
    names = sorted(known) if only is None else [only]
    return Snapshot(
        family=family,
        services={
            (state.service_port.text, state.service_port.protocol): state
            for name in names
            for state in known.get(name, ())
        },
        node=scene.node,
    )
