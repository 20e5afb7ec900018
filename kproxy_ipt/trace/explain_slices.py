"""
Every entry of every slice that could concern a service port: in, or out with the reason.

The merging of slices itself is done by `state.slices`; here its losers are told. An entry is judged by its slice first
(label, family), then by the slice's port, then by its own address, then against other entries with the same `ip:port`,
and only then by its conditions.

Source: discovery.k8s.io/v1 EndpointSlice.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from kproxy_ipt.addresses import Family, canonical_address, family_of
from kproxy_ipt.objects.model import HEADLESS_LABEL, SERVICE_NAME_LABEL, EndpointSlice, Service, SliceEndpoint
from kproxy_ipt.rules.names import endpoint_chain_name
from kproxy_ipt.selection.reasons import EndpointReasons, Reason, endpoint_reasons
from kproxy_ipt.selection.usable import UsableEndpoints
from kproxy_ipt.state.model import NodeFacts, ServicePort, ServiceState
from kproxy_ipt.trace.explanation import EndpointRow


class SliceVerdict(msgspec.Struct, frozen=True):
    """The port number that a slice has for a service port, or why the slice as a whole is out."""

    port: int = 0
    reason: Reason | None = None
    detail: str = ""


class _Candidate(msgspec.Struct, frozen=True):
    """An entry that names an `ip:port` of the right family behind the right port."""

    text: str
    address: str
    entry: SliceEndpoint
    slice_name: str

    @property
    def is_terminating(self) -> bool:
        return bool(self.entry.conditions and self.entry.conditions.terminating)


def slices_of(service: Service, slices: Iterable[EndpointSlice], services: Iterable[Service]) -> list[EndpointSlice]:
    """
    The slices that belong to *service*, and those without the label that look meant for it.

    Meant for it: same namespace, no label `kubernetes.io/service-name`, and a name that begins with that of the Service
    and a hyphen, unless that of another Service of the namespace fits better.
    """
    namespace, name = service.metadata.namespace or "", service.metadata.name
    rivals = [one.metadata.name for one in services if (one.metadata.namespace or "") == namespace]
    return [one for one in slices if (one.metadata.namespace or "") == namespace and _is_meant(one, name, rivals)]


def _is_meant(endpoint_slice: EndpointSlice, name: str, rivals: Sequence[str]) -> bool:
    label = (endpoint_slice.metadata.labels or {}).get(SERVICE_NAME_LABEL)
    if label:
        return label == name
    slice_name = endpoint_slice.metadata.name
    if slice_name != name and not slice_name.startswith(f"{name}-"):
        return False
    return all(len(rival) <= len(name) or not slice_name.startswith(f"{rival}-") for rival in rivals)


def slice_verdict(endpoint_slice: EndpointSlice, service_port: ServicePort) -> SliceVerdict:
    """What one slice of the Service has for *service_port*."""
    labels = endpoint_slice.metadata.labels or {}
    if not labels.get(SERVICE_NAME_LABEL):
        return SliceVerdict(reason=Reason.NO_SERVICE_LABEL)
    if HEADLESS_LABEL in labels:
        return SliceVerdict(reason=Reason.HEADLESS_SLICE)
    if endpoint_slice.address_type == "FQDN":
        return SliceVerdict(reason=Reason.FQDN)
    if endpoint_slice.address_type != service_port.family.api_name:
        return SliceVerdict(reason=Reason.OTHER_FAMILY)
    return _port_verdict(endpoint_slice, service_port)


def _port_verdict(endpoint_slice: EndpointSlice, service_port: ServicePort) -> SliceVerdict:
    ports = endpoint_slice.ports or ()
    named = [port for port in ports if port.name == service_port.port_name]
    protocols = [(port.protocol or "TCP").lower() for port in named]
    for port, protocol in zip(named, protocols, strict=True):
        if protocol == service_port.protocol:
            return SliceVerdict(port.port) if port.port else SliceVerdict(reason=Reason.PORT_WITHOUT_NUMBER)
    if not ports:
        return SliceVerdict(reason=Reason.NO_PORTS)
    if named:
        detail = f"slice has protocol {', '.join(protocols).upper()}, service wants {service_port.protocol.upper()}"
        return SliceVerdict(reason=Reason.PROTOCOL_MISMATCH, detail=detail)
    if all(port.name is None for port in ports):
        return SliceVerdict(reason=Reason.PORT_WITHOUT_NAME)
    names = ", ".join(f'"{port.name}"' for port in ports if port.name is not None)
    detail = f'slice has port name {names}, service wants "{service_port.port_name}"'
    return SliceVerdict(reason=Reason.PORT_NAME_MISMATCH, detail=detail)


def endpoint_rows(
    slices: Iterable[EndpointSlice], state: ServiceState, usable: UsableEndpoints, node: NodeFacts
) -> tuple[EndpointRow, ...]:
    """
    All entries of *slices* as rows.

    Args:
        slices: From `slices_of`, in the order of names.
        state: The service port and its endpoints, as the snapshot has them.
        usable: What was chosen of them.
        node: Of the rules.

    Returns:
        The endpoints of *state*, in its order, then what did not become an endpoint, in the order of reading.
    """
    service_port = state.service_port
    left_out: list[EndpointRow] = []
    candidates: dict[str, list[_Candidate]] = {}
    for endpoint_slice in slices:
        verdict = slice_verdict(endpoint_slice, service_port)
        if verdict.reason is not None:
            left_out += _whole_slice(endpoint_slice, verdict, service_port)
            continue
        for entry in endpoint_slice.endpoints or ():
            left_out += _judge_entry(endpoint_slice, entry, verdict.port, service_port, candidates)
    winners = {text: _winner(rivals) for text, rivals in candidates.items()}
    for text, rivals in candidates.items():
        left_out += [_duplicate(one, winners[text], service_port) for one in rivals if one is not winners[text]]
    reasons = endpoint_reasons(service_port, state.endpoints, node)
    return (*(_known(one, winners, usable, service_port) for one in reasons), *left_out)


def _out(
    service_port: ServicePort,
    entry: SliceEndpoint,
    slice_name: str,
    text: str,
    reason: Reason,
    detail: str = "",
) -> EndpointRow:
    """A row that no policy uses; only the policies that the service port has give the reason."""
    return EndpointRow(
        text=text,
        address=canonical_address(text) or text,
        slice=slice_name,
        node=entry.node_name or "",
        zone=entry.zone or "",
        cluster=reason if service_port.uses_cluster_endpoints else None,
        local=reason if service_port.uses_local_endpoints else None,
        detail=detail,
    )


def _whole_slice(
    endpoint_slice: EndpointSlice, verdict: SliceVerdict, service_port: ServicePort
) -> Iterator[EndpointRow]:
    for entry in endpoint_slice.endpoints or ():
        text = entry.addresses[0] if entry.addresses else ""
        assert verdict.reason is not None
        yield _out(service_port, entry, endpoint_slice.metadata.name, text, verdict.reason, verdict.detail)


def _judge_entry(
    endpoint_slice: EndpointSlice,
    entry: SliceEndpoint,
    port: int,
    service_port: ServicePort,
    candidates: dict[str, list[_Candidate]],
) -> Iterator[EndpointRow]:
    """Put the entry among *candidates*, or yield why not; its further addresses are yielded in any case."""
    name = endpoint_slice.metadata.name
    first, *others = entry.addresses or ("",)
    address = canonical_address(first)
    if not entry.addresses:
        yield _out(service_port, entry, name, "", Reason.NO_ADDRESS)
    elif address is None or family_of(address) is not service_port.family:
        detail = f'"{first}" in a slice of addressType {endpoint_slice.address_type}'
        yield _out(service_port, entry, name, first, Reason.BAD_ADDRESS, detail)
    else:
        text = f"{address}:{port}" if service_port.family is Family.IPV4 else f"[{address}]:{port}"
        candidates.setdefault(text, []).append(_Candidate(text, address, entry, name))
    for other in others:
        yield _out(service_port, entry, name, other, Reason.SECOND_ADDRESS, f"the first one is {first}")


def _winner(rivals: Sequence[_Candidate]) -> _Candidate:
    """As `state.slices` merges: the first that is not terminating, else the first."""
    return next((one for one in rivals if not one.is_terminating), rivals[0])


def _duplicate(loser: _Candidate, winner: _Candidate, service_port: ServicePort) -> EndpointRow:
    reason = Reason.TERMINATING_DUPLICATE if loser.is_terminating and not winner.is_terminating else Reason.DUPLICATE
    where = "this slice" if winner.slice_name == loser.slice_name else f"slice {winner.slice_name}"
    row = _out(service_port, loser.entry, loser.slice_name, loser.text, reason, f"another entry of {where} counts")
    return msgspec.structs.replace(row, address=loser.address)


def _known(
    reasons: EndpointReasons, winners: Mapping[str, _Candidate], usable: UsableEndpoints, service_port: ServicePort
) -> EndpointRow:
    """The row of an endpoint of the snapshot; an endpoint that a slice of the input does not explain has no node."""
    endpoint = reasons.endpoint
    source = winners.get(endpoint.text)
    is_in = {word: bool(reason and reason.is_in) for word, reason in (("c", reasons.cluster), ("l", reasons.local))}
    chain = endpoint_chain_name(service_port.text, service_port.protocol, endpoint.text)
    return EndpointRow(
        text=endpoint.text,
        address=endpoint.address,
        slice=source.slice_name if source else "",
        node=(source.entry.node_name or "") if source else "",
        zone=(source.entry.zone or "") if source else "",
        cluster=reasons.cluster,
        local=reasons.local,
        chain=chain if any(is_in.values()) else "",
        cluster_share=1 / len(usable.cluster) if is_in["c"] else 0.0,
        local_share=1 / len(usable.local) if is_in["l"] else 0.0,
        detail=_detail(reasons, source),
    )


def _detail(reasons: EndpointReasons, source: _Candidate | None) -> str:
    endpoint = reasons.endpoint
    if reasons.cluster is Reason.OTHER_ZONE:
        return f"hinted for zone {', '.join(endpoint.zone_hints)}"
    if reasons.cluster is Reason.OTHER_NODE_HINT:
        return f"hinted for node {', '.join(endpoint.node_hints)}"
    if reasons.local is Reason.NOT_LOCAL and source and not source.entry.node_name:
        return "the slice gives no nodeName"
    return ""
