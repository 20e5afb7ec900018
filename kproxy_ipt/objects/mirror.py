"""
Legacy Endpoints objects become EndpointSlices, as the EndpointSliceMirroring controller makes them.

`collect.py` decides which Endpoints are mirrored at all.

Source: kube-controller-manager 1.36, `--mirroring-max-endpoints-per-subset` 1000.
"""

from collections.abc import Iterator

from kproxy_ipt.addresses import Family, canonical_address, family_of
from kproxy_ipt.objects.model import (
    SERVICE_NAME_LABEL,
    EndpointAddress,
    EndpointConditions,
    Endpoints,
    EndpointSlice,
    EndpointSubset,
    ObjectMeta,
    SliceEndpoint,
    SlicePort,
)

MAX_ADDRESSES_PER_SUBSET = 1000
SKIP_MIRROR_LABEL = "endpointslice.kubernetes.io/skip-mirror"
LEADER_ANNOTATION = "control-plane.alpha.kubernetes.io/leader"

_TRUE = ("1", "t", "T", "true", "TRUE", "True")
_PortSet = frozenset[tuple[str, str, int]]


def mirror_endpoints(endpoints: Endpoints) -> tuple[EndpointSlice, ...]:
    """
    The slices of one Endpoints object: one for each family and set of ports.

    Subsets with the same ports are joined. Names are `NAME-FAMILY-NUMBER`, always the same for the same object. Labels
    are kept, so the headless label is too. Addresses that do not parse are left out, and of each subset those after
    the first 1000, ready ones first: `check_endpoints` tells.

    Returns:
        Nothing for an object that asks not to be mirrored or is a leader election record; else slices, all of IPv4
        first, each family in the order of the subsets.

    Source: label `endpointslice.kubernetes.io/skip-mirror`, annotation `control-plane.alpha.kubernetes.io/leader`.
    """
    if not is_mirrored(endpoints):
        return ()
    ports: dict[tuple[Family, _PortSet], tuple[SlicePort, ...]] = {}
    found: dict[tuple[Family, _PortSet], dict[str, SliceEndpoint]] = {}
    for subset in endpoints.subsets or ():
        port_set = frozenset(((port.name or "", port.protocol or "TCP", port.port or 0)) for port in subset.ports or ())
        for address, endpoint in _subset_endpoints(subset):
            key = (family_of(address), port_set)
            ports.setdefault(key, _slice_ports(subset))
            found.setdefault(key, {}).setdefault(address, endpoint)
    order = sorted(found, key=lambda key: key[0])
    return tuple(
        _mirrored(endpoints, key[0], number, tuple(found[key].values()), ports[key])
        for number, key in enumerate(order, start=1)
    )


def is_mirrored(endpoints: Endpoints) -> bool:
    """Whether the object lets itself be mirrored."""
    labels, annotations = endpoints.metadata.labels or {}, endpoints.metadata.annotations or {}
    return labels.get(SKIP_MIRROR_LABEL) not in _TRUE and LEADER_ANNOTATION not in annotations


def _subset_endpoints(subset: EndpointSubset) -> Iterator[tuple[str, SliceEndpoint]]:
    """Canonical address and endpoint of each address that counts, ready ones first."""
    count = 0
    for addresses, ready in ((subset.addresses, True), (subset.not_ready_addresses, False)):
        for entry in addresses or ():
            address = canonical_address(entry.ip)
            if address is None or count == MAX_ADDRESSES_PER_SUBSET:
                continue
            count += 1
            yield address, _slice_endpoint(entry, address, EndpointConditions(ready=ready))


def _slice_endpoint(entry: EndpointAddress, address: str, conditions: EndpointConditions) -> SliceEndpoint:
    return SliceEndpoint(addresses=(address,), conditions=conditions, node_name=entry.node_name)


def _slice_ports(subset: EndpointSubset) -> tuple[SlicePort, ...]:
    """The unnamed port of Endpoints is the port named "" of slices."""
    return tuple(
        SlicePort(name=port.name or "", protocol=port.protocol or "TCP", port=port.port) for port in subset.ports or ()
    )


def _mirrored(
    endpoints: Endpoints,
    family: Family,
    number: int,
    slice_endpoints: tuple[SliceEndpoint, ...],
    ports: tuple[SlicePort, ...],
) -> EndpointSlice:
    metadata = endpoints.metadata
    return EndpointSlice(
        metadata=ObjectMeta(
            name=f"{metadata.name}-{family}-{number}",
            namespace=metadata.namespace,
            labels={**(metadata.labels or {}), SERVICE_NAME_LABEL: metadata.name},
            resource_version=metadata.resource_version,
        ),
        address_type=family.api_name,
        endpoints=slice_endpoints,
        ports=ports,
    )
