"""
Addresses of Services that are risky, and fields that do not do what they seem to.

Any user who may write a Service may claim any address as external IP, and takes the traffic of nodes and pods to it; so
every claim is named with the class of its address (CVE-2020-8554).
"""

from collections.abc import Iterable, Iterator

import msgspec

from kproxy_ipt.addresses import canonical_address, canonical_prefix, is_zero_prefix, prefix_contains, special_class
from kproxy_ipt.config.model import Config, ExternalIPs
from kproxy_ipt.errors import Finding
from kproxy_ipt.objects.model import Node, Objects, Service
from kproxy_ipt.state.model import MachineFacts, NodeFacts
from kproxy_ipt.trace.explain_entries import ingress_of
from kproxy_ipt.trace.lint_finding import finding, note

EPHEMERAL_PORTS = (32768, 60999)
"""`net.ipv4.ip_local_port_range` where nobody has changed it."""


class KnownAddresses(msgspec.Struct, frozen=True, kw_only=True):
    """
    Addresses that belong to somebody.

    Attributes:
        nodes: Addresses of nodes, each with the name of its node.
        cluster_ips: Each with `namespace/name` of its Service.
        pods: Addresses of endpoints.
        pod_ranges: Canonical prefixes of pods, of the cluster and of single nodes.
    """

    nodes: dict[str, str]
    cluster_ips: dict[str, str]
    pods: frozenset[str]
    pod_ranges: tuple[str, ...]


def known_addresses(objects: Objects, config: Config, node: NodeFacts, machine: MachineFacts) -> KnownAddresses:
    """Gather the addresses that *objects*, *config* and the machine know."""
    nodes = dict.fromkeys((*machine.interface_addresses, *node.addresses), node.name)
    for one in objects.nodes:
        nodes |= dict.fromkeys(_addresses_of(one), one.metadata.name)
    return KnownAddresses(
        nodes=nodes,
        cluster_ips={
            address: f"{service.metadata.namespace}/{service.metadata.name}"
            for service in objects.services
            for text in (service.spec.cluster_ip or "", *(service.spec.cluster_ips or ()))
            if (address := canonical_address(text))
        },
        pods=frozenset(
            address
            for endpoint_slice in objects.endpoint_slices
            for endpoint in endpoint_slice.endpoints or ()
            for text in endpoint.addresses or ()
            if (address := canonical_address(text))
        ),
        pod_ranges=tuple(dict.fromkeys((*config.cluster_cidrs, *_pod_ranges(objects.nodes)))),
    )


def _addresses_of(node: Node) -> Iterator[str]:
    for entry in (node.status.addresses if node.status else None) or ():
        address = canonical_address(entry.address)
        if address:
            yield address


def _pod_ranges(nodes: Iterable[Node]) -> Iterator[str]:
    for node in nodes:
        for text in (node.spec.pod_cidrs if node.spec else None) or ():
            prefix = canonical_prefix(text)
            if prefix:
                yield prefix


def lint_external_ips(service: Service, known: KnownAddresses, permitted: ExternalIPs) -> Iterator[Finding]:
    """
    Name each external IP with the class of its address.

    Args:
        service: One that gets rules.
        known: Of the whole cluster.
        permitted: Which external IPs get rules.
    """
    for index, text in enumerate(service.spec.external_ips or ()):
        address = canonical_address(text)
        field = f"spec.externalIPs[{index}]"
        if address is None:
            continue
        if not permitted.allowed:
            yield note(service, field, address, "none", "feature gate AllowServiceExternalIPs is off: it gets no rules")
            continue
        if not permitted.permit(address):
            expected = f"an address in kproxyIpt.externalIPs: {', '.join(permitted.ranges)}"
            yield finding(service, field, address, expected, "it gets no rules")
            continue
        owner = _class_of(address, known)
        ports = ", ".join(str(port.port) for port in service.spec.ports or ())
        consequence = f"traffic of nodes and pods to {address} port {ports} goes to this Service"
        if owner:
            expected = "an address that belongs to nobody else"
            yield finding(service, field, f"{address}, {owner}", expected, consequence)
        else:
            found = f"{address}, an address outside of the cluster"
            yield note(service, field, found, "an address that its owner may claim", consequence)


def lint_load_balancer_ips(service: Service, known: KnownAddresses) -> Iterator[Finding]:
    """
    Name each address of a load balancer that belongs to somebody else.

    It has the rules of any other: who may write the status of a Service takes the traffic of nodes and pods to it.
    """
    ports = ", ".join(str(port.port) for port in service.spec.ports or ())
    for index, entry in enumerate(ingress_of(service)):
        address = canonical_address(entry.ip or "") if entry.ip_mode in (None, "", "VIP") else None
        owner = _class_of(address, known) if address else ""
        if owner:
            expected = "an address that belongs to nobody else"
            consequence = f"traffic of nodes and pods to {address} port {ports} goes to this Service"
            yield finding(
                service, f"status.loadBalancer.ingress[{index}].ip", f"{address}, {owner}", expected, consequence
            )


def lint_node_ports(service: Service) -> Iterator[Finding]:
    """Node ports that the kernel may give to others."""
    for index, port in enumerate(service.spec.ports or ()):
        if port.node_port and EPHEMERAL_PORTS[0] <= port.node_port <= EPHEMERAL_PORTS[1]:
            found = f"{port.node_port}, which the kernel gives to sockets without a port of their own"
            consequence = "a server of the node that gets this port is not reached from outside"
            expected = f"a number below {EPHEMERAL_PORTS[0]} (net.ipv4.ip_local_port_range)"
            yield note(service, f"spec.ports[{index}].nodePort", found, expected, consequence)


def _class_of(address: str, known: KnownAddresses) -> str:
    """Whose an address is, or "" where it belongs to nobody we know."""
    special = special_class(address)
    if special:
        return special
    if address in known.nodes:
        return f"the address of node {known.nodes[address]}"
    if address in known.cluster_ips:
        return f"the cluster IP of Service {known.cluster_ips[address]}"
    if address in known.pods:
        return "the address of an endpoint"
    prefix = next((one for one in known.pod_ranges if prefix_contains(one, address)), "")
    return f"an address in the pod range {prefix}" if prefix else ""


def lint_source_ranges(service: Service) -> Iterator[Finding]:
    """Ranges that restrict nothing, or less than they seem to."""
    spec, field = service.spec, "spec.loadBalancerSourceRanges"
    texts = [text.strip() for text in spec.load_balancer_source_ranges or () if text.strip()]
    if not texts:
        return
    if spec.type != "LoadBalancer" and not ingress_of(service):
        found = f"{', '.join(texts)} with type {spec.type or 'ClusterIP'}"
        yield finding(service, field, found, "type LoadBalancer", "NOTHING IS RESTRICTED: the ranges are not looked at")
        return
    for text in texts:
        if is_zero_prefix(canonical_prefix(text) or ""):
            consequence = "NOTHING IS RESTRICTED in this family, whatever the other ranges say"
            yield finding(service, field, text, "ranges that leave somebody out", consequence)
    if not any(entry.ip and entry.ip_mode in (None, "", "VIP") for entry in ingress_of(service)):
        consequence = "ranges are not enforced here: the load balancer itself has to"
        yield note(service, field, "no load balancer address with rules", "an address of mode VIP", consequence)
    elif any(port.node_port for port in spec.ports or ()):
        numbers = ", ".join(str(port.node_port) for port in spec.ports or () if port.node_port)
        consequence = f"node port {numbers} of every node is open to all sources"
        yield note(service, field, "node ports beside ranges", "a firewall in front of node ports", consequence)
