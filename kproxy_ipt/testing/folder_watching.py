"""What a source says, taken in as the daemon does, so that tests can wait for what follows from it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TypeAlias

from kproxy_ipt.objects.events import Event, Gone, Kind, Listed, Put, Trouble
from kproxy_ipt.objects.model import Service
from kproxy_ipt.sources.folder_watch import FolderSource

_WAIT_S = 60.0
_QUIET_S = 0.03


def service_yaml(name: str, port: int = 80) -> str:
    """A Service in namespace `shop`."""
    metadata = f"{{name: {name}, namespace: shop}}"
    return f"apiVersion: v1\nkind: Service\nmetadata: {metadata}\nspec: {{ports: [{{port: {port}}}]}}\n"


def services_yaml(*names: str) -> str:
    """A document for each Service."""
    return "---\n".join(service_yaml(name) for name in names)


class Heard:
    """What a source has said so far, and the Services that follow from it."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.services: dict[str, Service] = {}
        self._arrived = asyncio.Event()

    def deliver(self, event: Event) -> None:
        """Take one event in, as the tracker of the daemon does."""
        self.events.append(event)
        if isinstance(event, Listed) and event.kind is Kind.SERVICES:
            self.services = {value.metadata.name: value for value in event.objects if isinstance(value, Service)}
        if isinstance(event, Put) and isinstance(event.object, Service):
            self.services[event.object.metadata.name] = event.object
        if isinstance(event, Gone) and event.kind is Kind.SERVICES:
            self.services.pop(event.name, None)
        self._arrived.set()

    async def until(self, fact: Callable[[], bool]) -> None:
        """Wait until *fact* holds after some event."""
        async with asyncio.timeout(_WAIT_S):
            while not fact():
                self._arrived.clear()
                await self._arrived.wait()

    async def next(self) -> None:
        """Wait for the next event."""
        self._arrived.clear()
        await self._arrived.wait()

    async def names(self, *names: str) -> None:
        """Wait until these Services are known, and no others."""
        await self.until(lambda: sorted(self.services) == sorted(names))

    async def port(self, name: str, port: int) -> None:
        """Wait until a Service has this port."""
        await self.until(lambda: self.ports.get(name) == port)

    async def finding(self, words: str) -> None:
        """Wait until a finding holds these words."""
        await self.until(lambda: any(words in text for text in self.findings))

    @property
    def ports(self) -> dict[str, int]:
        """The first port of each Service."""
        return {name: (service.spec.ports or ())[0].port or 0 for name, service in self.services.items()}

    @property
    def findings(self) -> list[str]:
        """All findings as text."""
        return [str(finding) for event in self.events if not isinstance(event, Trouble) for finding in event.findings]

    @property
    def touched(self) -> set[str]:
        """Names of Services that were put or taken away."""
        put = {event.object.metadata.name for event in self.events if isinstance(event, Put)}
        return put | {event.name for event in self.events if isinstance(event, Gone)}


@asynccontextmanager
async def _watched(*paths: Path, contact_s: float = 30.0) -> AsyncIterator[Heard]:
    heard = Heard()
    source = FolderSource([str(path) for path in paths], quiet_s=_QUIET_S, contact_s=contact_s)
    task = asyncio.create_task(source.run(heard.deliver))
    try:
        yield heard
        assert not task.done()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


Scenario: TypeAlias = Callable[[Heard], Awaitable[None]]


def watch_paths(scenario: Scenario, *paths: Path, contact_s: float = 30.0) -> None:
    """
    Run *scenario* on a loop of its own beside a `FolderSource` of *paths*; it gets what the source says.

    Raises:
        TimeoutError: What the scenario waits for did not happen within a minute.
    """

    async def run() -> None:
        async with _watched(*paths, contact_s=contact_s) as heard:
            await scenario(heard)

    asyncio.run(run())
