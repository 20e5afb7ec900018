"""
Is a lab healthy? Real connections from outside, from nodes and from pods say so, then each kproxy-ipt and its rules.

What is wrong is told as symptoms, never as a cause: nothing here knows which fault there is.
"""

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import chain, count

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.errors import NamespaceError, SourceError
from kproxy_ipt.lab.client import client_of
from kproxy_ipt.lab.curl import CurlReport, curl
from kproxy_ipt.lab.destination import Wish
from kproxy_ipt.lab.documents import ApiObject, name_of, namespace_of, number, objects_in, text
from kproxy_ipt.lab.fault_texts import STALE_SOURCE_PORT, STATSD_NODE_PORT, Words
from kproxy_ipt.lab.faults import WEB, asks_statsd, web_pods
from kproxy_ipt.lab.layout import CLIENT, NODES, Layout
from kproxy_ipt.lab.pods import NETNS_ANNOTATION, is_terminating
from kproxy_ipt.lab.status import read_status
from kproxy_ipt.testing.daemon_process import kproxy_ipt_program

_COUNTS = {Family.IPV4: 16, Family.IPV6: 8}
"""
So many requests for each way: one that a third of them fails on is missed once in 650 times, over IPv6 once in 25.
There are six of them at least, and what a third fails on everywhere is missed less often than once in 10^8 times.
"""
_TIMEOUTS_S = {Family.IPV4: 0.5, Family.IPV6: 1.3}
"""A refusal by ICMPv6 may be seen only with the second SYN, a second after the first."""
_FEW = 3
_MOST_REPEATS = 4
_POLL_S = 0.2
_CHECK_S = 30.0
_AT_ONCE = 8
_MIN_LOOKS = 2
_OUTCOMES = {
    "refused": Words("refused", "refusées"),
    "timeout": Words("without an answer", "sans réponse"),
    "unreachable": Words("unreachable", "sans chemin"),
    "reset": Words("cut", "coupées"),
}
_GONE = Words("there is no Service web", "il n'y a pas de Service web")
_Look = Callable[[], Sequence[Words]]


class Expectation(msgspec.Struct, frozen=True):
    """What a healthy lab has beside the usual: an address of a load balancer, the UDP Service `statsd`."""

    balancer: bool = False
    statsd: bool = False


def judge(layout: Layout, expected: Expectation, *, patience_s: float, wants_symptom: bool = False) -> Sequence[Words]:
    """
    The symptoms of a lab; none means that it is healthy.

    Args:
        layout: Which lab.
        expected: Beside the usual.
        patience_s: How long to look again while the answer is not the wanted one: pods and rules need a moment.
        wants_symptom: Whether the wanted answer is that something is wrong.

    Raises:
        SourceError: The lab does not run.
    """
    deadline_s = time.monotonic() + patience_s
    for look in count(1):
        symptoms = _symptoms(layout, expected)
        if bool(symptoms) == wants_symptom or (look >= _MIN_LOOKS and time.monotonic() > deadline_s):
            break
        time.sleep(_POLL_S)
    return symptoms


def _symptoms(layout: Layout, expected: Expectation) -> Sequence[Words]:
    client = client_of(layout)
    wanted = ("default", WEB)
    service = next((each for each in client.objects("Service") if (namespace_of(each), name_of(each)) == wanted), None)
    if service is None:
        return (_GONE,)
    pods = [pod for pod in web_pods(client) if not is_terminating(pod)]
    looks: list[_Look] = [partial(_try, layout, wish, pods) for wish in _wishes(service, pods, expected)]
    looks.append(partial(_ask_proxies, layout))
    if expected.statsd:
        looks.append(partial(_ask_statsd, layout))
    found = _all_of(looks)
    if expected.balancer and not _has_balancer(service):
        found.append(Words("Service web has no load balancer", "le Service web n'a pas de répartiteur de charge"))
    # Programs take their time: what packets have told already need not be told again.
    return found or _all_of([partial(_compare, layout, node.name) for node in NODES])


def _all_of(looks: Sequence[_Look]) -> list[Words]:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(chain.from_iterable(pool.map(lambda look: look(), looks)))


