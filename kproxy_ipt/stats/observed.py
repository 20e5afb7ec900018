"""
What was counted for a Service that was explained: its endpoints as objects ask for them beside what rules do with them.

A service port is found in the kernel by the names of its chains, which follow from its own name. So nothing but lines
of a few forms is read, whatever else the tables hold, and it does not matter who wrote the rules.
"""

from collections.abc import Iterator, Mapping

import msgspec

from kproxy_ipt.ruleset.counted import REFUSAL, CountedTables
from kproxy_ipt.stats.choices import choices_of
from kproxy_ipt.stats.model import ServiceTraffic
from kproxy_ipt.trace.explanation import EndpointRow, PortExplanation

_ROUNDING = 0.01
"""Relative difference of two shares that are the same: the dices of old rules have five decimals."""

MOST_NAMED = 3
"""Endpoints that are named where several get the same."""


class UnlikeShare(msgspec.Struct, frozen=True):
    """
    A share that rules do not give as the objects ask for it.

    Attributes:
        endpoint: `ip:port`.
        policy: `Cluster` or `Local`.
        wanted: What the objects ask for, 0 to 1.
        given: What the rules give, 0 to 1.
    """

    endpoint: str
    policy: str
    wanted: float
    given: float

    @property
    def words(self) -> str:
        """What an endpoint gets, for people."""
        given, wanted = (f"{100 * share:.1f} %" if share else "nothing" for share in (self.given, self.wanted))
        return f"{given} by policy {self.policy} instead of {wanted}"


def port_traffic(port: PortExplanation, seen: CountedTables, destinations: Mapping[str, str]) -> ServiceTraffic | None:
    """
    What the kernel counted for a service port.

    Args:
        port: Explained from objects.
        seen: What rules of its family counted.
        destinations: By chain of an endpoint, `ip:port`.

    Returns:
        Endpoints that rules lead to, sorted by text; None where no rule is of the service port.
    """
    choices = choices_of(seen.choices, port.text, port.protocol)
    refused = dict(_refused(port, seen))
    if not choices.reached and not refused:
        return None
    affinity_s = port.affinity.timeout_s if port.affinity else 0
    skew, probability = choices.judge(affinity_s)
    counts = {chain: seen.endpoints.get(chain, 0) for chain in choices.reached}
    named = sorted((destinations.get(chain, chain), chain) for chain in counts)
    return ServiceTraffic(
        service_port=port.text,
        protocol=port.protocol,
        family=port.family,
        connections=sum(counts.values()),
        rejected=refused.get("rejected", 0),
        dropped=refused.get("dropped", 0),
        affinity_s=affinity_s,
        endpoints=tuple(choices.endpoint(chain, text, counts[chain]) for text, chain in named),
        skew=skew,
        probability=probability,
    )


def _refused(port: PortExplanation, seen: CountedTables) -> Iterator[tuple[str, int]]:
    found = [(REFUSAL.fullmatch(comment), packets) for comment, packets in seen.refusals.items()]
    own = [(match[2], packets) for match, packets in found if match and match[1] == port.text]
    for fate, is_reject in (("rejected", True), ("dropped", False)):
        counts = [packets for rejects, packets in own if bool(rejects) is is_reject]
        if counts:
            yield fate, sum(counts)


def unlike_shares(port: PortExplanation, traffic: ServiceTraffic) -> tuple[UnlikeShare, ...]:
    """Where the rules that were read are not those that the objects ask for: sorted by endpoint and policy."""
    wanted = {(row.text, policy): share for row in port.endpoints for policy, share in _wanted(row)}
    given = {
        (one.endpoint, policy): share
        for one in traffic.endpoints
        for policy, share in (("Cluster", one.share), ("Local", one.local_share))
        if share
    }
    pairs = ((key, wanted.get(key, 0.0), given.get(key, 0.0)) for key in sorted({*wanted, *given}))
    return tuple(UnlikeShare(*key, share, now) for key, share, now in pairs if _differ(share, now))


def unlike_words(port: PortExplanation, traffic: ServiceTraffic) -> str:
    """The same for people, alike ones together; "" where rules and objects agree."""
    alike: dict[str, list[str]] = {}
    for one in unlike_shares(port, traffic):
        alike.setdefault(one.words, []).append(one.endpoint)
    return "; ".join(f"{_named(endpoints)} {words}" for words, endpoints in alike.items())


def _named(endpoints: list[str]) -> str:
    """`a and b get`; of many the first ones."""
    named, more = endpoints[:MOST_NAMED], len(endpoints) - MOST_NAMED
    *first, last = [*named, f"{more} more"] if more > 0 else named
    return f"{', '.join(first)} and {last} get" if first else f"{last} gets"


def _wanted(row: EndpointRow) -> Iterator[tuple[str, float]]:
    for policy, reason, share in (("Cluster", row.cluster, row.cluster_share), ("Local", row.local, row.local_share)):
        if reason and reason.is_in:
            yield policy, share


def _differ(share: float, other: float) -> bool:
    return abs(share - other) > _ROUNDING * max(share, other)
