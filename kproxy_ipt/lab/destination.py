"""
What `lab curl` is asked to reach, from where: names of a lab become an address and a port.

A Service is entered the way that exists for the place: by its cluster IP from nodes and pods, by its load balancer, its
external IP or a node port from the client outside.
"""

from collections.abc import Sequence
from ipaddress import ip_address
from urllib.parse import urlsplit

import msgspec

from kproxy_ipt.addresses import Family, family_of
from kproxy_ipt.errors import SourceError
from kproxy_ipt.lab.client import LabClient
from kproxy_ipt.lab.documents import ApiObject, name_of, namespace_of, number, objects_in, text, texts_in
from kproxy_ipt.lab.layout import CLIENT, NODES, Layout, node_named
from kproxy_ipt.lab.pods import NETNS_ANNOTATION, ports_of

_HTTP_PORT = 80


class Place(msgspec.Struct, frozen=True):
    """Where requests come from."""

    name: str
    netns: str


class Destination(msgspec.Struct, frozen=True, kw_only=True):
    """Where they go to; *way* says by which kind of entry, for people."""

    address: str
    port: int
    protocol: str = "TCP"
    path: str = "/"
    way: str = ""

    @property
    def url(self) -> str:
        """As a URL; `udp://` where the protocol is that."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        scheme = "http" if self.protocol == "TCP" else self.protocol.lower()
        return f"{scheme}://{host}:{self.port}{self.path if self.protocol == 'TCP' else ''}"


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """
    What was asked for.

    Attributes:
        target: A Service (`web`, `web.demo`), a pod, a node or an address, with or without a port; or a URL.
        place: Name of the client, a node or a pod; "" chooses one from where the target can be reached.
        port: Number or name of a port, "" for the first one.
        family: Of the address, None for the first one.
    """

    target: str
    place: str = ""
    port: str = ""
    family: Family | None = None


def resolve(layout: Layout, client: LabClient, wish: Wish) -> tuple[Place, Destination]:
    """
    Find the place and the destination.

    Raises:
        SourceError: There is no such thing in the lab, or no way to it from that place.
    """
    split = urlsplit(wish.target if "://" in wish.target else f"//{wish.target}")
    try:
        host, wished_port = split.hostname or "", str(split.port or "") or wish.port
    except ValueError as error:
        raise SourceError(f"{wish.target}: {error}") from error
    path = split.path or "/"
    pods = client.objects("Pod")
    service = _named(client.objects("Service"), host)
    place = _place(layout, pods, wish.place or _default_place(service))
    if service is not None:
        found = _service_entry(service, place, wished_port, wish.family)
    else:
        found = _other(pods, host, wished_port, wish.family)
    return place, msgspec.structs.replace(found, path=path)


def _default_place(service: ApiObject | None) -> str:
    """Outside, if the Service has a door there."""
    is_inner = service is not None and text(service, "spec", "type") == "ClusterIP"
    return NODES[0].name if is_inner and not texts_in(service, "spec", "externalIPs") else CLIENT


def _place(layout: Layout, pods: Sequence[ApiObject], name: str) -> Place:
    if name == CLIENT or node_named(name) is not None:
        return Place(name, layout.netns(name))
    pod = _named(pods, name)
    netns = text(pod, "metadata", "annotations", NETNS_ANNOTATION)
    if not netns:
        raise SourceError(f"there is no place {name!r}: say client, {', '.join(each.name for each in NODES)} or a pod")
    return Place(name, netns)


def _named(documents: Sequence[ApiObject], name: str) -> ApiObject | None:
    """The object of a name `NAME`, `NAME.NAMESPACE` or `NAME.NAMESPACE.svc...`."""
    own, _, rest = name.partition(".")
    namespace = rest.partition(".")[0] or "default"
    return next((each for each in documents if (name_of(each), namespace_of(each)) == (own, namespace)), None)


def _service_entry(service: ApiObject, place: Place, wished_port: str, family: Family | None) -> Destination:
    port = _service_port(service, wished_port)
    number_of, protocol = number(port, "port"), text(port, "protocol")
    cluster_ips = [each for each in texts_in(service, "spec", "clusterIPs") if each != "None"]
    if place.name != CLIENT:
        address = _of_family(cluster_ips, family)
        if not address:
            raise SourceError(f"service {name_of(service)} has no cluster IP (of that family): ask one of its pods")
        return Destination(address=address, port=number_of, protocol=protocol, way="cluster IP")
    ingress = [text(each, "ip") for each in objects_in(service, "status", "loadBalancer", "ingress")]
    if address := _of_family(ingress, family):
        return Destination(address=address, port=number_of, protocol=protocol, way="load balancer")
    if address := _of_family(texts_in(service, "spec", "externalIPs"), family):
        return Destination(address=address, port=number_of, protocol=protocol, way="external IP")
    if node_port := number(port, "nodePort"):
        own = family or family_of(cluster_ips[0])
        way = f"node port of {NODES[0].name}"
        return Destination(address=NODES[0].addresses[own], port=node_port, protocol=protocol, way=way)
    raise SourceError(f"service {name_of(service)} cannot be reached from outside: say --from {NODES[0].name} or a pod")


def _service_port(service: ApiObject, wished: str) -> ApiObject:
    ports = objects_in(service, "spec", "ports")
    for port in ports:
        if wished in ("", text(port, "name"), text(port, "port")):
            return port
    known = ", ".join(text(port, "port") for port in ports) or "none"
    raise SourceError(f"service {name_of(service)} has no port {wished}; it has {known}")


def _other(pods: Sequence[ApiObject], host: str, wished_port: str, family: Family | None) -> Destination:
    """A node, a pod or an address."""
    port = int(wished_port) if wished_port.isdecimal() else 0
    node = node_named(host)
    if node is not None:
        return Destination(address=node.addresses[family or Family.IPV4], port=port or _HTTP_PORT, way=f"node {host}")
    pod = _named(pods, host)
    if pod is not None:
        known = next((each for each in ports_of(pod) if wished_port in ("", each.name, str(each.port))), None)
        address = _of_family([text(each, "ip") for each in objects_in(pod, "status", "podIPs")], family)
        if not address:
            raise SourceError(f"pod {host} has no address (of that family)")
        protocol = known.protocol if known else "TCP"
        return Destination(address=address, port=known.port if known else port, protocol=protocol, way="pod")
    try:
        ip_address(host)
    except ValueError as error:
        raise SourceError(f"there is no service, pod, node or address {host!r} in the lab") from error
    return Destination(address=host, port=port or _HTTP_PORT, way="address")


def _of_family(addresses: Sequence[str], family: Family | None) -> str:
    return next((each for each in addresses if family is None or family_of(each) is family), "")
