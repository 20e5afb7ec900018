"""
A source that watches a test API server, what it has told so far, and a clock that moves only when somebody waits.

::

    with ApiServer() as server:
        async with SourceRun(ClusterConnection(master=server.url, qps=-1)) as run:
            server.put(service("web"))
            await run.until(lambda: run.names(Kind.SERVICES) == ["web"])
"""

import asyncio
import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import Self

from kproxy_ipt.objects.events import ApiObject, Contact, Event, Gone, Kind, Listed, Put, Trouble
from kproxy_ipt.sources.kind_watch import Pace
from kproxy_ipt.sources.kubeconfig import ClusterConnection
from kproxy_ipt.sources.watch import ClusterSource

_POLL_S = 0.002


async def come_true(fact: Callable[[], bool], limit_s: float = 30.0) -> bool:
    """Wait until *fact* is true; False if it is not in time."""
    for _ in range(int(limit_s / _POLL_S)):
        if fact():
            return True
        await asyncio.sleep(_POLL_S)
    return False


class StillTime:
    """
    A clock that stands still until somebody sleeps; sleeping takes no time.

    Attributes:
        now: Seconds.
        waits: All sleeps so far, in seconds.
    """

    def __init__(self) -> None:
        self.now = 1000.0
        self.waits: list[float] = []

    def clock(self) -> float:
        """The time."""
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.waits.append(seconds)
        self.now += seconds
        await asyncio.sleep(_POLL_S)

    def pace(self, *, silence_s: float = 90.0) -> Pace:
        """For a source; chance always says 0."""
        return Pace(clock=self.clock, sleep=self.sleep, random=lambda: 0.0, silence_s=silence_s)


class SourceRun:
    """
    A source at work from entry to exit.

    Attributes:
        time: Its clock.
        source: The source itself.
        events: All that it has told, in order.
        objects: What there is according to these events, by kind, namespace and name.
    """

    def __init__(self, connection: ClusterConnection, *, node_name: str = "node1", silence_s: float = 90.0) -> None:
        self.time = StillTime()
        self.source = ClusterSource(connection, node_name, pace=self.time.pace(silence_s=silence_s))
        self.events: list[Event] = []
        self.objects: dict[Kind, dict[tuple[str, str], ApiObject]] = {kind: {} for kind in Kind}
        self._task: asyncio.Task[None] | None = None

    def names(self, kind: Kind) -> list[str]:
        """Names of the objects of one kind, sorted."""
        return sorted(name for _, name in self.objects[kind])

    def lists(self, kind: Kind) -> int:
        """How often a complete list was told."""
        return sum(isinstance(event, Listed) and event.kind is kind for event in self.events)

    def troubles(self, kind: Kind) -> list[str]:
        """What went wrong, in order."""
        return [event.message for event in self.events if isinstance(event, Trouble) and event.kind is kind]

    def contacts(self, kind: Kind) -> int:
        """How often the source said that it is alive."""
        return sum(isinstance(event, Contact) and event.kind is kind for event in self.events)

    async def until(self, fact: Callable[[], bool], limit_s: float = 30.0) -> None:
        """Wait for *fact*; AssertionError with all events if it does not come true, or if the source has ended."""
        if self._task is None:
            raise AssertionError("the source has not been started")
        task = self._task
        if not await come_true(lambda: fact() or task.done(), limit_s):
            raise AssertionError(f"this is all that was told: {self.events}")
        if not fact():
            await task

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self.source.run(self._take))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def _take(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, Listed):
            self.objects[event.kind] = {_key(found): found for found in event.objects}
        elif isinstance(event, Put):
            self.objects[event.kind][_key(event.object)] = event.object
        elif isinstance(event, Gone):
            self.objects[event.kind].pop((event.namespace, event.name), None)


def _key(api_object: ApiObject) -> tuple[str, str]:
    return api_object.metadata.namespace or "", api_object.metadata.name
