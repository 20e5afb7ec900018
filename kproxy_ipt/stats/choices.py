"""
Chains that choose -> what each endpoint is to get and what it got: the only place where counts meet shares.

Whoever reads counters (`ruleset/counted.py` from text, `reading.py` from rules) gives the rules of a chain as ways, and
everything else follows from these: shares from the chances that they leave, counts from their counters. So the shares
are those that the kernel gives at the moment of the reading, whatever anybody wanted it to give.

A chain is written anew whenever its choice changes, so its counters are those since then. Groups of endpoints are
choices of their own: one that did not change goes on counting when others begin anew. So parts are multiplied on the
way down from the chain of the service port, and counts of different chains are never compared.

Decided against: exact fractions, as `trace` has them. What is left after a thousand dices has 31,000 bits, and a daemon
would be busy with them for a second; floats are right to a billionth.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from kproxy_ipt.rules.names import service_suffix
from kproxy_ipt.ruleset.counted import Way
from kproxy_ipt.stats.chance import probability_of, shares_statistic
from kproxy_ipt.stats.model import CHANCE, ENOUGH_CONNECTIONS, EndpointTraffic, Skew
from kproxy_ipt.trace.row_shares import part_of

Rows = Mapping[str, Sequence[Way]]
"""The rules of chains that choose, by chain, in order."""

_ENDPOINT = "KUBE-SEP-"


class PolicyChoice(msgspec.Struct, frozen=True):
    """
    What one traffic policy makes of new connections; keys are chains of endpoints.

    Attributes:
        shares: The part of connections that the rules give, 0 to 1.
        counts: How often the endpoint was chosen.
        observed: The part of connections that it got, 0 to 1; nothing for those that nobody asked for.
        total: Connections that came to the choice.
        statistic: Sum of `shares_statistic` over those chains with connections enough.
        degrees: Its degrees of freedom.
    """

    shares: Mapping[str, float]
    counts: Mapping[str, int]
    observed: Mapping[str, float]
    total: int = 0
    statistic: float = 0.0
    degrees: int = 0


class Choices(msgspec.Struct, frozen=True):
    """What both policies of a service port make of new connections."""

    cluster: PolicyChoice
    local: PolicyChoice

    @property
    def reached(self) -> frozenset[str]:
        """The chains of endpoints that rules lead to."""
        return frozenset((*self.cluster.counts, *self.local.counts))

    def endpoint(self, chain: str, endpoint: str, connections: int) -> EndpointTraffic:
        """
        What an endpoint is to get beside what it got.

        Args:
            chain: Of the endpoint.
            endpoint: `ip:port`.
            connections: All that were ever counted.
        """
        share, local_share = self.cluster.shares.get(chain), self.local.shares.get(chain)
        return EndpointTraffic(
            endpoint=endpoint,
            connections=connections,
            recent=self.cluster.counts.get(chain, 0) + self.local.counts.get(chain, 0),
            share=share,
            local_share=local_share,
            expected=self._mixed(share or 0.0, local_share or 0.0),
            observed=self._mixed(self.cluster.observed.get(chain, 0.0), self.local.observed.get(chain, 0.0)),
        )

    def _mixed(self, cluster: float, local: float) -> float | None:
        """The part of all connections, from the parts of those that came by each policy; None where none came."""
        total = self.cluster.total + self.local.total
        return (self.cluster.total * cluster + self.local.total * local) / total if total else None

    def judge(self, affinity_s: int) -> tuple[Skew, float | None]:
        """Whether what came fits the shares, and how likely chance alone makes it as far off."""
        degrees = self.cluster.degrees + self.local.degrees
        if not degrees:
            return Skew.TOO_FEW, None
        probability = probability_of(self.cluster.statistic + self.local.statistic, degrees)
        if probability >= CHANCE:
            return Skew.FITS, probability
        return (Skew.AFFINITY if affinity_s else Skew.UNEXPLAINED), probability


def choices_of(rows: Rows, service_port: str, protocol: str) -> Choices:
    """The choices of a service port whose chains have the names that kube-proxy gives them."""
    suffix = service_suffix(service_port, protocol)
    return read_choices(rows, (f"KUBE-SVC-{suffix}",), (f"KUBE-SVL-{suffix}",))


def read_choices(rows: Rows, cluster: Iterable[str], local: Iterable[str]) -> Choices:
    """
    Follow rules from the chains of a service port to its endpoints.

    Args:
        rows: At least those of the service port.
        cluster: Its chains for policy Cluster, groups left out.
        local: The same for policy Local.
    """
    return Choices(_PolicyReader(rows).read(cluster), _PolicyReader(rows).read(local))


class _PolicyReader:
    """Adds up what chains of one policy say; each chain is read once."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._read: set[str] = set()
        self._shares: dict[str, float] = defaultdict(float)
        self._counts: Counter[str] = Counter()
        self._observed: dict[str, float] = defaultdict(float)
        self._statistic, self._degrees = 0.0, 0

    def read(self, chains: Iterable[str]) -> PolicyChoice:
        total = 0
        for chain in chains:
            total += self._follow(chain, 1.0, 1.0)
        return PolicyChoice(
            dict(self._shares), dict(self._counts), dict(self._observed), total, self._statistic, self._degrees
        )

    def _follow(self, chain: str, share: float, observed: float) -> int:
        """Take in a chain that *share* of connections are to come to, and *observed* came to; gives what it counted."""
        ways = () if chain in self._read else self._rows.get(chain, ())
        self._read.add(chain)
        counts, shares = Counter[str](), _shares(ways)
        for way in ways:
            counts[way.place] += way.packets
        total = counts.total()
        self._judge(counts, shares)
        for place, count in counts.items():
            part = observed * count / total if total else 0.0
            if place.startswith(_ENDPOINT):
                self._counts[place] += count
                self._observed[place] += part
                if place in shares:
                    self._shares[place] += share * shares[place]
            else:
                self._follow(place, share * shares.get(place, 0.0), part)
        return total

    def _judge(self, counts: Counter[str], shares: Mapping[str, float]) -> None:
        total = counts.total()
        if shares and total * min(shares.values()) >= ENOUGH_CONNECTIONS:
            more, free = shares_statistic(counts, shares)
            self._statistic, self._degrees = self._statistic + more, self._degrees + free


def _shares(ways: Iterable[Way]) -> Mapping[str, float]:
    """The part of what comes to a chain that its rules give to each place; a place without one is left out."""
    found: dict[str, float] = {}
    remaining = 1.0
    for way in ways:
        part = None if way.chances is None else part_of(way.chances)
        if part and remaining:
            taken = remaining * float(part)
            remaining -= taken
            found[way.place] = found.get(way.place, 0.0) + taken
    return found
