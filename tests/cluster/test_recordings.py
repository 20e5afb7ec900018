"""Facts about answers recorded from a real API server: what was answered once is understood."""

from pathlib import Path

import pytest

from kproxy_ipt.errors import SourceError
from kproxy_ipt.objects.model import Objects
from kproxy_ipt.sources.cluster import ClusterConnection, read_cluster
from kproxy_ipt.testing.api_faults import Fault
from kproxy_ipt.testing.api_server import ApiServer

RECORDINGS = Path(__file__).parent.parent / "api"
LISTS = {"/services": "list-services", "/endpointslices": "list-endpointslices", "/nodes": "get-node"}


def recording(name: str) -> Fault:
    """A recorded answer, to be given instead of the server's own."""
    return Fault.recorded(RECORDINGS / f"{name}.http")


def read(server: ApiServer, services: tuple[str, ...], waits: list[float]) -> Objects:
    """Read a cluster that answers *services* one after the other, and the other recorded lists."""
    for name in services:
        server.schedule(recording(name), path="/services")
    server.schedule(recording("list-endpointslices"), path="/endpointslices")
    server.schedule(recording("get-node"), path="/nodes")
    return read_cluster(ClusterConnection(master=server.url), node_name="node1", sleep=waits.append)


def test_recorded_lists_are_read_whole(api_server: ApiServer, waits: list[float]) -> None:
    """Every object of the recorded lists arrives, with the fields that matter."""
    objects = read(api_server, ("list-services",), waits)

    assert [f"{found.metadata.namespace}/{found.metadata.name}" for found in objects.services] == [
        "default/blog",
        "default/kubernetes",
        "default/shop",
        "default/web",
    ]
    assert [found.metadata.name for found in objects.endpoint_slices] == ["blog-a", "kubernetes", "shop-a", "web-a"]
    assert [found.spec and found.spec.pod_cidr for found in objects.nodes] == ["10.244.1.0/24"]
    assert [finding for finding in objects.findings if finding.object.startswith("Node")] == []


def test_recorded_pages_make_the_recorded_list(api_server: ApiServer, waits: list[float]) -> None:
    """Two recorded pages hold the same services as the list in one piece, and the token is sent back as it came."""
    in_pages = read(api_server, ("list-page-1", "list-page-2"), waits)
    in_one_piece = read(api_server, ("list-services",), waits)

    assert in_pages.services == in_one_piece.services
    assert api_server.requests[1].query["continue"].startswith("eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MjMxLCJzdGFydCI6")


def test_recorded_bad_token_starts_the_list_over(api_server: ApiServer, waits: list[float]) -> None:
    """The recorded 400 about a continue token, in the middle of a list, leads to a new one."""
    objects = read(api_server, ("list-page-1", "list-bad-continue", "list-page-1", "list-page-2"), waits)

    assert len(objects.services) == 4


def test_recorded_504_is_waited_out(api_server: ApiServer, waits: list[float]) -> None:
    """The recorded 504 with Retry-After costs one second."""
    objects = read(api_server, ("list-future", "list-services"), waits)

    assert len(objects.services) == 4
    assert [pause for pause in waits if pause] == [1.0]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("unauthorized", "401, the credentials of the option master are not accepted"),
        ("anonymous", r"403, the request carried no credentials \(system:anonymous\)"),
        ("forbidden", "403, user 'system:kube-proxy' of the option master may not list services"),
        ("version", "the answer is no ServiceList"),
        ("readyz", "the answer is no ServiceList, but 'ok'"),
        ("discovery-endpointslice", "the answer is no ServiceList"),
    ],
)
def test_recorded_refusals_become_errors(name: str, message: str, api_server: ApiServer, waits: list[float]) -> None:
    """Recorded refusals, and recorded answers that are no lists, are told apart."""
    with pytest.raises(SourceError, match=message):
        read(api_server, (name, name), waits)
