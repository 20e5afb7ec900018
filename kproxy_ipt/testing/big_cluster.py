"""Clusters of any size for benchmarks: one JSON list of ClusterIP Services and their EndpointSlices."""

from collections.abc import Iterator

import msgspec

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
        "endpoints": [
            {
                "addresses": [_address(128, number * endpoints + index)],
                "conditions": {"ready": True, "serving": True, "terminating": False},
                "nodeName": f"node-{(number + index) % 100}",
                "targetRef": {"kind": "Pod", "namespace": f"ns-{number % 50}", "name": f"svc-{number}-{index}"},
            }
            for index in range(endpoints)
        ],
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
    }


def _objects(services: int, endpoints: int) -> Iterator[dict[str, object]]:
    for number in range(services):
        yield _service(number)
        yield _slice(number, endpoints)


def cluster(services: int, endpoints: int = ENDPOINTS) -> bytes:
    """JSON of a `v1/List` with *services* Services of *endpoints* endpoints each."""
    return msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": list(_objects(services, endpoints))})
