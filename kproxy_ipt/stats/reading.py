"""
Rules with counters -> traffic of each service port.

Chains of the table nat see the first packet of a connection alone. So the counter of the rule that rewrites the
destination, in the chain of an endpoint, is the number of new connections to it, whatever way they took there. Those
chains are left alone by syncs as long as the endpoint stays.

The chain that chooses is written anew whenever its choice changes. So the counters of its rules are those since the
endpoints changed, and they can be held against the shares that the very same rules give. Groups of endpoints are
choices of their own, in chains of their own.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from fractions import Fraction

from kproxy_ipt.ruleset.matches import Conntrack
from kproxy_ipt.ruleset.model import Rule, Ruleset
from kproxy_ipt.ruleset.targets import Dnat, Jump, Reject, Verdict
from kproxy_ipt.stats.chance import probability_of, shares_statistic
from kproxy_ipt.stats.model import CHANCE, ENOUGH_CONNECTIONS, EndpointTraffic, ServiceTraffic, Skew
from kproxy_ipt.trace.branches import as_rows
from kproxy_ipt.trace.row_shares import RowShares
from kproxy_ipt.trace.service_chains import rules_of
from kproxy_ipt.trace.service_reading import SHARED_CHAINS, owner_of, read_services
from kproxy_ipt.trace.service_views import ServiceView

_ENDPOINT, _CHOICES = "KUBE-SEP-", ("KUBE-SVC-", "KUBE-SVL-")


def packets(rule: Rule) -> int:
    """What a rule counted, 0 if its text had no counters."""
    return rule.counters.packets if rule.counters else 0


def read_traffic(ruleset: Ruleset) -> tuple[ServiceTraffic, ...]:
    """
    What each service port got since the kernel made its chains.

    Args:
        ruleset: Tables nat and filter with counters (`iptables-save --counters`), whoever wrote the rules.

    Returns:
        Sorted by text and protocol. A service port without any rule is not there.
    """
    refusals = _refusals(as_rows(ruleset))
    return tuple(
        _traffic(ruleset, view, refusals.get((view.text, view.protocol), Counter()))
        for view in read_services(ruleset).values()
    )


def invalid_dropped(ruleset: Ruleset) -> int:
    """Packets that connection tracking found invalid, dropped on their way through the node."""
    invalid = Conntrack(("INVALID",))
    return sum(
        packets(rule)
        for rule in rules_of(ruleset, "filter", "KUBE-FORWARD")
        if rule.target == Verdict("DROP") and invalid in rule.matches
    )


def _refusals(ruleset: Ruleset) -> Mapping[tuple[str, str], Counter[str]]:
    """Packets `rejected` and `dropped` of each service port."""
    found: dict[tuple[str, str], Counter[str]] = {}
    for table, chain in SHARED_CHAINS:
        for rule in rules_of(ruleset, table, chain) if table == "filter" else ():
            fate = refusal_of(rule)
            if fate:
                found.setdefault((owner_of(rule)[0], rule.protocol), Counter())[fate] += packets(rule)
    return found


def refusal_of(rule: Rule) -> str:
    """`rejected` or `dropped` for a rule that ends packets, "" for others."""
    if isinstance(rule.target, Reject):
        return "rejected"
    return "dropped" if rule.target == Verdict("DROP") else ""


def _traffic(ruleset: Ruleset, view: ServiceView, refusals: Counter[str]) -> ServiceTraffic:
    counted = dict(_endpoint_counts(ruleset, view))
    recent = _recent(ruleset, view)
    shares = {one.destination: one.share for one in view.endpoints}
    local_shares = {one.destination: one.share for one in view.local_endpoints}
    total = sum(recent.values())
    skew, probability = _skew(ruleset, view)
    return ServiceTraffic(
        service_port=view.text,
        protocol=view.protocol,
        family=ruleset.family,
        connections=sum(counted[chain][1] for chain in counted),
        rejected=refusals["rejected"],
        dropped=refusals["dropped"],
        affinity_s=view.affinity_s,
        endpoints=tuple(
            EndpointTraffic(
                endpoint=endpoint,
                connections=connections,
                recent=recent[chain],
                share=_float(shares.get(endpoint)),
                local_share=_float(local_shares.get(endpoint)),
                observed=recent[chain] / total if total else None,
            )
            for chain, (endpoint, connections) in sorted(counted.items(), key=lambda one: one[1])
        ),
        skew=skew,
        probability=probability,
    )


def _float(share: Fraction | None) -> float | None:
    return None if share is None else float(share)


def _endpoint_counts(ruleset: Ruleset, view: ServiceView) -> Iterator[tuple[str, tuple[str, int]]]:
    """For each chain of an endpoint: where it leads, and how many connections it sent there."""
    for chain in view.chains:
        rules = rules_of(ruleset, "nat", chain) if chain.startswith(_ENDPOINT) else ()
        target = rules[-1].target if rules else None
        if isinstance(target, Dnat):
            yield chain, (target.to_destination, packets(rules[-1]))


def _choices(ruleset: Ruleset, view: ServiceView) -> Iterator[tuple[Counter[str], dict[str, Fraction]]]:
    """For each chain that chooses: how often it chose each place, and the share of each place."""
    for chain in view.chains:
        if not chain.startswith(_CHOICES):
            continue
        row = RowShares()
        counts: Counter[str] = Counter()
        shares: dict[str, Fraction] = {}
        for rule in rules_of(ruleset, "nat", chain):
            if isinstance(rule.target, Jump) and rule.target.chain in view.chains:
                place = rule.target.chain
                counts[place] += packets(rule)
                taken = row.take(rule)
                if taken:
                    shares[place] = shares.get(place, Fraction(0)) + taken
        if shares:
            yield counts, shares


def _recent(ruleset: Ruleset, view: ServiceView) -> Counter[str]:
    """How often each chain of an endpoint was chosen since the choice last changed."""
    found: Counter[str] = Counter()
    for counts, _ in _choices(ruleset, view):
        found.update({place: count for place, count in counts.items() if place.startswith(_ENDPOINT)})
    return found


def _skew(ruleset: Ruleset, view: ServiceView) -> tuple[Skew, float | None]:
    """Whether all choices together fit their shares."""
    statistic, degrees = 0.0, 0
    for counts, shares in _choices(ruleset, view):
        total = counts.total()
        if not total or total * min(shares.values()) < ENOUGH_CONNECTIONS:
            continue
        more, free = shares_statistic(counts, {place: float(share) for place, share in shares.items()})
        statistic, degrees = statistic + more, degrees + free
    return judged(statistic, degrees, affinity_s=view.affinity_s)


def judged(statistic: float, degrees: int, *, affinity_s: int) -> tuple[Skew, float | None]:
    """What sums of `shares_statistic` say about a service port."""
    if not degrees:
        return Skew.TOO_FEW, None
    probability = probability_of(statistic, degrees)
    if probability >= CHANCE:
        return Skew.FITS, probability
    return (Skew.AFFINITY if affinity_s else Skew.UNEXPLAINED), probability
