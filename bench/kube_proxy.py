"""
A real kube-proxy beside this program, where somebody has both a kube-proxy and a cluster. Not part of a usual run.

    KUBE_PROXY=/path/to/kube-proxy KUBECONFIG=/path KUBE_PROXY_NETNS=name python -m bench --scenarios kube-proxy

KUBE_PROXY_NETNS names a network namespace from which the API server is reached and whose rules may be lost: kube-proxy
writes into it, is asked to clean up, and then this program does the same from the same objects. What is measured is
the first full sync; kube-proxy's is told by its own metrics. Changes are not measured: that takes a cluster that may be
written to. This follows kube-proxy's documentation; it was not run for docs/performance.md, where no kube-proxy was at
hand.
"""

import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from bench.floor import CLUSTER_CIDR
from bench.samples import Cell, Sample
from kproxy_ipt.kernel.netns import inside

KUBE_PROXY = "kube-proxy"

_METRICS = "http://127.0.0.1:20249/metrics"
_CONFIG = """apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
clusterCIDR: {cidr}
clientConnection: {{kubeconfig: "{kubeconfig}"}}
metricsBindAddress: 127.0.0.1:20249
healthzBindAddress: 127.0.0.1:20256
conntrack: {{maxPerCore: 0}}
"""
_DURATIONS = ("kubeproxy_sync_full_proxy_rules_duration_seconds", "kubeproxy_sync_proxy_rules_duration_seconds")
_WAIT_S = 600.0


class Asked(msgspec.Struct, frozen=True):
    """What the environment asks for."""

    program: str
    kubeconfig: str
    netns: str


class Synced(msgspec.Struct, frozen=True):
    """The first full sync of a kube-proxy: by its metrics, and from its start until they told it."""

    sync_s: float
    ready_s: float


def asked() -> Asked | None:
    """What is to be measured, or None if a variable is missing."""
    names = ("KUBE_PROXY", "KUBECONFIG", "KUBE_PROXY_NETNS")
    values = [os.environ.get(name, "") for name in names]
    return Asked(*values) if all(values) else None


def measure_kube_proxy(wish: Asked, rounds: int) -> Iterator[Sample]:
    """First full syncs of both programs, in turn, in the given namespace."""
    with inside(wish.netns), tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "config.yaml")
        config.write_text(_CONFIG.format(cidr=CLUSTER_CIDR, kubeconfig=wish.kubeconfig), encoding="utf-8")
        for number in range(rounds):
            theirs = _first_sync(wish.program, config)
            subprocess.run([wish.program, "--cleanup", "--config", str(config)], check=True, capture_output=True)
            ours, services = _whole_command(wish.kubeconfig)
            program = str(Path(sys.executable).with_name("kproxy-ipt"))
            subprocess.run([program, "cleanup"], check=True, capture_output=True)
            cell = Cell(KUBE_PROXY, "auto", "linear", services, 0)
            yield Sample(cell, "kube-proxy, sync", "s", number, theirs.sync_s)
            yield Sample(cell, "kube-proxy, ready", "s", number, theirs.ready_s)
            yield Sample(cell, "kproxy-ipt, whole", "s", number, ours)
            yield Sample(cell, "ratio", "", number, ours / theirs.ready_s)


def first_duration(metrics: str) -> float | None:
    """
    Seconds of the syncs that the metrics tell, per sync and summed over families; None if there was none.

    The metric of full syncs alone has been there since v1.32; before that all syncs are in one, and after the start
    the first of them is a full one.
    """
    for name in _DURATIONS:
        counts = _values(metrics, f"{name}_count")
        if counts and all(counts):
            sums = _values(metrics, f"{name}_sum")
            return sum(total / count for total, count in zip(sums, counts, strict=True))
    return None


def _values(metrics: str, name: str) -> list[float]:
    lines = (line for line in metrics.splitlines() if line.partition("{")[0].partition(" ")[0] == name)
    return [float(line.rpartition(" ")[2]) for line in lines]


@contextmanager
def _running(program: str, config: Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([program, "--config", str(config)], stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.terminate()


def _first_sync(program: str, config: Path) -> Synced:
    started = time.perf_counter()
    with _running(program, config) as process:
        while process.poll() is None and time.perf_counter() - started < _WAIT_S:
            try:
                with urllib.request.urlopen(_METRICS, timeout=5) as answer:
                    seconds = first_duration(answer.read().decode())
            except (urllib.error.URLError, TimeoutError, ConnectionError):
                seconds = None
            if seconds is not None:
                return Synced(seconds, time.perf_counter() - started)
            time.sleep(0.05)
    raise RuntimeError(f"{program}: no full sync within {_WAIT_S:g} s, or it ended (status {process.returncode})")


class _Answer(msgspec.Struct, frozen=True):
    services: int


def _whole_command(kubeconfig: str) -> tuple[float, int]:
    """Seconds of `sync --once`, and how many Services it saw."""
    program = str(Path(sys.executable).with_name("kproxy-ipt"))
    command = [program, "sync", "--once", "--kubeconfig", kubeconfig, "--cluster-cidr", CLUSTER_CIDR, "-o", "json"]
    started = time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - started, msgspec.json.decode(done.stdout, type=_Answer).services
