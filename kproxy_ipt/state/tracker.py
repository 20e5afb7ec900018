"""
Events -> state and dirty services: what changed since the kernel last agreed.

`ObjectStore` keeps the objects, once for all families. A `StateTracker` for each family keeps what they mean and which
Services mean something else than what was last committed. A change that means nothing (a label, a managed field)
makes nothing dirty. Reading what is pending changes nothing; only `commit` forgets, so a failed sync loses no change,
and a change that arrives during a sync is kept for the next one.

Pure: whoever owns a store and its trackers calls them from one thread.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TypeAlias

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.errors import Finding
from kproxy_ipt.objects.events import Gone, Kind, Listed, Put
from kproxy_ipt.objects.model import SERVICE_NAME_LABEL, EndpointSlice, Node, Service
from kproxy_ipt.state.model import ServiceState
from kproxy_ipt.state.services import service_ports
from kproxy_ipt.state.slices import endpoints_by_port

ServiceName: TypeAlias = tuple[str, str]
"""Namespace and name."""

States: TypeAlias = tuple[ServiceState, ...]
"""The service ports of one Service for one family, sorted by port name and protocol."""

_MOST_TRIGGERS = 20
"""Trigger times that are kept for one Service: while the kernel refuses everything, memory must not grow."""

TRIGGER_TIME_ANNOTATION = "endpoints.kubernetes.io/last-change-trigger-time"


class ObjectStore:
    """
    All objects that were delivered, by kind.

    Attributes:
        listed: Kinds of which a complete list has arrived; rules may be written once all are there.
        nodes: By name.
    """

    def __init__(self) -> None:
        self.listed: set[Kind] = set()
        self.nodes: dict[str, Node] = {}
        self._services: dict[ServiceName, Service] = {}
        self._slices: dict[tuple[str, str], EndpointSlice] = {}
        self._slices_of: dict[ServiceName, dict[str, EndpointSlice]] = {}
        self._findings: dict[tuple[Kind, str, str], tuple[Finding, ...]] = {}

    def service(self, name: ServiceName) -> Service | None:
        """The Service called *name*."""
        return self._services.get(name)

    def slices(self, name: ServiceName) -> list[EndpointSlice]:
        """The slices of a Service, which need not exist, sorted by name."""
        found = self._slices_of.get(name, {})
        return [found[key] for key in sorted(found)]

    def names(self) -> set[ServiceName]:
        """Every Service that exists or has slices."""
        return {*self._services, *self._slices_of}

    def services(self) -> Iterable[Service]:
        """All Services."""
        return self._services.values()

    def services_by_name(self) -> dict[ServiceName, Service]:
        """A copy of what is known of Services now."""
        return dict(self._services)

    def endpoint_slices(self) -> Iterable[EndpointSlice]:
        """All EndpointSlices."""
        return self._slices.values()

    def findings(self) -> tuple[Finding, ...]:
        """What is odd about the objects as they are now."""
        return tuple(finding for found in self._findings.values() for finding in found)

    def apply(self, event: Listed | Put | Gone) -> set[ServiceName]:
        """
        Take in an event.

        Returns:
            Services whose meaning may have changed; empty for Nodes.
        """
        if isinstance(event, Listed):
            return self._replace(event)
        if isinstance(event, Put):
            return self._put(event.kind, event.object, event.findings)
        return self._remove(event.kind, event.namespace, event.name, event.findings)

    def _replace(self, event: Listed) -> set[ServiceName]:
        self.listed.add(event.kind)
        wanted = {(one.metadata.namespace or "", one.metadata.name) for one in event.objects}
        known: Iterable[tuple[str, str]] = {
            Kind.SERVICES: list(self._services),
            Kind.ENDPOINT_SLICES: list(self._slices),
            Kind.NODES: [("", name) for name in self.nodes],
        }[event.kind]
        touched: set[ServiceName] = set()
        for namespace, name in known:
            if (namespace, name) not in wanted:
                touched |= self._remove(event.kind, namespace, name, ())
        for one in event.objects:
            touched |= self._put(event.kind, one, ())
        self._note(event.kind, "", "", event.findings)
        return touched

    def _put(self, kind: Kind, one: Service | EndpointSlice | Node, findings: tuple[Finding, ...]) -> set[ServiceName]:
        key = (one.metadata.namespace or "", one.metadata.name)
        self._note(kind, *key, findings)
        if isinstance(one, Service):
            self._services[key] = one
            return {key}
        if isinstance(one, EndpointSlice):
            return self._put_slice(key, one)
        self.nodes[one.metadata.name] = one
        return set()

    def _put_slice(self, key: tuple[str, str], one: EndpointSlice) -> set[ServiceName]:
        touched = self._forget_slice(key)
        self._slices[key] = one
        owner = _owner(one)
        if owner:
            self._slices_of.setdefault(owner, {})[key[1]] = one
            touched.add(owner)
        return touched

    def _remove(self, kind: Kind, namespace: str, name: str, findings: tuple[Finding, ...]) -> set[ServiceName]:
        self._note(kind, namespace, name, findings)
        if kind is Kind.SERVICES:
            return {(namespace, name)} if self._services.pop((namespace, name), None) else set()
        if kind is Kind.ENDPOINT_SLICES:
            return self._forget_slice((namespace, name))
        self.nodes.pop(name, None)
        return set()

    def _forget_slice(self, key: tuple[str, str]) -> set[ServiceName]:
        old = self._slices.pop(key, None)
        owner = _owner(old) if old else None
        if owner is None:
            return set()
        remaining = self._slices_of[owner]
        del remaining[key[1]]
        if not remaining:
            del self._slices_of[owner]
        return {owner}

    def _note(self, kind: Kind, namespace: str, name: str, findings: tuple[Finding, ...]) -> None:
        if findings:
            self._findings[(kind, namespace, name)] = findings
        else:
            self._findings.pop((kind, namespace, name), None)


def _owner(endpoint_slice: EndpointSlice) -> ServiceName | None:
    name = (endpoint_slice.metadata.labels or {}).get(SERVICE_NAME_LABEL)
    return (endpoint_slice.metadata.namespace or "", name) if name else None


def service_states(store: ObjectStore, name: ServiceName, family: Family, node_name: str) -> States:
    """What one Service and its slices mean for *family*; empty if there are no service ports."""
    service = store.service(name)
    ports = service_ports(service, family) if service else ()
    if not ports:
        return ()
    endpoints = endpoints_by_port(store.slices(name), family, node_name)
    states = (
        ServiceState(port, endpoints.get((port.namespace, port.name, port.port_name, port.protocol), ()))
        for port in ports
    )
    return tuple(sorted(states, key=lambda state: (state.service_port.port_name, state.service_port.protocol)))


class Pending(msgspec.Struct, frozen=True):
    """
    What has to be programmed.

    Attributes:
        changes: For each dirty Service what it means now; empty for one that is gone.
        oldest_s: When the oldest of the changes arrived, in seconds of the caller's clock; None if there is none.
        trigger_times_s: Unix times at which endpoint changes happened in the cluster.
    """

    changes: Mapping[ServiceName, States]
    oldest_s: float | None
    trigger_times_s: tuple[float, ...] = ()


class StateTracker:
    """
    What the objects mean for one family, and what of it is not yet in the kernel.

    Attributes:
        states: By Service; Services without a service port of this family are not in it.
        skipped: Number of events that changed nothing of meaning.
    """

    def __init__(self, family: Family, node_name: str) -> None:
        self.family = family
        self.node_name = node_name
        self.states: dict[ServiceName, States] = {}
        self.skipped = 0
        self._dirty: dict[ServiceName, float] = {}
        self._triggers: dict[ServiceName, list[float]] = {}

    def refresh(self, store: ObjectStore, names: Iterable[ServiceName], *, now_s: float) -> int:
        """
        Look again at Services that an event touched.

        Args:
            store: Has taken in the event.
            names: From `ObjectStore.apply`.
            now_s: Time of the event, by the caller's clock.

        Returns:
            How many of them mean something else now.
        """
        changed = 0
        for name in names:
            states = service_states(store, name, self.family, self.node_name)
            if states == self.states.get(name, ()):
                self.skipped += 1
                continue
            changed += 1
            self._set(name, states)
            self._dirty.setdefault(name, now_s)
        return changed

    def _set(self, name: ServiceName, states: States) -> None:
        if states:
            self.states[name] = states
        else:
            self.states.pop(name, None)

    def note_trigger(self, endpoint_slice: EndpointSlice, *, since_unix_s: float) -> None:
        """Remember when the cluster caused a change of this slice, if it says so and that was after *since_unix_s*."""
        owner = _owner(endpoint_slice)
        time_s = _trigger_time_s(endpoint_slice)
        if owner in self._dirty and time_s is not None and time_s > since_unix_s:
            known = self._triggers.setdefault(owner, [])
            if len(known) < _MOST_TRIGGERS:
                known.append(time_s)

    @property
    def dirty_count(self) -> int:
        """Services that are not yet in the kernel as they are now."""
        return len(self._dirty)

    def pending(self) -> Pending:
        """What is not yet in the kernel; changes nothing."""
        triggers = tuple(time_s for name in self._dirty for time_s in self._triggers.get(name, ()))
        return Pending(
            {name: self.states.get(name, ()) for name in self._dirty},
            min(self._dirty.values(), default=None),
            triggers,
        )

    def commit(self, pending: Pending) -> None:
        """Forget *pending*, which is in the kernel now, but for what changed again meanwhile."""
        written = frozenset(pending.trigger_times_s)
        for name, states in pending.changes.items():
            if self.states.get(name, ()) == states:
                self._dirty.pop(name, None)
            left = [time_s for time_s in self._triggers.pop(name, ()) if time_s not in written]
            if left and name in self._dirty:
                self._triggers[name] = left

    def touch(self, names: Iterable[ServiceName], *, now_s: float) -> None:
        """Make Services dirty though they mean what they meant."""
        for name in names:
            self._dirty.setdefault(name, now_s)


def _trigger_time_s(endpoint_slice: EndpointSlice) -> float | None:
    text = (endpoint_slice.metadata.annotations or {}).get(TRIGGER_TIME_ANNOTATION)
    if not text:
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
