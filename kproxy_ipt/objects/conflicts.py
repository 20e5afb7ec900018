"""
Services that claim the same thing, found by looking at all of them together.

The rules of a service port that sorts first (by namespace, name, port name, protocol) come first, and the first rule
that fits a packet wins: so the winner is the same on every node, whatever the order of reading.

Source: order of rules as kube-proxy 1.36 and `state.Snapshot.services` have it.
"""

from collections.abc import Iterable, Iterator

import msgspec

from kproxy_ipt.addresses import canonical_address
from kproxy_ipt.errors import Finding, Severity
from kproxy_ipt.objects.model import SERVICE_PROXY_NAME_LABEL, Service, ServicePortSpec


class _Claimant(msgspec.Struct, frozen=True):
    """One port of one Service that gets rules."""

    text: str
    protocol: str
    index: int
    service: Service

    @property
    def service_name(self) -> str:
        return _service_name(self.service)

    @property
    def port(self) -> ServicePortSpec:
        return (self.service.spec.ports or ())[self.index]


_AddressKey = tuple[str, int | None, str]
_NodePortKey = tuple[bool, int, str]
"""Whether IPv6, number, protocol."""


def service_conflicts(services: Iterable[Service]) -> tuple[Finding, ...]:
    """
    Name each Service that loses something to another one.

    Args:
        services: Checked ones, in any order, each namespace and name once.

    Returns:
        Warnings, sorted by the claimants: the same node port and protocol; the same address, port and protocol; a
        health check port that is another's node port or health check port.
    """
    claimants = sorted(_claimants(services), key=_order)
    node_ports: dict[_NodePortKey, _Claimant] = {}
    return (
        *_address_conflicts(claimants),
        *_node_port_conflicts(claimants, node_ports),
        *_health_check_conflicts(claimants, node_ports),
    )


def _order(claimant: _Claimant) -> tuple[str, str, str, str]:
    metadata = claimant.service.metadata
    return (metadata.namespace or "", metadata.name, claimant.port.name or "", claimant.protocol)


def _claimants(services: Iterable[Service]) -> Iterator[_Claimant]:
    for service in services:
        spec, metadata = service.spec, service.metadata
        if spec.cluster_ip in (None, "", "None") or spec.type == "ExternalName":
            continue
        if metadata.labels and SERVICE_PROXY_NAME_LABEL in metadata.labels:
            continue
        name = _service_name(service)
        for index, port in enumerate(spec.ports or ()):
            text = f"{name}:{port.name}" if port.name else name
            yield _Claimant(text, port.protocol or "TCP", index, service)


def _service_name(service: Service) -> str:
    return f"{service.metadata.namespace}/{service.metadata.name}"


def _warning(claimant: _Claimant, field: str, found: str, expected: str, consequence: str) -> Finding:
    return Finding(
        object=f"Service {claimant.service_name}",
        field=field,
        found=found,
        expected=expected,
        consequence=consequence,
        severity=Severity.WARNING,
    )


def _address_conflicts(claimants: list[_Claimant]) -> Iterator[Finding]:
    owners: dict[_AddressKey, _Claimant] = {}
    for claimant in claimants:
        for field, address in _addresses(claimant.service):
            owner = owners.setdefault((address, claimant.port.port, claimant.protocol), claimant)
            if owner.service is not claimant.service:
                what = f"{address} port {claimant.port.port}/{claimant.protocol}"
                yield _warning(
                    claimant,
                    field,
                    f"{what}, which Service {owner.service_name} has too",
                    "an address and port that no other Service has",
                    f"Service {owner.service_name} gets all traffic to {what}",
                )


def _addresses(service: Service) -> Iterator[tuple[str, str]]:
    """Field and canonical text of each address, each address once."""
    spec = service.spec
    status = service.status.load_balancer if service.status else None
    ingress = (status.ingress if status else None) or ()
    texts = [("spec.clusterIP", spec.cluster_ip or "")]
    texts += [("spec.clusterIPs", text) for text in spec.cluster_ips or ()]
    texts += [("spec.externalIPs", text) for text in spec.external_ips or ()]
    texts += [
        ("status.loadBalancer.ingress", entry.ip or "") for entry in ingress if entry.ip_mode in (None, "", "VIP")
    ]
    seen: set[str] = set()
    for field, text in texts:
        address = canonical_address(text)
        if address is not None and address not in seen:
            seen.add(address)
            yield field, address


def _node_port_conflicts(claimants: list[_Claimant], owners: dict[_NodePortKey, _Claimant]) -> Iterator[Finding]:
    """Fill *owners* on the way. Services of different families do not meet."""
    for claimant in claimants:
        number = claimant.port.node_port
        if not number:
            continue
        candidates = [
            owners.setdefault((is_ipv6, number, claimant.protocol), claimant) for is_ipv6 in _families(claimant.service)
        ]
        owner = next((candidate for candidate in candidates if candidate is not claimant), None)
        if owner is not None:
            yield _warning(
                claimant,
                f"spec.ports[{claimant.index}].nodePort",
                f"{number}/{claimant.protocol}, which service port {owner.text} has too",
                "a node port that no other Service port has",
                f"service port {owner.text} gets all traffic to node port {number}",
            )


def _families(service: Service) -> list[bool]:
    """Whether IPv6, for each family of the cluster IPs."""
    texts = {service.spec.cluster_ip or "", *(service.spec.cluster_ips or ())}
    return sorted({":" in address for text in texts if (address := canonical_address(text))})


def _health_check_conflicts(claimants: list[_Claimant], node_ports: dict[_NodePortKey, _Claimant]) -> Iterator[Finding]:
    owners: dict[int, _Claimant] = {}
    for claimant in claimants:
        number = _health_check_node_port(claimant.service)
        if not number or claimant.index != 0:
            continue
        health_owner = owners.setdefault(number, claimant)
        found = [node_ports.get((is_ipv6, number, "TCP")) for is_ipv6 in (False, True)]
        owner = next((node_owner for node_owner in found if node_owner is not None), None)
        what = "node port"
        if owner is None and health_owner is not claimant:
            owner, what = health_owner, "health check port"
        if owner is not None:
            yield _warning(
                claimant,
                "spec.healthCheckNodePort",
                f"{number}, the {what} of Service {owner.service_name}",
                "a number that no other Service has",
                f"Service {owner.service_name} gets all traffic to {number}; this health check cannot be reached",
            )


def _health_check_node_port(service: Service) -> int:
    spec = service.spec
    is_used = spec.type == "LoadBalancer" and spec.external_traffic_policy == "Local"
    return (spec.health_check_node_port or 0) if is_used else 0
