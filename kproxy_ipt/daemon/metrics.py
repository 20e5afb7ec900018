"""
What is counted and measured, and the text that Prometheus reads.

`metric_table.py` says what there is; here are the words in which the rest of the daemon reports. A labelled series
appears when it is first touched, as with kube-proxy. Counting is safe from any thread; `text` is called on the event
loop and waits for nobody: no program is run, no lock of a sync is taken, and the two accounting objects of the kernel
are read in some microseconds. Counters of rules are read before (`traffic.py`).

Each `Metrics` has a registry of its own, so that several can live in one process.
"""

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from kproxy_ipt import __version__
from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.connection_metrics import ConnectionCollector, ConnectionSums
from kproxy_ipt.daemon.metric_table import METRICS, MetricSpec, MetricType
from kproxy_ipt.errors import KernelError
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.kernel.nfacct import CT_STATE_INVALID_DROPPED, LOCALHOST_NODE_PORTS_ACCEPTED, read_counters
from kproxy_ipt.ruleset.model import Counters

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_RULES = "kubeproxy_sync_proxy_rules"


class SyncKind(StrEnum):
    """Whether everything was compared, or only what changed."""

    FULL = "full"
    PARTIAL = "partial"


class SyncEnd(StrEnum):
    """How a sync ended; skipped: the kernel had it all, nothing was run."""

    WRITTEN = "written"
    SKIPPED = "skipped"
    FAILED = "failed"


