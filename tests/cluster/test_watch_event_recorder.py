"""Facts about events in the cluster: what is written, and that nobody ever has to wait or fail for them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime

import msgspec
import pytest

from kproxy_ipt.sources.api_session import ApiSession
from kproxy_ipt.sources.event_recorder import (
    MAX_QUEUED,
    EventNote,
    EventRecorder,
    EventType,
    ObjectReference,
    node_reference,
)
from kproxy_ipt.sources.kubeconfig import ClusterConnection
from kproxy_ipt.testing.api_faults import Fault
from kproxy_ipt.testing.api_server import ApiServer
from kproxy_ipt.testing.api_watching import StillTime, come_true

STARTING = EventNote(regarding=node_reference("node1"), reason="Starting", action="StartKubeProxy", note="")
SET_ASIDE = EventNote(
    regarding=ObjectReference(kind="Service", name="web", namespace="shop"),
    reason="ServiceSetAside",
    action="Sync",
    note="the kernel refused it",
    type=EventType.WARNING,
)


class Recording:
    """A recorder at work, its clock, and what it told about failures."""

    def __init__(self, server: ApiServer) -> None:
        self.time = StillTime()
        self.failures: list[str] = []
        self.session = ApiSession(
            ClusterConnection(master=server.url, qps=-1, timeout_s=2.0), clock=self.time.clock, sleep=self.time.sleep
        )
        self.recorder = EventRecorder(
            self.session,
            "node1",
            failed=self.failures.append,
            clock=self.time.clock,
            now=lambda: datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
            sleep=self.time.sleep,
            random=lambda: 0.0,
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[EventRecorder]:
        """From entry to exit the recorder writes."""
        await self.session.open()
        task = asyncio.create_task(self.recorder.run())
        try:
            yield self.recorder
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await self.session.close()

    def until(self, fact: Callable[[EventRecorder], bool], *events: EventNote) -> None:
        """Record *events* and wait for *fact*."""

        async def scenario() -> None:
            async with self.running() as recorder:
                for event in events:
                    recorder.record(event)
                assert await come_true(lambda: fact(recorder))

        asyncio.run(scenario())


def test_event_about_the_node_is_that_of_kube_proxy(api_server: ApiServer) -> None:
    """Controller, instance, namespace `default`, a name of node and time."""
    Recording(api_server).until(lambda recorder: recorder.written == 1, STARTING)
    request = api_server.requests[0]

    assert (request.method, request.path) == ("POST", "/apis/events.k8s.io/v1/namespaces/default/events")
    assert msgspec.json.decode(request.body) == {
        "kind": "Event",
        "apiVersion": "events.k8s.io/v1",
        "metadata": {"name": f"node1.{1767323045000006000:x}", "namespace": "default"},
        "eventTime": "2026-01-02T03:04:05.000006Z",
        "reportingController": "kube-proxy",
        "reportingInstance": "node1",
        "action": "StartKubeProxy",
        "reason": "Starting",
        "regarding": {"kind": "Node", "apiVersion": "v1", "name": "node1", "uid": "node1"},
        "note": "",
        "type": "Normal",
    }


def test_event_about_a_service_stands_in_its_namespace(api_server: ApiServer) -> None:
    """There `kubectl describe` finds it."""
    Recording(api_server).until(lambda recorder: recorder.written == 1, SET_ASIDE)

    assert api_server.requests[0].path.endswith("/namespaces/shop/events")


def test_same_event_is_written_once_in_ten_minutes(api_server: ApiServer) -> None:
    """A failure that repeats does not flood the cluster."""
    recording = Recording(api_server)

    async def scenario() -> None:
        async with recording.running() as recorder:
            for passing_s in (0.0, 1.0, 598.0, 2.0):
                recording.time.now += passing_s
                recorder.record(SET_ASIDE)
            recorder.record(STARTING)
            assert await come_true(lambda: recorder.written == 3)

    asyncio.run(scenario())

    assert recording.recorder.dropped == 0


def test_long_note_is_cut_between_characters(api_server: ApiServer) -> None:
    """The server takes 1024 bytes."""
    Recording(api_server).until(
        lambda recorder: recorder.written == 1, msgspec.structs.replace(SET_ASIDE, note="ä" * 600 + "x")
    )

    assert len(msgspec.json.decode(api_server.requests[0].body)["note"]) == 512


@pytest.mark.parametrize(
    "fault",
    [Fault.unavailable(), Fault.too_many_requests(), Fault.cut(0), Fault.unauthorized(), Fault.server_error()],
    ids=["503", "429", "cut", "401", "500"],
)
def test_passing_failure_is_overcome(fault: Fault, api_server: ApiServer) -> None:
    """Trouble that passes costs some seconds."""
    api_server.schedule(fault, times=2)
    recording = Recording(api_server)

    recording.until(lambda recorder: recorder.written == 1, STARTING)

    assert recording.failures == []
    assert [wait for wait in recording.time.waits if wait] == [0.8, 1.6]


@pytest.mark.parametrize(
    ("fault", "reason", "requests"),
    [
        (Fault.forbidden("events", "events.k8s.io"), "403, events is forbidden", 1),
        (Fault.unavailable(), "503", 5),
        (Fault.answer(404, b"{}"), "404", 1),
    ],
    ids=["403", "503", "404"],
)
def test_lasting_failure_is_told_and_the_next_event_written(
    fault: Fault, reason: str, requests: int, api_server: ApiServer
) -> None:
    """Nothing is raised; the log says which event is lost and why."""
    api_server.schedule(fault, times=requests)
    recording = Recording(api_server)

    recording.until(lambda recorder: recorder.written == 1, SET_ASIDE, STARTING)

    assert recording.recorder.dropped == 1
    assert recording.failures[0].startswith(f"event ServiceSetAside about Service web is lost: {reason}")
    assert len(api_server.requests) == requests + 1


def test_unreachable_server_is_told(api_server: ApiServer) -> None:
    """No server, no event, no exception."""
    recording = Recording(api_server)
    api_server.stop()

    recording.until(lambda recorder: recorder.dropped == 1, STARTING)

    assert "connection refused" in recording.failures[0]


def test_event_that_is_there_already_is_written(api_server: ApiServer) -> None:
    """An answer that got lost does not make a second event."""
    recording = Recording(api_server)
    again = msgspec.structs.replace(STARTING, note="again")

    recording.until(lambda recorder: recorder.written == 2, STARTING, again)

    assert recording.failures == []


def test_queue_is_bounded(api_server: ApiServer) -> None:
    """While nobody writes, memory does not grow."""
    recorder = Recording(api_server).recorder
    for number in range(MAX_QUEUED + 5):
        recorder.record(msgspec.structs.replace(SET_ASIDE, note=str(number)))

    assert recorder.dropped == 5


def test_events_are_written_at_a_bounded_rate(api_server: ApiServer) -> None:
    """After the first 25 one a second."""
    recording = Recording(api_server)
    events = [msgspec.structs.replace(SET_ASIDE, note=str(number)) for number in range(30)]

    recording.until(lambda recorder: recorder.written == 30, *events)

    assert sum(recording.time.waits) >= 5.0
