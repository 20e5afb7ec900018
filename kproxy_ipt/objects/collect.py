"""
Documents become one set of objects: no duplicates, sorted, legacy Endpoints mirrored, conflicts named.

Duplicates: the object that is read last wins, as with `kubectl apply` of one file after the other.

Which Endpoints objects are mirrored. In a cluster every Service has its slices, made by the endpoint slice controller
or by the mirroring controller, and Endpoints objects are left over beside them. So:

1. A Service that has any slice in the input uses its slices; its Endpoints object is passed over.
2. Else, if the Service has a selector and the input holds slices of other Services: the cluster had a slice
   controller, and it made none for this Service; the Endpoints object is ignored with a warning, as the mirroring
   controller ignores it.
3. Else it is mirrored: Services without selector, and all Services of old dumps that hold no slices at all.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeVar

from kproxy_ipt.errors import Finding, Severity
from kproxy_ipt.objects.conflicts import service_conflicts
from kproxy_ipt.objects.decode import Decoded
from kproxy_ipt.objects.mirror import is_mirrored, mirror_endpoints
from kproxy_ipt.objects.model import (
    SERVICE_NAME_LABEL,
    Endpoints,
    EndpointSlice,
    Node,
    ObjectMeta,
    Objects,
    Service,
)
from kproxy_ipt.objects.report import object_text

T = TypeVar("T", bound=Service | EndpointSlice | Endpoints | Node)
_Key = tuple[str, str]


def collect(parts: Iterable[Decoded]) -> Objects:
    """
    Put documents together.

    Args:
        parts: In the order in which they were read.

    Returns:
        Objects sorted by namespace and name; findings of the documents, then those about duplicates, about Endpoints,
        and about conflicts between Services.
    """
    documents = tuple(parts)
    findings = [finding for document in documents for finding in document.findings]
    services = _latest("Service", documents, lambda document: document.services, findings)
    slices = _latest("EndpointSlice", documents, lambda document: document.endpoint_slices, findings)
    endpoints = _latest("Endpoints", documents, lambda document: document.endpoints, findings)
    nodes = _latest("Node", documents, lambda document: document.nodes, findings)
    mirrored = _mirrored(endpoints, services, slices, findings)
    findings += service_conflicts(services)
    ignored: Counter[str] = Counter()
    for document in documents:
        ignored.update(document.ignored)
    return Objects(
        services=services,
        endpoint_slices=tuple(sorted((*slices, *mirrored), key=lambda endpoint_slice: _key(endpoint_slice.metadata))),
        nodes=nodes,
        findings=tuple(findings),
        ignored=dict(sorted(ignored.items())),
    )


def _key(metadata: ObjectMeta) -> _Key:
    return metadata.namespace or "", metadata.name


def _latest(
    kind: str, documents: Iterable[Decoded], choose: Callable[[Decoded], tuple[T, ...]], findings: list[Finding]
) -> tuple[T, ...]:
    """The last definition of each object of one kind, sorted; earlier ones are named in *findings*."""
    latest: dict[_Key, T] = {}
    origins: dict[_Key, str] = {}
    for document in documents:
        for value in choose(document):
            key = _key(value.metadata)
            if key in latest:
                findings.append(_duplicate(kind, key, origins[key], document.origin))
            latest[key] = value
            origins[key] = document.origin
    return tuple(latest[key] for key in sorted(latest))


def _duplicate(kind: str, key: _Key, first: str, second: str) -> Finding:
    return Finding(
        object=object_text(kind, *key),
        field="",
        found=f"one definition in {first} and one in {second}",
        expected="one definition",
        consequence=f"the one in {second} is used",
        severity=Severity.WARNING,
    )


def _mirrored(
    endpoints: Iterable[Endpoints],
    services: Iterable[Service],
    slices: tuple[EndpointSlice, ...],
    findings: list[Finding],
) -> tuple[EndpointSlice, ...]:
    """The slices of those Endpoints that count; see the module."""
    with_slices = {
        (endpoint_slice.metadata.namespace or "", (endpoint_slice.metadata.labels or {}).get(SERVICE_NAME_LABEL, ""))
        for endpoint_slice in slices
    }
    with_selector = {_key(service.metadata) for service in services if service.spec.selector} if slices else set()
    mirrored: list[EndpointSlice] = []
    for legacy in endpoints:
        key = _key(legacy.metadata)
        if key in with_slices:
            continue
        if key not in with_selector:
            mirrored += mirror_endpoints(legacy)
        elif legacy.subsets and is_mirrored(legacy):
            findings.append(_ignored_endpoints(key))
    return tuple(mirrored)


def _ignored_endpoints(key: _Key) -> Finding:
    return Finding(
        object=object_text("Endpoints", *key),
        field="",
        found="no EndpointSlice of a Service that has a selector",
        expected="EndpointSlices, as other Services of the input have them",
        consequence="these Endpoints are ignored, as a cluster would",
        severity=Severity.WARNING,
    )
