"""
A cluster that never rests: random changes of Services and EndpointSlices, the same ones for the same seed.

One Service, `steady`, is never touched: whatever happens around it, its traffic must not notice.
"""

import random
from collections import Counter
from collections.abc import Callable
from ipaddress import ip_address

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.objects.model import EndpointSlice, Objects, Service
from kproxy_ipt.testing.api_server import ApiServer
from kproxy_ipt.testing.desired import objects_of
from kproxy_ipt.testing.lab import NODE_NAME, REMOTE_NODE_NAME
from kproxy_ipt.testing.lab_objects import own_node
from kproxy_ipt.testing.objects import endpoint_slice, service, service_port, slice_endpoint

_FIRST_IP = ip_address("10.98.0.1")
_FIRST_NODE_PORT = 31000
_MOST_ENDPOINTS = 5
_PORTS = (80, 443, 8080)


class Churn:
    """
    The objects of an API server, and random changes of them.

    Attributes:
        services: By name; without the steady ones.
        slices: By name; without the steady ones.
        kinds: How often each kind of change happened.
    """

    def __init__(self, server: ApiServer, count: int, *steady: Service | EndpointSlice, seed: int = 1) -> None:
        """Fill *server* with the Node, *steady* objects and *count* Services with a slice each."""
        self.services: dict[str, Service] = {}
        self.slices: dict[str, EndpointSlice] = {}
        self.kinds: Counter[str] = Counter()
        self._server = server
        self._steady = steady
        self._random = random.Random(seed)
        self._numbers = 0
        server.put(own_node(), *steady)
        for _ in range(count):
            self._add_service()
            self._add_slice(list(self.services)[-1])

    def objects(self) -> Objects:
        """Everything, as a fresh start would read it."""
        return objects_of((own_node(), *self._steady, *self.services.values(), *self.slices.values()))

    def step(self) -> str:
        """Make one change; returns its kind."""
        changes: tuple[tuple[str, Callable[[], None], int], ...] = (
            ("service added", self._add_service, 5),
            ("service changed", self._change_service, 15),
            ("service deleted", self._delete_service, 5),
            ("slice added", self._add_some_slice, 10),
            ("slice changed", self._change_slice, 50),
            ("slice deleted", self._delete_slice, 8),
            ("slice moved", self._move_slice, 7),
        )
        kind, change, _ = self._random.choices(changes, [weight for _, _, weight in changes])[0]
        change()
        self.kinds[kind] += 1
        return kind

    def _name(self, what: str) -> str:
        self._numbers += 1
        return f"{what}-{self._numbers:05}"

    def _add_service(self) -> None:
        name = self._name("svc")
        self._put_service(name, self._numbers)

    def _put_service(self, name: str, number: int) -> None:
        chance = self._random
        port = service_port(chance.choice(_PORTS), node_port=_FIRST_NODE_PORT + number if number < 1500 else None)
        made = service(
            name,
            cluster_ip=str(_FIRST_IP + number),
            service_type="NodePort",
            ports=[port],
            external_policy=chance.choice(["Cluster", "Local"]),
            internal_policy=chance.choice(["Cluster", "Cluster", "Local"]),
            affinity_timeout_s=chance.choice([None, None, 600]),
        )
        self.services[name] = made
        self._server.put(made)

    def _change_service(self) -> None:
        name = self._random.choice(list(self.services))
        self._put_service(name, int(name.split("-")[1]))

    def _delete_service(self) -> None:
        name = self._random.choice(list(self.services))
        del self.services[name]
        self._server.delete("Service", name)

    def _add_some_slice(self) -> None:
        self._add_slice(self._random.choice(list(self.services)))

    def _add_slice(self, owner: str) -> None:
        self._put_slice(self._name("slice"), owner)

    def _put_slice(self, name: str, owner: str) -> None:
        chance = self._random
        hosts = chance.sample(range(2, 250), chance.randint(0, _MOST_ENDPOINTS))
        entries = [
            slice_endpoint(
                f"10.244.{chance.choice((1, 2))}.{host}", node_name=chance.choice((NODE_NAME, REMOTE_NODE_NAME))
            )
            for host in hosts
        ]
        made = endpoint_slice(owner, entries, name=name, ports=[8080], address_type=Family.IPV4.api_name)
        self.slices[name] = made
        self._server.put(made)

    def _change_slice(self) -> None:
        name = self._random.choice(list(self.slices))
        labels = self.slices[name].metadata.labels or {}
        self._put_slice(name, next(iter(labels.values())))

    def _delete_slice(self) -> None:
        if len(self.slices) > 1:
            name = self._random.choice(list(self.slices))
            del self.slices[name]
            self._server.delete("EndpointSlice", name)

    def _move_slice(self) -> None:
        """Another owner, as when labels of a slice are edited."""
        name = self._random.choice(list(self.slices))
        old, owner = self.slices[name], self._random.choice(list(self.services))
        labels = dict.fromkeys(old.metadata.labels or {}, owner)
        moved = msgspec.structs.replace(old, metadata=msgspec.structs.replace(old.metadata, labels=labels))
        self.slices[name] = moved
        self._server.put(moved)
