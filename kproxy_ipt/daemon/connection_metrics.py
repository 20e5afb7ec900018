"""
Connections as metrics: one series for each service port, and for each endpoint where that is wanted.

The number of series is bounded by what exists: service ports, and endpoints with a few of those that are gone. A
service port that was never refused anything has no series for that.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.metric_table import METRICS
from kproxy_ipt.stats.ledger import CounterKey, Counts, Kind


class ConnectionSums(msgspec.Struct, frozen=True, kw_only=True):
    """
    What is counted.

    Attributes:
        sums: By family.
        by_endpoint: Whether endpoints have series of their own.
        age_s: Since the kernel was read; None before.
    """

    sums: Mapping[Family, Counts]
    by_endpoint: bool
    age_s: float | None = None


class ConnectionCollector(Collector):
    """Gives the metrics of what *connections* answers at each reading; nothing if that is None."""

    def __init__(self, connections: Callable[[], ConnectionSums | None]) -> None:
        self._connections = connections

    def describe(self) -> Iterable[Metric]:
        """Nothing is asked for while the registry is being filled."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """The metrics of this moment."""
        found = self._connections()
        if found is None:
            return
        by_service, refused = _counter("service_connections_total"), _counter("service_refused_packets_total")
        by_endpoint = _counter("endpoint_connections_total")
        for family, sums in found.sums.items():
            totals: dict[tuple[str, ...], int] = defaultdict(int)
            for key, count in sums.items():
                labels = _labels(family, key)
                if key.kind is not Kind.CONNECTIONS:
                    if count:
                        refused.add_metric([*labels, str(key.kind)], count)
                    continue
                totals[labels] += count
                if found.by_endpoint and key.endpoint:
                    by_endpoint.add_metric([*labels, key.endpoint], count)
            for labels, count in totals.items():
                by_service.add_metric(list(labels), count)
        yield from (by_service, by_endpoint, refused)
        if found.age_s is not None:
            spec = METRICS["kproxy_ipt_counters_age_seconds"]
            yield GaugeMetricFamily(spec.name, spec.help, value=found.age_s)


def _counter(name: str) -> CounterMetricFamily:
    spec = METRICS[f"kproxy_ipt_{name}"]
    return CounterMetricFamily(spec.name, spec.help, labels=spec.labels)


def _labels(family: Family, key: CounterKey) -> tuple[str, ...]:
    name, _, port = key.service_port.partition(":")
    namespace, _, service = name.partition("/")
    return (family.api_name, namespace, service, port, key.protocol)
