"""All objects of one moment become the state of one family; the node becomes facts."""

from collections.abc import Iterable

from kproxy_ipt.addresses import Family, canonical_address, canonical_prefix
from kproxy_ipt.objects.model import ZONE_LABEL, Node, Objects
from kproxy_ipt.state.model import NodeFacts, ServiceState, Snapshot
from kproxy_ipt.state.services import service_ports
from kproxy_ipt.state.slices import endpoints_by_port


def node_facts(nodes: Iterable[Node], name: str) -> NodeFacts:
    """
    What the Node object called *name* says about the node.

    Args:
        nodes: Any number, of any nodes.
        name: Own node name, lower case; "" where nobody told.

    Returns:
        Facts with `known` False, and only the name, where no Node is called so.

    Source: `metadata.labels`, `spec.podCIDRs` (or `podCIDR`), `status.addresses` of v1 Node.
    """
    for node in nodes:
        if name and node.metadata.name == name:
            return _facts_of(node, name)
    return NodeFacts(name=name)


def _facts_of(node: Node, name: str) -> NodeFacts:
    pod_cidrs = (node.spec.pod_cidrs or (node.spec.pod_cidr or "",)) if node.spec else ()
    found = (canonical_prefix(text) for text in pod_cidrs)
    return NodeFacts(
        name=name,
        known=True,
        zone=(node.metadata.labels or {}).get(ZONE_LABEL, ""),
        addresses=_node_addresses(node),
        pod_cidrs=tuple(prefix for prefix in found if prefix),
    )


def _node_addresses(node: Node) -> tuple[str, ...]:
    entries = (node.status.addresses if node.status else None) or ()
    found = (
        canonical_address(entry.address)
        for wanted in ("InternalIP", "ExternalIP")
        for entry in entries
        if entry.type == wanted
    )
    return tuple(address for address in found if address)


def take_snapshot(objects: Objects, family: Family, node: NodeFacts) -> Snapshot:
    """
    The state of *family* that *objects* describe.

    Args:
        objects: Checked, sorted, without duplicates.
        family: Only addresses of this family are kept.
        node: From `node_facts`; its name decides which endpoints are local.
    """
    endpoints = endpoints_by_port(objects.endpoint_slices, family, node.name)
    states = [
        ServiceState(port, endpoints.get((port.namespace, port.name, port.port_name, port.protocol), ()))
        for service in objects.services
        for port in service_ports(service, family)
    ]
    states.sort(key=_reading_order)
    services = {(state.service_port.text, state.service_port.protocol): state for state in states}
    return Snapshot(family=family, services=services, node=node)


def _reading_order(state: ServiceState) -> tuple[str, str, str, str]:
    port = state.service_port
    return (port.namespace, port.name, port.port_name, port.protocol)
