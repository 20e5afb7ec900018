"""What the status page says as JSON, for tools."""

from collections.abc import Mapping

from kproxy_ipt.daemon.health import family_details, rfc3339
from kproxy_ipt.daemon.status.scene import Scene
from kproxy_ipt.daemon.status.service_rows import ServicePage, ServiceRow
from kproxy_ipt.daemon.status.service_view import ServiceView
from kproxy_ipt.stats.model import ServiceTraffic, TrafficReport


def status_document(
    scene: Scene, page: ServicePage, traffic: Mapping[str, tuple[ServiceTraffic, ...]], report: TrafficReport
) -> dict[str, object]:
    """`/status.json`: the node, its families, and one page of Services."""
    return {
        "time": rfc3339(int(scene.now_unix_s * 1e9)),
        "node": scene.node.name,
        "backend": scene.backend,
        "healthy": scene.health.healthy,
        "families": family_details(scene.health),
        "api": scene.api,
        "traffic": {"time": _time_or_null(report.unix_time_s or None), "problem": report.problem or None},
        "counts": {str(condition): count for condition, count in page.counts.items()},
        "found": page.found,
        "page": page.page,
        "pages": page.pages,
        "services": [_row_document(row, traffic.get(row.text, ())) for row in page.rows],
    }


def _row_document(row: ServiceRow, traffic: tuple[ServiceTraffic, ...]) -> dict[str, object]:
    return {
        "namespace": row.namespace,
        "name": row.name,
        "type": row.type,
        "clusterIPs": row.cluster_ips,
        "ports": row.ports,
        "endpointsUsed": row.used,
        "endpointsKnown": row.known,
        "condition": str(row.condition),
        "why": row.why or None,
        "connections": sum(one.connections for one in traffic) if traffic else None,
    }


def service_document(view: ServiceView, row: ServiceRow) -> dict[str, object]:
    """`/service/NAMESPACE/NAME.json`: everything that was decided, as `explain --output json` has it, and counts."""
    return {
        "condition": str(row.condition),
        "why": row.why or None,
        "changed": _time_or_null(view.changed_unix_s),
        "explanation": view.explanation,
        "traffic": [port.traffic for port in view.ports if port.traffic is not None],
    }


def _time_or_null(unix_s: float | None) -> str | None:
    return None if unix_s is None else rfc3339(int(unix_s * 1e9))
