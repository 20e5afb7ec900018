"""How a lab is: its nodes and their kproxy-ipt, its pods, its Services."""

import http.client
import time
from collections.abc import Sequence

import msgspec

from kproxy_ipt.errors import NamespaceError
from kproxy_ipt.lab.cells import pod_status, ports_text
from kproxy_ipt.lab.client import LabClient, running_state
from kproxy_ipt.lab.documents import ApiObject, name_of, namespace_of, objects_in, part, text, texts_in, value_at
from kproxy_ipt.lab.endpoints import SERVICE_NAME_LABEL
from kproxy_ipt.lab.layout import NODES, LabNode, Layout
from kproxy_ipt.lab.pods import NETNS_ANNOTATION, is_ready
from kproxy_ipt.testing.probe_netns import probe_netns

_HEALTH_PORT = 10256
_TIMEOUT_S = 2.0
_QUIET_LOOKS = 3
_POLL_S = 0.1
_LOOK_S = 0.5


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A node; *proxy* is `healthy`, `unhealthy`, `silent` or `unknown`, *last_sync* a time of the API or ""."""

    name: str
    netns: str
    addresses: Sequence[str]
    proxy: str
    last_sync: str


class PodStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A pod."""

    namespace: str
    name: str
    netns: str
    node: str
    addresses: Sequence[str]
    ready: bool
    status: str


class ServiceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A Service: its addresses of each kind, and how many of its endpoints are ready."""

    namespace: str
    name: str
    type: str
    cluster_ips: Sequence[str]
    external_ips: Sequence[str]
    ports: str
    ready: int
    endpoints: int


class LabStatus(msgspec.Struct, frozen=True, kw_only=True):
    """All of a lab."""

    name: str
    api: str
    kubeconfig: str
    nodes: Sequence[NodeStatus]
    pods: Sequence[PodStatus]
    services: Sequence[ServiceStatus]

    @property
    def is_settled(self) -> bool:
        """Whether every kproxy-ipt is healthy and every pod ready."""
        return all(node.proxy == "healthy" for node in self.nodes) and all(pod.ready for pod in self.pods)


def read_status(layout: Layout) -> LabStatus:
    """
    Look at a lab.

    Raises:
        SourceError: It does not run.
    """
    state = running_state(layout)
    client = LabClient(state.port)
    slices = client.objects("EndpointSlice")
    return LabStatus(
        name=layout.name,
        api=state.url,
        kubeconfig=str(layout.kubeconfig),
        nodes=[_node_status(layout, node) for node in NODES],
        pods=[_pod_status(pod) for pod in client.objects("Pod")],
        services=[_service_status(service, slices) for service in client.objects("Service")],
    )


def wait_in_step(layout: Layout, *, patience_s: float) -> None:
    """
    Wait until no kproxy-ipt has changes that are not yet in the kernel, for *patience_s* at most.

    One that does not answer is not waited for. A change needs a moment to come to a node, so one look is not enough.
    """
    deadline_s, quiet = time.monotonic() + patience_s, 0
    while quiet < _QUIET_LOOKS and time.monotonic() < deadline_s:
        quiet = 0 if any(_is_behind(layout, node) for node in NODES) else quiet + 1
        time.sleep(_POLL_S)


def _is_behind(layout: Layout, node: LabNode) -> bool:
    try:
        _, document = _ask_health(layout, node, "?verbose", timeout_s=_LOOK_S)
    except (NamespaceError, OSError, http.client.HTTPException, msgspec.MsgspecError):
        return False
    families = part(document, "families")
    return any(value_at(families, family, "oldestUnwrittenSeconds") for family in families)


def _ask_health(layout: Layout, node: LabNode, query: str, *, timeout_s: float) -> tuple[int, object]:
    """Status and document of what a node's kproxy-ipt says of its health; errors are those of a probe that fails."""
    netns, path = layout.netns(node.name), f"/healthz{query}"
    probed = probe_netns(netns, "127.0.0.1", _HEALTH_PORT, path, timeout_s=timeout_s)
    return probed.status, msgspec.json.decode(probed.body)


def _node_status(layout: Layout, node: LabNode) -> NodeStatus:
    proxy, last_sync = "silent", ""
    try:
        status, document = _ask_health(layout, node, "", timeout_s=_TIMEOUT_S)
        proxy = "healthy" if status == http.client.OK else "unhealthy"
        last_sync = text(document, "lastUpdated")
    except NamespaceError:
        proxy = "unknown"
    except (OSError, http.client.HTTPException, msgspec.MsgspecError):
        pass
    return NodeStatus(
        name=node.name,
        netns=layout.netns(node.name),
        addresses=tuple(node.addresses.values()),
        proxy=proxy,
        last_sync=last_sync,
    )


def _pod_status(pod: ApiObject) -> PodStatus:
    return PodStatus(
        namespace=namespace_of(pod),
        name=name_of(pod),
        netns=text(pod, "metadata", "annotations", NETNS_ANNOTATION),
        node=text(pod, "spec", "nodeName"),
        addresses=[text(each, "ip") for each in objects_in(pod, "status", "podIPs")],
        ready=is_ready(pod),
        status=pod_status(pod),
    )


def _service_status(service: ApiObject, slices: Sequence[ApiObject]) -> ServiceStatus:
    own = [
        each
        for each in slices
        if text(each, "metadata", "labels", SERVICE_NAME_LABEL) == name_of(service)
        and namespace_of(each) == namespace_of(service)
    ]
    families = texts_in(service, "spec", "ipFamilies")[:1]
    endpoints = [
        each for found in own if text(found, "addressType") in families for each in objects_in(found, "endpoints")
    ]
    ingress = [text(each, "ip") for each in objects_in(service, "status", "loadBalancer", "ingress")]
    return ServiceStatus(
        namespace=namespace_of(service),
        name=name_of(service),
        type=text(service, "spec", "type"),
        cluster_ips=[each for each in texts_in(service, "spec", "clusterIPs") if each != "None"],
        external_ips=[*ingress, *texts_in(service, "spec", "externalIPs")],
        ports=ports_text(service),
        ready=sum(value_at(each, "conditions", "ready") is not False for each in endpoints),
        endpoints=len(endpoints),
    )
