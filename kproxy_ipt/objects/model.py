"""
The objects of the API, shaped as on the wire, with only the fields that decide about rules or explain them.

Absent, `null` and empty are the same to us, so every list field may be None; readers write `field or ()`.
All values are frozen and hold no cycles, so the garbage collector need not know them (`gc=False`). Nothing here is
checked beyond its type: `check.py` does that.

Source: API types v1 and discovery.k8s.io/v1 of Kubernetes 1.36.
"""

from collections.abc import Mapping

import msgspec

from kproxy_ipt.errors import Finding

SERVICE_NAME_LABEL = "kubernetes.io/service-name"
SERVICE_PROXY_NAME_LABEL = "service.kubernetes.io/service-proxy-name"
HEADLESS_LABEL = "service.kubernetes.io/headless"
ZONE_LABEL = "topology.kubernetes.io/zone"
SCHEDULER_ANNOTATION = "kproxy-ipt/scheduler"
"""Of a Service: who gets its next connection."""


class ObjectMeta(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """`metadata` of any object."""

    name: str = ""
    namespace: str | None = None
    labels: Mapping[str, str] | None = None
    annotations: Mapping[str, str] | None = None
    resource_version: str | None = None
    deletion_timestamp: str | None = None


class ServiceMeta(ObjectMeta, frozen=True, gc=False, rename="camel"):
    """`metadata` of a Service; the uid is for events, which `kubectl describe` finds by it."""

    uid: str | None = None


class ServicePortSpec(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """One entry of `spec.ports` of a Service; `protocol` in upper case as the API writes it."""

    port: int | None = None
    name: str | None = None
    protocol: str | None = None
    node_port: int | None = None
    target_port: int | str | None = None


class ClientIPConfig(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """`spec.sessionAffinityConfig.clientIP`."""

    timeout_seconds: int | None = None


class SessionAffinityConfig(msgspec.Struct, frozen=True, gc=False):
    """`spec.sessionAffinityConfig`."""

    client_ip: ClientIPConfig | None = msgspec.field(name="clientIP", default=None)


class ServiceSpec(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """`spec` of a Service."""

    type: str | None = None
    cluster_ip: str | None = msgspec.field(name="clusterIP", default=None)
    cluster_ips: tuple[str, ...] | None = msgspec.field(name="clusterIPs", default=None)
    ip_families: tuple[str, ...] | None = None
    ports: tuple[ServicePortSpec, ...] | None = None
    external_ips: tuple[str, ...] | None = msgspec.field(name="externalIPs", default=None)
    load_balancer_source_ranges: tuple[str, ...] | None = None
    session_affinity: str | None = None
    session_affinity_config: SessionAffinityConfig | None = None
    external_traffic_policy: str | None = None
    internal_traffic_policy: str | None = None
    health_check_node_port: int | None = None
    publish_not_ready_addresses: bool | None = None
    selector: Mapping[str, str] | None = None


class LoadBalancerIngress(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """One entry of `status.loadBalancer.ingress`."""

    ip: str | None = None
    ip_mode: str | None = None
    hostname: str | None = None


class LoadBalancerStatus(msgspec.Struct, frozen=True, gc=False):
    """`status.loadBalancer`."""

    ingress: tuple[LoadBalancerIngress, ...] | None = None


class ServiceStatus(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """`status` of a Service."""

    load_balancer: LoadBalancerStatus | None = None


class Service(msgspec.Struct, frozen=True, gc=False):
    """A v1 Service."""

    metadata: ServiceMeta
    spec: ServiceSpec
    status: ServiceStatus | None = None


class EndpointConditions(msgspec.Struct, frozen=True, gc=False):
    """`conditions` of an endpoint; absent means ready, serving, not terminating."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class Hint(msgspec.Struct, frozen=True, gc=False):
    """One entry of `hints.forZones` or `hints.forNodes`."""

    name: str = ""


class EndpointHints(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """`hints` of an endpoint."""

    for_zones: tuple[Hint, ...] | None = None
    for_nodes: tuple[Hint, ...] | None = None


class SliceEndpoint(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """One entry of `endpoints` of an EndpointSlice."""

    addresses: tuple[str, ...] | None = None
    conditions: EndpointConditions | None = None
    hints: EndpointHints | None = None
    node_name: str | None = None
    zone: str | None = None


class SlicePort(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """One entry of `ports` of an EndpointSlice; name None means that the port matches no service port."""

    name: str | None = None
    protocol: str | None = None
    port: int | None = None


class EndpointSlice(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """A discovery.k8s.io/v1 EndpointSlice."""

    metadata: ObjectMeta
    address_type: str = ""
    endpoints: tuple[SliceEndpoint, ...] | None = None
    ports: tuple[SlicePort, ...] | None = None


class EndpointAddress(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """One address of a subset of a legacy Endpoints object."""

    ip: str = ""
    node_name: str | None = None


class EndpointSubset(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """One entry of `subsets` of a legacy Endpoints object."""

    addresses: tuple[EndpointAddress, ...] | None = None
    not_ready_addresses: tuple[EndpointAddress, ...] | None = None
    ports: tuple[SlicePort, ...] | None = None


class Endpoints(msgspec.Struct, frozen=True, gc=False):
    """A legacy v1 Endpoints object; `mirror.py` turns it into slices."""

    metadata: ObjectMeta
    subsets: tuple[EndpointSubset, ...] | None = None


class Taint(msgspec.Struct, frozen=True, gc=False):
    """One entry of `spec.taints` of a Node."""

    key: str = ""


class NodeSpec(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """`spec` of a Node."""

    pod_cidr: str | None = msgspec.field(name="podCIDR", default=None)
    pod_cidrs: tuple[str, ...] | None = msgspec.field(name="podCIDRs", default=None)
    taints: tuple[Taint, ...] | None = None


class NodeAddress(msgspec.Struct, frozen=True, gc=False):
    """One entry of `status.addresses` of a Node."""

    type: str = ""
    address: str = ""


class NodeStatus(msgspec.Struct, frozen=True, gc=False):
    """`status` of a Node."""

    addresses: tuple[NodeAddress, ...] | None = None


class Node(msgspec.Struct, frozen=True, gc=False):
    """A v1 Node."""

    metadata: ObjectMeta
    spec: NodeSpec | None = None
    status: NodeStatus | None = None


class Objects(msgspec.Struct, frozen=True, kw_only=True):
    """
    Everything that was read, checked, without duplicates, sorted by namespace and name.

    `findings` holds what was odd on the way, in the order of reading; those of severity `rejected` name objects that
    are not among the others. `ignored` counts objects of kinds that play no part (Pods, Deployments), by kind.
    """

    services: tuple[Service, ...] = ()
    endpoint_slices: tuple[EndpointSlice, ...] = ()
    nodes: tuple[Node, ...] = ()
    findings: tuple[Finding, ...] = ()
    ignored: Mapping[str, int] = msgspec.field(default_factory=dict)
