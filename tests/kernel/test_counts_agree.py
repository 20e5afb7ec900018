"""One kernel, one daemon, real connections: `stats`, `explain`, status page and metrics tell the same of them."""

import json
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.document import STATUS_PORT
from kproxy_ipt.objects.model import Service
from kproxy_ipt.stats.model import ServiceTraffic, Skew
from kproxy_ipt.stats.observed import unlike_shares
from kproxy_ipt.testing.daemon_process import (
    METRICS_PORT,
    DaemonProcess,
    kproxy_ipt_program,
    lab_arguments,
    wait_until,
)
from kproxy_ipt.testing.lab import NODE_NAME, Lab
from kproxy_ipt.testing.lab_objects import NODE_PORT, TARGET_PORT, cluster_ip, endpoints, own_node, remote_pod
from kproxy_ipt.testing.object_folder import ObjectFolder
from kproxy_ipt.testing.objects import service, service_port
from kproxy_ipt.trace.explanation import ServiceExplanation

pytestmark = pytest.mark.kernel

_MANY = 30
"""Endpoints, more than one group holds."""
_CONNECTIONS = 300
_PATIENCE_S = 60.0
"""How long anything may take on a busy machine: after a slow look at the kernel there are 50 times as long without."""


def _services(family: Family) -> Mapping[str, Service]:
    """Each way to choose an endpoint: by dices, rotation, groups, two policies, and known clients."""
    local = service(
        "local",
        cluster_ip=cluster_ip(family, 12),
        service_type="NodePort",
        ports=[service_port(80, node_port=NODE_PORT)],
        external_policy="Local",
    )
    found = (
        service("plain", cluster_ip=cluster_ip(family, 10)),
        service("turns", cluster_ip=cluster_ip(family, 11), annotations={"kproxy-ipt/scheduler": "rr"}),
        local,
        service("sticky", cluster_ip=cluster_ip(family, 13), affinity_timeout_s=600),
        service("many", cluster_ip=cluster_ip(family, 14)),
    )
    return {one.metadata.name: one for one in found}


class _Scene(msgspec.Struct, frozen=True):
    """A lab with a daemon in its node, and the objects of its folder."""

    lab: Lab
    daemon: DaemonProcess
    objects: Path
    family: Family

    def connect(self, services: Mapping[str, Service]) -> Mapping[str, Counter[str]]:
        """Connect to everything; which endpoint answered how often, by Service."""
        pod = self.lab.pod("podA")
        answers = {
            name: pod.send(one.spec.cluster_ip or "", 80, count=_CONNECTIONS, timeout_s=_PATIENCE_S).names
            for name, one in services.items()
        }
        node = self.lab.node.address(self.family)
        answers["local"] += self.lab.client.send(node, NODE_PORT, count=_CONNECTIONS, timeout_s=_PATIENCE_S).names
        return {name: Counter(counts) for name, counts in answers.items()}

    def stats(self) -> Mapping[str, ServiceTraffic]:
        """What the command says, by Service."""
        return {one.service_port.removeprefix("default/"): one for one in _traffic(self._run("stats"), "services")}

    def explain(self, name: str) -> tuple[ServiceExplanation, ServiceTraffic]:
        """What the command says of a Service with one port, in one family."""
        objects = ("--from", str(self.objects), "--hostname-override", NODE_NAME, "--balance", "grouped")
        document = self._run("explain", f"svc/default/{name}", *objects)
        (traffic,) = _traffic(document, "traffic")
        return msgspec.convert(document["explanation"], ServiceExplanation), traffic

    def page(self, name: str) -> ServiceTraffic:
        """What the status page says of it."""
        document = json.loads(self.daemon.get(f"/service/default/{name}.json", STATUS_PORT).body)
        (traffic,) = _traffic(document, "traffic")
        return traffic

    def metrics(self) -> Mapping[str, Counter[str]]:
        """Connections by Service and endpoint."""
        found: dict[str, Counter[str]] = {}
        for metric in text_string_to_metric_families(self.daemon.get("/metrics", METRICS_PORT).body.decode()):
            for sample in metric.samples:
                if sample.name == "kproxy_ipt_endpoint_connections_total":
                    counts = found.setdefault(sample.labels["service"], Counter())
                    counts[sample.labels["endpoint"]] = int(sample.value)
        return {name: +counts for name, counts in found.items()}

    def _run(self, *arguments: str) -> Mapping[str, object]:
        where = ("--netns", self.lab.node.netns, "--family", self.family.value, "-o", "json")
        command = [kproxy_ipt_program(), *arguments, *where]
        found: Mapping[str, object] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        return found


def _traffic(document: Mapping[str, object], field: str) -> list[ServiceTraffic]:
    return msgspec.convert(document[field], list[ServiceTraffic])


@contextmanager
def _scene(services: Mapping[str, Service], backend: str, family: Family, folder: Path) -> Iterator[_Scene]:
    """Endpoints answer with their texts; most Services have two here and one elsewhere, one has many elsewhere."""
    with Lab(("podA", "podB", "podC")) as lab:
        several = [remote_pod(family, 100 + number) for number in range(_MANY)]
        for pod in lab.pods[1:]:
            pod.serve(TARGET_PORT, name=_text(pod.address(family)))
        for address in several:
            lab.remote.serve(TARGET_PORT, name=_text(address), addresses=[address])
        few = (*lab.pods[1:], several[0])
        slices = [endpoints(one, family, *(several if name == "many" else few)) for name, one in services.items()]
        objects = ObjectFolder(folder, own_node(), *services.values(), *slices).path
        options = ("--status-bind-address", "127.0.0.1", "--connection-metrics", "endpoint", "--balance", "grouped")
        with DaemonProcess(lab.node.netns, *lab_arguments(objects, backend, family=family), *options) as daemon:
            daemon.wait_in_step()
            wait_until(
                lambda: daemon.metric("kproxy_ipt_counters_age_seconds") > 0, "the first reading", timeout_s=_PATIENCE_S
            )
            yield _Scene(lab, daemon, objects, family)


def _text(address: str) -> str:
    return f"[{address}]:{TARGET_PORT}" if ":" in address else f"{address}:{TARGET_PORT}"


def test_all_tell_the_same_of_the_same_connections(backend: str, family: Family, tmp_path: Path) -> None:
    """Counts are those of the clients, and shares and judgement the same everywhere: those that were decided."""
    services = _services(family)
    with _scene(services, backend, family, tmp_path / "objects") as scene:
        answers = scene.connect(services)
        told = scene.stats()
        wait_until(lambda: scene.metrics() == answers, "metrics that tell of every connection", timeout_s=_PATIENCE_S)
        wait_until(
            lambda: {name: scene.page(name) for name in told} == told,
            "the same on the status page",
            timeout_s=_PATIENCE_S,
        )
        for name, counts in answers.items():
            explanation, traffic = scene.explain(name)
            (port,) = explanation.ports

            assert counts == +Counter({one.endpoint: one.connections for one in traffic.endpoints})
            assert counts.total() == sum(one.recent for one in traffic.endpoints)
            assert (told[name], ()) == (traffic, unlike_shares(port, traffic))
    assert (Skew.FITS, 1.0) == (told["turns"].skew, told["turns"].probability)
    assert Skew.AFFINITY is told["sticky"].skew
