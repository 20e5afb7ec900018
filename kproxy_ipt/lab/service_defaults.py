"""
What a Service gets that its author left out, and what the API refuses about it.

Source: `SetDefaults_Service`, `ValidateService` and the allocators of Kubernetes; KEP-563 (dual stack).
"""

from collections.abc import Iterable, Sequence
from ipaddress import ip_address

from kproxy_ipt.addresses import Family, family_of
from kproxy_ipt.lab.addresses import Taken, TakenError
from kproxy_ipt.lab.documents import ApiObject, number, objects_in, part, text, texts_in

Cause = tuple[str, str, str]
"""Reason, message and field of what is wrong."""

_TYPES = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
_WITH_NODE_PORTS = ("LoadBalancer", "NodePort")
_FAMILIES = {family.api_name: family for family in Family}
_AFFINITY_TIMEOUT_S = 10800
MOST_PORT = 65535


class InvalidServiceError(ValueError):
    """What is wrong with a Service, in `causes`."""

    def __init__(self, causes: Sequence[Cause]) -> None:
        super().__init__("; ".join(message for _, message, _ in causes))
        self.causes = tuple(causes)


def complete_service(service: ApiObject, before: ApiObject | None, others: Iterable[ApiObject]) -> dict[str, object]:
    """
    A Service with everything that the API decides.

    Args:
        service: As it was sent.
        before: As it was so far, None for a new one.
        others: All other Services: what they hold cannot be had.

    Raises:
        InvalidServiceError: It is refused.
    """
    spec = part(service, "spec")
    old = part(before, "spec")
    spec.setdefault("type", "ClusterIP")
    if causes := _causes(spec):
        raise InvalidServiceError(causes)
    spec.setdefault("sessionAffinity", "None")
    _default_policies(spec, old)
    spec["ports"] = [_default_port(port) for port in objects_in(spec, "ports")]
    taken = Taken(others)
    if spec["type"] == "ExternalName":
        for name in ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy", "internalTrafficPolicy"):
            spec.pop(name, None)
    else:
        _settle_cluster_ips(spec, old, taken)
    _settle_node_ports(spec, old, taken)
    if not spec["ports"]:
        del spec["ports"]
    status = part(service, "status") or {"loadBalancer": {}}
    if spec["type"] != "LoadBalancer":
        status["loadBalancer"] = {}
    return {**service, "spec": spec, "status": status}


def _causes(spec: dict[str, object]) -> list[Cause]:
    causes: list[Cause] = []
    if spec["type"] not in _TYPES:
        supported = ", ".join(f'"{each}"' for each in _TYPES)
        message = f'Unsupported value: "{spec["type"]}": supported values: {supported}'
        causes.append(("FieldValueNotSupported", message, "spec.type"))
    ports = objects_in(spec, "ports")
    if not ports and spec["type"] != "ExternalName" and spec.get("clusterIP") != "None":
        causes.append(("FieldValueRequired", "Required value", "spec.ports"))
    if spec["type"] == "ExternalName" and not spec.get("externalName"):
        causes.append(("FieldValueRequired", "Required value", "spec.externalName"))
    for index, port in enumerate(ports):
        if not 1 <= number(port, "port") <= MOST_PORT:
            shown = number(port, "port")
            message = f"Invalid value: {shown}: must be between 1 and 65535, inclusive"
            causes.append(("FieldValueInvalid", message, f"spec.ports[{index}].port"))
        if len(ports) > 1 and not text(port, "name"):
            causes.append(("FieldValueRequired", "Required value", f"spec.ports[{index}].name"))
    return causes


def _default_policies(spec: dict[str, object], old: dict[str, object]) -> None:
    spec.setdefault("internalTrafficPolicy", "Cluster")
    if spec["sessionAffinity"] == "ClientIP" and not part(spec, "sessionAffinityConfig"):
        spec["sessionAffinityConfig"] = {"clientIP": {"timeoutSeconds": _AFFINITY_TIMEOUT_S}}
    elif spec["sessionAffinity"] == "None":
        spec.pop("sessionAffinityConfig", None)
    if spec["type"] in _WITH_NODE_PORTS or texts_in(spec, "externalIPs"):
        spec.setdefault("externalTrafficPolicy", "Cluster")
    elif spec.get("externalTrafficPolicy") == old.get("externalTrafficPolicy"):
        spec.pop("externalTrafficPolicy", None)
    if spec["type"] == "LoadBalancer":
        spec.setdefault("allocateLoadBalancerNodePorts", True)
    else:
        spec.pop("allocateLoadBalancerNodePorts", None)


