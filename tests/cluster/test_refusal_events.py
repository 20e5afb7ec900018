"""Events about Services that the kernel refuses, as the API server gets them."""

import asyncio
import contextlib

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.cluster_events import SERIES_S, ClusterEvents
from kproxy_ipt.daemon.quarantine import Refusal
from kproxy_ipt.sources.api_session import ApiSession
from kproxy_ipt.sources.event_recorder import EventRecorder
from kproxy_ipt.sources.kubeconfig import ClusterConnection
from kproxy_ipt.testing.api_server import ApiServer
from kproxy_ipt.testing.api_watching import StillTime, come_true

WEB = Refusal(
    service=("shop", "web"),
    family=Family.IPV4,
    reason="RULE_APPEND failed (Invalid argument) (rule: -A KUBE-SEP-X -j DNAT)",
    stays=True,
    failures=1,
    due_s=60.0,
)
API = msgspec.structs.replace(WEB, service=("shop", "api"), stays=False)


def _told(server: ApiServer, expected: int, *steps: Refusal | tuple[Refusal, str] | float) -> list[dict[str, object]]:
    """Tell refusals and let time pass, in order; the events that the server got."""

    async def scenario() -> None:
        time = StillTime()
        session = ApiSession(
            ClusterConnection(master=server.url, qps=-1, timeout_s=2.0), clock=time.clock, sleep=time.sleep
        )
        recorder = EventRecorder(session, "node1", failed=lambda _: None, clock=time.clock, sleep=time.sleep)
        events = ClusterEvents("node1", recorder, clock=time.clock)
        await session.open()
        work = asyncio.create_task(events.run())
        for step in steps:
            if isinstance(step, Refusal):
                events.rules_refused(step)
            elif isinstance(step, tuple):
                events.rules_refused(*step)
            else:
                await time.sleep(step)
        assert await come_true(lambda: recorder.written == expected)
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work
        await session.close()

    asyncio.run(scenario())
    return [msgspec.json.decode(request.body, type=dict[str, object]) for request in server.requests]


def test_refused_service_gets_a_warning_with_the_words_of_the_kernel(api_server: ApiServer) -> None:
    """Which node, which family, what it has now, and why."""
    [event] = _told(api_server, 1, WEB)

    assert (event["type"], event["reason"], event["action"]) == ("Warning", "RulesRefused", "SetAside")
    assert event["regarding"] == {"kind": "Service", "apiVersion": "v1", "name": "web", "namespace": "shop"}
    assert event["note"] == f"IPv4 rules on node node1: the last good ones stay; refused: {WEB.reason}"


def test_event_is_about_the_service_of_that_uid(api_server: ApiServer) -> None:
    """`kubectl describe` looks for events by uid; a Service that was made anew is another series."""
    events = _told(api_server, 2, (WEB, "1-2"), (WEB, "1-2"), (WEB, "3-4"))

    service = {"kind": "Service", "apiVersion": "v1", "name": "web", "namespace": "shop"}
    assert [event["regarding"] for event in events] == [{**service, "uid": "1-2"}, {**service, "uid": "3-4"}]


def test_service_without_rules_is_told_so(api_server: ApiServer) -> None:
    """Nothing of it serves any more."""
    [event] = _told(api_server, 1, API)

    assert str(event["note"]).startswith("IPv4 rules on node node1: none; refused: ")


def test_repeated_refusals_are_one_event_in_half_an_hour(api_server: ApiServer) -> None:
    """Other words, the other family, any number of tries: the same series. Another Service is another one."""
    again = msgspec.structs.replace(WEB, reason="line 7 failed", failures=2, family=Family.IPV6)
    events = _told(api_server, 3, WEB, again, 700.0, again, API, SERIES_S - 700.0, again)

    names = [msgspec.json.encode(event["regarding"]).decode() for event in events]
    assert ["web" in name for name in names] == [True, False, True]
