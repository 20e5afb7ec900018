"""
Services become service ports of one family.

What comes in was checked by `objects.check`; what is odd but harmless (an external IP that does not parse, a range of
the other family) is left out here without a word, since the check has already said so.

Source: `pkg/proxy/serviceport.go` behaviour of Kubernetes 1.36: cluster IP by `ipFamilies`, the rest by family of the
address.
"""

from collections.abc import Iterable, Iterator

from kproxy_ipt.addresses import Family, canonical_address, canonical_prefix, family_of, is_zero_prefix
from kproxy_ipt.config.model import Scheduler
from kproxy_ipt.objects.model import (
    SCHEDULER_ANNOTATION,
    SERVICE_PROXY_NAME_LABEL,
    Service,
    ServicePortSpec,
    ServiceSpec,
)
from kproxy_ipt.state.model import ServicePort

DEFAULT_AFFINITY_TIMEOUT_S = 10800
"""`timeoutSeconds` as the API server defaults it."""


def service_ports(service: Service, family: Family) -> tuple[ServicePort, ...]:
    """
    The service ports of *service* for *family*, in the order of `spec.ports`.

    Returns:
        Empty for a Service of another proxy, a headless one, one of type ExternalName, and one without a cluster IP
        of this family.

    Source: `spec.clusterIP`, `spec.type`, label `service.kubernetes.io/service-proxy-name`.
    """
    if SERVICE_PROXY_NAME_LABEL in (service.metadata.labels or ()):
        return ()
    spec = service.spec
    if spec.cluster_ip in (None, "", "None") or spec.type == "ExternalName":
        return ()
    cluster_ip = _cluster_ip(spec, family)
    return tuple(_service_ports(service, family, cluster_ip)) if cluster_ip else ()


def _cluster_ip(spec: ServiceSpec, family: Family) -> str:
    if not spec.ip_families:
        address = canonical_address(spec.cluster_ip or "") or ""
        return address if address and family_of(address) is family else ""
    if family.api_name not in spec.ip_families:
        return ""
    index = spec.ip_families.index(family.api_name)
    texts = spec.cluster_ips or ()
    return canonical_address(texts[index]) or "" if index < len(texts) else ""


def _service_ports(service: Service, family: Family, cluster_ip: str) -> Iterator[ServicePort]:
    spec = service.spec
    namespace, name = service.metadata.namespace or "", service.metadata.name
    external_local = _external_local(spec)
    shared = {
        "external_ips": _addresses(spec.external_ips or (), family),
        "load_balancer_ips": _load_balancer_ips(service, family),
        "source_ranges": source_ranges(spec.load_balancer_source_ranges or (), family),
    }
    for port in spec.ports or ():
        yield ServicePort(
            namespace=namespace,
            name=name,
            port_name=port.name or "",
            text=service_port_text(namespace, name, port.name or ""),
            protocol=(port.protocol or "TCP").lower(),
            family=family,
            cluster_ip=cluster_ip,
            port=port.port or 0,
            node_port=_node_port(port),
            affinity_timeout_s=_affinity_timeout_s(spec),
            internal_local=spec.internal_traffic_policy == "Local",
            external_local=external_local,
            health_check_node_port=_health_check_node_port(spec, external_local=external_local),
            scheduler=_scheduler(service),
            **shared,
        )


def service_port_text(namespace: str, name: str, port_name: str) -> str:
    """`namespace/name:port_name`, without the colon where the port has no name."""
    return f"{namespace}/{name}:{port_name}" if port_name else f"{namespace}/{name}"


def _node_port(port: ServicePortSpec) -> int:
    return port.node_port or 0


def _addresses(texts: Iterable[str], family: Family) -> tuple[str, ...]:
    found = (canonical_address(text) for text in texts)
    return tuple(address for address in found if address and family_of(address) is family)


def _load_balancer_ips(service: Service, family: Family) -> tuple[str, ...]:
    status = service.status.load_balancer if service.status else None
    ingress = (status.ingress if status else None) or ()
    return _addresses((entry.ip for entry in ingress if entry.ip and entry.ip_mode in (None, "", "VIP")), family)


def source_ranges(texts: Iterable[str], family: Family) -> tuple[str, ...]:
    """
    The ranges of *family* that restrict load balancer addresses, canonical, in the order given.

    Empty means that every source is allowed: also when nothing in the list parses, or one range covers the family.

    Source: `spec.loadBalancerSourceRanges`.
    """
    found = (canonical_prefix(text.strip()) for text in texts)
    prefixes = tuple(prefix for prefix in found if prefix and family_of(prefix) is family)
    return () if any(is_zero_prefix(prefix) for prefix in prefixes) else prefixes


def _affinity_timeout_s(spec: ServiceSpec) -> int:
    if spec.session_affinity != "ClientIP":
        return 0
    configured = spec.session_affinity_config
    client_ip = configured.client_ip if configured else None
    return (client_ip.timeout_seconds if client_ip else None) or DEFAULT_AFFINITY_TIMEOUT_S


def _scheduler(service: Service) -> Scheduler | None:
    """What the annotation asks for; None where it is absent or not understood, of which a finding tells."""
    wanted = (service.metadata.annotations or {}).get(SCHEDULER_ANNOTATION)
    return Scheduler(wanted) if wanted in tuple(Scheduler) else None


def _external_local(spec: ServiceSpec) -> bool:
    reachable = spec.type in ("LoadBalancer", "NodePort") or bool(spec.external_ips)
    return reachable and spec.external_traffic_policy == "Local"


def _health_check_node_port(spec: ServiceSpec, *, external_local: bool) -> int:
    if spec.type != "LoadBalancer" or not external_local:
        return 0
    return spec.health_check_node_port or 0
