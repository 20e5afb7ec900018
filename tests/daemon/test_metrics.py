"""What Prometheus reads: names, types, help texts and buckets of kube-proxy, and our own."""

from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.connection_metrics import ConnectionSums
from kproxy_ipt.daemon.metric_table import KUBE_PROXY, METRICS, OWN, MetricSpec
from kproxy_ipt.daemon.metrics import Metrics, ServiceLevels, SyncEnd, SyncKind, accounting
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.kernel.nfacct import ensure_counters
from kproxy_ipt.ruleset.model import Counters
from kproxy_ipt.stats.ledger import CounterKey, Kind
from kproxy_ipt.testing.namespaces import temporary_namespace

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"
V4 = Family.IPV4


_WEB = 'ip_family="IPv4",namespace="shop",port="http",protocol="tcp",service="web"'
_REJECTED = 'ip_family="IPv4",kind="rejected",namespace="shop",port="http",protocol="tcp",service="web"'
_CONNECTIONS = ConnectionSums(
    sums={
        V4: {
            CounterKey("shop/web:http", "tcp", Kind.CONNECTIONS): 5,
            CounterKey("shop/web:http", "tcp", Kind.CONNECTIONS, "10.244.1.11:80"): 30,
            CounterKey("shop/web:http", "tcp", Kind.CONNECTIONS, "10.244.1.12:80"): 20,
            CounterKey("shop/web:http", "tcp", Kind.REJECTED): 4,
            CounterKey("shop/web:http", "tcp", Kind.DROPPED): 0,
        }
    },
    by_endpoint=True,
    age_s=3.5,
)


def _touch(metrics: Metrics) -> None:
    """Report everything that there is to report, once."""
    metrics.sync_queued(V4, unix_time_s=1.0)
    metrics.sync_ended(V4, SyncKind.FULL, SyncEnd.WRITTEN, seconds=0.5, unix_time_s=2.0)
    metrics.sync_ended(V4, SyncKind.PARTIAL, SyncEnd.FAILED, seconds=0.1, unix_time_s=3.0)
    metrics.restored(V4, seconds=0.1, size=100, transactions=2, written=3, deleted=1)
    metrics.restore_failed(V4)
    metrics.lock_timed_out(V4, waited_s=5.0)
    metrics.rules_counted(V4, "nat", owned=56, written=8)
    metrics.no_local_endpoints(V4, internal=1, external=2)
    metrics.programmed(V4, [0.3, 61.0])
    metrics.changes_seen(services=6, endpoint_slices=7)
    metrics.changes_pending(services=1, endpoint_slices=2)
    metrics.conntrack_cleaned(V4, seconds=0.01, deleted=4)
    metrics.healthz_answered(200)
    metrics.livez_answered(503)
    metrics.drift_repaired(V4, "nat", "chain")
    metrics.quarantined(V4, 1)
    metrics.fallback_services(V4, "recent", 1)
    metrics.watch_restarted("services")
    metrics.rejected("services", 2)
    metrics.health_check_ports(V4, opened=3, failed=1)
    metrics.leftovers_found({("ipvs mode", "kept"): 2})
    metrics.backend_chosen("nft", "rules of others are there")


@pytest.fixture
def metrics() -> Metrics:
    """Metrics to which everything was reported once."""
    made = Metrics(
        oldest_unwritten_s=lambda: {V4: 1.5},
        api_silence_s=lambda: {"services": 2.5},
        nfacct_counters=lambda: {
            "ct_state_invalid_dropped_pkts": Counters(11, 900),
            "localhost_nps_accepted_pkts": Counters(12, 900),
        },
        connections=lambda: _CONNECTIONS,
    )
    _touch(made)
    return made


@pytest.fixture
def published(metrics: Metrics) -> Mapping[str, Metric]:
    """What a scraper understands, by name as published."""
    return _parse(metrics.text())


def _parse(text: bytes) -> dict[str, Metric]:
    families = text_string_to_metric_families(text.decode())
    return {family.name + ("_total" if family.type == "counter" else ""): family for family in families}


def _buckets(family: Metric) -> list[str]:
    return [sample.labels["le"] for sample in family.samples if sample.name.endswith("_bucket")]


