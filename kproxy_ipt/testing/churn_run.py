"""A daemon under churn: a lab, traffic that nobody may disturb, changes at a steady pace, and what came of it."""

import statistics
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config, Dispatch, ShapeConfig
from kproxy_ipt.daemon.machine import BackendWish, Target
from kproxy_ipt.daemon.sync import sync_once
from kproxy_ipt.kernel.command import SubprocessRunner
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.objects.model import EndpointSlice, Service
from kproxy_ipt.testing.api_server import ApiServer
from kproxy_ipt.testing.churn import Churn
from kproxy_ipt.testing.daemon_process import DaemonProcess, lab_arguments, wait_until
from kproxy_ipt.testing.lab import NODE_NAME, Lab
from kproxy_ipt.testing.lab_objects import TARGET_PORT, balancer_ip, cluster_ip, endpoints, open_service
from kproxy_ipt.testing.namespaces import temporary_namespace
from kproxy_ipt.testing.steady_traffic import SteadyConnections, SteadyStreams
from kproxy_ipt.testing.topology import CLUSTER_CIDRS

_V4 = Family.IPV4
_STREAMS = 4


class ChurnOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """
    What came of it.

    Attributes:
        changes: How often each kind of change was made.
        took_s: From the first change to the last one.
        settled_s: From the last change until the kernel had everything.
        sync_s: Duration of each sync that wrote something.
        exchanges: New connections and questions on open sockets to the Service that nobody touched.
        lost: How many of them were not answered.
        moved: Open UDP sockets whose answers came from more than one endpoint.
        differences: Lines in which the kernel and a fresh render differ at the end.
        resident_mib: Memory of the daemon before and after.
    """

    changes: Counter[str]
    took_s: float
    settled_s: float
    sync_s: tuple[float, ...]
    exchanges: int
    lost: int
    moved: int
    differences: tuple[str, ...]
    resident_mib: tuple[float, float]

    @property
    def median_s(self) -> float:
        """The median of `sync_s`."""
        return statistics.median(self.sync_s)


def run_churn(
    backend: BackendWish,
    *,
    services: int,
    changes: int,
    seconds: float,
    seed: int = 1,
    dispatch: Dispatch = Dispatch.LINEAR,
) -> ChurnOutcome:
    """
    Run a daemon in a lab of its own while *changes* happen, evenly spread over *seconds*.

    Raises:
        TimeoutError: The daemon does not start, or does not take in everything within a minute after the last change.
    """
    with ExitStack() as stack:
        lab, server = stack.enter_context(Lab()), stack.enter_context(ApiServer())
        steady = _steady(lab)
        churn = Churn(server, services, *steady, seed=seed)
        arguments = (*lab_arguments(server.url, backend), "-v", "2", "--dispatch", dispatch)
        daemon = stack.enter_context(DaemonProcess(lab.node.netns, *arguments))
        daemon.wait_in_step()
        before = _resident_mib(daemon.process_id)
        first = len(daemon.log("synced"))
        traffic = _Traffic(lab)
        started_s = time.monotonic()
        with traffic.stack:
            for number in range(changes):
                _wait_for_turn(started_s + number * seconds / changes)
                churn.step()
            took_s = time.monotonic() - started_s
            settled_s = _settle(lab, churn, backend, dispatch)
        return ChurnOutcome(
            changes=churn.kinds,
            took_s=took_s,
            settled_s=settled_s,
            sync_s=tuple(float(str(line["seconds"])) for line in daemon.log("synced")[first:]),
            exchanges=traffic.exchanges,
            lost=traffic.lost,
            moved=traffic.moved,
            differences=_differences(lab, churn, backend, dispatch),
            resident_mib=(before, _resident_mib(daemon.process_id)),
        )


def _steady(lab: Lab) -> tuple[Service | EndpointSlice, ...]:
    tcp = open_service(_V4, "steady")
    udp = open_service(_V4, "steady-udp", number=11, node_port=30053, protocol="UDP")
    for pod in lab.pods:
        pod.serve(TARGET_PORT)
        pod.serve(TARGET_PORT, protocol="udp")
    return (tcp, udp, endpoints(tcp, _V4, *lab.pods), endpoints(udp, _V4, *lab.pods))


class _Traffic:
    """New connections from two places, and open UDP sockets."""

    def __init__(self, lab: Lab) -> None:
        self.stack = ExitStack()
        sessions = [
            self.stack.enter_context(lab.pods[0].open_session(cluster_ip(_V4, 11), 80, protocol="udp"))
            for _ in range(_STREAMS)
        ]
        self._streams = self.stack.enter_context(SteadyStreams(sessions))
        targets = ((lab.pods[0], cluster_ip(_V4)), (lab.client, balancer_ip(_V4)))
        self._clients = [self.stack.enter_context(SteadyConnections(*target, 80)) for target in targets]

    @property
    def exchanges(self) -> int:
        return self._streams.asked + sum(len(client.exchanges) for client in self._clients)

    @property
    def lost(self) -> int:
        return self._streams.unanswered + sum(client.failures.total() for client in self._clients)

    @property
    def moved(self) -> int:
        return sum(len(names) > 1 for names in self._streams.names)


def _wait_for_turn(moment_s: float) -> None:
    time.sleep(max(0.0, moment_s - time.monotonic()))


def _settle(lab: Lab, churn: Churn, backend: BackendWish, dispatch: Dispatch) -> float:
    fresh = _fresh_rules(churn, backend, dispatch)
    return wait_until(lambda: fresh == _own_rules(lab.node.netns, backend), "all changes in the kernel")


def _differences(lab: Lab, churn: Churn, backend: BackendWish, dispatch: Dispatch) -> tuple[str, ...]:
    fresh, found = _fresh_rules(churn, backend, dispatch), _own_rules(lab.node.netns, backend)
    return tuple(sorted(set(fresh) ^ set(found)))


def _fresh_rules(churn: Churn, backend: BackendWish, dispatch: Dispatch) -> list[str]:
    """The rules that a namespace gets that had none before."""
    with temporary_namespace("fresh") as netns:
        config = Config(cluster_cidrs=tuple(CLUSTER_CIDRS.values()), shape=ShapeConfig(dispatch=dispatch))
        report = sync_once(churn.objects, config, NODE_NAME, Target(netns=netns, backend=backend, families=(_V4,)))
        if report.error:
            raise report.error
        return _own_rules(netns, backend)


def _own_rules(netns: str, backend: BackendWish) -> list[str]:
    """Rules in the order of each chain; chains sorted by name, since the kernel lists them by age."""
    with inside(netns):
        saved = SubprocessRunner().run([f"iptables-{backend}-save"]).stdout.splitlines()
    chains = [line.split(" ")[0] for line in saved if line.startswith(":KUBE-") and "CANARY" not in line]
    rules = [line for line in saved if line.startswith("-A")]
    return sorted(chains) + sorted(rules, key=lambda line: line.split(" ")[1])


def _resident_mib(process_id: int) -> float:
    status = Path(f"/proc/{process_id}/status").read_text(encoding="ascii")
    return int(status.split("VmRSS:")[1].split()[0]) / 1024
