"""Facts about trouble: whatever breaks, the source tells it, waits, and ends up with what the server has."""

import asyncio
import re
from collections.abc import Callable

import pytest

from kproxy_ipt.objects.events import Gone, Kind, Trouble
from kproxy_ipt.sources.kubeconfig import ClusterConnection
from kproxy_ipt.testing.api_faults import Fault
from kproxy_ipt.testing.api_server import ApiServer
from kproxy_ipt.testing.api_watch import StreamingLists
from kproxy_ipt.testing.api_watching import SourceRun
from kproxy_ipt.testing.objects import service

Break = Callable[[ApiServer], None]
HALF_A_LINE = b'{"type":"MODIFIED","object":{"kind":"Serv'
EXPIRED = (
    b'{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure",'
    b'"message":"too old resource version: 1 (9)","reason":"Expired","code":410}}'
)
BROKEN = EXPIRED.replace(b"410", b"500").replace(b"Expired", b"InternalError")
BACKWARDS = b'{"type":"BOOKMARK","object":{"kind":"Service","apiVersion":"v1","metadata":{"resourceVersion":"1"}}}'
NAMELESS = b'{"type":"MODIFIED","object":{"kind":"Service","apiVersion":"v1","metadata":{},"spec":{}}}'
POD = NAMELESS.replace(b'"Service"', b'"Pod"').replace(b'"metadata":{}', b'"metadata":{"name":"a","namespace":"b"}')
ODD = (
    b'{"type":"MODIFIED","object":{"kind":"Service","apiVersion":"v1","metadata":{"name":"web","namespace":"default",'
    b'"resourceVersion":"3"},"spec":{"ports":"many"}}}'
)


def watching(server: ApiServer, *, timeout_s: float = 5.0, silence_s: float = 90.0) -> SourceRun:
    """A source of *server*, as the node `node1`."""
    return SourceRun(ClusterConnection(master=server.url, qps=-1, timeout_s=timeout_s), silence_s=silence_s)


async def broken_and_recovered(server: ApiServer, break_it: Break, run: SourceRun) -> None:
    """List, break, change what the server has, and wait until the source knows it."""
    server.put(service("web"), service("old"))
    async with run:
        await run.until(lambda: run.names(Kind.SERVICES) == ["old", "web"] and server.watches() == 3)
        break_it(server)
        server.put(service("new"))
        server.delete("Service", "old")
        await run.until(lambda: run.names(Kind.SERVICES) == ["new", "web"])


def after_a_cut(fault: Fault, times: int = 1) -> Break:
    """Break the watch off, and let *fault* befall what is asked for next."""

    def break_it(server: ApiServer) -> None:
        server.schedule(fault, path="/services", times=times)
        server.cut_watches("/services")

    return break_it


def line(content: bytes) -> Break:
    """Send a line that no healthy server sends."""
    return lambda server: server.send_line(content, "/services")


def expire(server: ApiServer) -> None:
    """The history is compacted while no watch is open."""
    server.schedule(Fault.unavailable(), path="/services", times=2)
    server.cut_watches("/services")
    server.put(service("between"))
    server.delete("Service", "between")
    server.compact()


