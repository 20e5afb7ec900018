"""
The faults of `lab break`: each does to a lab what its text says, and `Breaker.repair` undoes them all.

One repair for every fault: it puts everything right that any of them touches, so it works whatever a student did
meanwhile, and twice as well as once.
"""

import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.errors import KernelError, SourceError
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.lab.client import LabClient, path_of
from kproxy_ipt.lab.documents import ApiObject, matches_labels, name_of, namespace_of, number, part, text
from kproxy_ipt.lab.fault_texts import STALE_SOURCE_PORT, STATSD_NODE_PORT
from kproxy_ipt.lab.layout import CLIENT, CLUSTER_CIDRS, NODES, Layout
from kproxy_ipt.lab.node_daemon import proxy_config_text
from kproxy_ipt.lab.pods import READY_ANNOTATION
from kproxy_ipt.lab.resources import target_for
from kproxy_ipt.lab.state import LabState, send_to_daemon
from kproxy_ipt.testing.namespaces import write_net_sysctls
from kproxy_ipt.testing.sockets import QUESTION, make_client

WEB = "web"
WEB_LABELS = {"app": WEB}
STATSD = "statsd"
FAULT_LABEL = "kproxy-ipt.lab/fault"
"""Objects that have it were made by a fault, and go with it."""
_MERGE_PATCH = "application/merge-patch+json"
_WRONG_CIDRS = ("10.245.0.0/16", CLUSTER_CIDRS[Family.IPV6])
_GONE_POD = "10.244.1.250:9000"
_BLOCKING = ("FORWARD", "-p", "tcp", "--dport", "8080", "-j", "DROP")
_LONG_MEMORY = {"netfilter/nf_conntrack_udp_timeout": "86400", "netfilter/nf_conntrack_udp_timeout_stream": "86400"}
_USUAL_MEMORY = {"netfilter/nf_conntrack_udp_timeout": "30", "netfilter/nf_conntrack_udp_timeout_stream": "120"}
_PATIENCE_S = 10.0
_POLL_S = 0.1
_CLEANED_S = 1.0
"""A kproxy-ipt cleans connection tracking a moment after its rules stand; a record made before that would go."""
_TIMEOUT_S = 20.0


