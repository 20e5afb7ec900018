"""Facts about the source that watches: what it asks for, and what it tells of a healthy server."""

import asyncio
import subprocess
import sys

import pytest

from kproxy_ipt.errors import SourceError
from kproxy_ipt.objects.events import Event, Gone, Kind, Listed, Put
from kproxy_ipt.sources.kubeconfig import ClusterConnection
from kproxy_ipt.sources.watch import ClusterSource
from kproxy_ipt.testing.api_faults import Fault
from kproxy_ipt.testing.api_server import ApiServer
from kproxy_ipt.testing.api_watch import StreamingLists
from kproxy_ipt.testing.api_watching import SourceRun, come_true
from kproxy_ipt.testing.objects import endpoint_slice, node, service

PROXY_NAME = "service.kubernetes.io/service-proxy-name"
HEADLESS = "service.kubernetes.io/headless"


_SILENCE_S = 1.0
"""Until a server that does not know streaming lists is asked for pages; answers of others take less on any machine."""


def watching(server: ApiServer, *, qps: float = -1.0, timeout_s: float = 5.0, silence_s: float = 90.0) -> SourceRun:
    """A source of *server*, as the node `node1`."""
    return SourceRun(ClusterConnection(master=server.url, qps=qps, timeout_s=timeout_s), silence_s=silence_s)


def test_import_of_the_source_does_not_import_the_client() -> None:
    """The import of the `kubernetes` package is paid for only when a cluster is watched."""
    code = "import sys, kproxy_ipt.sources.watch; print('kubernetes' in sys.modules)"

    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert printed.strip() == "False"


def test_all_three_kinds_are_listed_in_one_request_each(api_server: ApiServer) -> None:
    """A streaming list brings the objects, and the same stream goes on as watch."""
    api_server.put(service("web"), endpoint_slice("web"), node("node1"), node("node2"))

    async def scenario() -> SourceRun:
        async with watching(api_server) as run:
            await run.until(lambda: all(run.lists(kind) for kind in Kind))
        return run

    run = asyncio.run(scenario())

    assert [run.names(kind) for kind in Kind] == [["web"], ["web-ipv4"], ["node1"]]
    assert len(api_server.requests) == 3


def test_requests_are_those_of_kube_proxy(api_server: ApiServer) -> None:
    """Selectors word by word, JSON, 300 to 600 s, bookmarks."""

    async def scenario() -> None:
        async with watching(api_server) as run:
            await run.until(lambda: len(api_server.requests) == 3)

    asyncio.run(scenario())
    selectors = {request.path: (request.query.get("labelSelector"), request.query.get("fieldSelector"))
                 for request in api_server.requests}  # fmt: skip
    query = dict(api_server.requests[0].query)

    assert selectors == {
        "/api/v1/services": (f"!{PROXY_NAME}", "spec.clusterIP!=None"),
        "/apis/discovery.k8s.io/v1/endpointslices": (f"!{HEADLESS}", None),
        "/api/v1/nodes": (None, "metadata.name=node1"),
    }
    assert (query["allowWatchBookmarks"], query["timeoutSeconds"]) == ("true", "300")
    assert (query["sendInitialEvents"], query["resourceVersionMatch"]) == ("true", "NotOlderThan")
    assert {request.headers["accept"] for request in api_server.requests} == {"application/json"}


def test_changes_arrive_in_order(api_server: ApiServer) -> None:
    """Created, changed, deleted: one event each."""

    async def scenario() -> list[Event]:
        async with watching(api_server) as run:
            await run.until(lambda: run.lists(Kind.SERVICES) == 1)
            api_server.put(service("web"))
            api_server.put(service("web", labels={"app": "web"}))
            api_server.delete("Service", "web")
            await run.until(lambda: any(isinstance(event, Gone) for event in run.events))
            return [event for event in run.events if isinstance(event, Put | Gone)]

    created, changed, deleted = asyncio.run(scenario())

    assert isinstance(created, Put)
    assert isinstance(changed, Put)
    assert changed.object.metadata.labels == {"app": "web"}
    assert deleted == Gone(Kind.SERVICES, "default", "web")


def test_deleted_node_is_gone_without_namespace(api_server: ApiServer) -> None:
    """The own Node, which has no namespace, comes and goes as the others do."""
    api_server.put(node("node1"))

    async def scenario() -> list[Event]:
        async with watching(api_server) as run:
            await run.until(lambda: run.names(Kind.NODES) == ["node1"])
            api_server.delete("Node", "node1")
            await run.until(lambda: run.names(Kind.NODES) == [])
            return run.events

    assert asyncio.run(scenario())[-1] == Gone(Kind.NODES, "", "node1")