class Metrics:
    """
    All metrics of one daemon.

    Args:
        oldest_unwritten_s: Asked at each reading: age of the oldest unwritten change by family.
        api_silence_s: Asked at each reading: seconds since the last contact by resource.
        nfacct_counters: Asked at each reading: counts of the accounting objects by name, only of those that exist.
        connections: Asked at each reading: what is counted; None for no such series.
    """

    def __init__(
        self,
        *,
        oldest_unwritten_s: Callable[[], Mapping[Family, float]] = dict,
        api_silence_s: Callable[[], Mapping[str, float]] = dict,
        nfacct_counters: Callable[[], Mapping[str, Counters]] = dict,
        connections: Callable[[], ConnectionSums | None] = lambda: None,
    ) -> None:
        self._registry = CollectorRegistry()
        kept = [spec for spec in METRICS.values() if not spec.is_sampled]
        self._counters = {spec.name: self._counter(spec) for spec in kept if spec.type is MetricType.COUNTER}
        self._gauges = {spec.name: self._gauge(spec) for spec in kept if spec.type is MetricType.GAUGE}
        self._histograms = {spec.name: self._histogram(spec) for spec in kept if spec.type is MetricType.HISTOGRAM}
        self._registry.register(_Sampled(oldest_unwritten_s, api_silence_s, nfacct_counters))
        self._registry.register(ConnectionCollector(connections))
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)
        self._set("kproxy_ipt_build_info", 1, __version__, platform.python_version())

    def text(self) -> bytes:
        """Everything in the text format of Prometheus, version 0.0.4."""
        return generate_latest(_AsGoPublishes(self._registry))

    def sync_queued(self, family: Family, *, unix_time_s: float) -> None:
        """A sync was asked for."""
        self._set(f"{_RULES}_last_queued_timestamp_seconds", unix_time_s, family.api_name)

    def sync_ended(self, family: Family, kind: SyncKind, end: SyncEnd, *, seconds: float, unix_time_s: float) -> None:
        """A sync took *seconds* and ended at *unix_time_s*."""
        self._observe(f"{_RULES}_duration_seconds", seconds, family.api_name)
        self._observe(f"kubeproxy_sync_{kind}_proxy_rules_duration_seconds", seconds, family.api_name)
        self._add("kproxy_ipt_syncs_total", 1, family.api_name, kind, end)
        if end is not SyncEnd.FAILED:
            self._set(f"{_RULES}_last_timestamp_seconds", unix_time_s, family.api_name)
        elif kind is SyncKind.PARTIAL:
            self._add(f"{_RULES}_iptables_partial_restore_failures_total", 1, family.api_name)

    def restored(
        self, family: Family, *, seconds: float, size: int, transactions: int, written: int, deleted: int
    ) -> None:
        """The kernel took *size* bytes in *transactions*, which wrote and deleted so many chains."""
        self._observe("kproxy_ipt_restore_duration_seconds", seconds, family.api_name)
        self._add("kproxy_ipt_restore_bytes_total", size, family.api_name)
        self._add("kproxy_ipt_transactions_total", transactions, family.api_name)
        self._add("kproxy_ipt_chains_written_total", written, family.api_name)
        self._add("kproxy_ipt_chains_deleted_total", deleted, family.api_name)

    def restore_failed(self, family: Family) -> None:
        """The kernel refused a restore input, or the program failed otherwise."""
        self._add(f"{_RULES}_iptables_restore_failures_total", 1, family.api_name)

    def lock_timed_out(self, family: Family, *, waited_s: float) -> None:
        """Another program held the xtables lock for all of *waited_s*."""
        self._add("kproxy_ipt_lock_timeouts_total", 1, family.api_name)
        self._add("kproxy_ipt_lock_wait_seconds_total", waited_s, family.api_name)

    def rules_counted(self, family: Family, table: str, *, owned: int, written: int) -> None:
        """Rules of ours in *table*, and those written in the last sync; told before the restore, as kube-proxy does."""
        self._set(f"{_RULES}_iptables_total", owned, table, family.api_name)
        self._set(f"{_RULES}_iptables_last", written, table, family.api_name)

    def no_local_endpoints(self, family: Family, *, internal: int, external: int) -> None:
        """Service ports with policy Local that have endpoints, but none usable here, by policy."""
        self._set(f"{_RULES}_no_local_endpoints_total", internal, "internal", family.api_name)
        self._set(f"{_RULES}_no_local_endpoints_total", external, "external", family.api_name)

    def programmed(self, family: Family, latencies_s: Iterable[float]) -> None:
        """Changes that are now in the kernel, each so many seconds after its trigger time."""
        for latency_s in latencies_s:
            self._observe("kubeproxy_network_programming_duration_seconds", latency_s, family.api_name)

    def changes_seen(self, *, services: int = 0, endpoint_slices: int = 0) -> None:
        """So many events arrived."""
        self._add(f"{_RULES}_service_changes_total", services)
        self._add(f"{_RULES}_endpoint_changes_total", endpoint_slices)

    def changes_pending(self, *, services: int = 0, endpoint_slices: int = 0) -> None:
        """So many more changes wait for a sync."""
        self._gauges[f"{_RULES}_service_changes_pending"].inc(services)
        self._gauges[f"{_RULES}_endpoint_changes_pending"].inc(endpoint_slices)

    def changes_taken(self) -> None:
        """A sync takes all changes that wait; as in kube-proxy, that of any family counts."""
        self._set(f"{_RULES}_service_changes_pending", 0)
        self._set(f"{_RULES}_endpoint_changes_pending", 0)

    def conntrack_cleaned(self, family: Family, *, seconds: float, deleted: int) -> None:
        """Connection tracking was reconciled: *deleted* entries removed."""
        self._observe("kubeproxy_conntrack_reconciler_sync_duration_seconds", seconds, family.api_name)
        self._add("kubeproxy_conntrack_reconciler_deleted_entries_total", deleted, family.api_name)

    def healthz_answered(self, status: int) -> None:
        """`/healthz` was answered."""
        self._add("kubeproxy_proxy_healthz_total", 1, str(status))

    def livez_answered(self, status: int) -> None:
        """`/livez` was answered."""
        self._add("kubeproxy_proxy_livez_total", 1, str(status))

    def drift_repaired(self, family: Family, table: str, kind: str, count: int = 1) -> None:
        """*count* things of *kind* (`chain`, `jump`) were put back."""
        self._add("kproxy_ipt_drift_repairs_total", count, family.api_name, table, kind)

    def quarantined(self, family: Family, services: int) -> None:
        """So many Services are set aside."""
        self._set("kproxy_ipt_quarantined_services", services, family.api_name)

    def fallback_services(self, family: Family, part: str, services: int) -> None:
        """So many Services get less than they ask for, for want of an optional *part* of kernel or programs."""
        self._set("kproxy_ipt_fallback_services", services, family.api_name, part)

    def watch_restarted(self, resource: str) -> None:
        """A source lists *resource* anew."""
        self._add("kproxy_ipt_watch_restarts_total", 1, resource)

    def rejected(self, resource: str, objects: int) -> None:
        """So many objects of *resource* make no sense at present."""
        self._set("kproxy_ipt_rejected_objects", objects, resource)

    def health_check_ports(self, family: Family, *, opened: int, failed: int) -> None:
        """Health check node ports as they stand."""
        self._set("kproxy_ipt_health_check_ports", opened, family.api_name, "open")
        self._set("kproxy_ipt_health_check_ports", failed, family.api_name, "failed")

    def backend_chosen(self, backend: str, reason: str) -> None:
        """The backend in use; the one before is forgotten."""
        self._gauges["kproxy_ipt_backend_info"].clear()
        self._set("kproxy_ipt_backend_info", 1, backend, reason)

    def leftovers_found(self, counts: Mapping[tuple[str, str], int]) -> None:
        """What the last look found: numbers of things by kind and fate; those of the look before are forgotten."""
        self._gauges["kproxy_ipt_leftovers"].clear()
        for (kind, fate), count in counts.items():
            self._set("kproxy_ipt_leftovers", count, kind, fate)

    def _counter(self, spec: MetricSpec) -> Counter:
        return Counter(spec.name, spec.help, spec.labels, registry=self._registry)

    def _gauge(self, spec: MetricSpec) -> Gauge:
        return Gauge(spec.name, spec.help, spec.labels, registry=self._registry)

    def _histogram(self, spec: MetricSpec) -> Histogram:
        return Histogram(spec.name, spec.help, spec.labels, registry=self._registry, buckets=spec.buckets)

    def _add(self, name: str, amount: float, *labels: str) -> None:
        counter = self._counters[name]
        (counter.labels(*labels) if labels else counter).inc(amount)

    def _set(self, name: str, number: float, *labels: str) -> None:
        gauge = self._gauges[name]
        (gauge.labels(*labels) if labels else gauge).set(number)

    def _observe(self, name: str, number: float, *labels: str) -> None:
        self._histograms[name].labels(*labels).observe(number)


