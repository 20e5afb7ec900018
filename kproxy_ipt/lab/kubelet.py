"""
Turns pods that have a node into namespaces with servers, and says in their status how they are.

One for both nodes. A pod that is deleted goes on answering until its grace period ends.
"""

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from kproxy_ipt.errors import KernelError
from kproxy_ipt.lab import network
from kproxy_ipt.lab.cluster import Cluster, RefusedError, now_text, target_of_object
from kproxy_ipt.lab.documents import ApiObject, name_of, namespace_of, number, objects_in, part, text, uid_of, value_at
from kproxy_ipt.lab.layout import FIRST_POD_INDEX, LAST_POD_INDEX, LabNode, Layout, node_named
from kproxy_ipt.lab.pod_server import Identity, PodServer
from kproxy_ipt.lab.pods import NETNS_ANNOTATION, is_terminating, longest_delay_s, ports_of, unreadiness

_LOG = logging.getLogger(__name__)
_LITTLE_S = 0.01


@dataclass(eq=False)
class _Running:
    """A pod that runs; *index* 0 means that it shares the namespace of its node."""

    netns: str
    node: LabNode
    index: int
    server: PodServer
    addresses: tuple[str, ...]
    started_s: float
    started_at: str = field(default_factory=now_text)
    end_s: float = math.inf


class Kubelet:
    """All running pods; *wake* asks for another `step`."""

    def __init__(self, cluster: Cluster, layout: Layout, wake: Callable[[], None]) -> None:
        self._cluster = cluster
        self._layout = layout
        self._wake = wake
        self._running: dict[str, _Running] = {}
        self._failed: set[str] = set()
        self._next_index: dict[str, int] = {}

    async def step(self) -> None:
        """Stop what is to go, start what is new, report on all."""
        pods = {uid_of(pod): pod for pod in self._cluster.objects("Pod")}
        await asyncio.gather(*(self._stop(uid) for uid in tuple(self._running) if uid not in pods))
        self._failed &= pods.keys()
        await asyncio.gather(*(self._end(pod) for pod in pods.values() if is_terminating(pod)))
        new = [pod for uid, pod in pods.items() if self._is_new(uid, pod)]
        await asyncio.gather(*(self._start(pod) for pod in new))
        for pod in self._cluster.objects("Pod"):
            if uid_of(pod) in self._running:
                self._report(pod, self._running[uid_of(pod)])

    async def stop(self) -> None:
        """Stop all servers; namespaces stay."""
        await asyncio.gather(*(running.server.stop() for running in self._running.values()))

    def _is_new(self, uid: str, pod: ApiObject) -> bool:
        known = uid in self._running or uid in self._failed
        return not known and not is_terminating(pod) and node_named(text(pod, "spec", "nodeName")) is not None

    async def _start(self, pod: ApiObject) -> None:
        uid, node = uid_of(pod), node_named(text(pod, "spec", "nodeName"))
        assert node is not None
        try:
            running = self._placed(pod, node)
            # Before anything waits: pods that start side by side must not get the same address or name.
            self._running[uid] = running
            if running.index:
                await asyncio.to_thread(network.add_pod, self._layout, running.netns, node, running.index)
            await running.server.start(running.netns, running.addresses, ports_of(pod))
        except (KernelError, OSError) as error:
            _LOG.warning("pod %s/%s cannot start: %s", namespace_of(pod), name_of(pod), error)
            self._failed.add(uid)
            await self._stop(uid)
            self._cluster.set_status(pod, _failure(pod, str(error)))
            return
        if delay_s := longest_delay_s(pod):
            asyncio.get_running_loop().call_later(delay_s + _LITTLE_S, self._wake)
        self._annotate(pod, running.netns)

    def _placed(self, pod: ApiObject, node: LabNode) -> _Running:
        now_s = asyncio.get_running_loop().time()
        server = PodServer(Identity(name_of(pod), node.name))
        if value_at(pod, "spec", "hostNetwork") is True:
            return _Running(self._layout.netns(node.name), node, 0, server, tuple(node.addresses.values()), now_s)
        index = self._free_index(node)
        addresses = tuple(node.pod_addresses(index).values())
        return _Running(self._free_netns(pod), node, index, server, addresses, now_s)

    def _free_index(self, node: LabNode) -> int:
        """The next address of a node; those that were just given back come last, since somebody may remember them."""
        taken = {each.index for each in self._running.values() if each.node == node}
        first = self._next_index.get(node.name, FIRST_POD_INDEX)
        order = [*range(first, LAST_POD_INDEX + 1), *range(FIRST_POD_INDEX, first)]
        chosen = next((index for index in order if index not in taken), 0)
        if not chosen:
            raise KernelError(f"no address is left on {node.name}")
        self._next_index[node.name] = chosen + 1
        return chosen

    def _free_netns(self, pod: ApiObject) -> str:
        wanted = self._layout.pod_netns(namespace_of(pod), name_of(pod))
        taken = {each.netns for each in self._running.values()}
        name, attempt = wanted, 1
        while name in taken or network.exists(name):
            attempt += 1
            name = f"{wanted}-{attempt}"
        return name

    def _annotate(self, pod: ApiObject, netns: str) -> None:
        found = self._cluster.find("Pod", name_of(pod), namespace_of(pod))
        if found is not None and uid_of(found) == uid_of(pod):
            metadata = part(found, "metadata")
            metadata["annotations"] = part(metadata, "annotations") | {NETNS_ANNOTATION: netns}
            self._cluster.update(target_of_object(found), {**found, "metadata": metadata})

    async def _end(self, pod: ApiObject) -> None:
        """Remove a pod whose grace period is over, and come back for others when theirs is."""
        loop = asyncio.get_running_loop()
        running = self._running.get(uid_of(pod))
        if running is not None:
            end_s = loop.time() + number(pod, "metadata", "deletionGracePeriodSeconds")
            if math.isinf(running.end_s) or end_s < running.end_s:
                running.end_s = end_s
                loop.call_at(end_s + _LITTLE_S, self._wake)
            if loop.time() < running.end_s:
                return
            await self._stop(uid_of(pod))
        try:
            self._cluster.delete(target_of_object(pod), 0)
        except RefusedError:
            _LOG.debug("pod %s was deleted meanwhile", name_of(pod))

    async def _stop(self, uid: str) -> None:
        running = self._running.pop(uid, None)
        if running is None:
            return
        await running.server.stop()
        if running.index:
            await asyncio.to_thread(network.remove, self._layout, running.netns)

    def _report(self, pod: ApiObject, running: _Running) -> None:
        reason = unreadiness(pod, asyncio.get_running_loop().time() - running.started_s + _LITTLE_S)
        before = {text(each, "type"): each for each in objects_in(pod, "status", "conditions")}
        self._cluster.set_status(pod, _status(pod, running, reason, text(before.get("Ready"), "lastTransitionTime")))


