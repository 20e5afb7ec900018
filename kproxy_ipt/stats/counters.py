"""Rules with counters -> counts by what they mean, as the ledger takes them."""

from collections import Counter

from kproxy_ipt.ruleset.model import Ruleset
from kproxy_ipt.stats.ledger import CounterKey, Counts, Kind
from kproxy_ipt.stats.model import ServiceTraffic
from kproxy_ipt.stats.reading import read_traffic


def counts_of(services: "tuple[ServiceTraffic, ...]") -> Counts:
    """The counts that *services*, from one look, stand for."""
    found: Counter[CounterKey] = Counter()
    for one in services:
        for endpoint in one.endpoints:
            key = CounterKey(one.service_port, one.protocol, Kind.CONNECTIONS, endpoint.endpoint)
            found[key] += endpoint.connections
        found[CounterKey(one.service_port, one.protocol, Kind.REJECTED)] += one.rejected
        found[CounterKey(one.service_port, one.protocol, Kind.DROPPED)] += one.dropped
    return found


def read_counts(ruleset: Ruleset) -> Counts:
    """What the rules of one family counted."""
    return counts_of(read_traffic(ruleset))
