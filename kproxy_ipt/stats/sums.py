"""Looks at the kernel and the sums of a ledger put together: what is now, with everything that was counted."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

import msgspec

from kproxy_ipt.stats.ledger import CounterKey, Counts, Kind
from kproxy_ipt.stats.model import EndpointTraffic, ServiceTraffic


def counts_of(services: Iterable[ServiceTraffic]) -> Counts:
    """The counts that *services* of one family, from one look, stand for."""
    return dict(_counts(services))


def _counts(services: Iterable[ServiceTraffic]) -> Iterator[tuple[CounterKey, int]]:
    for one in services:
        yield CounterKey(one.service_port, one.protocol, Kind.REJECTED), one.rejected
        yield CounterKey(one.service_port, one.protocol, Kind.DROPPED), one.dropped
        for endpoint in one.endpoints:
            key = CounterKey(one.service_port, one.protocol, Kind.CONNECTIONS, endpoint.endpoint)
            yield key, endpoint.connections


def with_sums(services: Iterable[ServiceTraffic], sums: Counts) -> tuple[ServiceTraffic, ...]:
    """
    *services* of one family, in their order, with all that was ever counted in the place of what counters say now.

    Endpoints that only the sums know come last and are `is_gone`; service ports that only the sums know are left out.
    """
    by_port: dict[tuple[str, str], dict[CounterKey, int]] = defaultdict(dict)
    for key, count in sums.items():
        by_port[key.service_port, key.protocol][key] = count
    return tuple(_with_sums(one, by_port[one.service_port, one.protocol]) for one in services)


def _with_sums(one: ServiceTraffic, sums: Counts) -> ServiceTraffic:
    by_endpoint = {key.endpoint: count for key, count in sums.items() if key.kind is Kind.CONNECTIONS}
    present = tuple(
        msgspec.structs.replace(endpoint, connections=by_endpoint.pop(endpoint.endpoint, endpoint.connections))
        for endpoint in one.endpoints
    )
    gone = tuple(
        EndpointTraffic(endpoint=endpoint, connections=count, is_gone=True)
        for endpoint, count in sorted(by_endpoint.items())
    )
    return msgspec.structs.replace(
        one,
        endpoints=(*present, *gone),
        connections=sum(endpoint.connections for endpoint in (*present, *gone)),
        rejected=sums.get(CounterKey(one.service_port, one.protocol, Kind.REJECTED), one.rejected),
        dropped=sums.get(CounterKey(one.service_port, one.protocol, Kind.DROPPED), one.dropped),
    )
