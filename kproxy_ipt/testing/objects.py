"""
Builders of API objects whose defaults make a test name only what matters to it.

What comes out is what decoding a manifest would give: Kubernetes values, not our derived ones. Nothing is checked here,
so that odd objects can be built as well.
"""

from collections.abc import Mapping, Sequence

from kproxy_ipt.objects.model import (
    SERVICE_NAME_LABEL,
    ZONE_LABEL,
    ClientIPConfig,
    EndpointConditions,
    EndpointHints,
    EndpointSlice,
    Hint,
    LoadBalancerIngress,
    LoadBalancerStatus,
    Node,
    NodeAddress,
    NodeSpec,
    NodeStatus,
    ObjectMeta,
    Service,
    ServiceMeta,
    ServicePortSpec,
    ServiceSpec,
    ServiceStatus,
    SessionAffinityConfig,
    SliceEndpoint,
    SlicePort,
)


def service_port(
    port: int = 80,
    *,
    name: str | None = None,
    protocol: str = "TCP",
    node_port: int | None = None,
    target_port: int | str | None = None,
) -> ServicePortSpec:
    """One entry of `spec.ports`; without *name* it is the unnamed port."""
    return ServicePortSpec(port=port, name=name, protocol=protocol, node_port=node_port, target_port=target_port)


