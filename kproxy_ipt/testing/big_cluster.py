"""Clusters of any size for benchmarks: ClusterIP Services and EndpointSlices, as a JSON list or as lines of watches."""

from collections.abc import Iterator
from typing import Literal

import msgspec

from kproxy_ipt.objects.events import Kind

ENDPOINTS = 5
ENDPOINTS_PER_SLICE = 100
"""As the EndpointSlice controller fills them, unless told otherwise."""

Protocol = Literal["TCP", "UDP"]


def _address(base: int, number: int) -> str:
    """Address *number* of a /12 or so that begins at 10.*base*.0.0, without .0 and .255."""
    return f"10.{base + number // 62500}.{number // 250 % 250}.{number % 250 + 1}"


def _service(number: int, protocol: Protocol = "TCP") -> dict[str, object]:
    address = _address(96, number)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": f"svc-{number}", "namespace": f"ns-{number % 50}"},
        "spec": {
            "type": "ClusterIP",
            "clusterIP": address,
            "clusterIPs": [address],
            "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack",
            "internalTrafficPolicy": "Cluster",
            "sessionAffinity": "None",
            "selector": {"app": f"svc-{number}"},
            "ports": [{"name": "http", "protocol": protocol, "port": 80, "targetPort": 8080}],
        },
        "status": {"loadBalancer": {}},
    }


def _slice(number: int, endpoints: int, protocol: Protocol = "TCP") -> dict[str, object]:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": f"svc-{number}-x7k2p",
            "namespace": f"ns-{number % 50}",
            "labels": {"kubernetes.io/service-name": f"svc-{number}"},
        },
        "addressType": "IPv4",
        "endpoints": list(_endpoints(number, endpoints)),
        "ports": [{"name": "http", "protocol": protocol, "port": 8080}],
    }


def _endpoints(number: int, endpoints: int) -> Iterator[dict[str, object]]:
    for index in range(endpoints):
        yield {
            "addresses": [_address(128, number * endpoints + index)],
            "conditions": {"ready": True, "serving": True, "terminating": False},
            "nodeName": f"node-{(number + index) % 100}",
            "targetRef": {"kind": "Pod", "namespace": f"ns-{number % 50}", "name": f"svc-{number}-{index}"},
        }


def _objects(services: int, endpoints: int, protocol: Protocol) -> Iterator[dict[str, object]]:
    for number in range(services):
        yield _service(number, protocol)
        yield _slice(number, endpoints, protocol)


def cluster(services: int, endpoints: int = ENDPOINTS, protocol: Protocol = "TCP") -> bytes:
    """JSON of a `v1/List` with *services* Services of *endpoints* endpoints each; port 80, 8080 behind it."""
    items = list(_objects(services, endpoints, protocol))
    return msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": items})


def service_address(number: int) -> str:
    """The cluster IP of a Service."""
    return _address(96, number)


def endpoint_addresses(number: int, endpoints: int = ENDPOINTS) -> tuple[str, ...]:
    """The addresses behind it, before any change."""
    return tuple(_address(128, number * endpoints + index) for index in range(endpoints))


def watch_lines(kind: Kind, services: int, endpoints: int = ENDPOINTS) -> Iterator[bytes]:
    """The same objects of one kind, Services or EndpointSlices, as lines of a watch that adds them."""
    for number in range(services):
        one = _service(number) if kind is Kind.SERVICES else _slice(number, endpoints)
        yield msgspec.json.encode({"type": "ADDED", "object": one})


def endpoint_slice_line(number: int, *, replaced: int, generation: int, endpoints: int = ENDPOINTS) -> bytes:
    """
    The line of a watch that says that one endpoint of a slice was replaced.

    Args:
        number: Of the Service.
        replaced: Index of the endpoint; the others are as at the start.
        generation: 1 to 200; another one is another address.
        endpoints: Of each Service.
    """
    one = _slice(number, endpoints)
    found = list(_endpoints(number, endpoints))
    found[replaced]["addresses"] = [f"10.{200 + generation // 100}.{number // 250}.{number % 250 + 1}"]
    one["endpoints"] = found
    return msgspec.json.encode({"type": "MODIFIED", "object": one})


def service_lines(number: int, change: Literal["ADDED", "DELETED"]) -> tuple[tuple[Kind, bytes], ...]:
    """The lines of both watches that say that a Service and its EndpointSlice came or went."""
    objects = ((Kind.SERVICES, _service(number)), (Kind.ENDPOINT_SLICES, _slice(number, ENDPOINTS)))
    return tuple((kind, msgspec.json.encode({"type": change, "object": one})) for kind, one in objects)


def large_slice_line(number: int, index: int, *, replacement: int | None = None) -> bytes:
    """
    The line of a watch that gives Service *number* one more slice, of `ENDPOINTS_PER_SLICE` endpoints.

    Args:
        number: Of the Service.
        index: Of the slice, from 0; at most 625 of all Services have addresses of their own.
        replacement: 0 to 62,499: the first endpoint has another address; None: as at the start.
    """
    one = _slice(number, ENDPOINTS_PER_SLICE)
    found = list(_endpoints(0, ENDPOINTS_PER_SLICE))
    for position, endpoint in enumerate(found):
        endpoint["addresses"] = [_address(240, index * ENDPOINTS_PER_SLICE + position)]
    if replacement is not None:
        found[0]["addresses"] = [_address(241, replacement)]
    metadata = {"name": f"svc-{number}-large-{index}", "namespace": f"ns-{number % 50}"}
    one["metadata"] = {**metadata, "labels": {"kubernetes.io/service-name": f"svc-{number}"}}
    one["endpoints"] = found
    return msgspec.json.encode({"type": "MODIFIED", "object": one})
