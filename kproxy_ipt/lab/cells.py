"""
What `kubectl get` prints of each kind: columns and the cells of one object.

Source: `pkg/printers/internalversion/printers.go` of Kubernetes.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from kproxy_ipt.lab.documents import ApiObject, number, objects_in, part, text, texts_in, value_at

Cells = Sequence[object]
TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
WIDE = 1
"""Priority of a column that only `-o wide` shows."""
_NONE = "<none>"
_MOST_ENDPOINTS = 3

Columns = tuple[tuple[str, int], ...]
"""Title and priority of each."""

COLUMNS: Mapping[str, Columns] = {
    "Service": (
        ("Name", 0),
        ("Type", 0),
        ("Cluster-IP", 0),
        ("External-IP", 0),
        ("Port(s)", 0),
        ("Age", 0),
        ("Selector", WIDE),
    ),
    "Pod": (
        ("Name", 0),
        ("Ready", 0),
        ("Status", 0),
        ("Restarts", 0),
        ("Age", 0),
        ("IP", WIDE),
        ("Node", WIDE),
        ("Nominated Node", WIDE),
        ("Readiness Gates", WIDE),
    ),
    "Deployment": (
        ("Name", 0),
        ("Ready", 0),
        ("Up-to-date", 0),
        ("Available", 0),
        ("Age", 0),
        ("Containers", WIDE),
        ("Images", WIDE),
        ("Selector", WIDE),
    ),
    "Node": (
        ("Name", 0),
        ("Status", 0),
        ("Roles", 0),
        ("Age", 0),
        ("Version", 0),
        ("Internal-IP", WIDE),
        ("External-IP", WIDE),
        ("OS-Image", WIDE),
        ("Kernel-Version", WIDE),
        ("Container-Runtime", WIDE),
    ),
    "EndpointSlice": (("Name", 0), ("AddressType", 0), ("Ports", 0), ("Endpoints", 0), ("Age", 0)),
    "Endpoints": (("Name", 0), ("Endpoints", 0), ("Age", 0)),
    "Namespace": (("Name", 0), ("Status", 0), ("Age", 0)),
    "Event": (("Last Seen", 0), ("Type", 0), ("Reason", 0), ("Object", 0), ("Message", 0)),
    "ReplicaSet": (("Name", 0), ("Desired", 0), ("Current", 0), ("Ready", 0), ("Age", 0)),
}


def cells_of(document: ApiObject) -> Cells:
    """The cells of an object, as many as its kind has columns."""
    return _CELLS[text(document, "kind")](document)


def age(since: str) -> str:
    """How long ago a time of the API was, as kubectl says it: `5s`, `3m`, `2h`, `4d`."""
    try:
        began = datetime.fromisoformat(since)
    except ValueError:
        return "<unknown>"
    seconds = max(0, int((datetime.now(tz=UTC) - began).total_seconds()))
    for unit, length, fewest in (("d", 86400, 2), ("h", 3600, 2), ("m", 60, 2)):
        if seconds >= fewest * length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def labels_text(labels: Mapping[str, object]) -> str:
    """Labels as a selector: `app=web,tier=front`."""
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items())) or _NONE


def _age(document: ApiObject) -> str:
    return age(text(document, "metadata", "creationTimestamp"))


def _name(document: ApiObject) -> str:
    return text(document, "metadata", "name")


def _service(document: ApiObject) -> Cells:
    return (
        _name(document),
        text(document, "spec", "type"),
        text(document, "spec", "clusterIP") or _NONE,
        external_text(document),
        ports_text(document),
        _age(document),
        labels_text(part(document, "spec", "selector")),
    )


def external_text(service: ApiObject) -> str:
    """The column EXTERNAL-IP."""
    if text(service, "spec", "type") == "ExternalName":
        return text(service, "spec", "externalName")
    given = [
        text(each, "ip") or text(each, "hostname") for each in objects_in(service, "status", "loadBalancer", "ingress")
    ]
    addresses = [*given, *texts_in(service, "spec", "externalIPs")]
    if not addresses and text(service, "spec", "type") == "LoadBalancer":
        return "<pending>"
    return ",".join(addresses) or _NONE


def ports_text(service: ApiObject) -> str:
    """The column PORT(S)."""
    found = []
    for port in objects_in(service, "spec", "ports"):
        node_port = f":{number(port, 'nodePort')}" if number(port, "nodePort") else ""
        found.append(f"{number(port, 'port')}{node_port}/{text(port, 'protocol')}")
    return ",".join(found) or _NONE


def pod_status(pod: ApiObject) -> str:
    """The column STATUS of a pod."""
    return (
        "Terminating" if value_at(pod, "metadata", "deletionTimestamp") else text(pod, "status", "phase") or "Pending"
    )


def _pod(document: ApiObject) -> Cells:
    containers = objects_in(document, "status", "containerStatuses")
    ready = sum(each.get("ready") is True for each in containers)
    total = len(objects_in(document, "spec", "containers"))
    return (
        _name(document),
        f"{ready}/{total}",
        pod_status(document),
        0,
        _age(document),
        text(document, "status", "podIP") or _NONE,
        text(document, "spec", "nodeName") or _NONE,
        _NONE,
        _NONE,
    )


def _deployment(document: ApiObject) -> Cells:
    containers = objects_in(document, "spec", "template", "spec", "containers")
    ready = number(document, "status", "readyReplicas")
    return (
        _name(document),
        f"{ready}/{number(document, 'spec', 'replicas')}",
        number(document, "status", "updatedReplicas"),
        number(document, "status", "availableReplicas"),
        _age(document),
        ",".join(text(each, "name") for each in containers),
        ",".join(text(each, "image") for each in containers),
        labels_text(part(document, "spec", "selector", "matchLabels")),
    )


def _node(document: ApiObject) -> Cells:
    conditions = objects_in(document, "status", "conditions")
    is_ready = any(text(each, "type") == "Ready" and text(each, "status") == "True" for each in conditions)
    own = part(document, "status", "nodeInfo")
    addresses = objects_in(document, "status", "addresses")
    internal = next((text(each, "address") for each in addresses if text(each, "type") == "InternalIP"), _NONE)
    return (
        _name(document),
        "Ready" if is_ready else "NotReady",
        _NONE,
        _age(document),
        text(own, "kubeletVersion"),
        internal,
        _NONE,
        text(own, "osImage"),
        text(own, "kernelVersion"),
        text(own, "containerRuntimeVersion"),
    )


def _endpoint_slice(document: ApiObject) -> Cells:
    addresses = [address for each in objects_in(document, "endpoints") for address in texts_in(each, "addresses")]
    ports = [text(each, "port") or "*" for each in objects_in(document, "ports")]
    shown_ports = ",".join(ports) if ports else "<unset>"
    return _name(document), text(document, "addressType"), shown_ports, _few(addresses, "<unset>"), _age(document)


def _endpoints(document: ApiObject) -> Cells:
    pairs = [
        f"{text(address, 'ip')}:{text(port, 'port')}"
        for subset in objects_in(document, "subsets")
        for port in objects_in(subset, "ports")
        for address in objects_in(subset, "addresses")
    ]
    return _name(document), _few(pairs, _NONE), _age(document)


def _few(texts: Sequence[str], nothing: str) -> str:
    more = len(texts) - _MOST_ENDPOINTS
    shown = ",".join(texts[:_MOST_ENDPOINTS]) or nothing
    return f"{shown} + {more} more..." if more > 0 else shown


def _namespace(document: ApiObject) -> Cells:
    return _name(document), text(document, "status", "phase"), _age(document)


def _event(document: ApiObject) -> Cells:
    regarding = part(document, "regarding")
    seen = text(document, "series", "lastObservedTime") or text(document, "eventTime")
    about = f"{text(regarding, 'kind').lower()}/{text(regarding, 'name')}"
    return age(seen), text(document, "type"), text(document, "reason"), about, text(document, "note")


def _replica_set(document: ApiObject) -> Cells:
    return _name(document), 0, 0, 0, _age(document)


_CELLS: Mapping[str, Callable[[ApiObject], Cells]] = {
    "Service": _service,
    "Pod": _pod,
    "Deployment": _deployment,
    "Node": _node,
    "EndpointSlice": _endpoint_slice,
    "Endpoints": _endpoints,
    "Namespace": _namespace,
    "Event": _event,
    "ReplicaSet": _replica_set,
}
