"""Facts about the one-shot list of a cluster, over real HTTP."""

import subprocess
import sys

import pytest

from kproxy_ipt.errors import Severity, SourceError
from kproxy_ipt.sources.cluster import ClusterConnection, read_cluster
from kproxy_ipt.sources.refusals import failure_text
from kproxy_ipt.testing.api_faults import Fault
from kproxy_ipt.testing.api_server import ApiServer
from kproxy_ipt.testing.objects import endpoint_slice, node, service


def service_names(server: ApiServer, waits: list[float], page_size: int = 2) -> list[str]:
    """Names of the services that are read, in order; *waits* takes the pauses that would have been made."""
    connection = ClusterConnection(master=server.url, page_size=page_size)
    objects = read_cluster(connection, node_name="node1", sleep=waits.append)
    return [found.metadata.name for found in objects.services]


def put_services(server: ApiServer, count: int = 5) -> list[str]:
    """Create services; their names in order."""
    names = [f"web-{number}" for number in range(count)]
    server.put(*(service(name) for name in names))
    return names


def test_import_of_the_source_does_not_import_the_client() -> None:
    """The import of the `kubernetes` package is paid for only when a cluster is read."""
    code = "import sys, kproxy_ipt.sources.cluster; print({'kubernetes', 'urllib3'} & sys.modules.keys())"

    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert printed.strip() == "set()"


def test_all_three_kinds_arrive(api_server: ApiServer) -> None:
    """Services, EndpointSlices and the own Node, and of nodes only that one."""
    api_server.put(service("web"), endpoint_slice("web", namespace="default"), node("node1", zone="a"), node("node2"))

    objects = read_cluster(ClusterConnection(master=api_server.url), node_name="node1")

    assert [found.metadata.name for found in objects.services] == ["web"]
    assert [found.metadata.labels for found in objects.endpoint_slices] == [{"kubernetes.io/service-name": "web"}]
    assert [found.metadata.name for found in objects.nodes] == ["node1"]
    assert objects.findings == ()


def test_selectors_are_those_of_kube_proxy(api_server: ApiServer) -> None:
    """What the server is asked for is what kube-proxy asks for, word by word."""
    read_cluster(ClusterConnection(master=api_server.url), node_name="node1")

    assert [(request.path, dict(request.query)) for request in api_server.requests] == [
        (
            "/api/v1/services",
            {
                "labelSelector": "!service.kubernetes.io/service-proxy-name",
                "fieldSelector": "spec.clusterIP!=None",
                "limit": "500",
            },
        ),
        (
            "/apis/discovery.k8s.io/v1/endpointslices",
            {"labelSelector": "!service.kubernetes.io/headless", "limit": "500"},
        ),
        ("/api/v1/nodes", {"fieldSelector": "metadata.name=node1", "limit": "500"}),
    ]


def test_missing_node_is_a_warning(api_server: ApiServer) -> None:
    """A node that the cluster does not know costs a warning that says what is lost."""
    api_server.put(node("node2"))

    objects = read_cluster(ClusterConnection(master=api_server.url), node_name="node1")

    assert objects.nodes == ()
    assert [(finding.object, finding.severity) for finding in objects.findings] == [("Node node1", Severity.WARNING)]


def test_object_without_sense_costs_only_itself(api_server: ApiServer) -> None:
    """A service that cannot be decoded is set aside with its name; the others of the page arrive."""
    odd = {"kind": "Service", "metadata": {"name": "odd", "namespace": "shop"}, "spec": {"ports": "many"}}
    api_server.put(service("web"), odd)

    objects = read_cluster(ClusterConnection(master=api_server.url), node_name="node1")

    assert [found.metadata.name for found in objects.services] == ["web"]
    assert [finding.object for finding in objects.findings if finding.severity is Severity.REJECTED] == [
        "Service shop/odd"
    ]


@pytest.mark.parametrize("page_size", [0, 1, 2, 5, 500])
def test_every_page_size_gives_the_whole_list(page_size: int, api_server: ApiServer, waits: list[float]) -> None:
    """The size of pages never shows in the result."""
    names = put_services(api_server)

    assert service_names(api_server, waits, page_size) == names


@pytest.mark.parametrize(
    ("fault", "pauses"),
    [
        (Fault.expired(), []),
        (Fault.too_many_requests(retry_after_s=3), [3.0]),
        (Fault.too_many_requests(retry_after_s=None), [0.5]),
        (Fault.gateway_timeout(retry_after_s=1), [1.0]),
        (Fault.unavailable(), [0.5]),
        (Fault.cut(after=0), [0.5]),
        (Fault.cut(after=500), [0.5]),
        (Fault.unauthorized(), []),
    ],
    ids=["410", "429", "429-bare", "504", "503-html", "cut-head", "cut-body", "401-once"],
)
def test_trouble_in_the_middle_leaves_no_gap(
    fault: Fault, pauses: list[float], api_server: ApiServer, waits: list[float]
) -> None:
    """A fault at the second page costs time at most; nothing is missing or doubled."""
    names = put_services(api_server)
    api_server.schedule(fault, path="/services", skip=1)

    assert service_names(api_server, waits) == names
    assert [pause for pause in waits if pause] == pauses


