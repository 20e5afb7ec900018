"""
The kinds of a lab: where they are, what discovery says of them, and what a path means.

Source: API concepts of Kubernetes, "Resource URIs"; `/api`, `/apis` and below of a kube-apiserver v1.36.2.
"""

from collections.abc import Mapping

import msgspec

from kproxy_ipt.testing.api_store import CLUSTER_KINDS, RESOURCES, Target

GIT_VERSION = "v1.36.2"
"""Of the Kubernetes whose API this one resembles."""
GROUPS = ("apps/v1", "discovery.k8s.io/v1", "events.k8s.io/v1")
CORE_EVENTS = "/api/v1/events"
"""Events in their older form; they are kept in the newer one."""
_VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]


class Names(msgspec.Struct, frozen=True):
    """What people call a resource beside its plural."""

    singular: str
    short: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()


_NAMES: Mapping[str, Names] = {
    "Service": Names("service", ("svc",), ("all",)),
    "Node": Names("node", ("no",)),
    "EndpointSlice": Names("endpointslice"),
    "Event": Names("event", ("ev",)),
    "Namespace": Names("namespace", ("ns",)),
    "Pod": Names("pod", ("po",), ("all",)),
    "Endpoints": Names("endpoints", ("ep",)),
    "Deployment": Names("deployment", ("deploy",), ("all",)),
    "ReplicaSet": Names("replicaset", ("rs",), ("all",)),
}
_SUBRESOURCES: Mapping[str, tuple[str, ...]] = {
    "Service": ("status",),
    "Node": ("status",),
    "Pod": ("status",),
    "Deployment": ("scale", "status"),
}


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """What a path means: a collection or an object, and the part of it, "" for all of it."""

    target: Target
    subresource: str = ""
    is_core_event: bool = False


def route_of(path: str) -> Route | None:
    """What a path means; None if it is no resource of a lab."""
    segments = path.strip("/").split("/")
    depth = 2 if segments[0] == "api" else 3
    root, rest = "/" + "/".join(segments[:depth]), segments[depth:]
    namespace = ""
    if len(rest) > 2 and rest[0] == "namespaces" and f"{root}/{rest[2]}" in {*RESOURCES, CORE_EVENTS}:
        namespace, rest = rest[1], rest[2:]
    if not rest or len(rest) > 3:
        return None
    collection, name, subresource = (f"{root}/{rest[0]}", *rest[1:], "", "")[:3]
    is_core_event = collection == CORE_EVENTS
    collection = "/apis/events.k8s.io/v1/events" if is_core_event else collection
    if collection not in RESOURCES:
        return None
    target = Target(collection=collection, namespace=namespace, name=name)
    if subresource and subresource not in _SUBRESOURCES.get(target.kind, ()):
        return None
    return Route(target=target, subresource=subresource, is_core_event=is_core_event)


def target_for(kind: str, namespace: str = "", name: str = "") -> Target:
    """Where objects of *kind* are; KeyError for an unknown kind."""
    collection = next((path for path, (known, _) in RESOURCES.items() if known == kind), "")
    if not collection:
        raise KeyError(kind)
    return Target(collection=collection, namespace="" if kind in CLUSTER_KINDS else namespace, name=name)


def discovery(path: str) -> dict[str, object] | None:
    """The discovery document at a path, or None."""
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
    if path == "/apis":
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(group) for group in GROUPS]}
    if path == "/api/v1":
        return _resource_list("v1")
    if path == "/version":
        major, minor, _ = GIT_VERSION.removeprefix("v").split(".")
        return {"major": major, "minor": minor, "gitVersion": GIT_VERSION, "platform": "linux/amd64"}
    version = path.removeprefix("/apis/")
    if version in GROUPS:
        return _resource_list(version)
    found = next((group for group in GROUPS if group.partition("/")[0] == version), None)
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(found)} if found else None


def _group(group_version: str) -> dict[str, object]:
    group, _, version = group_version.partition("/")
    entry = {"groupVersion": group_version, "version": version}
    return {"name": group, "versions": [entry], "preferredVersion": entry}


def _resource_list(group_version: str) -> dict[str, object]:
    entries: list[dict[str, object]] = []
    for collection, (kind, api_version) in RESOURCES.items():
        if api_version == group_version or (kind == "Event" and group_version == "v1"):
            entries += _entries(collection.rpartition("/")[2], kind)
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": entries}


def _entries(plural: str, kind: str) -> list[dict[str, object]]:
    names = _NAMES[kind]
    namespaced = kind not in CLUSTER_KINDS
    verbs = [verb for verb in _VERBS if kind != "Event" or verb != "patch"]
    whole: dict[str, object] = {"name": plural, "singularName": names.singular, "namespaced": namespaced, "kind": kind}
    whole |= {"verbs": verbs, "shortNames": list(names.short), "categories": list(names.categories)}
    entries = [whole]
    for subresource in _SUBRESOURCES.get(kind, ()):
        entry: dict[str, object] = {"name": f"{plural}/{subresource}", "singularName": "", "namespaced": namespaced}
        entry |= {"kind": kind, "verbs": ["get", "patch", "update"]}
        if subresource == "scale":
            entry |= {"kind": "Scale", "group": "autoscaling", "version": "v1"}
        entries.append(entry)
    return entries
