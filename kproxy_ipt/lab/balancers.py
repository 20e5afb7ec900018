"""
Load balancers: the address of each Service of that type, and the nodes that the client's packets to it go to.

The balancer is the routing table of the client. As those of providers it spares nodes without a ready endpoint where
the external policy is Local.
"""

from collections.abc import Iterable, Sequence

from kproxy_ipt.addresses import Family
from kproxy_ipt.lab.addresses import Taken
from kproxy_ipt.lab.documents import ApiObject, name_of, namespace_of, objects_in, part, text, texts_in, value_at
from kproxy_ipt.lab.endpoints import SERVICE_NAME_LABEL
from kproxy_ipt.lab.layout import NODES, LabNode

_FAMILIES = {family.api_name: family for family in Family}


def wants_balancer(service: ApiObject) -> bool:
    """Whether a Service waits for an address."""
    is_balancer = text(service, "spec", "type") == "LoadBalancer" and not text(service, "spec", "loadBalancerClass")
    return is_balancer and not objects_in(service, "status", "loadBalancer", "ingress")


def balancer_status(service: ApiObject, services: Iterable[ApiObject]) -> dict[str, object]:
    """
    The status of a Service with addresses that none of *services* has.

    Raises:
        TakenError: None is left.
    """
    taken = Taken(services)
    families = [_FAMILIES[each] for each in texts_in(service, "spec", "ipFamilies")]
    ingress = [{"ip": taken.balancer_ip(family), "ipMode": "VIP"} for family in families]
    return part(service, "status") | {"loadBalancer": {"ingress": ingress}}


def balancer_routes(services: Iterable[ApiObject], slices: Sequence[ApiObject]) -> dict[str, tuple[LabNode, ...]]:
    """The nodes behind each address of a load balancer."""
    return {address: _nodes_behind(service, slices) for service in services for address in _addresses(service)}


def _addresses(service: ApiObject) -> list[str]:
    found = [text(each, "ip") for each in objects_in(service, "status", "loadBalancer", "ingress")]
    return [each for each in found if each]


def _nodes_behind(service: ApiObject, slices: Sequence[ApiObject]) -> tuple[LabNode, ...]:
    if text(service, "spec", "externalTrafficPolicy") != "Local":
        return NODES
    named = {
        text(endpoint, "nodeName")
        for each in slices
        if text(each, "metadata", "labels", SERVICE_NAME_LABEL) == name_of(service)
        and namespace_of(each) == namespace_of(service)
        for endpoint in objects_in(each, "endpoints")
        if value_at(endpoint, "conditions", "ready") is not False
    }
    return tuple(node for node in NODES if node.name in named)
