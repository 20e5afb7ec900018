"""What objects say of a pod: its ports, whether it is to be ready, and the node that it should run on."""

from collections.abc import Iterable, Sequence

import msgspec

from kproxy_ipt.lab.documents import ApiObject, number, objects_in, part, text, value_at
from kproxy_ipt.lab.layout import MOST_PODS

READY_ANNOTATION = "kproxy-ipt.lab/ready"
"""`false` makes a pod not ready; it goes on answering."""
NETNS_ANNOTATION = "kproxy-ipt.lab/netns"
"""Name of the network namespace of a pod."""
DEFAULT_PORT = 8080
"""Where a pod answers that names no port of a container."""


class PodPort(msgspec.Struct, frozen=True):
    """A port that a pod answers on; *protocol* as in the API."""

    port: int
    protocol: str
    name: str = ""


def ports_of(pod: ApiObject) -> list[PodPort]:
    """The ports of all containers of a pod, or the default one."""
    found = [
        PodPort(number(port, "containerPort"), text(port, "protocol") or "TCP", text(port, "name"))
        for container in objects_in(pod, "spec", "containers")
        for port in objects_in(container, "ports")
    ]
    return found or [PodPort(DEFAULT_PORT, "TCP")]


def resolved_port(pod: ApiObject, target_port: object, protocol: str) -> int | None:
    """The number of a target port, which may be the name of a port of the pod; None if the pod has no such name."""
    if isinstance(target_port, int):
        return target_port
    wanted = str(target_port)
    if wanted.isdecimal():
        return int(wanted)
    return next((each.port for each in ports_of(pod) if each.name == wanted and each.protocol == protocol), None)


def is_terminating(pod: ApiObject) -> bool:
    """Whether the pod is in its grace period."""
    return bool(value_at(pod, "metadata", "deletionTimestamp"))


def is_ready(pod: ApiObject) -> bool:
    """Whether the status of a pod says so."""
    conditions = objects_in(pod, "status", "conditions")
    return any(text(each, "type") == "Ready" and text(each, "status") == "True" for each in conditions)


def unreadiness(pod: ApiObject, running_s: float) -> str:
    """
    Why a pod that has run for *running_s* should not be ready; "" if it should be.

    Of readiness probes, ports and the initial delay count: every server of a pod answers any path.
    """
    if text(pod, "metadata", "annotations", READY_ANNOTATION).lower() == "false":
        return f"annotation {READY_ANNOTATION} is false"
    for container in objects_in(pod, "spec", "containers"):
        probe = part(container, "readinessProbe")
        if number(probe, "initialDelaySeconds") > running_s:
            return "the initial delay of the readiness probe is not over"
        target = value_at(probe, "httpGet", "port") or value_at(probe, "tcpSocket", "port")
        if target is None:
            continue
        port = resolved_port(pod, target, "TCP")
        if port not in {each.port for each in ports_of(pod) if each.protocol == "TCP"}:
            return f"readiness probe failed: nothing listens on port {target}"
    return ""


def longest_delay_s(pod: ApiObject) -> int:
    """The longest initial delay of the readiness probes of a pod."""
    delays = [number(each, "readinessProbe", "initialDelaySeconds") for each in objects_in(pod, "spec", "containers")]
    return max(delays, default=0)


def chosen_node(pod: ApiObject, nodes: Sequence[ApiObject], pods: Iterable[ApiObject]) -> str:
    """
    The node for a pod that has none: the one with the fewest pods of the same owner, then of all; "" if none fits.

    A node fits that has all labels of the node selector, is not cordoned and has room for another pod.
    """
    wanted = part(pod, "spec", "nodeSelector")
    owner = _owner(pod)
    placed = [(text(each, "spec", "nodeName"), _owner(each)) for each in pods]
    loads = {
        text(node, "metadata", "name"): [
            sum(where == text(node, "metadata", "name") and whose == owner for where, whose in placed),
            sum(where == text(node, "metadata", "name") for where, _ in placed),
        ]
        for node in nodes
        if wanted.items() <= part(node, "metadata", "labels").items() and not value_at(node, "spec", "unschedulable")
    }
    roomy = [name for name, (_, count) in loads.items() if count < MOST_PODS]
    return min(roomy, key=lambda name: (loads[name], name), default="")


def owner_uids(document: ApiObject) -> set[str]:
    """The uids of the owners of an object."""
    return {text(each, "uid") for each in objects_in(document, "metadata", "ownerReferences")}


def _owner(pod: ApiObject) -> str:
    return min(owner_uids(pod), default="")
