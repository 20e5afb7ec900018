"""
Events of the sources become state: what the objects mean for each family, and what of it is not yet in the kernel.

Runs on the event loop. Sources deliver without waiting; one task takes the events in, in order and in small pieces, so
that ten thousand objects at once keep nobody else from running.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.api_status import ApiStatus
from kproxy_ipt.daemon.log import Log
from kproxy_ipt.daemon.metrics import Metrics
from kproxy_ipt.errors import Finding, Severity
from kproxy_ipt.objects.conflicts import service_conflicts
from kproxy_ipt.objects.events import Contact, Event, Gone, Kind, Listed, Put, Trouble
from kproxy_ipt.objects.model import EndpointSlice, Node
from kproxy_ipt.state.tracker import ObjectStore, ServiceName, StateTracker

_NAMES_AT_ONCE = 200


class Inputs:
    """
    The objects, and a tracker for each family.

    Attributes:
        store: All objects.
        trackers: By family.
        ready: Set once complete lists of all kinds are known: before that nothing may be written.
    """

    def __init__(
        self,
        families: Iterable[Family],
        node_name: str,
        *,
        clock: Callable[[], float],
        started_unix_s: float,
        metrics: Metrics,
        api_status: ApiStatus,
        log: Log,
        on_dirty: Callable[[Family], None],
        on_node: Callable[[Node | None], None],
    ) -> None:
        """
        Know nothing.

        Args:
            families: Those that are served.
            node_name: Own node name.
            clock: Monotonic seconds.
            started_unix_s: Changes that the cluster made before count for no latency.
            metrics: Counts events.
            api_status: Remembers contacts.
            log: Told about findings, once each.
            on_dirty: Called when a family has something to write.
            on_node: Called with the own Node whenever it was delivered, None when it is not there.
        """
        self.store = ObjectStore()
        self.trackers: Mapping[Family, StateTracker] = {family: StateTracker(family, node_name) for family in families}
        self.ready = asyncio.Event()
        self._node_name = node_name
        self._clock = clock
        self._started_unix_s = started_unix_s
        self._metrics = metrics
        self._api_status = api_status
        self._log = log
        self._on_dirty = on_dirty
        self._on_node = on_node
        self._queue: asyncio.Queue[Event] = asyncio.Queue()
        self._told: set[Finding] = set()

    def deliver(self, event: Event) -> None:
        """Take an event from a source; returns at once."""
        self._api_status.observe(event)
        if isinstance(event, Listed | Put | Gone):
            self._queue.put_nowait(event)
        elif isinstance(event, Contact):
            self._tell(event.findings)
        elif isinstance(event, Trouble):
            self._log.warning(
                "source", kind=str(event.kind), trouble=event.message, retry_in_s=round(event.retry_in_s, 1)
            )

    async def follow(self) -> None:
        """Take events in until cancelled."""
        while True:
            event = await self._queue.get()
            if isinstance(event, Listed | Put | Gone):
                await self._take(event)
            self._queue.task_done()
            await asyncio.sleep(0)

    def service_uid(self, name: ServiceName) -> str:
        """The uid of a Service, "" if it has none or is gone."""
        service = self.store.service(name)
        return (service.metadata.uid if service else "") or ""

    async def settled(self) -> None:
        """Wait until everything that was delivered is taken in; `follow` runs."""
        await self._queue.join()

    async def _take(self, event: Listed | Put | Gone) -> None:
        self._count(event)
        touched = self.store.apply(event)
        for names in _pieces(touched):
            self._count_pending(event.kind, self._refresh(names))
            await asyncio.sleep(0)
        if isinstance(event, Put) and isinstance(event.object, EndpointSlice):
            for tracker in self.trackers.values():
                tracker.note_trigger(event.object, since_unix_s=self._started_unix_s)
        if event.kind is Kind.NODES:
            self._on_node(self.store.nodes.get(self._node_name))
        self._tell_findings(event)
        if len(self.store.listed) == len(Kind) and not self.ready.is_set():
            self.ready.set()
            for family in self.trackers:
                self._on_dirty(family)

    def _refresh(self, names: Iterable[ServiceName]) -> int:
        """How many of them mean something else now, in the family where it is most of them."""
        known = list(names)
        most = 0
        for family, tracker in self.trackers.items():
            changed = tracker.refresh(self.store, known, now_s=self._clock())
            most = max(most, changed)
            if changed and self.ready.is_set():
                self._on_dirty(family)
        return most

    def _count_pending(self, kind: Kind, changed: int) -> None:
        if kind is Kind.SERVICES:
            self._metrics.changes_pending(services=changed)
        elif kind is Kind.ENDPOINT_SLICES:
            self._metrics.changes_pending(endpoint_slices=changed)

    def _count(self, event: Listed | Put | Gone) -> None:
        number = len(event.objects) if isinstance(event, Listed) else 1
        if event.kind is Kind.SERVICES:
            self._metrics.changes_seen(services=number * len(self.trackers))
        elif event.kind is Kind.ENDPOINT_SLICES:
            self._metrics.changes_seen(endpoint_slices=number)
        if isinstance(event, Listed) and event.kind in self.store.listed:
            self._metrics.watch_restarted(str(event.kind))

    def _tell_findings(self, event: Listed | Put | Gone) -> None:
        """Say each finding once, as long as it stands; conflicts are found by looking at all Services."""
        findings = [*event.findings]
        if event.kind is Kind.SERVICES and isinstance(event, Listed):
            findings.extend(service_conflicts(self.store.services()))
        self._tell(findings)
        standing = self.store.findings()
        if len(self._told) > 4 * len(standing) + 1000:
            self._told = set(standing)
        rejected = sum(finding.severity is Severity.REJECTED for finding in standing)
        self._metrics.rejected("all", rejected)

    def _tell(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            if finding not in self._told:
                self._told.add(finding)
                self._log.warning("object", finding=str(finding), severity=str(finding.severity))


def _pieces(names: Iterable[ServiceName]) -> Iterator[list[ServiceName]]:
    remaining = iter(names)
    while piece := list(islice(remaining, _NAMES_AT_ONCE)):
        yield piece
