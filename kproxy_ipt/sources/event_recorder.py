"""
Events in the cluster: what the proxy wants people to read with `kubectl get events`.

Recording is a courtesy: it never blocks, never raises, and gives way. The queue is bounded, the same event about the
same object is sent once in ten minutes, all others at a bounded rate, and what the server does not take is dropped and
told to the log.

Source: client-go `tools/events` (names, length limits); kube-proxy v1.36 for controller, instance and reasons.
"""

import asyncio
import random as random_module
import time
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from enum import StrEnum
from http import HTTPStatus

import msgspec

from kproxy_ipt.errors import SourceError
from kproxy_ipt.sources.api_session import ApiSession
from kproxy_ipt.sources.backoff import Backoff
from kproxy_ipt.sources.paging import Answer, status_of
from kproxy_ipt.sources.request_rate import RequestRate

CONTROLLER = "kube-proxy"
SAME_EVENT_S = 600.0
MAX_QUEUED = 100
MAX_ATTEMPTS = 5
MAX_NOTE = 1024
"""Bytes; the API server refuses longer ones."""
QPS = 1.0
BURST = 25

_FIRST_SERVER_ERROR = 500
_DEFAULT_NAMESPACE = "default"


class EventType(StrEnum):
    """Whether somebody should look."""

    NORMAL = "Normal"
    WARNING = "Warning"


class ObjectReference(msgspec.Struct, frozen=True, kw_only=True):
    """The object that an event is about; namespace "" for a Node, whose events go to `default`."""

    kind: str
    name: str
    namespace: str = ""
    api_version: str = "v1"
    uid: str = ""


class EventNote(msgspec.Struct, frozen=True, kw_only=True):
    """
    One event.

    Attributes:
        regarding: What it is about.
        reason: One word in upper camel case: why.
        action: One word in upper camel case: what was done.
        note: A sentence for people; cut at 1024 bytes.
        type: Normal or Warning.
    """

    regarding: ObjectReference
    reason: str
    action: str
    note: str
    type: EventType = EventType.NORMAL


def node_reference(node_name: str) -> ObjectReference:
    """The own Node; its name stands for its uid, as with kube-proxy."""
    return ObjectReference(kind="Node", name=node_name, uid=node_name)


class EventRecorder:
    """
    Writes events to the API server.

    Args:
        session: Sends requests.
        instance: Name of the own node.
        failed: Told about events that could not be written.
        clock: Seconds, never going back.
        now: Time of day.
        sleep: Waits so many seconds.
        random: A number from 0 up to, but not including, 1.

    Attributes:
        written: Number of events that the server took.
        dropped: Number of events that were given up, or found no place in the queue.
    """

    def __init__(
        self,
        session: ApiSession,
        instance: str,
        *,
        failed: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(tz=UTC),
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        random: Callable[[], float] = random_module.random,
    ) -> None:
        self.written = 0
        self.dropped = 0
        self._session = session
        self._instance = instance
        self._failed = failed
        self._clock = clock
        self._now = now
        self._sleep = sleep
        self._rate = RequestRate(QPS, BURST, clock)
        self._backoff = Backoff(clock, random)
        self._queued: deque[tuple[EventNote, datetime]] = deque()
        self._recorded_at: dict[EventNote, float] = {}
        self._filled = asyncio.Event()

    def record(self, event: EventNote) -> None:
        """Queue an event; to be called in the loop. Repetitions, and events beyond the queue, are dropped."""
        now = self._clock()
        self._recorded_at = {known: at for known, at in self._recorded_at.items() if now - at < SAME_EVENT_S}
        if event in self._recorded_at:
            return
        if len(self._queued) >= MAX_QUEUED:
            self.dropped += 1
            return
        self._recorded_at[event] = now
        self._queued.append((event, self._now()))
        self._filled.set()

    async def run(self) -> None:
        """Write what is queued until cancelled."""
        while True:
            while self._queued:
                event, at = self._queued.popleft()
                await self._sleep(self._rate.reserve())
                await self._write(event, at)
            self._filled.clear()
            await self._filled.wait()

    async def _write(self, event: EventNote, at: datetime) -> None:
        """Write one event, in several attempts if need be."""
        namespace = event.regarding.namespace or _DEFAULT_NAMESPACE
        path = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"
        body = self._document(event, namespace, at)
        reason = ""
        for attempt in range(MAX_ATTEMPTS):
            if attempt:
                await self._sleep(self._backoff.next_s())
            try:
                answer = await self._session.fetch("POST", path, body=body)
            except SourceError as error:
                reason = str(error)
                continue
            if answer.status in (HTTPStatus.CREATED, HTTPStatus.CONFLICT):
                self.written += 1
                return
            reason = f"{answer.status}, {status_of(answer).message}"
            if not _is_passing(answer):
                break
        self.dropped += 1
        self._failed(f"event {event.reason} about {event.regarding.kind} {event.regarding.name} is lost: {reason}")

    def _document(self, event: EventNote, namespace: str, at: datetime) -> dict[str, object]:
        regarding = {
            "kind": event.regarding.kind,
            "apiVersion": event.regarding.api_version,
            "name": event.regarding.name,
            **({"namespace": event.regarding.namespace} if event.regarding.namespace else {}),
            **({"uid": event.regarding.uid} if event.regarding.uid else {}),
        }
        return {
            "kind": "Event",
            "apiVersion": "events.k8s.io/v1",
            "metadata": {"name": f"{event.regarding.name}.{_unix_ns(at):x}", "namespace": namespace},
            "eventTime": at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "reportingController": CONTROLLER,
            "reportingInstance": self._instance,
            "action": event.action,
            "reason": event.reason,
            "regarding": regarding,
            "note": event.note.encode()[:MAX_NOTE].decode("utf-8", "ignore"),
            "type": str(event.type),
        }


def _is_passing(answer: Answer) -> bool:
    """Whether another attempt may do better; credentials are loaded anew after a 401."""
    status = answer.status
    is_busy = status == 0 or status >= _FIRST_SERVER_ERROR
    return is_busy or status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.TOO_MANY_REQUESTS)


def _unix_ns(at: datetime) -> int:
    return int(at.timestamp() * 1_000_000) * 1000