@pytest.mark.parametrize("spec", METRICS.values(), ids=METRICS)
def test_every_metric_of_the_table_is_published_as_it_says(spec: MetricSpec, published: Mapping[str, Metric]) -> None:
    """Name, type, help text, labels and buckets."""
    family = published[spec.name]
    labels = {label for sample in family.samples for label in sample.labels} - {"le"}

    assert (spec.type, spec.help, set(spec.labels)) == (family.type, family.documentation, labels)
    if spec.buckets:
        distinct = list(dict.fromkeys(_buckets(family)))
        assert [*spec.buckets, float("inf")] == [float(bound) for bound in distinct]


def test_nothing_is_published_that_the_table_does_not_know(published: Mapping[str, Metric]) -> None:
    """Beside the table there are only the usual series of the process and of Python."""
    others = {name for name in published if name not in METRICS}

    assert {name.split("_")[0] for name in others} == {"process", "python"}
    assert "process_resident_memory_bytes" in others


def test_names_of_kube_proxy_are_complete() -> None:
    """The list of kube-proxy 1.36 in iptables mode, without the part that all have in common."""
    expected = (
        "conntrack_reconciler_deleted_entries_total conntrack_reconciler_sync_duration_seconds "
        "iptables_ct_state_invalid_dropped_packets_total iptables_localhost_nodeports_accepted_packets_total "
        "network_programming_duration_seconds proxy_healthz_total proxy_livez_total "
        "sync_full_proxy_rules_duration_seconds sync_partial_proxy_rules_duration_seconds "
        "sync_proxy_rules_duration_seconds sync_proxy_rules_endpoint_changes_pending "
        "sync_proxy_rules_endpoint_changes_total sync_proxy_rules_iptables_last "
        "sync_proxy_rules_iptables_partial_restore_failures_total sync_proxy_rules_iptables_restore_failures_total "
        "sync_proxy_rules_iptables_total sync_proxy_rules_last_queued_timestamp_seconds "
        "sync_proxy_rules_last_timestamp_seconds sync_proxy_rules_no_local_endpoints_total "
        "sync_proxy_rules_service_changes_pending sync_proxy_rules_service_changes_total"
    )

    assert expected.split() == sorted(spec.name.removeprefix("kubeproxy_") for spec in KUBE_PROXY)
    assert all(spec.help.startswith("[ALPHA] ") for spec in KUBE_PROXY)


def test_sync_buckets_are_those_of_kube_proxy(published: Mapping[str, Metric]) -> None:
    """Fifteen bounds from 1 ms, each twice the one before."""
    bounds = _buckets(published["kubeproxy_sync_full_proxy_rules_duration_seconds"])

    assert ["0.001", "0.002", "0.004"] == bounds[:3]
    assert (16, "16.384", "+Inf") == (len(bounds), bounds[-2], bounds[-1])


def test_programming_buckets_are_those_of_kube_proxy(published: Mapping[str, Metric]) -> None:
    """Eighty bounds, whole numbers without a fraction."""
    bounds = _buckets(published["kubeproxy_network_programming_duration_seconds"])

    assert ["0.25", "0.5", "1", "2"] == bounds[:4]
    assert ["59", "60", "65"] == bounds[60:63]
    assert ["115", "120", "150", "180", "210", "240", "270", "300", "+Inf"] == bounds[72:]


@pytest.mark.parametrize(
    "line",
    [
        'kubeproxy_sync_proxy_rules_iptables_total{ip_family="IPv4",table="nat"} 56.0',
        "# TYPE kubeproxy_sync_proxy_rules_iptables_total gauge",
        'kubeproxy_sync_proxy_rules_no_local_endpoints_total{ip_family="IPv4",traffic_policy="external"} 2.0',
        'kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv4"} 2.0',
        'kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total{ip_family="IPv4"} 1.0',
        'kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family="IPv4"} 2.0',
        'kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family="IPv4"} 1.0',
        "kubeproxy_sync_proxy_rules_service_changes_total 6.0",
        "kubeproxy_iptables_ct_state_invalid_dropped_packets_total 11.0",
        'kproxy_ipt_oldest_unwritten_change_age_seconds{ip_family="IPv4"} 1.5',
        'kproxy_ipt_syncs_total{ip_family="IPv4",kind="partial",outcome="failed"} 1.0',
        f"kproxy_ipt_service_connections_total{{{_WEB}}} 55.0",
        f'kproxy_ipt_endpoint_connections_total{{endpoint="10.244.1.12:80",{_WEB}}} 20.0',
        f"kproxy_ipt_service_refused_packets_total{{{_REJECTED}}} 4.0",
    ],
)
def test_reports_end_in_their_series(metrics: Metrics, line: str) -> None:
    """A failed sync moves no timestamp of success; both kinds of sync share one histogram."""
    assert line in metrics.text().decode().splitlines()