@pytest.mark.parametrize(
    ("break_it", "told"),
    [
        (lambda server: server.cut_watches("/services"), "the connection broke"),
        (lambda server: server.cut_watches("/services", after=HALF_A_LINE), "the connection broke"),
        (lambda server: server.end_watches("/services", after=HALF_A_LINE), "cut off within an event"),
        (after_a_cut(Fault.unavailable(), times=3), "503, <html>503</html>"),
        (after_a_cut(Fault.server_error(), times=3), "500, Internal error occurred: etcdserver: leader changed"),
        (after_a_cut(Fault.too_many_requests(3), times=6), "429, the server has received too many requests"),
        (after_a_cut(Fault.forbidden(), times=3), "403, user 'system:kube-proxy' of the option master may not list"),
        (after_a_cut(Fault.unauthorized(), times=3), "401, the credentials of the option master are not accepted"),
        (after_a_cut(Fault.answer(200, b"<html>log in</html>", "text/html"), times=3), "no ServiceList"),
        (after_a_cut(Fault.cut(10), times=3), "the connection broke"),
        (after_a_cut(Fault.trickle(0.0001)), "the connection broke"),
        (expire, "503"),
        (line(EXPIRED), None),
        (line(BROKEN), "watch services: 500, too old resource version"),
        (line(BACKWARDS), "version 1 after 3; listing anew"),
        (line(b"not JSON"), "a line that is no event .*; listing anew"),
        (line(b'["ADDED"]'), "a line that is no event .*; listing anew"),
        (line(b'{"type":"RENAMED","object":{}}'), 'an event of the unknown type "RENAMED"; listing anew'),
        (line(NAMELESS), "an object that is no Service with a name"),
        (line(POD), 'an object that is no Service with a name: kind "Pod"'),
        (line(BACKWARDS.replace(b'"1"', b"1")), "a bookmark without a version"),
    ],
)
def test_source_recovers(break_it: Break, told: str | None, api_server: ApiServer) -> None:
    """Each kind of trouble is told once or more, and costs nothing but time."""
    run = watching(api_server)

    asyncio.run(broken_and_recovered(api_server, break_it, run))
    troubles = run.troubles(Kind.SERVICES)

    if told is None:
        assert troubles == []
    else:
        assert any(re.search(told, trouble) for trouble in troubles), troubles
    assert not run.troubles(Kind.ENDPOINT_SLICES)
    assert run.time.waits
    assert min(run.time.waits) >= 0.5


