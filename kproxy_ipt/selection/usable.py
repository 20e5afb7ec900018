"""
Which endpoints each traffic policy may send to.

Ready endpoints come first. A policy that has none at all falls back to its serving and terminating ones, for that
policy alone: the cluster list may hold remote ready endpoints while the local list lives from terminating ones.

Source: KEP-1669 (terminating endpoints), KEP-2086 (internal policy), `spec.externalTrafficPolicy`.
"""

from collections.abc import Iterable, Sequence

import msgspec

from kproxy_ipt.selection.topology import by_topology
from kproxy_ipt.state.model import Endpoint, NodeFacts, ServicePort


class UsableEndpoints(msgspec.Struct, frozen=True):
    """
    The endpoints that rules of one service port may use, each tuple in the order of the endpoints given.

    Attributes:
        cluster: For traffic of policy Cluster and for local traffic that is short-cut past policy Local; empty when
            the service port never uses policy Cluster.
        local: For traffic of policy Local; empty when the service port never uses it.
        reachable: Union of both: each needs a chain.
        any_usable: Whether any node of the cluster has a usable one; if not, traffic is refused rather than dropped.
    """

    cluster: tuple[Endpoint, ...]
    local: tuple[Endpoint, ...]
    reachable: tuple[Endpoint, ...]
    any_usable: bool


_NONE = UsableEndpoints((), (), (), any_usable=False)


def usable_endpoints(service_port: ServicePort, endpoints: Sequence[Endpoint], node: NodeFacts) -> UsableEndpoints:
    """
    Choose the endpoints that each traffic policy may send to.

    Args:
        service_port: Of the same family as *endpoints*.
        endpoints: All known ones, 0 to some 1,000, no duplicates, sorted by the bytes of `ip:port`.
        node: Name and zone of the node that the rules are for.

    Source: `spec.internalTrafficPolicy`, `spec.externalTrafficPolicy`, `endpoints[].conditions`, `endpoints[].hints`.
    """
    if not endpoints:
        return _NONE
    cluster = _cluster_endpoints(endpoints, node) if service_port.uses_cluster_endpoints else ()
    if not service_port.uses_local_endpoints:
        return UsableEndpoints(cluster, (), cluster, any_usable=bool(cluster))
    local = _ready_or_draining([endpoint for endpoint in endpoints if endpoint.is_local])
    any_usable = any(endpoint.ready or is_draining(endpoint) for endpoint in endpoints)
    return UsableEndpoints(cluster, local, _union(endpoints, cluster, local), any_usable=any_usable)


def is_draining(endpoint: Endpoint) -> bool:
    """Whether an endpoint that is not ready may serve as a fallback: serving and terminating."""
    return endpoint.serving and endpoint.terminating


def _cluster_endpoints(endpoints: Sequence[Endpoint], node: NodeFacts) -> tuple[Endpoint, ...]:
    ready = tuple(endpoint for endpoint in endpoints if endpoint.ready)
    if ready:
        return by_topology(ready, node)
    return tuple(endpoint for endpoint in endpoints if is_draining(endpoint))


def _ready_or_draining(endpoints: Iterable[Endpoint]) -> tuple[Endpoint, ...]:
    known = tuple(endpoints)
    ready = tuple(endpoint for endpoint in known if endpoint.ready)
    return ready or tuple(endpoint for endpoint in known if is_draining(endpoint))


def _union(
    endpoints: Sequence[Endpoint], cluster: tuple[Endpoint, ...], local: tuple[Endpoint, ...]
) -> tuple[Endpoint, ...]:
    wanted = {endpoint.text for endpoint in (*cluster, *local)}
    return tuple(endpoint for endpoint in endpoints if endpoint.text in wanted)