def test_series_appear_when_first_touched_and_none_says_created() -> None:
    """What never happened is not published, not even its help text; the library's additions are left out."""
    text = Metrics().text().decode()

    assert "kubeproxy_sync_full" not in text
    assert "nodeports_accepted" not in text
    assert "_created" not in text
    assert "kubeproxy_sync_proxy_rules_service_changes_pending 0.0" in text


@pytest.mark.parametrize(
    ("connections", "expected"),
    [(None, set()), (msgspec.structs.replace(_CONNECTIONS, by_endpoint=False, age_s=None), {"service"})],
)
def test_series_of_connections_are_no_more_than_wanted(connections: ConnectionSums | None, expected: set[str]) -> None:
    """None where nothing is counted; none for endpoints unless they are asked for; none for what never happened."""
    lines = Metrics(connections=lambda: connections).text().decode().splitlines()
    found = [line for line in lines if "_connections_total{" in line or "_refused_packets_total{" in line]

    assert expected == {line.removeprefix("kproxy_ipt_").partition("_")[0] for line in found}
    assert not any('kind="dropped"' in line for line in found)


def test_only_one_backend_is_in_use(metrics: Metrics) -> None:
    """A new choice replaces the old one."""
    metrics.backend_chosen("legacy", "pinned")
    lines = [line for line in metrics.text().decode().splitlines() if line.startswith("kproxy_ipt_backend_info")]

    assert ['kproxy_ipt_backend_info{backend="legacy",reason="pinned"} 1.0'] == lines


def test_service_levels_tell_of_the_ping_alone() -> None:
    """Two metrics, which appear with the first ping."""
    levels = ServiceLevels()
    before = levels.text()
    levels.pinged()
    levels.pinged()
    lines = [line for line in levels.text().decode().splitlines() if not line.startswith("#")]

    assert before == b""
    assert lines == [
        'kubernetes_healthcheck{name="ping",type="healthz"} 1.0',
        'kubernetes_healthchecks_total{name="ping",status="success",type="healthz"} 2.0',
    ]


def _table_rows(specs: tuple[MetricSpec, ...]) -> tuple[str, ...]:
    """As the documentation shows them: name, type, labels, help text."""
    return tuple(
        f"| `{spec.name}` | {spec.type} | {', '.join(f'`{label}`' for label in spec.labels)} | {spec.help} |"
        for spec in specs
    )


@pytest.mark.parametrize("specs", [KUBE_PROXY, OWN], ids=["kube-proxy", "own"])
def test_documentation_shows_every_metric_in_order(specs: tuple[MetricSpec, ...]) -> None:
    """The tables of the page are those of the module, to the letter."""
    assert "\n|---|---|---|---|\n" + "\n".join(_table_rows(specs)) + "\n\n" in DOCUMENT.read_text(encoding="utf-8")


def test_documentation_names_no_metric_that_does_not_exist() -> None:
    """Every row of the tables is one of the module's."""
    rows = [line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith("| `k")]
    known = {*_table_rows(KUBE_PROXY), *_table_rows(OWN)}

    assert [] == [row for row in rows if row not in known and row.count("|") == 5]


@pytest.mark.kernel
def test_accounting_objects_are_read_where_they_are() -> None:
    """Those of another namespace are found, and nothing where they are not or where no namespace is."""
    with temporary_namespace("metrics") as empty, temporary_namespace("metrics") as counted:
        with inside(counted):
            ensure_counters(["localhost_nps_accepted_pkts"])

        assert {"localhost_nps_accepted_pkts": Counters(0, 0)} == accounting(counted)
        assert {} == accounting(empty) == accounting("kpt-nowhere")
