"""
The controllers of a lab, one after the other, again and again until nothing changes any more.

Every step looks at all objects and does what is missing; none remembers what happened. A lab is small enough for that,
and a controller that missed something cannot exist.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from kproxy_ipt.errors import KernelError
from kproxy_ipt.lab import network
from kproxy_ipt.lab.addresses import TakenError
from kproxy_ipt.lab.balancers import balancer_routes, balancer_status, wants_balancer
from kproxy_ipt.lab.cluster import Cluster, RefusedError, now_text, target_of_object
from kproxy_ipt.lab.deployments import next_step
from kproxy_ipt.lab.documents import ApiObject, name_of, namespace_of, objects_in, part, text, uid_of
from kproxy_ipt.lab.endpoints import is_ours, wanted_endpoints, wanted_slices
from kproxy_ipt.lab.kubelet import Kubelet
from kproxy_ipt.lab.layout import LabNode, Layout
from kproxy_ipt.lab.pods import chosen_node, owner_uids
from kproxy_ipt.lab.resources import target_for

_LOG = logging.getLogger(__name__)
_ZONE_LABEL = "topology.kubernetes.io/zone"
_OWNERS = ("Deployment", "Service")
_OWNED = ("Pod", "EndpointSlice", "Endpoints")


class Control:
    """All controllers of a cluster; made inside of the loop that owns it."""

    def __init__(self, cluster: Cluster, layout: Layout) -> None:
        self._cluster = cluster
        self._layout = layout
        self._changed = asyncio.Event()
        self._routes: Mapping[str, Sequence[LabNode]] = {}
        self._kubelet = Kubelet(cluster, layout, self._changed.set)
        cluster.listen(self._changed.set)

    async def run(self) -> None:
        """Work until cancelled; an error of one step is logged and ends nothing."""
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                await self._steps()
        finally:
            await self._kubelet.stop()

    async def _steps(self) -> None:
        for step in (self._collect_garbage, self._deploy, self._schedule, self._make_endpoints, self._give_addresses):
            with _logged(step.__name__):
                step()
        with _logged("kubelet"):
            await self._kubelet.step()
        with _logged("balancers"):
            await self._route_balancers()

    def _collect_garbage(self) -> None:
        """Delete what belongs to an owner that is gone."""
        owners = {uid_of(each) for kind in _OWNERS for each in self._cluster.objects(kind)}
        for kind in _OWNED:
            for document in self._cluster.objects(kind):
                if owner_uids(document) and not owner_uids(document) & owners:
                    self._cluster.delete(target_of_object(document))

    def _deploy(self) -> None:
        for deployment in self._cluster.objects("Deployment"):
            step = next_step(deployment, self._cluster.objects("Pod", namespace_of(deployment)))
            for pod in step.replace:
                self._cluster.update(target_of_object(pod), pod)
            for pod in step.create:
                self._cluster.create(target_for("Pod", namespace_of(deployment)), pod)
            for pod in step.delete:
                self._cluster.delete(target_of_object(pod))
            self._cluster.set_status(deployment, _with_times(step.status, part(deployment, "status")))

    def _schedule(self) -> None:
        nodes = self._cluster.objects("Node")
        for pod in self._cluster.objects("Pod"):
            if text(pod, "spec", "nodeName"):
                continue
            name = chosen_node(pod, nodes, [each for each in self._cluster.objects("Pod") if each is not pod])
            if name:
                self._cluster.update(target_of_object(pod), {**pod, "spec": part(pod, "spec") | {"nodeName": name}})

    def _make_endpoints(self) -> None:
        pods = self._cluster.objects("Pod")
        zones = {name_of(node): text(node, "metadata", "labels", _ZONE_LABEL) for node in self._cluster.objects("Node")}
        for service in self._cluster.objects("Service"):
            if not part(service, "spec", "selector") or text(service, "spec", "type") == "ExternalName":
                continue
            wanted = wanted_slices(service, pods, zones)
            for document in [*wanted, wanted_endpoints(service, pods)]:
                self._put(document)
            names = {name_of(each) for each in wanted}
            for found in self._cluster.objects("EndpointSlice", namespace_of(service)):
                if is_ours(found) and uid_of(service) in owner_uids(found) and name_of(found) not in names:
                    self._cluster.delete(target_of_object(found))

    def _put(self, document: ApiObject) -> None:
        """Create or replace an object; one of that name that another author made stays."""
        target = target_of_object(document)
        found = self._cluster.store.find(target)
        if found is None:
            self._cluster.create(target_for(target.kind, target.namespace), document)
        elif owner_uids(found) & owner_uids(document):
            self._cluster.update(target, document)

    def _give_addresses(self) -> None:
        for service in self._cluster.objects("Service"):
            if wants_balancer(service):
                try:
                    self._cluster.set_status(service, balancer_status(service, self._cluster.objects("Service")))
                except TakenError as error:
                    _LOG.warning("service %s/%s: %s", namespace_of(service), name_of(service), error)

    async def _route_balancers(self) -> None:
        services = self._cluster.objects("Service")
        routes = balancer_routes(services, self._cluster.objects("EndpointSlice"))
        gone: dict[str, Sequence[LabNode]] = {address: () for address in self._routes if address not in routes}
        changed = {address: nodes for address, nodes in routes.items() if self._routes.get(address) != nodes}
        if gone or changed:
            await asyncio.to_thread(network.route_balancers, self._layout, {**gone, **changed})
            self._routes = routes


@contextmanager
def _logged(what: str) -> Iterator[None]:
    """Log what goes wrong in the body: objects of users can be strange, and the lab goes on without that step."""
    try:
        yield
    except (KernelError, RefusedError) as error:
        _LOG.warning("%s: %s", what, error)
    except Exception:  # noqa: BLE001 - one strange object must not end the lab
        _LOG.exception("%s", what)


def _with_times(status: ApiObject, before: ApiObject) -> dict[str, object]:
    """*status* with the times of its conditions, which change only with the condition."""
    known = {text(each, "type"): each for each in objects_in(before, "conditions")}
    conditions = []
    for condition in objects_in(status, "conditions"):
        previous = known.get(text(condition, "type"), {})
        same = text(previous, "status") == text(condition, "status")
        at = text(previous, "lastTransitionTime") if same else now_text()
        updated = text(previous, "lastUpdateTime") if same else at
        conditions.append({**condition, "lastTransitionTime": at, "lastUpdateTime": updated})
    return {**status, "conditions": conditions}
