"""
EndpointSlices become the endpoints of each service port of one family.

An endpoint is one `ip:port`; several slices may name it. The one that is not terminating wins over a terminating one,
so that a new pod which got the address of a stuck one counts. Among equals the first wins in the order of slice
name, then of the endpoints in the slice: Kubernetes leaves this to chance, here it is fixed.

Source: discovery.k8s.io/v1 EndpointSlice.
"""

from collections.abc import Iterable, Mapping

from kproxy_ipt.addresses import Family, canonical_address, family_of
from kproxy_ipt.objects.model import (
    HEADLESS_LABEL,
    SERVICE_NAME_LABEL,
    EndpointConditions,
    EndpointSlice,
    SliceEndpoint,
)
from kproxy_ipt.state.model import Endpoint

ServicePortKey = tuple[str, str, str, str]
"""Namespace, Service name, port name, protocol in lower case."""

_UNSET = EndpointConditions()


def endpoints_by_port(
    slices: Iterable[EndpointSlice], family: Family, node_name: str
) -> Mapping[ServicePortKey, tuple[Endpoint, ...]]:
    """
    Merge *slices* into the endpoints of each service port that they name.

    Args:
        slices: Of any Services and families, sorted by namespace and name; those of headless Services are skipped.
        family: The others are skipped, FQDN too.
        node_name: Lower case; "" means that no endpoint is local.

    Returns:
        For each key the endpoints sorted by the bytes of `ip:port`, without duplicates, ready or not. A key is there
        only if it has an endpoint; a Service for it need not exist.
    """
    merged: dict[ServicePortKey, dict[str, Endpoint]] = {}
    for endpoint_slice in slices:
        _merge_slice(merged, endpoint_slice, family, node_name)
    return {key: tuple(found[text] for text in sorted(found)) for key, found in merged.items()}


def _merge_slice(
    merged: dict[ServicePortKey, dict[str, Endpoint]], endpoint_slice: EndpointSlice, family: Family, node_name: str
) -> None:
    labels = endpoint_slice.metadata.labels or {}
    service_name = labels.get(SERVICE_NAME_LABEL)
    if endpoint_slice.address_type != family.api_name or not service_name or HEADLESS_LABEL in labels:
        return
    namespace = endpoint_slice.metadata.namespace or ""
    for port in endpoint_slice.ports or ():
        if port.name is None or not port.port:
            continue
        key = (namespace, service_name, port.name, (port.protocol or "TCP").lower())
        found = merged.get(key, {})
        for entry in endpoint_slice.endpoints or ():
            endpoint = _endpoint(entry, port.port, family, node_name)
            if endpoint is None:
                continue
            known = found.setdefault(endpoint.text, endpoint)
            if known.terminating and not endpoint.terminating:
                found[endpoint.text] = endpoint
        if found:
            merged[key] = found


def _endpoint(entry: SliceEndpoint, port: int, family: Family, node_name: str) -> Endpoint | None:
    address = canonical_address(entry.addresses[0]) if entry.addresses else None
    if address is None or family_of(address) is not family:
        return None
    conditions = entry.conditions or _UNSET
    hints = entry.hints
    return Endpoint(
        address=address,
        port=port,
        text=f"{address}:{port}" if family is Family.IPV4 else f"[{address}]:{port}",
        ready=conditions.ready is not False,
        serving=conditions.serving is not False,
        terminating=conditions.terminating is True,
        is_local=bool(node_name) and entry.node_name == node_name,
        zone_hints=tuple(hint.name for hint in hints.for_zones or ()) if hints else (),
        node_hints=tuple(hint.name for hint in hints.for_nodes or ()) if hints else (),
    )
