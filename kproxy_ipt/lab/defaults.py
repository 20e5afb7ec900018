"""
What objects other than Services get that their authors left out, and what the API refuses about them.

A pod of a lab stops after 2 seconds where Kubernetes gives it up to 30: its server has nothing to finish. A grace
period that the pod names itself is kept to the second, so that one can look at endpoints that terminate.

Source: `SetDefaults_*` and `Validate*` of Kubernetes.
"""

import re
from collections.abc import Sequence

from kproxy_ipt.lab.documents import ApiObject, number, objects_in, part, text
from kproxy_ipt.lab.service_defaults import MOST_PORT, Cause

GRACE_S = 2
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_SERVICE_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_LONGEST_NAME = 63
_ADDRESS_TYPES = ("IPv4", "IPv6", "FQDN")


def name_causes(kind: str, name: str) -> list[Cause]:
    """What is wrong with the name of an object."""
    pattern = _SERVICE_NAME if kind == "Service" else _NAME
    if pattern.fullmatch(name) and len(name) <= _LONGEST_NAME:
        return []
    message = f'Invalid value: "{name}": a name consists of at most 63 lower case letters, digits and dashes'
    return [("FieldValueInvalid", message, "metadata.name")]


def completed(document: ApiObject) -> dict[str, object]:
    """An object of any kind but Service with what its author left out."""
    match text(document, "kind"):
        case "Pod":
            return _pod(document)
        case "Deployment":
            return _deployment(document)
        case "EndpointSlice":
            ports = [{"name": "", "protocol": "TCP", **port} for port in objects_in(document, "ports")]
            return {**document, "endpoints": document.get("endpoints") or [], "ports": ports}
        case "Namespace":
            labels = part(document, "metadata", "labels") | {
                "kubernetes.io/metadata.name": text(document, "metadata", "name")
            }
            metadata = part(document, "metadata") | {"labels": labels}
            return {**document, "metadata": metadata, "status": {"phase": "Active"}}
    return dict(document)


def causes_of(document: ApiObject) -> list[Cause]:
    """What is wrong with a completed object of any kind but Service."""
    match text(document, "kind"):
        case "Pod":
            return _container_causes(part(document, "spec"), "spec")
        case "Deployment":
            return _deployment_causes(document)
        case "EndpointSlice" if text(document, "addressType") not in _ADDRESS_TYPES:
            return [("FieldValueRequired", "Required value: must specify an address type", "addressType")]
    return []


def _pod(document: ApiObject) -> dict[str, object]:
    status = part(document, "status")
    status.setdefault("phase", "Pending")
    return {**document, "spec": _pod_spec(part(document, "spec")), "status": status}


def _pod_spec(spec: dict[str, object]) -> dict[str, object]:
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", GRACE_S)
    containers = objects_in(spec, "containers")
    for container in containers:
        if "ports" in container:
            container["ports"] = [{"protocol": "TCP", **port} for port in objects_in(container, "ports")]
    return {**spec, "containers": containers}


def _deployment(document: ApiObject) -> dict[str, object]:
    spec = part(document, "spec")
    spec.setdefault("replicas", 1)
    spec.setdefault(
        "strategy", {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}}
    )
    template = part(spec, "template")
    spec["template"] = {**template, "spec": _pod_spec(part(template, "spec"))}
    return {**document, "spec": spec, "status": part(document, "status")}


def _container_causes(spec: ApiObject, path: str) -> list[Cause]:
    containers: Sequence[ApiObject] = objects_in(spec, "containers")
    if not containers:
        return [("FieldValueRequired", "Required value", f"{path}.containers")]
    causes: list[Cause] = []
    for index, container in enumerate(containers):
        place = f"{path}.containers[{index}]"
        if not text(container, "name"):
            causes.append(("FieldValueRequired", "Required value", f"{place}.name"))
        for port_index, port in enumerate(objects_in(container, "ports")):
            if not 1 <= number(port, "containerPort") <= MOST_PORT:
                message = "Invalid value: must be between 1 and 65535, inclusive"
                causes.append(("FieldValueInvalid", message, f"{place}.ports[{port_index}].containerPort"))
    return causes


def _deployment_causes(document: ApiObject) -> list[Cause]:
    wanted = part(document, "spec", "selector", "matchLabels")
    if not wanted:
        return [("FieldValueRequired", "Required value", "spec.selector")]
    labels = part(document, "spec", "template", "metadata", "labels")
    if any(labels.get(key) != value for key, value in wanted.items()):
        message = "Invalid value: `selector` does not match template `labels`"
        return [("FieldValueInvalid", message, "spec.template.metadata.labels")]
    return _container_causes(part(document, "spec", "template", "spec"), "spec.template.spec")
