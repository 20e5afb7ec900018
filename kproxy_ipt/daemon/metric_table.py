"""
Every metric that is published, as one table: name, type, labels, help text, buckets.

Names, labels, buckets and help texts of `KUBE_PROXY` are those of kube-proxy 1.36, so that dashboards and alarms keep
working. `OWN` holds what kube-proxy cannot tell. `docs/metrics.md` shows the same table; a test holds the two together.

Not published: `kubernetes_build_info`, because alarms that compare the versions of all components of a cluster would
take ours for a stray one (`kproxy_ipt_build_info` instead); `kubernetes_feature_enabled`, `rest_client_*` and `go_*`,
which describe code that is not here.
"""

from enum import StrEnum
from typing import TypeAlias

import msgspec


class MetricType(StrEnum):
    """Types of the exposition format."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class MetricSpec(msgspec.Struct, frozen=True):
    """
    One metric.

    Attributes:
        name: As published.
        type: As published; a name that ends in `_total` may be a gauge, since kube-proxy has such ones.
        labels: Names, in the order in which values are given.
        help: As published.
        buckets: Upper bounds of a histogram, without infinity.
        is_sampled: Whether values are asked for when somebody reads the metrics, and not kept.
    """

    name: str
    type: MetricType
    labels: tuple[str, ...]
    help: str
    buckets: tuple[float, ...] = ()
    is_sampled: bool = False


SYNC_BUCKETS = tuple(0.001 * 2**power for power in range(15))
"""1 ms to 16 s."""
RESTORE_BUCKETS = tuple(0.001 * 2**power for power in range(18))
"""1 ms to 131 s: a large first restore on nf_tables may need that."""
PROGRAMMING_BUCKETS = (
    0.25,
    0.5,
    *(float(seconds) for seconds in range(1, 60)),
    *(float(seconds) for seconds in range(60, 120, 5)),
    *(float(seconds) for seconds in range(120, 301, 30)),
)

_COUNTER, _GAUGE, _HISTOGRAM = MetricType.COUNTER, MetricType.GAUGE, MetricType.HISTOGRAM
_FAMILY = ("ip_family",)
_TABLE = ("table", "ip_family")
_PORT = ("ip_family", "namespace", "service", "port", "protocol")
_Row: TypeAlias = tuple[str, MetricType, tuple[str, ...], str]

# fmt: off
_KUBE_PROXY: tuple[_Row, ...] = (
    ("sync_proxy_rules_duration_seconds", _HISTOGRAM, _FAMILY,
     "SyncProxyRules latency in seconds"),
    ("sync_full_proxy_rules_duration_seconds", _HISTOGRAM, _FAMILY,
     "SyncProxyRules latency in seconds for full resyncs"),
    ("sync_partial_proxy_rules_duration_seconds", _HISTOGRAM, _FAMILY,
     "SyncProxyRules latency in seconds for partial resyncs"),
    ("sync_proxy_rules_last_timestamp_seconds", _GAUGE, _FAMILY,
     "The last time proxy rules were successfully synced"),
    ("sync_proxy_rules_last_queued_timestamp_seconds", _GAUGE, _FAMILY,
     "The last time a sync of proxy rules was queued"),
    ("network_programming_duration_seconds", _HISTOGRAM, _FAMILY,
     "In Cluster Network Programming Latency in seconds"),
    ("sync_proxy_rules_endpoint_changes_pending", _GAUGE, (), "Pending proxy rules Endpoint changes"),
    ("sync_proxy_rules_endpoint_changes_total", _COUNTER, (), "Cumulative proxy rules Endpoint changes"),
    ("sync_proxy_rules_service_changes_pending", _GAUGE, (), "Pending proxy rules Service changes"),
    ("sync_proxy_rules_service_changes_total", _COUNTER, (), "Cumulative proxy rules Service changes"),
    ("sync_proxy_rules_iptables_restore_failures_total", _COUNTER, _FAMILY,
     "Cumulative proxy iptables restore failures"),
    ("sync_proxy_rules_iptables_partial_restore_failures_total", _COUNTER, _FAMILY,
     "Cumulative proxy iptables partial restore failures"),
    ("sync_proxy_rules_iptables_total", _GAUGE, _TABLE, "Total number of iptables rules owned by kube-proxy"),
    ("sync_proxy_rules_iptables_last", _GAUGE, _TABLE, "Number of iptables rules written by kube-proxy in last sync"),
    ("sync_proxy_rules_no_local_endpoints_total", _GAUGE, ("traffic_policy", "ip_family"),
     "Number of services with a Local traffic policy and no endpoints"),
    ("proxy_healthz_total", _COUNTER, ("code",), "Cumulative proxy healthz HTTP status"),
    ("proxy_livez_total", _COUNTER, ("code",), "Cumulative proxy livez HTTP status"),
    ("conntrack_reconciler_sync_duration_seconds", _HISTOGRAM, _FAMILY,
     "ReconcileConntrackFlowsLatency latency in seconds"),
    ("conntrack_reconciler_deleted_entries_total", _COUNTER, _FAMILY,
     "Cumulative conntrack flows deleted by conntrack reconciler"),
)
_KUBE_PROXY_SAMPLED: tuple[_Row, ...] = (
    ("iptables_ct_state_invalid_dropped_packets_total", _COUNTER, (),
     "packets dropped by iptables to work around conntrack problems"),
    ("iptables_localhost_nodeports_accepted_packets_total", _COUNTER, (),
     "Number of packets accepted on nodePorts of loopback interface"),
)
_OWN: tuple[_Row, ...] = (
    ("syncs_total", _COUNTER, ("ip_family", "kind", "outcome"),
     "Syncs by kind (full, partial) and outcome: written, skipped (the kernel had it all), failed"),
    ("restore_duration_seconds", _HISTOGRAM, _FAMILY,
     "Time that the restore programs took in one sync"),
    ("restore_bytes_total", _COUNTER, _FAMILY, "Bytes of restore input that the kernel took"),
    ("transactions_total", _COUNTER, _FAMILY, "Atomic changes of one table that the kernel applied"),
    ("chains_written_total", _COUNTER, _FAMILY, "Chains created or rewritten"),
    ("chains_deleted_total", _COUNTER, _FAMILY, "Chains deleted"),
    ("lock_timeouts_total", _COUNTER, _FAMILY, "Times that the xtables lock was not got in time"),
    ("lock_wait_seconds_total", _COUNTER, _FAMILY,
     "Seconds spent waiting for the xtables lock, as far as known: a wait that ends well stays inside the program"),
    ("drift_repairs_total", _COUNTER, ("ip_family", "table", "kind"),
     "Chains and jumps of ours that others had changed or removed, and that were put back"),
    ("quarantined_services", _GAUGE, _FAMILY, "Services set aside because the kernel refuses their rules"),
    ("fallback_services", _GAUGE, ("ip_family", "part"),
     "Services that get less than they ask for, by the part that the machine lacks; no series where it lacks none"),
    ("watch_restarts_total", _COUNTER, ("resource",), "Times that a source had to list everything again"),
    ("rejected_objects", _GAUGE, ("resource",), "Objects set aside because they make no sense"),
    ("health_check_ports", _GAUGE, ("ip_family", "state"),
     "Health check node ports that are open, and those that should be (failed)"),
    ("leftovers", _GAUGE, ("kind", "fate"),
     "Things of other backends, modes and versions found once the own rules stood, and what became of them"),
    ("backend_info", _GAUGE, ("backend", "reason"), "The iptables backend in use and why; always 1"),
    ("build_info", _GAUGE, ("version", "python_version"), "Version of this program and of Python; always 1"),
)
_OWN_SAMPLED: tuple[_Row, ...] = (
    ("oldest_unwritten_change_age_seconds", _GAUGE, _FAMILY,
     "Age of the oldest change that is not yet in the kernel; 0 when none waits"),
    ("api_silence_seconds", _GAUGE, ("resource",), "Seconds since anything was last heard from the API"),
    ("service_connections_total", _COUNTER, _PORT, "New connections that rules sent to endpoints, by service port"),
    ("endpoint_connections_total", _COUNTER, (*_PORT, "endpoint"),
     "The same by endpoint, with connectionMetrics endpoint; those of endpoints long gone have none"),
    ("service_refused_packets_total", _COUNTER, (*_PORT, "kind"),
     "Packets to a service port that were rejected or dropped, for want of (local) endpoints or by source ranges"),
    ("counters_age_seconds", _GAUGE, (), "Seconds since the counters of connections were last read from the kernel"),
)
# fmt: on
_BUCKETS = {
    "network_programming_duration_seconds": PROGRAMMING_BUCKETS,
    "restore_duration_seconds": RESTORE_BUCKETS,
}
"""Of the histograms that do not have `SYNC_BUCKETS`."""


def _specs(
    rows: tuple[_Row, ...], prefix: str, *, help_prefix: str = "", is_sampled: bool = False
) -> tuple[MetricSpec, ...]:
    return tuple(
        MetricSpec(
            name=prefix + name,
            type=metric_type,
            labels=labels,
            help=help_prefix + help_text,
            buckets=_BUCKETS.get(name, SYNC_BUCKETS) if metric_type is _HISTOGRAM else (),
            is_sampled=is_sampled,
        )
        for name, metric_type, labels, help_text in rows
    )


KUBE_PROXY = (
    *_specs(_KUBE_PROXY, "kubeproxy_", help_prefix="[ALPHA] "),
    *_specs(_KUBE_PROXY_SAMPLED, "kubeproxy_", help_prefix="[ALPHA] ", is_sampled=True),
)
OWN = (*_specs(_OWN, "kproxy_ipt_"), *_specs(_OWN_SAMPLED, "kproxy_ipt_", is_sampled=True))
METRICS = {spec.name: spec for spec in (*KUBE_PROXY, *OWN)}
"""All of them, by name."""