def test_line_without_end_is_left(api_server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream without line breaks must not fill the memory: it is given up, and listed anew."""
    monkeypatch.setattr("kproxy_ipt.sources.watch_stream.MAX_LINE", 2000)
    run = watching(api_server)

    asyncio.run(broken_and_recovered(api_server, lambda server: server.end_watches(after=b"x" * 10**6), run))

    assert any("a line of more than 2000 bytes; listing anew" in trouble for trouble in run.troubles(Kind.SERVICES))


def test_busy_server_is_asked_for_its_pages_again(api_server: ApiServer) -> None:
    """A page that is refused for now costs the time that the server asks for, not the list."""
    api_server.streaming_lists = StreamingLists.REFUSED
    api_server.put(service("web"))
    api_server.schedule(Fault.too_many_requests(retry_after_s=3), path="/services", watch=False)

    async def scenario() -> SourceRun:
        async with watching(api_server) as run:
            await run.until(lambda: run.names(Kind.SERVICES) == ["web"])
            return run

    run = asyncio.run(scenario())

    assert 3.0 in run.time.waits
    assert run.troubles(Kind.SERVICES) == []


def test_list_without_a_version_is_not_followed(api_server: ApiServer) -> None:
    """A watch could not go on from it: that is told, and the list is asked for again."""
    api_server.streaming_lists = StreamingLists.REFUSED
    api_server.put(service("web"))
    nameless = b'{"kind":"ServiceList","apiVersion":"v1","metadata":{},"items":[]}'
    api_server.schedule(Fault.answer(200, nameless), path="/services", watch=False)

    async def scenario() -> SourceRun:
        async with watching(api_server) as run:
            await run.until(lambda: run.names(Kind.SERVICES) == ["web"])
            return run

    run = asyncio.run(scenario())

    assert any("the list carries no resourceVersion" in trouble for trouble in run.troubles(Kind.SERVICES))
    assert run.lists(Kind.SERVICES) == 1


@pytest.mark.parametrize("content", [HALF_A_LINE, b""])
def test_cut_stream_is_resumed_without_a_list(content: bytes, api_server: ApiServer) -> None:
    """What was not complete is sent again: the version had not moved on."""
    run = watching(api_server)

    asyncio.run(broken_and_recovered(api_server, lambda server: server.cut_watches(after=content), run))

    assert run.lists(Kind.SERVICES) == 1


def test_expired_version_leads_to_a_new_list(api_server: ApiServer) -> None:
    """After 410 the deletion that was missed shows in the list."""
    run = watching(api_server)

    asyncio.run(broken_and_recovered(api_server, expire, run))

    assert run.lists(Kind.SERVICES) == 2


def test_half_open_stream_is_left(api_server: ApiServer) -> None:
    """C105: a stream that falls silent, where bookmarks used to come, is given up and resumed."""
    api_server.bookmark_interval_s = 0.02
    run = watching(api_server, silence_s=0.2)

    def freeze(server: ApiServer) -> None:
        server.freeze_watches("/services")

    asyncio.run(broken_and_recovered(api_server, freeze, run))

    assert "watch services: silent for 0 s" in run.troubles(Kind.SERVICES)[0]
    assert run.lists(Kind.SERVICES) == 1


@pytest.mark.parametrize("fault", [Fault.hang(), Fault.half_open(), Fault.half_open(60)], ids=["hang", "head", "body"])
def test_server_that_never_answers_is_left(fault: Fault, api_server: ApiServer) -> None:
    """C105: accepted, and no answer, or not all of it: the next attempt comes after the time limit."""
    run = watching(api_server, timeout_s=0.2)

    asyncio.run(broken_and_recovered(api_server, after_a_cut(fault, times=2), run))

    assert len(run.troubles(Kind.SERVICES)) > 1


def test_slow_stream_is_read_to_its_end(api_server: ApiServer) -> None:
    """Byte by byte the objects arrive as well."""
    api_server.put(service("web"))
    api_server.schedule(Fault.trickle(0.0001), path="/services")

    async def scenario() -> list[str]:
        async with watching(api_server) as run:
            await run.until(lambda: run.names(Kind.SERVICES) == ["web"])
            return run.troubles(Kind.SERVICES)

    assert asyncio.run(scenario()) == []


def test_restarted_server_is_found_again(api_server: ApiServer) -> None:
    """While it is down the objects stay; afterwards the watch goes on where it was."""

    def restart(server: ApiServer) -> None:
        server.stop()
        server.put(service("meanwhile"))
        server.delete("Service", "meanwhile")
        server.start()

    run = watching(api_server)

    asyncio.run(broken_and_recovered(api_server, restart, run))

    assert run.lists(Kind.SERVICES) == 1
    assert not any(isinstance(event, Gone) and event.name == "web" for event in run.events)


def test_server_that_lost_its_state_is_listed_anew(api_server: ApiServer) -> None:
    """A version of the future brings no event and no error, so the source asks for the current one after trouble."""
    api_server.put(*(service(f"web-{number}") for number in range(5)))

    async def scenario() -> int:
        async with watching(api_server) as run:
            await run.until(lambda: len(run.names(Kind.SERVICES)) == 5)
            api_server.stop()
            api_server.lose_state()
            api_server.put(service("fresh"))
            api_server.start()
            await run.until(lambda: run.names(Kind.SERVICES) == ["fresh"])
            return run.lists(Kind.SERVICES)

    assert asyncio.run(scenario()) == 2


def test_lost_state_behind_a_stream_without_a_word_is_noticed(api_server: ApiServer) -> None:
    """Even if no connection broke: a watch that brought nothing at all is followed by a question for the version."""
    api_server.put(*(service(f"web-{number}") for number in range(5)))

    async def scenario() -> int:
        async with watching(api_server) as run:
            await run.until(lambda: len(run.names(Kind.SERVICES)) == 5 and api_server.watches() == 3)
            api_server.lose_state()
            api_server.put(service("fresh"))
            for _ in range(2):
                watches = run.source.counts[Kind.SERVICES].watches
                run.time.now += 300
                api_server.end_watches("/services")
                await run.until(lambda: run.source.counts[Kind.SERVICES].watches > watches)  # noqa: B023
                await run.until(lambda: api_server.watches("/services") == 1)
            await run.until(lambda: run.names(Kind.SERVICES) == ["fresh"])
            return len(run.troubles(Kind.SERVICES))

    assert asyncio.run(scenario()) == 0


def test_waits_grow_while_the_server_is_down(api_server: ApiServer) -> None:
    """0.8 s, doubled each time, 15 to 30 s in the end; what is told is what is waited."""

    async def scenario() -> list[float]:
        async with watching(api_server) as run:
            await run.until(lambda: api_server.watches() == 3)
            api_server.stop()
            await run.until(lambda: len(run.troubles(Kind.NODES)) > 7)
        return [event.retry_in_s for event in run.events if isinstance(event, Trouble) and event.kind is Kind.NODES]

    assert asyncio.run(scenario())[:8] == [0.8, 1.6, 3.2, 6.4, 12.8, 15.0, 15.0, 15.0]


def test_watch_that_ends_each_moment_is_not_hammered(api_server: ApiServer) -> None:
    """C105: a server that closes each watch at once is asked less than every other second."""
    api_server.watch_limit_s = 0.0

    async def scenario() -> SourceRun:
        async with watching(api_server) as run:
            await run.until(lambda: len(run.troubles(Kind.SERVICES)) > 8)
        return run

    run = asyncio.run(scenario())
    asked = [request for request in api_server.requests if request.path.endswith("/services")]

    assert re.search(r"the server ended it after \d\.\d s$", run.troubles(Kind.SERVICES)[0])
    assert len(asked) < (run.time.now - 1000.0) / 2
    assert run.lists(Kind.SERVICES) == 1


def test_patience_that_the_server_asks_for_is_kept(api_server: ApiServer) -> None:
    """Retry-After counts where it is longer than our own wait, up to a minute."""
    api_server.schedule(Fault.too_many_requests(20), path="/services", watch=True)
    api_server.schedule(Fault.too_many_requests(600), path="/nodes", watch=True)

    async def scenario() -> dict[Kind, float]:
        async with watching(api_server) as run:
            await run.until(lambda: all(run.lists(kind) for kind in Kind))
        return {event.kind: event.retry_in_s for event in run.events if isinstance(event, Trouble)}

    assert asyncio.run(scenario()) == {Kind.SERVICES: 20.0, Kind.NODES: 60.0}


def test_object_that_makes_no_sense_is_gone_until_it_does(api_server: ApiServer) -> None:
    """C104: the bad version is told with its name and costs one Service; the next good one brings it back."""
    api_server.put(service("web"), service("other"))

    async def scenario() -> Gone:
        async with watching(api_server) as run:
            await run.until(lambda: len(run.names(Kind.SERVICES)) == 2 and api_server.watches() == 3)
            api_server.send_line(ODD, "/services")
            await run.until(lambda: run.names(Kind.SERVICES) == ["other"])
            told = next(event for event in run.events if isinstance(event, Gone))
            api_server.put(service("web"))
            await run.until(lambda: run.names(Kind.SERVICES) == ["other", "web"])
            assert (run.lists(Kind.SERVICES), run.troubles(Kind.SERVICES)) == (1, [])
            return told

    told = asyncio.run(scenario())

    assert [(finding.object, finding.field) for finding in told.findings] == [("Service default/web", "spec.ports")]


@pytest.mark.parametrize("how", list(StreamingLists))
def test_object_that_makes_no_sense_does_not_spoil_the_list(how: StreamingLists, api_server: ApiServer) -> None:
    """C104: in a list too it is set aside by itself, however the list comes."""
    odd = {"kind": "Service", "metadata": {"name": "odd", "namespace": "default"}, "spec": {"ports": "many"}}
    api_server.put(service("web"), {"apiVersion": "v1", **odd})
    api_server.streaming_lists = how

    async def scenario() -> SourceRun:
        async with watching(api_server, timeout_s=1.0) as run:
            await run.until(lambda: run.lists(Kind.SERVICES) == 1)
        return run

    run = asyncio.run(scenario())
    findings = [finding.object for event in run.events for finding in getattr(event, "findings", ())]

    assert run.names(Kind.SERVICES) == ["web"]
    assert findings == ["Service default/odd"]


def test_line_that_spoils_a_streaming_list_leads_to_pages(api_server: ApiServer) -> None:
    """Pages can tell which object it is; the stream cannot, and would never be complete."""
    api_server.put(service("web"))
    api_server.schedule(Fault.line(b"nonsense\n"), path="/services")

    async def scenario() -> list[str]:
        async with watching(api_server) as run:
            await run.until(lambda: run.names(Kind.SERVICES) == ["web"])
            return run.troubles(Kind.SERVICES)

    (trouble,) = asyncio.run(scenario())
    assert trouble.endswith("; listing anew")