def _default_port(port: dict[str, object]) -> dict[str, object]:
    port.setdefault("protocol", "TCP")
    port.setdefault("targetPort", port["port"])
    return port


def _settle_cluster_ips(spec: dict[str, object], old: dict[str, object], taken: Taken) -> None:
    wanted = texts_in(spec, "clusterIPs") or [each for each in [text(spec, "clusterIP")] if each]
    kept = texts_in(old, "clusterIPs")
    if kept and wanted and wanted[0] != kept[0]:
        message = f'Invalid value: "{wanted[0]}": field is immutable'
        raise InvalidServiceError([("FieldValueInvalid", message, "spec.clusterIPs[0]")])
    wanted = wanted or kept
    given = [each for each in wanted if each != "None"]
    _check_addresses(given)
    families = _families(spec, given)
    spec["ipFamilies"] = [family.api_name for family in families]
    if "None" in wanted:
        spec["clusterIP"], spec["clusterIPs"] = "None", ["None"]
        return
    addresses = {family_of(each): each for each in given}
    chosen: list[str] = []
    for index, family in enumerate(families):
        try:
            chosen.append(taken.cluster_ip(family, addresses.get(family, "")))
        except TakenError as error:
            raise InvalidServiceError([("FieldValueInvalid", str(error), f"spec.clusterIPs[{index}]")]) from error
    spec["clusterIP"], spec["clusterIPs"] = chosen[0], chosen


def _check_addresses(addresses: Sequence[str]) -> None:
    for index, address in enumerate(addresses):
        try:
            ip_address(address)
        except ValueError as error:
            message = f'Invalid value: "{address}": must be a valid IP address'
            raise InvalidServiceError([("FieldValueInvalid", message, f"spec.clusterIPs[{index}]")]) from error


def _families(spec: dict[str, object], addresses: Sequence[str]) -> list[Family]:
    """The families of a Service, the first one first; sets the policy where it is open."""
    named = [_FAMILIES[each] for each in texts_in(spec, "ipFamilies") if each in _FAMILIES]
    named = named or [family_of(each) for each in addresses]
    policy = spec.setdefault("ipFamilyPolicy", "RequireDualStack" if len(named) > 1 else "SingleStack")
    first = named[0] if named else Family.IPV4
    if policy == "SingleStack":
        return [first]
    return [first, Family.IPV6 if first is Family.IPV4 else Family.IPV4]


def _settle_node_ports(spec: dict[str, object], old: dict[str, object], taken: Taken) -> None:
    known = {
        (number(each, "port"), text(each, "protocol")): number(each, "nodePort") for each in objects_in(old, "ports")
    }
    has_node_ports = spec["type"] == "NodePort" or spec.get("allocateLoadBalancerNodePorts") is True
    settled = objects_in(spec, "ports")
    for index, port in enumerate(settled):
        wanted = number(port, "nodePort")
        before = known.get((number(port, "port"), text(port, "protocol")), 0)
        port.pop("nodePort", None)
        if spec["type"] in _WITH_NODE_PORTS and (wanted or has_node_ports):
            port["nodePort"] = _node_port(
                taken, text(port, "protocol"), wanted or before, f"spec.ports[{index}].nodePort"
            )
    spec["ports"] = settled
    if spec["type"] == "LoadBalancer" and spec.get("externalTrafficPolicy") == "Local":
        wanted = number(spec, "healthCheckNodePort") or number(old, "healthCheckNodePort")
        spec["healthCheckNodePort"] = _node_port(taken, "TCP", wanted, "spec.healthCheckNodePort")
    else:
        spec.pop("healthCheckNodePort", None)


def _node_port(taken: Taken, protocol: str, wanted: int, field: str) -> int:
    try:
        return taken.node_port(protocol, wanted)
    except TakenError as error:
        raise InvalidServiceError([("FieldValueInvalid", str(error), field)]) from error