def test_label_of_another_proxy_takes_a_service_away_and_gives_it_back(api_server: ApiServer) -> None:
    """C63: the label added looks like a deletion, the label removed like a creation."""
    api_server.put(service("web"))

    async def scenario() -> None:
        async with watching(api_server) as run:
            await run.until(lambda: run.names(Kind.SERVICES) == ["web"])
            api_server.put(service("web", labels={PROXY_NAME: "other"}))
            await run.until(lambda: run.names(Kind.SERVICES) == [])
            api_server.put(service("web"))
            await run.until(lambda: run.names(Kind.SERVICES) == ["web"])
            assert run.lists(Kind.SERVICES) == 1

    asyncio.run(scenario())


def test_headless_label_takes_a_slice_away_and_gives_it_back(api_server: ApiServer) -> None:
    """C63, for EndpointSlices."""
    api_server.put(endpoint_slice("web"))

    async def scenario() -> None:
        async with watching(api_server) as run:
            await run.until(lambda: run.names(Kind.ENDPOINT_SLICES) == ["web-ipv4"])
            api_server.put(endpoint_slice("web", labels={HEADLESS: ""}))
            await run.until(lambda: run.names(Kind.ENDPOINT_SLICES) == [])
            api_server.put(endpoint_slice("web"))
            await run.until(lambda: run.names(Kind.ENDPOINT_SLICES) == ["web-ipv4"])

    asyncio.run(scenario())


@pytest.mark.parametrize("how", [StreamingLists.REFUSED, StreamingLists.UNKNOWN, 400, 404, 422, 500])
def test_server_without_streaming_lists_is_listed_in_pages(how: StreamingLists | int, api_server: ApiServer) -> None:
    """Refused in the stream, refused by status, or not known at all: pages do it, from then on."""
    api_server.put(service("web"))
    if isinstance(how, int):
        api_server.schedule(Fault.answer(how, b"{}"), path="/services", watch=True)
    else:
        api_server.streaming_lists = how
    watches_with_list = 0 if isinstance(how, int) else 1

    async def scenario() -> list[str]:
        async with watching(api_server, timeout_s=_SILENCE_S) as run:
            await run.until(lambda: run.source.counts[Kind.SERVICES].watches == watches_with_list + 1)
            await run.until(lambda: api_server.watches("/services") == 1)
            api_server.send_line(b"nonsense", "/services")
            await run.until(lambda: run.lists(Kind.SERVICES) == 2 and api_server.watches("/services") == 1)
            return run.troubles(Kind.SERVICES)

    asyncio.run(scenario())
    asked = [dict(request.query) for request in api_server.requests if "services" in request.path]

    assert sum("sendInitialEvents" in query for query in asked) == 1
    assert [query.get("limit") for query in asked if "watch" not in query] == ["500", "500"]


def test_pages_are_put_together(api_server: ApiServer) -> None:
    """Several pages make one list, and the watch goes on from its version."""
    api_server.streaming_lists = StreamingLists.REFUSED
    api_server.put(*(service(f"web-{number}") for number in range(5)))

    async def scenario() -> int:
        connection = ClusterConnection(master=api_server.url, qps=-1, page_size=2)
        async with SourceRun(connection) as run:
            await run.until(lambda: len(run.names(Kind.SERVICES)) == 5)
            api_server.put(service("late"))
            await run.until(lambda: len(run.names(Kind.SERVICES)) == 6)
            return run.lists(Kind.SERVICES)

    assert asyncio.run(scenario()) == 1


def test_next_watch_goes_on_from_the_last_version(api_server: ApiServer) -> None:
    """A watch that ends in good order is followed by one from the latest event, without a list or a pause."""

    async def scenario() -> SourceRun:
        async with watching(api_server) as run:
            await run.until(lambda: run.lists(Kind.SERVICES) == 1)
            api_server.put(service("web"))
            await run.until(lambda: run.names(Kind.SERVICES) == ["web"])
            run.time.now += 300
            api_server.end_watches("/services")
            await run.until(lambda: len(api_server.requests) == 4)
            api_server.put(service("late"))
            await run.until(lambda: run.names(Kind.SERVICES) == ["late", "web"])
        return run

    run = asyncio.run(scenario())

    assert api_server.requests[3].query["resourceVersion"] == "2"
    assert (run.lists(Kind.SERVICES), run.troubles(Kind.SERVICES), run.time.waits) == (1, [], [])


