"""
Zone and node hints: endpoints near the node are preferred if every ready endpoint carries a hint.

One ready endpoint without a hint of a kind turns that kind off; hints of endpoints that are not ready do not count.
Nothing else decides: neither the annotation nor `trafficDistribution`, which only make the control plane write hints.

Source: `endpoints[].hints` of discovery.k8s.io/v1, KEP-2433, KEP-3015.
"""

from enum import StrEnum

from kproxy_ipt.state.model import Endpoint, NodeFacts


class TopologyMode(StrEnum):
    """Which hints are in force."""

    ALL = "all"
    SAME_ZONE = "same zone"
    SAME_NODE = "same node"


def topology_mode(ready: tuple[Endpoint, ...], node: NodeFacts) -> TopologyMode:
    """
    The mode for *ready*, all ready endpoints of one service port: same node before same zone before all.

    The node's hints need its name, the zone's its zone; a node without a zone matches no zone hint but an empty one.
    """
    if not ready or not (ready[0].node_hints or ready[0].zone_hints):
        return TopologyMode.ALL
    if all(endpoint.node_hints for endpoint in ready) and any(node.name in endpoint.node_hints for endpoint in ready):
        return TopologyMode.SAME_NODE
    if all(endpoint.zone_hints for endpoint in ready) and any(node.zone in endpoint.zone_hints for endpoint in ready):
        return TopologyMode.SAME_ZONE
    return TopologyMode.ALL


def by_topology(ready: tuple[Endpoint, ...], node: NodeFacts) -> tuple[Endpoint, ...]:
    """The endpoints of *ready* that the hints in force point this node to, in the order given; never empty."""
    mode = topology_mode(ready, node)
    if mode is TopologyMode.SAME_NODE:
        return tuple(endpoint for endpoint in ready if node.name in endpoint.node_hints)
    if mode is TopologyMode.SAME_ZONE:
        return tuple(endpoint for endpoint in ready if node.zone in endpoint.zone_hints)
    return ready
