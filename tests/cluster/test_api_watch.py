"""Facts about watches and writes of the API server for tests: it sends and answers what the recorded one did."""

import http.client
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from kproxy_ipt.testing.api_faults import Fault
from kproxy_ipt.testing.api_selectors import fields_of
from kproxy_ipt.testing.api_server import ApiServer
from kproxy_ipt.testing.api_store import ApiStore, target_of
from kproxy_ipt.testing.api_watch import StreamingLists, WatchQuery, WatchStream
from kproxy_ipt.testing.objects import endpoint_slice, service

RECORDINGS = Path(__file__).parent.parent / "api"
SERVICES = "/api/v1/services"
SLICES = "/apis/discovery.k8s.io/v1/endpointslices"
PROXY_NAME = "service.kubernetes.io/service-proxy-name"
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"

Document = dict[str, object]


class Recording(msgspec.Struct):
    """What was asked, and what came back."""

    method: str
    path: str
    status: int
    lines: list[Document]


def recording(name: str) -> Recording:
    """A recorded request with its answer; a watch has several lines, all else one document."""
    head, _, body = (RECORDINGS / f"{name}.http").read_text().partition("\n\n")
    request = next(line for line in head.splitlines() if line.startswith("# request: "))
    status = next(line for line in head.splitlines() if line.startswith("HTTP/1.1 "))
    texts = body.splitlines() if "watch=" in request else [body]
    method, path = request.removeprefix("# request: ").split(" ")
    lines = [msgspec.json.decode(text, type=Document) for text in texts if text]
    return Recording(method, path, int(status.split(" ")[1]), lines)