def accounting(netns: str | None) -> Mapping[str, Counters]:
    """
    The accounting objects that our rules count into, for `nfacct_counters`.

    Args:
        netns: Name or path of the network namespace that they are in, None: where we are.

    Returns:
        By name those that exist; empty where the namespace is gone or may not be entered.
    """
    try:
        with inside(netns):
            return read_counters(_NFACCT_METRICS)
    except KernelError:
        return {}


class ServiceLevels:
    """`/metrics/slis`: the results of the checks behind `/healthz` of the metrics server, of which there is one."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._last = Gauge(
            "kubernetes_healthcheck",
            "[STABLE] This metric records the result of a single healthcheck.",
            ("name", "type"),
            registry=self._registry,
        )
        self._total = Counter(
            "kubernetes_healthchecks_total",
            "[STABLE] This metric records the results of all healthcheck.",
            ("name", "type", "status"),
            registry=self._registry,
        )

    def pinged(self) -> None:
        """The check `ping` was made; it cannot fail."""
        self._last.labels("ping", "healthz").set(1)
        self._total.labels("ping", "healthz", "success").inc()

    def text(self) -> bytes:
        """Both metrics in the text format of Prometheus."""
        return generate_latest(_AsGoPublishes(self._registry))


class _AsGoPublishes(Collector):
    """
    A registry as a program in Go would publish it, so that series are the same as kube-proxy's.

    No `_created` series, no metric without a series, and bounds of buckets without a needless `.0`.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            created = f"{metric.name}_created"
            metric.samples = [_with_go_bound(sample) for sample in metric.samples if sample.name != created]
            if metric.samples:
                yield metric


def _with_go_bound(sample: Sample) -> Sample:
    bound = sample.labels.get("le", "")
    return sample._replace(labels={**sample.labels, "le": bound.removesuffix(".0")}) if bound else sample


_NFACCT_METRICS = {
    CT_STATE_INVALID_DROPPED: "kubeproxy_iptables_ct_state_invalid_dropped_packets_total",
    LOCALHOST_NODE_PORTS_ACCEPTED: "kubeproxy_iptables_localhost_nodeports_accepted_packets_total",
}


class _Sampled(Collector):
    """Metrics whose values are asked for at each reading."""

    def __init__(
        self,
        oldest_unwritten_s: Callable[[], Mapping[Family, float]],
        api_silence_s: Callable[[], Mapping[str, float]],
        nfacct_counters: Callable[[], Mapping[str, Counters]],
    ) -> None:
        self._oldest_unwritten_s = oldest_unwritten_s
        self._api_silence_s = api_silence_s
        self._nfacct_counters = nfacct_counters

    def describe(self) -> Iterable[Metric]:
        """Nothing is asked for while the registry is being filled."""
        return ()

    def collect(self) -> Iterator[Metric]:
        ages = {family.api_name: age_s for family, age_s in self._oldest_unwritten_s().items()}
        yield _sampled_gauge("kproxy_ipt_oldest_unwritten_change_age_seconds", ages)
        yield _sampled_gauge("kproxy_ipt_api_silence_seconds", self._api_silence_s())
        for name, counters in self._nfacct_counters().items():
            spec = METRICS[_NFACCT_METRICS[name]]
            yield CounterMetricFamily(spec.name, spec.help, value=counters.packets)


def _sampled_gauge(name: str, numbers: Mapping[str, float]) -> GaugeMetricFamily:
    spec = METRICS[name]
    family = GaugeMetricFamily(spec.name, spec.help, labels=spec.labels)
    for label, number in numbers.items():
        family.add_metric([label], number)
    return family
