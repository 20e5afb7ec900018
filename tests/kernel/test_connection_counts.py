"""What the daemon counts against what clients counted, while endpoints come and go and rules are written anew."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import cycle

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.machine import BackendWish
from kproxy_ipt.objects.model import Service
from kproxy_ipt.testing.api_server import ApiServer
from kproxy_ipt.testing.daemon_process import METRICS_PORT, DaemonProcess, lab_arguments, wait_until
from kproxy_ipt.testing.lab import Lab
from kproxy_ipt.testing.lab_objects import TARGET_PORT, balancer_ip, cluster_ip, endpoints, open_service, own_node
from kproxy_ipt.testing.steady_traffic import SteadyConnections

pytestmark = pytest.mark.kernel

_CHANGES = 20
_BETWEEN = {"nft": 150, "legacy": 400}
"""Connections between two changes; on legacy what is lost is the time of a write, which must be a small part of it."""
_MOST_OFF = 0.01
_IN_PASSING = 3
"""Packets that may be amidst the rules when these are taken away."""
_ENDPOINTS = "kproxy_ipt_endpoint_connections_total"
_SERVICES = "kproxy_ipt_service_connections_total"
_AGE = "kproxy_ipt_counters_age_seconds"


def _services(family: Family) -> Iterator[Service]:
    """The Service with another policy, again and again."""
    policies = (("Cluster", "Cluster"), ("Local", "Cluster"), ("Cluster", "Local"))
    for external, internal in cycle(policies):
        yield open_service(family, external_policy=external, internal_policy=internal)


def _counted(daemon: DaemonProcess, name: str) -> Counter[str]:
    """By endpoint, or by kind."""
    found: Counter[str] = Counter()
    for family in text_string_to_metric_families(daemon.get("/metrics", METRICS_PORT).body.decode()):
        for sample in family.samples:
            if sample.name == name and sample.labels["service"] == "web":
                found[sample.labels.get("endpoint") or sample.labels.get("kind", "")] += int(sample.value)
    return found


def _change(
    lab: Lab, server: ApiServer, daemon: DaemonProcess, family: Family, between: int, connections: Callable[[], int]
) -> None:
    """Twenty syncs, some connections apart: another pod is missing, or another policy holds."""
    services = _services(family)
    next(services)
    for number in range(_CHANGES):
        before = daemon.metric("kproxy_ipt_syncs_total", outcome="written")
        if number % 3 == 2:
            server.put(next(services))
        else:
            pods = [pod for index, pod in enumerate(lab.pods) if index != number % len(lab.pods)]
            server.put(endpoints(open_service(family), family, *pods))
        _wait_for_more(lambda: daemon.metric("kproxy_ipt_syncs_total", outcome="written"), before, f"sync {number}")
        _wait_for_more(connections, (number + 1) * between, f"connections after sync {number}")


def _wait_for_more(count: Callable[[], float], least: float, what: str) -> None:
    wait_until(lambda: count() > least, what)


def _read_since(daemon: DaemonProcess, moment_s: float) -> Callable[[], bool]:
    """Whether the kernel was read since then: asking for metrics has it read if the last reading is two seconds old."""

    def is_read() -> bool:
        """The age that is told is that of a moment after now."""
        now_s = time.monotonic()
        return daemon.metric(_AGE) < now_s - moment_s

    return is_read


def _endpoint(address: str) -> str:
    return f"[{address}]:{TARGET_PORT}" if ":" in address else f"{address}:{TARGET_PORT}"


def test_counts_agree_with_what_clients_counted(backend: BackendWish, family: Family) -> None:
    """Counts and shares within 1 %, across 20 syncs that change endpoints and policies of the very Service."""
    with Lab(("podA", "podB", "podC", "podD")) as lab, ApiServer() as server:
        web = next(_services(family))
        server.put(own_node(), web, endpoints(web, family, *lab.pods))
        for pod in lab.pods:
            pod.serve(TARGET_PORT)
        arguments = (*lab_arguments(server.url, backend, family=family), "--connection-metrics", "endpoint")
        with DaemonProcess(lab.node.netns, *arguments) as daemon:
            daemon.wait_in_step()
            wait_until(lambda: daemon.metric(_AGE) > 0, "the first reading")
            inside = SteadyConnections(lab.pods[0], cluster_ip(family), 80, pause_s=0.005)
            outside = SteadyConnections(lab.client, balancer_ip(family), 80, pause_s=0.005)
            with inside, outside:
                _change(
                    lab,
                    server,
                    daemon,
                    family,
                    _BETWEEN[backend],
                    lambda: len(inside.exchanges) + len(outside.exchanges),
                )
            clients = Counter(one.name for one in (*inside.exchanges, *outside.exchanges) if one.name)
            wait_until(_read_since(daemon, time.monotonic()), "a last reading")
            rules, by_service = _counted(daemon, _ENDPOINTS), _counted(daemon, _SERVICES)
        by_name = {pod.name: rules[_endpoint(pod.address(family))] for pod in lab.pods}
    total = clients.total()

    assert total > _CHANGES * _BETWEEN[backend]
    assert rules.total() == by_service.total()
    assert set(by_name) == set(clients)
    for name, count in clients.items():
        assert by_name[name] / rules.total() == pytest.approx(count / total, abs=_MOST_OFF)
    # nf_tables tells about each rule that goes, on legacy the kernel is asked a moment before.
    off = {name: count - by_name[name] for name, count in clients.items() if count != by_name[name]}
    failures = inside.failures.total() + outside.failures.total()
    if backend == "nft":
        assert sum(map(abs, off.values())) <= failures + _IN_PASSING, off
    else:
        assert -failures <= sum(off.values()) < 0.05 * total, off