class Breaker:
    """Breaks and repairs one lab that runs."""

    def __init__(self, layout: Layout, state: LabState) -> None:
        self._layout = layout
        self._state = state
        self._client = LabClient(state.port)

    def kept(self) -> Sequence[ApiObject]:
        """
        The objects that faults change, as they are now, for `repair`.

        Raises:
            SourceError: The lab has no Deployment or Service `web`.
        """
        return [self._client.ask("GET", _path(kind, WEB)) for kind in ("Deployment", "Service")]

    def inject(self, name: str) -> None:
        """
        Break the lab in one way; *name* is one of `FAULTS`.

        Raises:
            KernelError, SourceError: Something that it needs is not there.
        """
        FAULTS[name](self)

    def repair(self, kept: Sequence[ApiObject]) -> None:
        """
        Undo whatever fault there is; the objects *kept* are put back.

        Raises:
            KernelError, SourceError: The lab or one of its parts is gone.
        """
        for kind in ("Service", "Deployment"):
            for document in self._client.objects(kind):
                if text(document, "metadata", "labels", FAULT_LABEL):
                    self._client.ask("DELETE", _path(kind, name_of(document)))
        for document in kept:
            self._put_back(document)
        for pod in self._pods():
            self._annotate(pod, None)
        for node in NODES:
            self._layout.proxy_config(node.name).write_text(proxy_config_text(), encoding="utf-8")
            send_to_daemon(self._layout, self._state, node.name, signal.SIGCONT)
            write_net_sysctls(self._layout.netns(node.name), _USUAL_MEMORY)
        with suppress(KernelError):
            while True:  # as often as it is there
                self._iptables("n1", "-D", *_BLOCKING)
        if kept:
            self._wait_until_rolled_out()

    def _put_back(self, document: ApiObject) -> None:
        path = _path(text(document, "kind"), name_of(document))
        metadata = {key: value for key, value in part(document, "metadata").items() if key != "resourceVersion"}
        body = {**document, "metadata": metadata}
        try:
            self._client.ask("PUT", path, body)
        except SourceError:  # it is gone, or cannot be changed back to what it was
            with suppress(SourceError):
                self._client.ask("DELETE", path)
            self._client.ask("POST", path.rpartition("/")[0], body)

    def wrong_selector(self) -> None:
        """The Service asks for a label that no pod has."""
        self._patch("Service", {"spec": {"selector": {"app": "web-v2"}}})

    def not_ready(self) -> None:
        """All pods go on answering, and are not ready."""
        for pod in self._pods():
            self._annotate(pod, "false")

    def wrong_target_port(self) -> None:
        """Ready endpoints, with a port where nobody listens."""
        ports = [{**port, "targetPort": 8081} for port in self._web_ports()]
        self._patch("Service", {"spec": {"ports": ports}})

    def flushed_table(self) -> None:
        """No rule in the nat table of n1, and nobody who would write them."""
        send_to_daemon(self._layout, self._state, "n1", signal.SIGSTOP)
        self._iptables("n1", "-t", "nat", "-F")

    def local_without_pods(self) -> None:
        """Policy Local, and all pods on the other node."""
        self._replace_pods({"spec": {"nodeSelector": {"kubernetes.io/hostname": "n2"}}})
        self._patch("Service", {"spec": {"externalTrafficPolicy": "Local"}})

    def other_cidr(self) -> None:
        """Pods count as strangers, and are masqueraded."""
        for node in NODES:
            config = self._layout.proxy_config(node.name)
            config.write_text(proxy_config_text(_WRONG_CIDRS), encoding="utf-8")

    def stale_conntrack(self) -> None:
        """A UDP flow of the client that is remembered with an endpoint which is gone."""
        for document in _statsd_objects():
            self._client.ask("POST", _path(text(document, "kind"), "").rstrip("/"), document)
        _wait_until(lambda: asks_statsd(self._layout, source_port=0), f"the Service {STATSD} does not answer")
        time.sleep(_CLEANED_S)
        write_net_sysctls(self._layout.netns("n1"), _LONG_MEMORY)
        # As rules of before would have done it; the record that the first packet makes outlives them.
        flow = ("-p", "udp", "--sport", str(STALE_SOURCE_PORT), "--dport", str(STATSD_NODE_PORT))
        rule = ("PREROUTING", *flow, "-j", "DNAT", "--to-destination", _GONE_POD)
        self._iptables("n1", "-t", "nat", "-I", *rule)
        asks_statsd(self._layout, source_port=STALE_SOURCE_PORT)
        self._iptables("n1", "-t", "nat", "-D", *rule)

    def foreign_firewall(self) -> None:
        """A rule of somebody else drops what is forwarded to the pods."""
        self._iptables("n1", "-I", *_BLOCKING)

    def source_ranges(self) -> None:
        """A load balancer for others than the client."""
        self._patch("Service", {"spec": {"type": "LoadBalancer", "loadBalancerSourceRanges": ["198.51.100.0/24"]}})

    def frozen_daemon(self) -> None:
        """Pods are replaced, and n2 does not hear of it."""
        send_to_daemon(self._layout, self._state, "n2", signal.SIGSTOP)
        restarted = {"annotations": {"kubectl.kubernetes.io/restartedAt": str(time.time_ns())}}
        self._replace_pods({"metadata": restarted})

    def _replace_pods(self, template: Mapping[str, object]) -> None:
        """Change the template of the pods and wait until the old ones are gone: they answer for as long as they end."""
        self._patch("Deployment", {"spec": {"template": template}})
        self._wait_until_rolled_out()

    def _wait_until_rolled_out(self) -> None:
        _wait_until(self._is_rolled_out, "the pods of web are not replaced")

    def _is_rolled_out(self) -> bool:
        deployment = self._client.ask("GET", _path("Deployment", WEB))
        wanted = number(deployment, "spec", "replicas")
        is_seen = number(deployment, "status", "observedGeneration") >= number(deployment, "metadata", "generation")
        return is_seen and number(deployment, "status", "updatedReplicas") == wanted == len(self._pods())

    def _web_ports(self) -> Sequence[Mapping[str, object]]:
        service = self._client.ask("GET", _path("Service", WEB))
        return msgspec.convert(part(service, "spec")["ports"], type=list[dict[str, object]])

    def _pods(self) -> Sequence[ApiObject]:
        return web_pods(self._client)

    def _annotate(self, pod: ApiObject, ready: str | None) -> None:
        body = {"metadata": {"annotations": {READY_ANNOTATION: ready}}}
        with suppress(SourceError):  # it ended meanwhile
            self._client.ask("PATCH", _path("Pod", name_of(pod)), body, _MERGE_PATCH)

    def _patch(self, kind: str, body: Mapping[str, object]) -> None:
        self._client.ask("PATCH", _path(kind, WEB), body, _MERGE_PATCH)

    def _iptables(self, node: str, *arguments: str) -> None:
        netns = self._layout.netns(node)
        done = _run(netns, _iptables_program(netns), *arguments)
        if done.returncode:
            raise KernelError(f"iptables {' '.join(arguments)}: {done.stderr.strip()}")