def ask(server: ApiServer, method: str, path: str, body: object = None, content_type: str = "") -> tuple[int, bytes]:
    """Status and body of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    try:
        headers = {"Content-Type": content_type or "application/json"}
        connection.request(method, path, None if body is None else msgspec.json.encode(body), headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def documents(text: bytes) -> list[Document]:
    """The lines of a watch."""
    return [msgspec.json.decode(line, type=Document) for line in text.splitlines()]


def replay(store: ApiStore, stream: WatchStream, lines: list[Document]) -> list[Document]:
    """Let happen what the recorded *lines* tell; what the stream sends meanwhile."""
    sent: list[bytes] = []
    for line in lines:
        document = fields_of(line["object"])
        metadata = fields_of(document["metadata"])
        store.resource_version = int(str(metadata["resourceVersion"])) - (line["type"] != "BOOKMARK")
        if line["type"] == "BOOKMARK":
            sent += stream.bookmark()
        elif line["type"] != "DELETED":
            store.put(document)
        elif metadata["name"] == "shop":
            store.put({**document, "metadata": metadata | {"labels": {PROXY_NAME: "other"}}})
        else:
            store.delete(str(document["kind"]), str(metadata["name"]), "default")
        sent += stream.lines()
    return documents(b"".join(sent))


def test_watch_sends_what_the_recorded_one_sent() -> None:
    """Changed, created, deleted, bookmarks: line by line the same."""
    recorded = recording("watch-endpointslices")
    store = ApiStore()
    before = fields_of(recorded.lines[0]["object"])
    store.resource_version = 224
    store.put(before)
    target = target_of(SLICES)
    assert target is not None
    query = WatchQuery(resource_version="225", allow_bookmarks=True)

    assert replay(store, WatchStream(store, target, query), recorded.lines) == recorded.lines


def test_streaming_list_sends_what_the_recorded_one_sent() -> None:
    """Objects in order, the mark of their end, then a Service that loses and regains our label selector."""
    recorded = recording("watch-streaming-list")
    store = ApiStore()
    for line in recorded.lines[:4]:
        document = fields_of(line["object"])
        store.resource_version = int(str(fields_of(document["metadata"])["resourceVersion"])) - 1
        store.put(document)
    store.resource_version = 259
    target = target_of(SERVICES)
    assert target is not None
    query = WatchQuery(label_selector=f"!{PROXY_NAME}", allow_bookmarks=True, initial_events=True)
    stream = WatchStream(store, target, query)

    initial = documents(b"".join(stream.first_lines(StreamingLists.ACCEPTED)))

    assert initial + replay(store, stream, recorded.lines[5:]) == recorded.lines


@pytest.mark.parametrize(
    ("name", "version", "oldest"),
    [
        ("watch-expired", 300, 276),
        ("watch-too-old", 300, 12),
        ("watch-future", 300, 1),
        ("watch-streaming-list-refused", 300, 1),
        ("list-future", 234, 1),
    ],
)
def test_recorded_request_gets_the_recorded_answer(name: str, version: int, oldest: int, api_server: ApiServer) -> None:
    """Versions that are too old or of the future, and a streaming list that is refused: equal to the letter."""
    recorded = recording(name)
    api_server.store.resource_version, api_server.store.oldest_version = version, oldest
    api_server.streaming_lists = StreamingLists.REFUSED

    status, body = ask(api_server, "GET", recorded.path.replace("timeoutSeconds=3", "timeoutSeconds=0.01"))

    assert (status, documents(body.replace(b"\n", b""))) == (recorded.status, recorded.lines)


def test_created_event_is_answered_as_recorded(api_server: ApiServer) -> None:
    """201, and the object with what the server adds."""
    recorded = recording("create-event")
    sent = {key: recorded.lines[0][key] for key in recorded.lines[0] if not key.startswith("deprecated")}
    sent["metadata"] = {"generateName": "web-"}

    status, body = ask(api_server, recorded.method, recorded.path, sent)
    created = msgspec.json.decode(body, type=Document)

    assert status == recorded.status
    assert {key: created[key] for key in sent if key != "metadata"} == {
        key: sent[key] for key in sent if key != "metadata"
    }
    assert fields_of(created["metadata"]).keys() == fields_of(recorded.lines[0]["metadata"]).keys() - {"managedFields"}


def test_event_without_controller_is_refused_as_recorded(api_server: ApiServer) -> None:
    """422 with the same causes, in the same words."""
    recorded = recording("create-event-invalid")
    sent = dict(recording("create-event").lines[0]) | {"reportingController": "", "metadata": {"name": "web-wh6bg"}}

    status, body = ask(api_server, recorded.method, recorded.path, sent)

    assert (status, documents(body)) == (recorded.status, recorded.lines)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"note": "x" * 1025}, "note"),
        ({"type": "Error"}, "type"),
        ({"action": ""}, "action"),
        ({"reason": "x" * 129}, "reason"),
        ({"eventTime": None}, "eventTime"),
    ],
)
def test_event_beyond_the_limits_is_refused(change: Document, field: str, api_server: ApiServer) -> None:
    """Lengths and words that the real server insists on."""
    status, body = ask(api_server, "POST", EVENTS, dict(recording("create-event").lines[0]) | change)

    assert (status, field in body.decode()) == (422, True)


def test_written_objects_are_served_and_watched(api_server: ApiServer) -> None:
    """Create, replace, patch, delete: each is an event of its own."""
    path = "/api/v1/namespaces/default/services"
    web = {"kind": "Service", "apiVersion": "v1", "metadata": {"name": "web", "labels": {"a": "1"}}, "spec": {}}
    patch = {"metadata": {"labels": {"a": None, "b": "2"}}}

    assert ask(api_server, "POST", path, web)[0] == 201
    assert ask(api_server, "POST", path, web)[0] == 409
    assert ask(api_server, "PUT", f"{path}/web", web)[0] == 200
    assert ask(api_server, "PATCH", f"{path}/web", patch, "application/merge-patch+json")[0] == 200
    assert ask(api_server, "PATCH", f"{path}/web", patch)[0] == 415
    labels = msgspec.json.decode(ask(api_server, "GET", f"{path}/web")[1], type=Document)["metadata"]
    assert fields_of(labels)["labels"] == {"b": "2"}
    assert ask(api_server, "DELETE", f"{path}/web")[0] == 200
    assert ask(api_server, "DELETE", f"{path}/web")[0] == 404
    _, lines = ask(api_server, "GET", f"{path}?watch=1&resourceVersion=1&timeoutSeconds=0.01")
    assert [line["type"] for line in documents(lines)] == ["ADDED", "MODIFIED", "MODIFIED", "DELETED"]


def test_stale_replacement_is_a_conflict(api_server: ApiServer) -> None:
    """Who replaces an object names the version that he knows."""
    api_server.put(service("web"), service("web"))
    stale = {"kind": "Service", "apiVersion": "v1", "metadata": {"name": "web", "resourceVersion": "2"}, "spec": {}}

    status, body = ask(api_server, "PUT", "/api/v1/namespaces/default/services/web", stale)

    assert (status, msgspec.json.decode(body, type=Document)["reason"]) == (409, "Conflict")


def test_watch_without_version_begins_with_what_is_there(api_server: ApiServer) -> None:
    """As the real server does it; no bookmark marks the end."""
    api_server.put(service("a"), service("b"), endpoint_slice("a"))

    _, body = ask(api_server, "GET", f"{SERVICES}?watch=1&timeoutSeconds=0.01")

    assert [line["type"] for line in documents(body)] == ["ADDED", "ADDED"]


def test_streaming_list_needs_its_match(api_server: ApiServer) -> None:
    """`sendInitialEvents` without `resourceVersionMatch` is refused before the stream begins."""
    assert ask(api_server, "GET", f"{SERVICES}?watch=1&sendInitialEvents=true")[0] == 422


def test_bookmarks_come_only_when_asked_for(api_server: ApiServer) -> None:
    """At their interval, and at the end."""
    api_server.bookmark_interval_s = 0.01
    path = f"{SERVICES}?watch=1&resourceVersion=1&timeoutSeconds=0.05"

    assert documents(ask(api_server, "GET", path)[1]) == []
    assert len(documents(ask(api_server, "GET", f"{path}&allowWatchBookmarks=true")[1])) > 1


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (lambda server: server.end_watches(), [b'{"type":"ADDED"', b""]),
        (lambda server: server.send_line(b"nonsense"), [b'{"type":"ADDED"', b"nonsense", b""]),
        (lambda server: server.cut_watches(after=b'{"ty'), [b'{"type":"ADDED"', b'{"ty']),
    ],
)
def test_open_watch_does_what_the_test_orders(
    order: Callable[[ApiServer], None], expected: list[bytes], api_server: ApiServer
) -> None:
    """Ends, lines of any kind, cuts."""
    api_server.put(service("web"))
    connection = http.client.HTTPConnection("127.0.0.1", api_server.port, timeout=5)
    connection.request("GET", f"{SERVICES}?watch=1")
    response = connection.getresponse()
    read = response.readline()

    order(api_server)
    api_server.end_watches()
    try:
        read += response.read()
    except http.client.IncompleteRead as error:
        read += error.partial
    connection.close()

    assert [line[:15] for line in read.split(b"\n")] == expected


def test_restarted_server_keeps_port_and_objects(api_server: ApiServer) -> None:
    """Stop and start is a restart; `lose_state` in between makes it forget."""
    api_server.put(service("web"))
    port = api_server.port
    api_server.stop()
    api_server.start()

    assert api_server.port == port
    assert b'"name":"web"' in ask(api_server, "GET", SERVICES)[1]
    api_server.lose_state()
    assert b'"resourceVersion":"1"' in ask(api_server, "GET", SERVICES)[1]


def test_fault_can_be_meant_for_watches_only(api_server: ApiServer) -> None:
    """Lists of the same path are spared."""
    api_server.schedule(Fault.unavailable(), path="/services", watch=True)

    assert ask(api_server, "GET", SERVICES)[0] == 200
    assert ask(api_server, "GET", f"{SERVICES}?watch=1")[0] == 503