def test_real_expiry_starts_the_list_over(api_server: ApiServer, waits: list[float]) -> None:
    """When the server forgets its snapshot while pages are read, the list shows the newer state as a whole."""
    put_services(api_server)

    def compact_once(pause_s: float) -> None:
        waits.append(pause_s)
        if len(waits) == 2:
            api_server.compact()
            api_server.delete("Service", "web-0")

    connection = ClusterConnection(master=api_server.url, page_size=2)
    objects = read_cluster(connection, node_name="node1", sleep=compact_once)

    assert [found.metadata.name for found in objects.services] == ["web-1", "web-2", "web-3", "web-4"]


def test_requests_keep_to_the_rate(api_server: ApiServer, waits: list[float]) -> None:
    """With 1 request a second and 2 at once, pages beyond the second wait."""
    put_services(api_server, 4)
    connection = ClusterConnection(master=api_server.url, page_size=2, qps=1.0, burst=2)

    read_cluster(connection, node_name="node1", clock=lambda: 0.0, sleep=waits.append)

    assert waits == [0.0, 0.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (
            Fault.forbidden(),
            r"403, user 'system:kube-proxy' of .* may not list services in all namespaces",
        ),
        (Fault.unauthorized(), r"list services: 401, the credentials of the option master are not accepted"),
        (Fault.answer(404, b"404 page not found"), r"404, the server does not know v1 services"),
        (Fault.answer(403, b"go away", "text/plain"), r"403, the credentials of .* do not allow it: go away"),
        (Fault.answer(302, b""), r"list services: 302, without a word"),
        (Fault.answer(200, b"<html>log in</html>", "text/html"), r"no ServiceList, but '<html>log in</html>'"),
        (Fault.too_many_requests(retry_after_s=120), r"429, .*; the server asks to come back in 120 s"),
        (Fault.unavailable(), r"503, .*; gave up after 5 attempts"),
        (Fault.expired(), r"410, the list expired again and again while it was read"),
        (Fault.cut(after=10), r"broke before the answer was complete .*; gave up after 5 attempts; is https:// meant"),
    ],
)
def test_refusal_names_server_and_resource(
    fault: Fault, message: str, api_server: ApiServer, waits: list[float]
) -> None:
    """What cannot be cured is one error that says where, what, why and what to do."""
    api_server.schedule(fault, times=9)

    with pytest.raises(SourceError, match=message) as caught:
        service_names(api_server, waits)

    assert str(caught.value).startswith(f"{api_server.url}: list services: ")


def test_forbidden_slices_are_named_with_their_group(api_server: ApiServer, waits: list[float]) -> None:
    """The resource is written as in a role: with its API group."""
    api_server.schedule(Fault.forbidden("endpointslices", "discovery.k8s.io", "me"), path="/endpointslices")

    with pytest.raises(SourceError, match=r"user 'me' .* may not list endpointslices.discovery.k8s.io"):
        service_names(api_server, waits)


def test_silent_server_is_left_after_the_timeout(api_server: ApiServer) -> None:
    """A server that accepts and never answers is not waited for."""
    api_server.schedule(Fault.slow(60.0))
    connection = ClusterConnection(master=api_server.url, timeout_s=0.05)

    with pytest.raises(SourceError, match=rf"{api_server.url}: no answer within 0.05 s"):
        read_cluster(connection, node_name="node1")


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("http://127.0.0.1:1", "connection refused: does the API server run there"),
        ("https://127.0.0.1:1", "connection refused: does the API server run there"),
    ],
)
def test_unreachable_server_is_named(address: str, message: str, waits: list[float]) -> None:
    """No server there: said at once, with the address."""
    with pytest.raises(SourceError, match=f"{address}: {message}"):
        read_cluster(ClusterConnection(master=address), node_name="node1", sleep=waits.append)

    assert waits == [0.0]


@pytest.mark.parametrize(
    ("kind", "reason", "message"),
    [
        ("NameResolutionError", "Failed to resolve 'api'", "the host name cannot be resolved: is the address of ADMIN"),
        ("ConnectTimeoutError", "timed out", "no answer within 3 s"),
        ("ProtocolError", "something new", "no connection (something new): is the address of ADMIN right?"),
        ("SSLError", "[SSL] record layer failure (_ssl.c:1000)", "the server speaks plain HTTP, not TLS"),
        ("SSLError", "SSLError [SSL: ODD] odd (_ssl.c:1000)", "no TLS connection ([SSL: ODD] odd): does the server"),
    ],
)
def test_failure_is_told_in_plain_words(kind: str, reason: str, message: str) -> None:
    """What the transport reports becomes a sentence about the server, without names of Python or C sources."""
    text = failure_text("https://api", "ADMIN", kind, reason, timeout_s=3.0)

    assert text.startswith(f"https://api: {message}")
