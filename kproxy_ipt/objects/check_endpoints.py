"""
Checks of EndpointSlices and legacy Endpoints.

Nearly everything that can be odd here costs one endpoint or one port and is a warning; only what could spoil a rule
sets the whole object aside.

Source: validation of the API server 1.36; kube-proxy's endpoint slice cache for what is ignored.
"""

from kproxy_ipt.addresses import canonical_address
from kproxy_ipt.errors import Finding
from kproxy_ipt.objects.mirror import MAX_ADDRESSES_PER_SUBSET
from kproxy_ipt.objects.model import (
    SERVICE_NAME_LABEL,
    EndpointAddress,
    Endpoints,
    EndpointSlice,
    EndpointSubset,
    SliceEndpoint,
    SlicePort,
)
from kproxy_ipt.objects.report import (
    MAX_PORT,
    Report,
    check_address,
    check_namespace,
    check_padding,
    check_protocol,
    check_subdomain_name,
    is_label,
)

_ADDRESS_TYPES = ("IPv4", "IPv6", "FQDN")
_IGNORED_SLICE = "this slice is ignored"
_IGNORED_PORT = "this port is ignored"
_IGNORED_ENDPOINT = "this endpoint is ignored"


def check_endpoint_slice(endpoint_slice: EndpointSlice) -> tuple[Finding, ...]:
    """
    Everything that is odd about one EndpointSlice.

    Returns:
        No finding for a clean slice; one of severity `rejected` means that it must be set aside.
    """
    report = Report("EndpointSlice", endpoint_slice.metadata)
    check_namespace(report, endpoint_slice.metadata)
    check_subdomain_name(report, endpoint_slice.metadata)
    address_type = endpoint_slice.address_type
    if address_type not in _ADDRESS_TYPES:
        report.reject("addressType", address_type or None, "IPv4, IPv6 or FQDN")
    for index, port in enumerate(endpoint_slice.ports or ()):
        if port.name is None:
            report.warn(f"ports[{index}].name", None, 'a name, "" for the unnamed port', _IGNORED_PORT)
        _check_port(report, f"ports[{index}]", port)
    if not (endpoint_slice.metadata.labels or {}).get(SERVICE_NAME_LABEL):
        report.warn(f"metadata.labels[{SERVICE_NAME_LABEL}]", None, "the name of a Service", _IGNORED_SLICE)
    elif address_type not in _ADDRESS_TYPES:
        return report.findings
    elif address_type == "FQDN":
        report.warn("addressType", address_type, "IPv4 or IPv6", _IGNORED_SLICE)
    elif endpoint_slice.endpoints:
        _check_slice_endpoints(report, endpoint_slice.endpoints, address_type)
    return report.findings


def check_endpoints(endpoints: Endpoints) -> tuple[Finding, ...]:
    """Everything that is odd about one legacy Endpoints object."""
    report = Report("Endpoints", endpoints.metadata)
    check_namespace(report, endpoints.metadata)
    check_subdomain_name(report, endpoints.metadata)
    for index, subset in enumerate(endpoints.subsets or ()):
        _check_subset(report, f"subsets[{index}]", subset)
    return report.findings


def _check_port(report: Report, field: str, port: SlicePort) -> None:
    if port.name and not is_label(port.name):
        report.reject(f"{field}.name", port.name, "a DNS label of at most 63 characters")
    if port.protocol != "TCP":
        check_protocol(report, f"{field}.protocol", port.protocol)
    if not port.port:
        expected = f'a number from 1 to {MAX_PORT}; "all ports" is not implemented'
        report.warn(f"{field}.port", port.port, expected, _IGNORED_PORT)
    elif not 0 < port.port <= MAX_PORT:
        report.reject(f"{field}.port", port.port, f"a number from 1 to {MAX_PORT}")


def _check_slice_endpoints(report: Report, endpoints: tuple[SliceEndpoint, ...], address_type: str) -> None:
    is_ipv6 = address_type == "IPv6"
    for index, endpoint in enumerate(endpoints):
        addresses = endpoint.addresses
        if addresses and len(addresses) == 1:
            canonical = canonical_address(addresses[0])
            if canonical == addresses[0] and (":" in canonical) is is_ipv6:
                continue
        _check_slice_endpoint(report, f"endpoints[{index}].addresses", addresses or (), address_type)


def _check_slice_endpoint(report: Report, field: str, addresses: tuple[str, ...], address_type: str) -> None:
    """An endpoint that is not the usual one: one canonical address of the right family."""
    if not addresses:
        report.warn(field, None, f"an {address_type} address", _IGNORED_ENDPOINT)
        return
    canonical = canonical_address(addresses[0])
    if canonical is None or (":" in canonical) is not (address_type == "IPv6"):
        report.warn(f"{field}[0]", addresses[0], f"an {address_type} address", _IGNORED_ENDPOINT)
    else:
        check_padding(report, f"{field}[0]", addresses[0], canonical)
    if len(addresses) > 1:
        consequence = "only the first address is used"
        report.warn(f"{field}[1]", addresses[1], "one address; more endpoints for more addresses", consequence)


def _check_subset(report: Report, field: str, subset: EndpointSubset) -> None:
    for index, port in enumerate(subset.ports or ()):
        _check_port(report, f"{field}.ports[{index}]", port)
    ready, not_ready = subset.addresses or (), subset.not_ready_addresses or ()
    _check_subset_addresses(report, f"{field}.addresses", ready)
    _check_subset_addresses(report, f"{field}.notReadyAddresses", not_ready)
    count = len(ready) + len(not_ready)
    if count > MAX_ADDRESSES_PER_SUBSET:
        expected = f"at most {MAX_ADDRESSES_PER_SUBSET} addresses"
        report.warn(field, count, expected, f"only the first {MAX_ADDRESSES_PER_SUBSET} addresses are mirrored")


def _check_subset_addresses(report: Report, field: str, addresses: tuple[EndpointAddress, ...]) -> None:
    for index, address in enumerate(addresses):
        if not address.ip.strip():
            report.warn(f"{field}[{index}].ip", address.ip or None, "an IP address", "this address is ignored")
        else:
            check_address(report, f"{field}[{index}].ip", address.ip, "this address is ignored")
