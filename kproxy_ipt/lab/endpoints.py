"""
EndpointSlices and Endpoints of the Services that have a selector.

A slice for each family of the Service and each set of port numbers: pods may give the name of a target port different
numbers. Slices that others made are never touched.

Source: `pkg/controller/endpointslice`, `pkg/controller/endpoint` of Kubernetes; KEP-1672 (terminating), KEP-4444
(traffic distribution).
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from kproxy_ipt.addresses import Family, family_of
from kproxy_ipt.lab.documents import (
    ApiObject,
    matches_labels,
    name_of,
    namespace_of,
    objects_in,
    part,
    text,
    texts_in,
    uid_of,
    value_at,
)
from kproxy_ipt.lab.pods import is_ready, is_terminating, resolved_port

SERVICE_NAME_LABEL = "kubernetes.io/service-name"
MANAGED_BY_LABEL = "endpointslice.kubernetes.io/managed-by"
CONTROLLER = "endpointslice-controller.k8s.io"
_FAMILIES = {family.api_name: family for family in Family}
_SAME_ZONE = ("PreferClose", "PreferSameZone")


def is_ours(endpoint_slice: ApiObject) -> bool:
    """Whether this controller made a slice."""
    return text(endpoint_slice, "metadata", "labels", MANAGED_BY_LABEL) == CONTROLLER


def selected_pods(service: ApiObject, pods: Iterable[ApiObject]) -> list[ApiObject]:
    """The pods behind a Service that have an address, by name."""
    selector = part(service, "spec", "selector")
    here = namespace_of(service)
    found = [pod for pod in pods if namespace_of(pod) == here and matches_labels(pod, selector)]
    return sorted((pod for pod in found if objects_in(pod, "status", "podIPs")), key=name_of)


def wanted_slices(service: ApiObject, pods: Iterable[ApiObject], zones: Mapping[str, str]) -> list[dict[str, object]]:
    """
    The slices of a Service with a selector, by name.

    Args:
        service: As it is stored.
        pods: All pods.
        zones: Zone of each node.
    """
    chosen = selected_pods(service, pods)
    slices = []
    for api_name in texts_in(service, "spec", "ipFamilies"):
        groups: dict[bytes, list[dict[str, object]]] = {}
        for pod in chosen:
            address = _address(pod, _FAMILIES[api_name])
            if address:
                key = msgspec.json.encode(_slice_ports(service, pod))
                groups.setdefault(key, []).append(_endpoint(service, pod, address, zones))
        for key, found in (groups or {msgspec.json.encode([]): []}).items():
            slices.append(_slice(service, api_name, msgspec.json.decode(key, type=list[object]), found))
    return sorted(slices, key=name_of)


def wanted_endpoints(service: ApiObject, pods: Iterable[ApiObject]) -> dict[str, object]:
    """The Endpoints object of a Service with a selector: its first family alone."""
    families = texts_in(service, "spec", "ipFamilies")
    subsets: dict[bytes, dict[str, list[object]]] = {}
    for pod in selected_pods(service, pods) if families else []:
        address = _address(pod, _FAMILIES[families[0]])
        ready, _, terminating = conditions_of(service, pod)
        if not address or (terminating and not ready):
            continue
        key = msgspec.json.encode(_slice_ports(service, pod))
        subset = subsets.setdefault(key, {})
        entry = {"ip": address, "nodeName": text(pod, "spec", "nodeName"), "targetRef": _reference(pod)}
        subset.setdefault("addresses" if ready else "notReadyAddresses", []).append(entry)
    return {
        "kind": "Endpoints",
        "apiVersion": "v1",
        "metadata": {
            "name": name_of(service),
            "namespace": namespace_of(service),
            "ownerReferences": [_owner(service)],
        },
        "subsets": [{**subset, "ports": msgspec.json.decode(key)} for key, subset in subsets.items()],
    }


def conditions_of(service: ApiObject, pod: ApiObject) -> tuple[bool, bool, bool]:
    """Ready, serving and terminating of a pod behind a Service."""
    terminating = is_terminating(pod)
    serving = is_ready(pod) or value_at(service, "spec", "publishNotReadyAddresses") is True
    ready = value_at(service, "spec", "publishNotReadyAddresses") is True or (serving and not terminating)
    return ready, serving, terminating


def _slice(service: ApiObject, api_name: str, ports: list[object], found: list[dict[str, object]]) -> dict[str, object]:
    told = msgspec.json.encode([uid_of(service), api_name, ports])
    labels: dict[str, object] = {SERVICE_NAME_LABEL: name_of(service), MANAGED_BY_LABEL: CONTROLLER}
    if text(service, "spec", "clusterIP") == "None":
        labels["service.kubernetes.io/headless"] = ""
    return {
        "kind": "EndpointSlice",
        "apiVersion": "discovery.k8s.io/v1",
        "metadata": {
            "name": f"{name_of(service)}-{hashlib.sha256(told).hexdigest()[:5]}",
            "namespace": namespace_of(service),
            "labels": part(service, "metadata", "labels") | labels,
            "ownerReferences": [_owner(service)],
        },
        "addressType": api_name,
        "endpoints": found,
        "ports": ports,
    }


def _slice_ports(service: ApiObject, pod: ApiObject) -> list[dict[str, object]]:
    """The ports of a Service as a pod has them; those whose name it does not know are left out."""
    ports = []
    for port in objects_in(service, "spec", "ports"):
        protocol = text(port, "protocol")
        resolved = resolved_port(pod, port.get("targetPort"), protocol)
        if resolved is not None:
            ports.append({"name": text(port, "name"), "protocol": protocol, "port": resolved})
    return ports


def _endpoint(service: ApiObject, pod: ApiObject, address: str, zones: Mapping[str, str]) -> dict[str, object]:
    ready, serving, terminating = conditions_of(service, pod)
    node = text(pod, "spec", "nodeName")
    endpoint: dict[str, object] = {
        "addresses": [address],
        "conditions": {"ready": ready, "serving": serving, "terminating": terminating},
        "nodeName": node,
        "targetRef": _reference(pod),
    }
    zone = zones.get(node, "")
    if zone:
        endpoint["zone"] = zone
    distribution = text(service, "spec", "trafficDistribution")
    if distribution in _SAME_ZONE and zone:
        endpoint["hints"] = {"forZones": [{"name": zone}]}
    elif distribution == "PreferSameNode":
        zone_hints = {"forZones": [{"name": zone}]} if zone else {}
        endpoint["hints"] = {**zone_hints, "forNodes": [{"name": node}]}
    return endpoint


def _address(pod: ApiObject, family: Family) -> str:
    addresses: Sequence[str] = [text(each, "ip") for each in objects_in(pod, "status", "podIPs")]
    return next((each for each in addresses if family_of(each) is family), "")


def _reference(pod: ApiObject) -> dict[str, object]:
    return {"kind": "Pod", "name": name_of(pod), "namespace": namespace_of(pod), "uid": uid_of(pod)}


def _owner(service: ApiObject) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "Service", "name": name_of(service), "uid": uid_of(service), "controller": True}
