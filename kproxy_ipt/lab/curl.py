"""Real requests in a lab, each on a connection of its own, and who answered how often."""

import errno
import http.client
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from kproxy_ipt.lab.client import client_of
from kproxy_ipt.lab.destination import Destination, Place, Wish, resolve
from kproxy_ipt.lab.layout import Layout
from kproxy_ipt.testing.probe_netns import probe_netns
from kproxy_ipt.testing.traffic import Exchange, Outcome, send

_PARALLEL = 8
_OUTCOMES = {
    errno.ECONNREFUSED: Outcome.REFUSED,
    errno.ECONNRESET: Outcome.RESET,
    errno.EPIPE: Outcome.RESET,
    errno.ETIMEDOUT: Outcome.TIMEOUT,
}


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    """All answers of one pod: how many, their share of all requests, and the client addresses that the pod saw."""

    name: str
    node: str
    count: int
    share: float
    seen: Sequence[str]


class CurlReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of all requests; *failures* counts those without an answer by what happened to them."""

    place: str
    netns: str
    url: str
    way: str
    count: int
    answers: Sequence[Answers]
    failures: dict[str, int]


class _Reply(msgspec.Struct, frozen=True):
    """One request: who answered, or what happened instead."""

    outcome: str
    name: str = ""
    node: str = ""
    seen: str = ""


def curl(layout: Layout, wish: Wish, *, count: int, timeout_s: float) -> CurlReport:
    """
    Send *count* requests: the first one, then up to 8 side by side.

    Args:
        layout: Which lab.
        wish: From where to where.
        count: At least 1.
        timeout_s: How long to wait for each connection, and for each answer.

    Raises:
        SourceError: The lab does not run, or has no such place or target.
        NamespaceError: The namespace of the place cannot be entered.
    """
    place, destination = resolve(layout, client_of(layout), wish)
    # The first one alone: a client that session affinity does not know yet is given to a pod by each connection of its
    # that begins before one of them is remembered.
    if destination.protocol == "UDP":
        replies = [reply for part in (1, count - 1) for reply in _ask_udp(place, destination, part, timeout_s)]
    else:
        replies = [_ask_http(place, destination, timeout_s)]
        with ThreadPoolExecutor(_PARALLEL) as pool:
            replies += pool.map(lambda _: _ask_http(place, destination, timeout_s), range(count - 1))
    return _report(place, destination, replies)


def _ask_http(place: Place, destination: Destination, timeout_s: float) -> _Reply:
    try:
        probed = probe_netns(place.netns, destination.address, destination.port, destination.path, timeout_s=timeout_s)
    except TimeoutError:
        return _Reply(Outcome.TIMEOUT.value)
    except OSError as error:
        return _Reply(_OUTCOMES.get(error.errno or 0, Outcome.UNREACHABLE).value)
    except http.client.HTTPException:
        return _Reply("no HTTP")
    headers = probed.headers
    name = headers.get("pod") or probed.body[:60].decode(errors="replace").strip() or f"status {probed.status}"
    return _Reply(Outcome.ANSWERED.value, name, headers.get("node", ""), headers.get("client", ""))


def _ask_udp(place: Place, destination: Destination, count: int, timeout_s: float) -> list[_Reply]:
    exchanges: Sequence[Exchange] = send(
        place.netns, destination.address, destination.port, protocol="udp", count=count, timeout_s=timeout_s
    ).exchanges
    return [_Reply(each.outcome.value, each.name, "", each.seen_address) for each in exchanges]


def _report(place: Place, destination: Destination, replies: Sequence[_Reply]) -> CurlReport:
    answered = [reply for reply in replies if reply.outcome == Outcome.ANSWERED.value]
    counts = Counter((reply.name, reply.node) for reply in answered)
    answers = [
        Answers(
            name=name,
            node=node,
            count=times,
            share=times / len(replies),
            seen=sorted({reply.seen for reply in answered if reply.name == name and reply.seen}),
        )
        for (name, node), times in sorted(counts.items())
    ]
    failures = Counter(reply.outcome for reply in replies if reply.outcome != Outcome.ANSWERED.value)
    return CurlReport(
        place=place.name,
        netns=place.netns,
        url=destination.url,
        way=destination.way,
        count=len(replies),
        answers=answers,
        failures=dict(failures),
    )
