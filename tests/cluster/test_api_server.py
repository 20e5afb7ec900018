"""Facts about the API server for tests itself: it answers as the recorded one did."""

import http.client
import re
from pathlib import Path

import msgspec
import pytest

from kproxy_ipt.testing.api_faults import Fault
from kproxy_ipt.testing.api_server import ApiServer
from kproxy_ipt.testing.objects import node, service

RECORDINGS = Path(__file__).parent.parent / "api"
VOLATILE = re.compile(r'User \\"[^"]*\\"|resource \\"\w+\\"|continue key is not valid.*?(?=")|\w+ is forbidden')

Got = tuple[int, dict[str, str], dict[str, object]]


def get(server: ApiServer, path: str, token: str = "") -> Got:
    """Status, headers in lower case, and body of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
        response = connection.getresponse()
        headers = {name.lower(): value for name, value in response.getheaders()}
        return response.status, headers, msgspec.json.decode(response.read(), type=dict[str, object])
    finally:
        connection.close()


def recorded(name: str) -> Got:
    """The same of a recording."""
    reply = Fault.recorded(RECORDINGS / f"{name}.http").reply
    assert reply is not None
    headers = {"content-type": reply.content_type, "retry-after": reply.retry_after}
    return reply.status, headers, msgspec.json.decode(reply.body, type=dict[str, object])


def field(value: object, name: str) -> dict[str, object]:
    """A field that holds an object."""
    return msgspec.convert(msgspec.convert(value, dict[str, object])[name], dict[str, object])


def items(body: dict[str, object]) -> list[dict[str, object]]:
    """The items of a list."""
    return msgspec.convert(body["items"], list[dict[str, object]])


def names(body: dict[str, object]) -> list[object]:
    """Names of the items of a list."""
    return [field(item, "metadata")["name"] for item in items(body)]


@pytest.mark.parametrize(
    ("recording", "path", "token"),
    [
        ("unauthorized", "/api/v1/services", "wrong"),
        ("anonymous", "/api/v1/services", ""),
        ("list-bad-continue", "/api/v1/services?limit=2&continue=bm90LWEtdG9rZW4", "good"),
    ],
)
def test_refusals_are_shaped_as_recorded(recording: str, path: str, token: str, api_server: ApiServer) -> None:
    """Status objects of the server equal the recorded ones but for names."""
    api_server.tokens["good"] = "me"

    status, headers, body = get(api_server, path, token)
    wanted_status, wanted_headers, wanted = recorded(recording)

    assert (status, headers["content-type"]) == (wanted_status, wanted_headers["content-type"])
    assert VOLATILE.sub("", msgspec.json.encode(body).decode()) == VOLATILE.sub(
        "", msgspec.json.encode(wanted).decode()
    )


@pytest.mark.parametrize(
    ("fault", "recording"), [(Fault.forbidden("secrets"), "forbidden"), (Fault.unauthorized(), "unauthorized")]
)
def test_scheduled_refusals_are_shaped_as_recorded(fault: Fault, recording: str, api_server: ApiServer) -> None:
    """The faults with a recorded counterpart equal it to the letter."""
    api_server.schedule(fault)

    status, _, body = get(api_server, "/api/v1/secrets")

    assert (status, body) == (recorded(recording)[0], recorded(recording)[2])


def test_pages_are_shaped_as_recorded(api_server: ApiServer) -> None:
    """A first page has the keys of the recorded one, and items without kind."""
    for name in ("blog", "kubernetes", "shop", "web"):
        api_server.put(service(name))

    _, _, body = get(api_server, "/api/v1/services?limit=2")
    _, _, wanted = recorded("list-page-1")

    assert list(body) == list(wanted)
    assert field(body, "metadata").keys() == field(wanted, "metadata").keys()
    assert names(body) == names(wanted) == ["blog", "kubernetes"]
    assert "kind" not in items(body)[0]


def test_later_pages_show_the_moment_of_the_first(api_server: ApiServer) -> None:
    """What is created or deleted between two pages is not seen until the list starts over."""
    api_server.put(service("a"), service("b"), service("c"))
    _, _, first = get(api_server, "/api/v1/services?limit=2")
    api_server.delete("Service", "c")
    api_server.put(service("d"))

    _, _, second = get(api_server, f"/api/v1/services?limit=2&continue={field(first, 'metadata')['continue']}")

    assert names(second) == ["c"]
    assert names(get(api_server, "/api/v1/services")[2]) == ["a", "b", "d"]


def test_compacted_snapshot_is_answered_410(api_server: ApiServer) -> None:
    """After a compaction the rest of a list is gone."""
    api_server.put(service("a"), service("b"))
    _, _, first = get(api_server, "/api/v1/services?limit=1")
    api_server.compact()

    status, _, body = get(api_server, f"/api/v1/services?limit=1&continue={field(first, 'metadata')['continue']}")

    assert (status, body["reason"]) == (410, "Expired")


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", ["a", "b", "c"]),
        ("labelSelector=%21app", ["a", "c"]),
        ("labelSelector=app", ["b"]),
        ("labelSelector=app%3Dx", ["b"]),
        ("labelSelector=app%21%3Dx", ["a", "c"]),
        ("fieldSelector=spec.clusterIP%21%3DNone", ["a", "b"]),
        ("fieldSelector=metadata.name%3Da", ["a"]),
        ("labelSelector=%21app&fieldSelector=spec.clusterIP%3D%3DNone", ["c"]),
    ],
)
def test_selectors_choose_as_the_real_server_does(query: str, expected: list[str], api_server: ApiServer) -> None:
    """Label and field selectors of the kinds in use."""
    api_server.put(service("a"), service("b", labels={"app": "x"}), service("c", cluster_ip="None"))

    assert names(get(api_server, f"/api/v1/services?{query}")[2]) == expected


def test_one_node_can_be_read_by_name(api_server: ApiServer) -> None:
    """A single object carries its kind, a missing one is answered 404."""
    api_server.put(node("node1"))

    status, _, body = get(api_server, "/api/v1/nodes/node1")

    assert (status, body["kind"]) == (200, "Node")
    assert get(api_server, "/api/v1/nodes/node2")[0] == 404


def test_fault_waits_for_its_request(api_server: ApiServer) -> None:
    """A fault befalls only requests of its path, after those to be skipped."""
    api_server.schedule(Fault.too_many_requests(7), path="/services", skip=1, times=1)
    paths = ["/api/v1/services", "/api/v1/nodes", "/api/v1/services", "/api/v1/services"]

    answers = [get(api_server, path) for path in paths]

    assert [status for status, _, _ in answers] == [200, 200, 429, 200]
    assert answers[2][1]["retry-after"] == "7"


def test_stopping_ends_answers_that_are_held_back() -> None:
    """No test has to wait for a slow answer: the server hangs up when it stops."""
    with ApiServer() as server:
        server.schedule(Fault.slow(600.0))
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
        connection.request("GET", "/api/v1/services")

    with pytest.raises(ConnectionResetError):
        connection.getresponse()
    connection.close()
