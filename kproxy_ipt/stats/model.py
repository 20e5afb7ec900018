"""
Connections, refusals and shares of service ports, whoever counted them: one look at the kernel, or the running daemon.

Two numbers stand side by side for each endpoint. `connections` is all that was counted. `recent` is what was counted
since the endpoints of the service port last changed; only this one can be held against the shares of the present rules,
for an endpoint that came an hour ago has not had its part of yesterday's connections.
"""

from collections.abc import Set as AbstractSet
from enum import StrEnum
from typing import Protocol

import msgspec

from kproxy_ipt.addresses import Family

ENOUGH_CONNECTIONS = 5
"""Connections that each endpoint is to expect, at least, before shares are judged."""

CHANCE = 0.001
"""How often a balancing that is correct is called skewed."""


class Skew(StrEnum):
    """Whether the connections of a service port fit the shares that its rules give, and why not."""

    FITS = "fits"
    TOO_FEW = "too few"
    """Too few connections to say anything, or nothing to choose from."""
    AFFINITY = "affinity"
    """They do not fit, and known clients are sent back to where they were: the rules choose for new clients only."""
    UNEXPLAINED = "unexplained"
    """They do not fit, and no rule says why."""

    @property
    def sentence(self) -> str:
        """For people."""
        return _SENTENCES[self]


_SENTENCES = {
    Skew.FITS: "connections fit the shares",
    Skew.TOO_FEW: "too few connections to judge the shares",
    Skew.AFFINITY: "connections do not fit the shares, reason: affinity (known clients return to their endpoint)",
    Skew.UNEXPLAINED: "connections do not fit the shares, and no rule says why",
}


class EndpointTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """
    What one endpoint got.

    Attributes:
        endpoint: `ip:port` or `[ip]:port`.
        connections: All new connections that were counted.
        recent: Those since the endpoints of the service port (in groups: those of its group) last changed.
        share: Part of new connections, 0 to 1, that the present rules of policy Cluster give it; None for none.
        local_share: The same for policy Local.
        expected: The part of all recent connections, 0 to 1, that both shares come to with as many connections by each
            policy as there were; None where there were none.
        observed: Its part of them, 0 to 1; None likewise.
        is_gone: Whether no present rule leads to it; its count stays.
    """

    endpoint: str
    connections: int
    recent: int = 0
    share: float | None = None
    local_share: float | None = None
    expected: float | None = None
    observed: float | None = None
    is_gone: bool = False


class ServiceTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """
    What one service port got.

    Attributes:
        service_port: `namespace/name:port_name`.
        protocol: `tcp`, `udp` or `sctp`.
        family: Of its addresses.
        connections: The sum over its endpoints, those that are gone included.
        rejected: Packets that were refused for want of endpoints.
        dropped: Packets that were dropped: no local endpoint, or a source that may not use the load balancer.
        affinity_s: How long a client is sent back to its endpoint, 0 for no affinity.
        endpoints: Sorted by text; those that are gone last.
        skew: Whether `recent` connections fit the shares.
        probability: How likely chance alone makes counts as far off; None where that cannot be said.
    """

    service_port: str
    protocol: str
    family: Family
    connections: int = 0
    rejected: int = 0
    dropped: int = 0
    affinity_s: int = 0
    endpoints: tuple[EndpointTraffic, ...] = ()
    skew: Skew = Skew.TOO_FEW
    probability: float | None = None

    @property
    def has_both_policies(self) -> bool:
        """Whether rules give shares by policy Cluster and by policy Local."""
        return any(one.share for one in self.endpoints) and any(one.local_share for one in self.endpoints)

    @property
    def sentence(self) -> str:
        """What `skew` and `probability` say, for people."""
        reached = sum(bool(one.share or one.local_share) for one in self.endpoints)
        if reached < 2 and self.skew is Skew.TOO_FEW:
            return "a single endpoint gets everything" if reached else "no rule leads to an endpoint"
        if self.probability is None:
            return self.skew.sentence
        chance = "less than 0.1 %" if self.probability < CHANCE else f"{100 * self.probability:.1f} %"
        return f"{self.skew.sentence} (by chance alone: {chance})"


class TrafficReport(msgspec.Struct, frozen=True, kw_only=True):
    """
    All service ports of one or both families.

    Attributes:
        services: Sorted by family, text and protocol.
        invalid_dropped: Packets that connection tracking found invalid, dropped on their way through the node.
        unix_time_s: When the kernel was read; 0.0 if it was not yet.
        since_unix_s: From when on everything is counted; None: since the kernel made the chains.
        problem: Why the report is old or empty, one line, or "".
    """

    services: tuple[ServiceTraffic, ...] = ()
    invalid_dropped: int = 0
    unix_time_s: float = 0.0
    since_unix_s: float | None = None
    problem: str = ""


class TrafficSource(Protocol):
    """Whoever keeps counting; pages and metrics ask it."""

    def report(self, only: AbstractSet[tuple[str, str]] | None = None) -> TrafficReport:
        """What is known by now, of all Services or those called so; never waits, never raises."""
        ...

    async def read(self, *, max_age_s: float) -> None:
        """Read the kernel, if what is known is older than *max_age_s*; never raises."""
        ...

    async def refresh(self, *, max_age_s: float) -> TrafficReport:
        """The same after reading the kernel, if what is known is older than *max_age_s*; never raises."""
        ...