def _status(pod: ApiObject, running: _Running, reason: str, changed_at: str) -> dict[str, object]:
    ready = "False" if reason else "True"
    previous = next((each for each in objects_in(pod, "status", "conditions") if text(each, "type") == "Ready"), {})
    at = changed_at if changed_at and text(previous, "status") == ready else now_text()
    condition = {"type": "Ready", "status": ready, "lastTransitionTime": at}
    if reason:
        condition |= {"reason": "ContainersNotReady", "message": reason}
    containers = [
        {
            "name": text(each, "name"),
            "image": text(each, "image"),
            "ready": not reason,
            "started": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": running.started_at}},
        }
        for each in objects_in(pod, "spec", "containers")
    ]
    return {
        "phase": "Running",
        "conditions": [condition, {**condition, "type": "ContainersReady"}],
        "hostIP": next(iter(running.node.addresses.values())),
        "podIP": running.addresses[0],
        "podIPs": [{"ip": address} for address in running.addresses],
        "startTime": running.started_at,
        "containerStatuses": containers,
    }


def _failure(pod: ApiObject, message: str) -> dict[str, object]:
    waiting = {"waiting": {"reason": "CreateContainerError", "message": message}}
    containers = [
        {"name": text(each, "name"), "ready": False, "restartCount": 0, "state": waiting}
        for each in objects_in(pod, "spec", "containers")
    ]
    condition = {"type": "Ready", "status": "False", "reason": "ContainersNotReady", "message": message}
    return {"phase": "Pending", "conditions": [condition], "containerStatuses": containers}