def service(
    name: str = "web",
    *,
    namespace: str = "default",
    cluster_ip: str = "10.96.0.10",
    cluster_ips: Sequence[str] = (),
    ports: Sequence[int | ServicePortSpec] = (80,),
    service_type: str = "ClusterIP",
    external_ips: Sequence[str] = (),
    ingress: Sequence[str | LoadBalancerIngress] = (),
    source_ranges: Sequence[str] = (),
    affinity_timeout_s: int | None = None,
    external_policy: str | None = None,
    internal_policy: str | None = None,
    health_check_node_port: int | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Service:
    """
    Build a Service.

    Args:
        name: Of the Service.
        namespace: Of the Service.
        cluster_ip: An address, `None` or "".
        cluster_ips: For dual stack: all addresses, the first one replaces *cluster_ip*; `ipFamilies` follow from them.
        ports: A bare number is an unnamed TCP port.
        service_type: `spec.type`.
        external_ips: `spec.externalIPs`.
        ingress: `status.loadBalancer.ingress`; a bare text is an `ip`.
        source_ranges: `spec.loadBalancerSourceRanges`.
        affinity_timeout_s: A number turns `ClientIP` affinity on.
        external_policy: `spec.externalTrafficPolicy`.
        internal_policy: `spec.internalTrafficPolicy`.
        health_check_node_port: `spec.healthCheckNodePort`.
        labels: `metadata.labels`.
        annotations: `metadata.annotations`.
    """
    ips = tuple(cluster_ips)
    spec = ServiceSpec(
        type=service_type,
        cluster_ip=ips[0] if ips else cluster_ip,
        cluster_ips=ips or None,
        ip_families=tuple("IPv6" if ":" in ip else "IPv4" for ip in ips) or None,
        ports=tuple(service_port(port) if isinstance(port, int) else port for port in ports),
        external_ips=tuple(external_ips) or None,
        load_balancer_source_ranges=tuple(source_ranges) or None,
        session_affinity=None if affinity_timeout_s is None else "ClientIP",
        session_affinity_config=None if affinity_timeout_s is None else _client_ip_affinity(affinity_timeout_s),
        external_traffic_policy=external_policy,
        internal_traffic_policy=internal_policy,
        health_check_node_port=health_check_node_port,
    )
    metadata = ServiceMeta(name=name, namespace=namespace, labels=labels, annotations=annotations)
    return Service(metadata=metadata, spec=spec, status=_load_balancer_status(ingress) if ingress else None)


def _client_ip_affinity(timeout_s: int) -> SessionAffinityConfig:
    return SessionAffinityConfig(client_ip=ClientIPConfig(timeout_seconds=timeout_s))


def _load_balancer_status(ingress: Sequence[str | LoadBalancerIngress]) -> ServiceStatus:
    entries = tuple(LoadBalancerIngress(ip=entry) if isinstance(entry, str) else entry for entry in ingress)
    return ServiceStatus(load_balancer=LoadBalancerStatus(ingress=entries))


def slice_port(port: int | None = 80, *, name: str | None = "", protocol: str | None = "TCP") -> SlicePort:
    """One entry of `ports` of an EndpointSlice; the default name "" is that of the unnamed service port."""
    return SlicePort(name=name, protocol=protocol, port=port)


def slice_endpoint(
    *addresses: str,
    node_name: str | None = None,
    ready: bool | None = None,
    serving: bool | None = None,
    terminating: bool | None = None,
    zone_hints: Sequence[str] = (),
    node_hints: Sequence[str] = (),
) -> SliceEndpoint:
    """One entry of `endpoints` of an EndpointSlice; without conditions it is ready, serving and not terminating."""
    hints = EndpointHints(
        for_zones=tuple(Hint(zone) for zone in zone_hints) or None,
        for_nodes=tuple(Hint(node_hint) for node_hint in node_hints) or None,
    )
    return SliceEndpoint(
        addresses=addresses,
        conditions=EndpointConditions(ready=ready, serving=serving, terminating=terminating),
        hints=hints if zone_hints or node_hints else None,
        node_name=node_name,
    )


def endpoint_slice(
    of: str | Service = "web",
    addresses: Sequence[str | SliceEndpoint] = ("10.244.1.2",),
    *,
    namespace: str | None = None,
    name: str | None = None,
    ports: Sequence[int | SlicePort] | None = None,
    address_type: str | None = None,
    labels: Mapping[str, str] | None = None,
) -> EndpointSlice:
    """
    Build an EndpointSlice.

    Args:
        of: The Service, or its name; a Service also gives namespace and ports.
        addresses: A bare text is the address of a ready endpoint; see `slice_endpoint` for others.
        namespace: Of the slice, default that of *of*, else `default`.
        name: Of the slice, default `SERVICE-FAMILY`, as `web-ipv4`; say it where a Service has several slices.
        ports: A bare number is the unnamed TCP port; default the ports of *of* (`targetPort` if a number), else 80.
        address_type: Default the family of the first address.
        labels: Added to the label that names the Service.
    """
    entries = tuple(slice_endpoint(entry) if isinstance(entry, str) else entry for entry in addresses)
    address_type = _address_type(entries) if address_type is None else address_type
    owner = of if isinstance(of, str) else of.metadata.name
    namespace = namespace or (None if isinstance(of, str) else of.metadata.namespace) or "default"
    if ports is None:
        ports = (80,) if isinstance(of, str) else _ports_behind(of)
    metadata = ObjectMeta(
        name=name or f"{owner}-{address_type.lower()}",
        namespace=namespace,
        labels={SERVICE_NAME_LABEL: owner, **(labels or {})},
    )
    slice_ports = tuple(slice_port(port) if isinstance(port, int) else port for port in ports)
    return EndpointSlice(metadata=metadata, address_type=address_type, endpoints=entries, ports=slice_ports)


def _address_type(endpoints: Sequence[SliceEndpoint]) -> str:
    return "IPv6" if any(":" in address for entry in endpoints for address in entry.addresses or ()) else "IPv4"


def _ports_behind(of: Service) -> tuple[SlicePort, ...]:
    """The slice ports that a controller would write for a Service whose pods listen where `targetPort` says."""
    return tuple(
        SlicePort(
            name=port.name or "",
            protocol=port.protocol or "TCP",
            port=port.target_port if isinstance(port.target_port, int) else port.port,
        )
        for port in of.spec.ports or ()
    )


def node(
    name: str = "node1",
    *,
    addresses: Sequence[str] = ("192.0.2.10",),
    zone: str = "",
    pod_cidrs: Sequence[str] = ("10.244.1.0/24",),
    labels: Mapping[str, str] | None = None,
) -> Node:
    """
    Build a Node.

    Args:
        name: Of the node.
        addresses: Its addresses of type `InternalIP`.
        zone: Value of the zone label; "" means no label.
        pod_cidrs: `spec.podCIDRs`; the first one is `spec.podCIDR`.
        labels: Added to the zone label.
    """
    all_labels = {**({ZONE_LABEL: zone} if zone else {}), **(labels or {})}
    return Node(
        metadata=ObjectMeta(name=name, labels=all_labels or None),
        spec=NodeSpec(pod_cidr=pod_cidrs[0] if pod_cidrs else None, pod_cidrs=tuple(pod_cidrs) or None),
        status=NodeStatus(addresses=tuple(NodeAddress(type="InternalIP", address=address) for address in addresses)),
    )
