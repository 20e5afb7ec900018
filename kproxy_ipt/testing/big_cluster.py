"""Clusters of any size for benchmarks: ClusterIP Services and EndpointSlices, as a JSON list or as lines of watches."""

from collections.abc import Iterator

import msgspec

from kproxy_ipt.objects.events import Kind

ENDPOINTS = 5


def _address(base: int, number: int) -> str:
    """Address *number* of a /12 or so that begins at 10.*base*.0.0, without .0 and .255."""
    return f"10.{base + number // 62500}.{number // 250 % 250}.{number % 250 + 1}"


def _service(number: int) -> dict[str, object]:
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
            "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080}],
        },
        "status": {"loadBalancer": {}},
    }


def _slice(number: int, endpoints: int) -> dict[str, object]:
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
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
    }


def _endpoints(number: int, endpoints: int) -> Iterator[dict[str, object]]:
    for index in range(endpoints):
        yield {
            "addresses": [_address(128, number * endpoints + index)],
            "conditions": {"ready": True, "serving": True, "terminating": False},
            "nodeName": f"node-{(number + index) % 100}",
            "targetRef": {"kind": "Pod", "namespace": f"ns-{number % 50}", "name": f"svc-{number}-{index}"},
        }


def _objects(services: int, endpoints: int) -> Iterator[dict[str, object]]:
    for number in range(services):
        yield _service(number)
        yield _slice(number, endpoints)


def cluster(services: int, endpoints: int = ENDPOINTS) -> bytes:
    """JSON of a `v1/List` with *services* Services of *endpoints* endpoints each."""
    return msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": list(_objects(services, endpoints))})


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