def test_next_watch_goes_on_from_the_last_bookmark(api_server: ApiServer) -> None:
    """What happened to other kinds moves the version on as well, so that it never gets too old."""
    api_server.bookmark_interval_s = 0.02

    async def scenario() -> None:
        async with watching(api_server) as run:
            await run.until(lambda: run.lists(Kind.NODES) == 1)
            api_server.put(*(service(f"web-{number}") for number in range(5)))
            before = run.contacts(Kind.NODES)
            run.time.now += 300
            await run.until(lambda: run.contacts(Kind.NODES) > before)
            api_server.compact()
            api_server.end_watches("/nodes")
            await run.until(lambda: len(api_server.requests) == 4)
            assert run.lists(Kind.NODES) == 1

    asyncio.run(scenario())

    assert api_server.requests[3].query["resourceVersion"] == "6"


def test_contact_is_told_once_a_second_at_most(api_server: ApiServer) -> None:
    """A flood of events is one sign of life, until a second has passed."""

    async def scenario() -> tuple[int, int]:
        async with watching(api_server) as run:
            await run.until(lambda: run.lists(Kind.SERVICES) == 1)
            api_server.put(*(service(f"web-{number}") for number in range(20)))
            await run.until(lambda: len(run.names(Kind.SERVICES)) == 20)
            flood = run.contacts(Kind.SERVICES)
            run.time.now += 1.0
            api_server.put(service("late"))
            await run.until(lambda: len(run.names(Kind.SERVICES)) == 21)
            return flood, run.contacts(Kind.SERVICES)

    assert asyncio.run(scenario()) == (1, 2)


def test_bookmarks_alone_are_contact_and_no_reason_to_list(api_server: ApiServer) -> None:
    """C105: on a quiet cluster the source says that it is alive, and asks for nothing."""
    api_server.bookmark_interval_s = 0.01

    async def scenario() -> None:
        async with watching(api_server) as run:
            for second in range(5):
                await run.until(lambda: run.contacts(Kind.SERVICES) > second)  # noqa: B023  # awaited at once
                run.time.now += 1.0
            assert run.lists(Kind.SERVICES) == 1

    asyncio.run(scenario())

    assert len(api_server.requests) == 3


def test_requests_keep_to_the_rate(api_server: ApiServer) -> None:
    """The limit of the configuration counts for all kinds together."""

    async def scenario() -> list[float]:
        connection = ClusterConnection(master=api_server.url, qps=2.0, burst=1)
        async with SourceRun(connection) as run:
            await run.until(lambda: all(run.lists(kind) for kind in Kind))
            return run.time.waits

    assert sum(asyncio.run(scenario())) >= 1.0


def test_cancelling_closes_all_connections(api_server: ApiServer) -> None:
    """Nothing is left open, whatever the source was doing."""

    async def scenario() -> None:
        async with watching(api_server) as run:
            await run.until(lambda: api_server.watches() == 3)
        assert await come_true(lambda: api_server.watches() == 0)

    asyncio.run(scenario())


def test_source_can_be_cancelled_while_it_waits_for_an_answer(api_server: ApiServer) -> None:
    """A request without an answer does not hold anybody up."""
    api_server.schedule(Fault.hang(), times=3)

    async def scenario() -> None:
        async with watching(api_server, timeout_s=600.0) as run:
            await run.until(lambda: len(api_server.requests) == 3)

    asyncio.run(asyncio.wait_for(scenario(), timeout=60.0))


def test_error_of_the_receiver_ends_the_source(api_server: ApiServer) -> None:
    """C104: an event that could not be taken in is not swallowed."""

    def refuse(event: Event) -> None:
        if isinstance(event, Listed):
            raise LookupError("not today")

    source = ClusterSource(ClusterConnection(master=api_server.url), "node1")

    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(source.run(refuse))

    assert isinstance(caught.value.exceptions[0], LookupError)


def test_cluster_that_is_not_configured_is_an_error_at_once() -> None:
    """What no waiting can cure is raised before anything is asked."""
    source = ClusterSource(ClusterConnection(kubeconfig="/nonexistent"), "node1")

    with pytest.raises(SourceError, match="kubeconfig /nonexistent cannot be read"):
        asyncio.run(source.run(lambda _: None))