FAULTS: Mapping[str, Callable[[Breaker], None]] = {
    "wrong-selector": Breaker.wrong_selector,
    "not-ready": Breaker.not_ready,
    "wrong-target-port": Breaker.wrong_target_port,
    "flushed-table": Breaker.flushed_table,
    "local-without-pods": Breaker.local_without_pods,
    "other-cidr": Breaker.other_cidr,
    "stale-conntrack": Breaker.stale_conntrack,
    "foreign-firewall": Breaker.foreign_firewall,
    "source-ranges": Breaker.source_ranges,
    "frozen-daemon": Breaker.frozen_daemon,
}


def web_pods(client: LabClient) -> Sequence[ApiObject]:
    """The pods of `web`."""
    pods = client.objects("Pod")
    return [pod for pod in pods if namespace_of(pod) == "default" and matches_labels(pod, WEB_LABELS)]


def asks_statsd(layout: Layout, *, source_port: int, timeout_s: float = 0.5) -> bool:
    """Whether the UDP Service `statsd` answers the client at the node port of n1; *source_port* 0 takes a free one."""
    target = NODES[0].addresses[Family.IPV4]
    with inside(layout.netns(CLIENT)):
        asking = make_client(target, "udp", "", source_port)
    with asking:
        asking.settimeout(timeout_s)
        try:
            asking.connect((target, STATSD_NODE_PORT))
            asking.send(QUESTION)
            return bool(asking.recv(len(QUESTION)))
        except OSError:
            return False


def _statsd_objects() -> Sequence[ApiObject]:
    labels = {"app": STATSD}
    container = {"name": STATSD, "image": "lab", "ports": [{"containerPort": 9000, "protocol": "UDP"}]}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    port = {"port": 8125, "targetPort": 9000, "protocol": "UDP", "nodePort": STATSD_NODE_PORT}
    return [
        {
            "kind": "Deployment",
            "apiVersion": "apps/v1",
            "metadata": {"name": STATSD, "labels": {FAULT_LABEL: "stale-conntrack"}},
            "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
        },
        {
            "kind": "Service",
            "apiVersion": "v1",
            "metadata": {"name": STATSD, "labels": {FAULT_LABEL: "stale-conntrack"}},
            "spec": {"type": "NodePort", "selector": labels, "ports": [port]},
        },
    ]


def _wait_until(condition: Callable[[], bool], problem: str) -> None:
    deadline_s = time.monotonic() + _PATIENCE_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise KernelError(problem)
        time.sleep(_POLL_S)


def _path(kind: str, name: str) -> str:
    return path_of(target_for(kind, "default", name))


def _iptables_program(netns: str) -> str:
    """The iptables in whose tables the rules of a node are; legacy is asked last, since to ask it makes its tables."""
    for program in ("iptables", "iptables-nft", "iptables-legacy"):
        with suppress(FileNotFoundError):
            if _run(netns, program, "-t", "nat", "-S", "KUBE-SERVICES").returncode == 0:
                return program
    return "iptables"


def _run(netns: str, *command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["ip", "netns", "exec", netns, *command], capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
    )
