"""
Why each endpoint is in or out, for each traffic policy, and why hints are in force or not.

What is said here is derived from the same facts as the choice itself (`usable.py`, `topology.py`), and a property test
holds the two against each other. A `Reason` has a sentence for people; programs use its value.

Source: `endpoints[].conditions`, `endpoints[].hints`, `spec.internalTrafficPolicy`, `spec.externalTrafficPolicy`.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum

import msgspec

from kproxy_ipt.selection.topology import TopologyMode, by_topology, topology_mode
from kproxy_ipt.selection.usable import is_draining
from kproxy_ipt.state.model import Endpoint, NodeFacts, ServicePort


class Reason(StrEnum):
    """Why an endpoint, a slice, a Service or one family of it has a part in the rules, or none."""

    READY = "ready"
    DRAINING_FALLBACK = "draining fallback"
    NOT_READY = "not ready"
    NOT_SERVING = "not serving"
    TERMINATING_READY_EXIST = "terminating, ready ones exist"
    NOT_LOCAL = "not local"
    OTHER_ZONE = "other zone"
    OTHER_NODE_HINT = "hint for another node"
    OTHER_FAMILY = "other family"
    FQDN = "FQDN"
    HEADLESS_SLICE = "headless slice"
    NO_SERVICE_LABEL = "no service label"
    NO_PORTS = "slice without ports"
    PORT_NAME_MISMATCH = "port name mismatch"
    PORT_WITHOUT_NUMBER = "port without number"
    PORT_WITHOUT_NAME = "port without name"
    PROTOCOL_MISMATCH = "protocol mismatch"
    NO_ADDRESS = "no address"
    BAD_ADDRESS = "bad address"
    SECOND_ADDRESS = "second address"
    DUPLICATE = "duplicate"
    TERMINATING_DUPLICATE = "terminating duplicate"
    HEADLESS = "headless Service"
    EXTERNAL_NAME = "ExternalName"
    OTHER_PROXY = "other proxy"
    NO_CLUSTER_IP = "no cluster IP"
    NO_CLUSTER_IP_OF_FAMILY = "no cluster IP of this family"
    NO_SERVICE_PORTS = "no ports"

    @property
    def is_in(self) -> bool:
        """Whether an endpoint of this reason gets traffic."""
        return self in (Reason.READY, Reason.DRAINING_FALLBACK)

    @property
    def sentence(self) -> str:
        """The reason for people, without a full stop."""
        return _SENTENCES[self]


_SENTENCES = {
    Reason.READY: "it is ready",
    Reason.DRAINING_FALLBACK: "it is terminating but still serves, and no endpoint of this policy is ready",
    Reason.NOT_READY: "conditions.ready is false, and it is not terminating",
    Reason.NOT_SERVING: "it is terminating and no longer serves (conditions.serving is false)",
    Reason.TERMINATING_READY_EXIST: "it is terminating, and there are ready endpoints",
    Reason.NOT_LOCAL: "it is not on this node, and policy Local wants endpoints of this node only",
    Reason.OTHER_ZONE: "its hints are for other zones than that of this node",
    Reason.OTHER_NODE_HINT: "its hints are for other nodes than this one",
    Reason.OTHER_FAMILY: "its slice holds addresses of the other IP family",
    Reason.FQDN: "its slice holds host names (addressType FQDN), which no rule can send to",
    Reason.HEADLESS_SLICE: "its slice is that of a headless Service (label service.kubernetes.io/headless)",
    Reason.NO_SERVICE_LABEL: "its slice lacks the label kubernetes.io/service-name, so it belongs to no Service",
    Reason.NO_PORTS: 'its slice has no ports, and "all ports" is not implemented',
    Reason.PORT_NAME_MISMATCH: "its slice has no port of the name of the service port: names join them, not numbers",
    Reason.PORT_WITHOUT_NUMBER: 'the port of its slice has no number, and "all ports" is not implemented',
    Reason.PORT_WITHOUT_NAME: 'the port of its slice has no name; the unnamed port is named ""',
    Reason.PROTOCOL_MISMATCH: "the port of its slice has the right name but another protocol",
    Reason.NO_ADDRESS: "it has no address",
    Reason.BAD_ADDRESS: "its first address is not one of the family of its slice",
    Reason.SECOND_ADDRESS: "only the first address of an endpoint is used",
    Reason.DUPLICATE: "another entry names the same address and port",
    Reason.TERMINATING_DUPLICATE: "another entry names the same address and port, and is not terminating",
    Reason.HEADLESS: "clusterIP is None: a headless Service gets no rules, its names resolve to the pods themselves",
    Reason.EXTERNAL_NAME: "type ExternalName is an alias in DNS and gets no rules",
    Reason.OTHER_PROXY: "the label service.kubernetes.io/service-proxy-name gives it to another proxy",
    Reason.NO_CLUSTER_IP: "it has no cluster IP yet, and gets rules once it has one",
    Reason.NO_CLUSTER_IP_OF_FAMILY: "it has no cluster IP of this family",
    Reason.NO_SERVICE_PORTS: "spec.ports is empty",
}


class EndpointReasons(msgspec.Struct, frozen=True, kw_only=True):
    """One endpoint and its reason under each policy; None where the service port never uses that policy."""

    endpoint: Endpoint
    cluster: Reason | None
    local: Reason | None


class TopologyGuard(StrEnum):
    """What keeps hints out of force."""

    POLICY_LOCAL = "policy Local"
    NO_READY_ENDPOINT = "no ready endpoint"
    NO_HINTS = "no hints"
    MISSING_HINT = "missing hint"
    NODE_WITHOUT_ZONE = "node without zone"
    NO_HINT_FOR_ZONE = "no hint for this zone"
    NO_HINT_FOR_NODE = "no hint for this node"


class TopologyDecision(msgspec.Struct, frozen=True, kw_only=True):
    """Which hints are in force for traffic of policy Cluster; *guard* is None where some are. *sentence* says both."""

    mode: TopologyMode
    guard: TopologyGuard | None
    sentence: str


def endpoint_reasons(
    service_port: ServicePort, endpoints: Sequence[Endpoint], node: NodeFacts
) -> tuple[EndpointReasons, ...]:
    """
    The reasons of *endpoints*, in the order given.

    Args:
        service_port: Of the same family as *endpoints*.
        endpoints: All known ones, no duplicates.
        node: Name and zone of the node that the rules are for.
    """
    has_ready = any(endpoint.ready for endpoint in endpoints)
    has_local_ready = any(endpoint.ready and endpoint.is_local for endpoint in endpoints)
    ready = tuple(endpoint for endpoint in endpoints if endpoint.ready)
    near = {endpoint.text for endpoint in by_topology(ready, node)}
    far = Reason.OTHER_NODE_HINT if topology_mode(ready, node) is TopologyMode.SAME_NODE else Reason.OTHER_ZONE

    def cluster_reason(endpoint: Endpoint) -> Reason:
        reason = _by_conditions(endpoint, has_ready=has_ready)
        return far if reason is Reason.READY and endpoint.text not in near else reason

    def local_reason(endpoint: Endpoint) -> Reason:
        return _by_conditions(endpoint, has_ready=has_local_ready) if endpoint.is_local else Reason.NOT_LOCAL

    return tuple(
        EndpointReasons(
            endpoint=endpoint,
            cluster=cluster_reason(endpoint) if service_port.uses_cluster_endpoints else None,
            local=local_reason(endpoint) if service_port.uses_local_endpoints else None,
        )
        for endpoint in endpoints
    )


def _by_conditions(endpoint: Endpoint, *, has_ready: bool) -> Reason:
    if endpoint.ready:
        return Reason.READY
    if is_draining(endpoint):
        return Reason.TERMINATING_READY_EXIST if has_ready else Reason.DRAINING_FALLBACK
    return Reason.NOT_SERVING if endpoint.terminating else Reason.NOT_READY


def topology_decision(service_port: ServicePort, endpoints: Iterable[Endpoint], node: NodeFacts) -> TopologyDecision:
    """
    Which hints are in force for *service_port*, and if none are, the guard that decided.

    Hints of zones are spoken of where there are any, hints of nodes otherwise.
    """
    if not service_port.uses_cluster_endpoints:
        return _off(TopologyGuard.POLICY_LOCAL, "internalTrafficPolicy Local asks for no hints")
    ready = tuple(endpoint for endpoint in endpoints if endpoint.ready)
    if not ready:
        return _off(TopologyGuard.NO_READY_ENDPOINT, "no endpoint is ready, and hints count among ready ones only")
    mode = topology_mode(ready, node)
    if mode is TopologyMode.ALL:
        return _guard(ready, node)
    place = f"node {node.name}" if mode is TopologyMode.SAME_NODE else f"zone {node.zone}"
    count = len(by_topology(ready, node))
    sentence = f"on: {mode}: {count} of {len(ready)} ready endpoints are hinted for {place}"
    return TopologyDecision(mode=mode, guard=None, sentence=sentence)


def _off(guard: TopologyGuard, why: str) -> TopologyDecision:
    return TopologyDecision(mode=TopologyMode.ALL, guard=guard, sentence=f"off: {why}")


def _guard(ready: tuple[Endpoint, ...], node: NodeFacts) -> TopologyDecision:
    by_zone = any(endpoint.zone_hints for endpoint in ready)
    if not by_zone and not any(endpoint.node_hints for endpoint in ready):
        return _off(TopologyGuard.NO_HINTS, "no ready endpoint has a hint")
    for endpoint in ready:
        if not (endpoint.zone_hints if by_zone else endpoint.node_hints):
            return _off(TopologyGuard.MISSING_HINT, f"endpoint {endpoint.text} has no hint")
    if not by_zone:
        return _off(TopologyGuard.NO_HINT_FOR_NODE, f"no endpoint is hinted for node {node.name}")
    if not node.zone:
        return _off(TopologyGuard.NODE_WITHOUT_ZONE, "the node has no zone label (topology.kubernetes.io/zone)")
    return _off(TopologyGuard.NO_HINT_FOR_ZONE, f"no endpoint is hinted for zone {node.zone}")
