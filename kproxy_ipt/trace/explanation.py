"""What `explain` says about a Service: the values, which programs read as JSON."""

from enum import StrEnum

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.selection.reasons import Reason, TopologyDecision


class EntryKind(StrEnum):
    """What kind of address traffic enters by."""

    CLUSTER_IP = "cluster IP"
    NODE_PORT = "node port"
    EXTERNAL_IP = "external IP"
    LOAD_BALANCER = "load balancer"


class Fate(StrEnum):
    """What becomes of traffic from outside of this node to an entry."""

    BALANCED = "balanced"
    REFUSED = "refused"
    DROPPED = "dropped"
    NO_RULES = "no rules"


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """
    One address that a client of the service port may use.

    Attributes:
        address: Canonical; the host name where a load balancer gave one; `*` for every address of the node.
        policy: `Cluster` or `Local`: whether all endpoints may get the traffic or those of this node; "" without rules.
        policy_field: The field of the Service that says so.
        chain: The chain that the traffic enters, "" where there is none.
        endpoints: How many it is spread over.
        sentence: What happens, for people.
        notes: What else decides: short cuts, limits, who else claims the address.
    """

    kind: EntryKind
    address: str
    port: int
    policy: str = ""
    policy_field: str = ""
    chain: str = ""
    fate: Fate
    endpoints: int = 0
    sentence: str
    notes: tuple[str, ...] = ()


class EndpointRow(msgspec.Struct, frozen=True, kw_only=True):
    """
    One entry of a slice, in or out.

    Attributes:
        text: `ip:port`, or as much as the slice says; "" for an endpoint without address.
        address: Canonical where it is an address.
        slice: Name of the EndpointSlice.
        cluster: The reason under policy Cluster, None where the service port never uses it.
        local: The same for policy Local.
        chain: The chain of the endpoint, "" for one that is out.
        cluster_share: Part of the connections of policy Cluster that it gets, 0 to 1.
        local_share: The same for policy Local.
        detail: The facts behind the reason, or "" where the sentence of the reason says all.
    """

    text: str
    address: str
    slice: str
    node: str = ""
    zone: str = ""
    cluster: Reason | None = None
    local: Reason | None = None
    chain: str = ""
    cluster_share: float = 0.0
    local_share: float = 0.0
    detail: str = ""

    @property
    def is_of_other_family(self) -> bool:
        """Whether its slice is for the rules of the other family."""
        return Reason.OTHER_FAMILY in (self.cluster, self.local)


class AffinityExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """Session affinity: for how long a client is remembered, and how many of them."""

    timeout_s: int
    remembered_clients: int
    sentence: str


class RangesExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """`spec.loadBalancerSourceRanges` on this node; *ranges* are those of the family that are in force."""

    enforced: bool
    ranges: tuple[str, ...] = ()
    sentence: str


class PortExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """
    One service port in one family.

    Attributes:
        text: `namespace/name:port_name`.
        chains: Those that stand in the kernel after a sync, chains of endpoints left out.
        cluster_endpoints: How many endpoints policy Cluster uses; None if it is never used.
        local_endpoints: The same for policy Local.
        health_check: What the health check node port answers; "" without one.
        balancing: How connections are spread, "" where it is by one row of dices.
    """

    text: str
    protocol: str
    family: Family
    port: int
    chains: tuple[str, ...]
    entries: tuple[Entry, ...]
    endpoints: tuple[EndpointRow, ...]
    cluster_endpoints: int | None
    local_endpoints: int | None
    topology: TopologyDecision
    affinity: AffinityExplanation | None
    source_ranges: RangesExplanation | None
    health_check: str = ""
    balancing: str = ""

    @property
    def shown_endpoints(self) -> tuple[EndpointRow, ...]:
        """Those for people: what is of the other family is told with its own rules, unless there is nothing else."""
        return tuple(row for row in self.endpoints if not row.is_of_other_family) or self.endpoints

    @property
    def hidden_words(self) -> str:
        """How many others there are, "" for none."""
        count = len(self.endpoints) - len(self.shown_endpoints)
        return f"{count} endpoint{'' if count == 1 else 's'} of the other family: not for these rules" if count else ""


class FamilyOut(msgspec.Struct, frozen=True):
    """A family in which the Service gets no rules, and why."""

    family: Family
    reason: Reason
    sentence: str


class ServiceExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """
    Everything that was decided about one Service on one node.

    Attributes:
        service: `namespace/name`.
        reason: Why it gets no rules at all; None where it gets some.
        sentence: The same for people, or "".
        families_out: Families without a cluster IP, where others have one.
        ports: By port in the order of `spec.ports`, IPv4 before IPv6.
    """

    service: str
    type: str
    node: str
    zone: str
    reason: Reason | None = None
    sentence: str = ""
    families_out: tuple[FamilyOut, ...] = ()
    ports: tuple[PortExplanation, ...] = ()
