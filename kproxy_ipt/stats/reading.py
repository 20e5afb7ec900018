"""
Rules with counters -> traffic of each service port.

Chains of the table nat see the first packet of a connection alone. So the counter of the rule that rewrites the
destination, in the chain of an endpoint, is the number of new connections to it, whatever way they took there. Those
chains are left alone by syncs as long as the endpoint stays.

What the chains that choose say, `choices.py` makes of it.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

from kproxy_ipt.ruleset.counted import Way, chances_of
from kproxy_ipt.ruleset.matches import Conntrack
from kproxy_ipt.ruleset.model import Rule, Ruleset
from kproxy_ipt.ruleset.targets import Dnat, Jump, Reject, Verdict
from kproxy_ipt.stats.choices import read_choices
from kproxy_ipt.stats.model import ServiceTraffic
from kproxy_ipt.trace.branches import as_rows
from kproxy_ipt.trace.service_chains import rules_of
from kproxy_ipt.trace.service_reading import SHARED_CHAINS, owner_of, read_services
from kproxy_ipt.trace.service_views import ServiceView

_ENDPOINT, _CLUSTER, _LOCAL = "KUBE-SEP-", "KUBE-SVC-", "KUBE-SVL-"


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
    rows = {chain: tuple(_ways(ruleset, chain, view)) for chain in view.chains if chain.startswith((_CLUSTER, _LOCAL))}
    entered = view.chains - view.groups
    choices = read_choices(
        rows,
        (chain for chain in entered if chain.startswith(_CLUSTER)),
        (chain for chain in entered if chain.startswith(_LOCAL)),
    )
    skew, probability = choices.judge(view.affinity_s)
    return ServiceTraffic(
        service_port=view.text,
        protocol=view.protocol,
        family=ruleset.family,
        connections=sum(counted[chain][1] for chain in counted),
        rejected=refusals["rejected"],
        dropped=refusals["dropped"],
        affinity_s=view.affinity_s,
        endpoints=tuple(
            choices.endpoint(chain, endpoint, connections)
            for chain, (endpoint, connections) in sorted(counted.items(), key=lambda one: one[1])
        ),
        skew=skew,
        probability=probability,
    )


def _endpoint_counts(ruleset: Ruleset, view: ServiceView) -> Iterator[tuple[str, tuple[str, int]]]:
    """For each chain of an endpoint: where it leads, and how many connections it sent there."""
    for chain in view.chains:
        rules = rules_of(ruleset, "nat", chain) if chain.startswith(_ENDPOINT) else ()
        target = rules[-1].target if rules else None
        if isinstance(target, Dnat):
            yield chain, (target.to_destination, packets(rules[-1]))


def _ways(ruleset: Ruleset, chain: str, view: ServiceView) -> Iterator[Way]:
    """The rules of a chain that lead to a place of the service port."""
    for rule in rules_of(ruleset, "nat", chain):
        if isinstance(rule.target, Jump) and rule.target.chain in view.chains:
            yield Way(rule.target.chain, packets(rule), chances_of(rule))
