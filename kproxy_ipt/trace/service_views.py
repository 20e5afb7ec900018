"""What rules make of one service port, as values that can be compared: entries, endpoints with shares, policies."""

from enum import StrEnum
from fractions import Fraction

import msgspec


class EntryKind(StrEnum):
    """How traffic finds a service port, as the comments of kube-proxy call it."""

    CLUSTER_IP = "cluster IP"
    EXTERNAL_IP = "external IP"
    LOAD_BALANCER_IP = "loadbalancer IP"
    NODE_PORT = "node port"
    HEALTH_CHECK = "health check node port"
    REFUSED = "address without usable endpoints"
    GUARDED = "load balancer firewall"


class EntryView(msgspec.Struct, frozen=True, order=True):
    """
    One rule that finds a service port.

    Attributes:
        kind: Of the address.
        address: Canonical, "" for any address of the node.
        port: Destination port.
        fate: Where it leads: `all endpoints`, `local endpoints`, `external policy`, `source ranges`, or a verdict.
        is_counted: Whether an accounting object counts it.
    """

    kind: EntryKind
    address: str
    port: int
    fate: str
    is_counted: bool = False


class EndpointView(msgspec.Struct, frozen=True):
    """
    One endpoint that connections are sent to.

    Attributes:
        destination: `ip:port` or `[ip]:port`.
        share: Of new connections of clients that are not known, exactly as the rules' 31-bit probabilities compose.
        affinity_s: How long a client is sent back here, 0 for no affinity.
        is_hairpin_masqueraded: Whether its connections to itself are.
    """

    destination: str
    share: Fraction
    affinity_s: int = 0
    is_hairpin_masqueraded: bool = True


class ServiceView(msgspec.Struct, frozen=True, kw_only=True):
    """
    What the rules make of one service port.

    Attributes:
        text: `namespace/name:port`.
        protocol: `tcp`, `udp` or `sctp`.
        entries: Sorted.
        endpoints: For policy Cluster, sorted by destination.
        local_endpoints: For policy Local, likewise.
        masquerade: Conditions of masquerading traffic to the cluster IP; `always` for no condition.
        external: What becomes of traffic from outside, step by step.
        source_ranges: Sources that may use load balancer addresses, in order; None if all may.
        unread: Rules that are none of the above, as lines, in order.
        scheduler: Who gets the next connection: `random` or `rr`; "" where there is no choice.
        chains: Names of its chains in nat.
        groups: Those of them that hold a group of endpoints.
    """

    text: str
    protocol: str
    entries: tuple[EntryView, ...] = ()
    endpoints: tuple[EndpointView, ...] = ()
    local_endpoints: tuple[EndpointView, ...] = ()
    masquerade: tuple[str, ...] = ()
    external: tuple[str, ...] = ()
    source_ranges: tuple[str, ...] | None = None
    unread: tuple[str, ...] = ()
    scheduler: str = ""
    chains: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()

    @property
    def external_policy(self) -> str:
        """`Cluster` or `Local`, "" without traffic from outside."""
        if not self.external:
            return ""
        return "Cluster" if "masquerade" in self.external else "Local"

    @property
    def affinity_s(self) -> int:
        """The longest affinity of any endpoint, 0 for none."""
        return max((one.affinity_s for one in (*self.endpoints, *self.local_endpoints)), default=0)