def _wishes(service: ApiObject, pods: Sequence[ApiObject], expected: Expectation) -> Iterator[Wish]:
    """Every way to the Service, in both families."""
    node_port = next((number(each, "nodePort") for each in objects_in(service, "spec", "ports")), 0)
    insiders = [each.name for each in NODES]
    for node in NODES:
        insiders += [name_of(pod) for pod in pods if text(pod, "spec", "nodeName") == node.name and _netns(pod)][:1]
    for family in Family:
        for node in NODES:
            address = node.addresses[family]
            host = f"[{address}]" if family is Family.IPV6 else address
            yield Wish(target=f"http://{host}:{node_port or 80}/", place=CLIENT, family=family)
        for place in insiders:
            yield Wish(target=WEB, place=place, family=family)
        if expected.balancer and _has_balancer(service):
            yield Wish(target=WEB, place=CLIENT, family=family)


def _has_balancer(service: ApiObject) -> bool:
    return bool(objects_in(service, "status", "loadBalancer", "ingress"))


def _netns(pod: ApiObject) -> str:
    return text(pod, "metadata", "annotations", NETNS_ANNOTATION)


def _try(layout: Layout, wish: Wish, pods: Sequence[ApiObject]) -> Sequence[Words]:
    try:
        family = wish.family or Family.IPV4
        ask = partial(curl, layout, wish, count=_COUNTS[family], timeout_s=_TIMEOUTS_S[family])
        report = ask()
        for _ in range(_MOST_REPEATS):
            if not 0 < sum(report.failures.values()) <= _FEW:
                break
            # A source port that a lost connection had may still be tracked to a pod that is gone, for two minutes.
            report = ask()
    except (SourceError, NamespaceError) as error:
        return (Words(str(error), str(error)),)
    return [*_failed(report), *_masked(report, pods)]


def _failed(report: CurlReport) -> Iterator[Words]:
    for outcome, times in report.failures.items():
        what = _OUTCOMES.get(outcome, Words(outcome, outcome))
        yield Words(
            f"{report.place} to {report.url}: {times} of {report.count} requests {what.en}",
            f"{report.place} vers {report.url} : {times} requêtes sur {report.count} {what.fr}",
        )


def _masked(report: CurlReport, pods: Sequence[ApiObject]) -> Iterator[Words]:
    """A pod that asks must be seen with an address of its own, but by itself."""
    asking = next((pod for pod in pods if name_of(pod) == report.place), None)
    if asking is None:
        return
    own = {text(each, "ip") for each in objects_in(asking, "status", "podIPs")}
    seen = {each for found in report.answers if found.name != report.place for each in found.seen} - own
    if seen:
        addresses = ", ".join(sorted(seen))
        yield Words(
            f"{report.place} to {report.url}: other pods see {addresses} instead of its own address",
            f"{report.place} vers {report.url} : les autres pods voient {addresses} au lieu de son adresse",
        )


def _compare(layout: Layout, node: str) -> Sequence[Words]:
    """What `kproxy-ipt check` says of a node."""
    where = ("--netns", layout.netns(node), "--hostname-override", node)
    cluster = ("--kubeconfig", str(layout.kubeconfig), "--config", str(layout.proxy_config(node)))
    command = [kproxy_ipt_program(), "check", *where, *cluster]
    with suppress(subprocess.TimeoutExpired):
        if subprocess.run(command, capture_output=True, timeout=_CHECK_S, check=False).returncode == 0:
            return ()
    return (Words(f"kproxy-ipt check is not content with {node}", f"kproxy-ipt check n'est pas satisfait de {node}"),)


def _ask_proxies(layout: Layout) -> Sequence[Words]:
    return [
        Words(
            f"the kproxy-ipt of {node.name} is {node.proxy}",
            f"le kproxy-ipt de {node.name} est {_IN_FRENCH[node.proxy]}",
        )
        for node in read_status(layout).nodes
        if node.proxy != "healthy"
    ]


_IN_FRENCH = {"unhealthy": "en mauvaise santé", "silent": "muet"}


def _ask_statsd(layout: Layout) -> Sequence[Words]:
    target = f"{NODES[0].addresses[Family.IPV4]}:{STATSD_NODE_PORT}"
    return [
        Words(
            f"client to udp://{target} from port {port or 'of its choice'}: no answer",
            f"client vers udp://{target} depuis le port {port or 'de son choix'} : pas de réponse",
        )
        for port in (0, STALE_SOURCE_PORT)
        if not asks_statsd(layout, source_port=port)
    ]
