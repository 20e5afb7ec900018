"""A running daemon and an API server that fails: rules stay as they were, and the way back is found alone."""

import json
from collections.abc import Callable, Iterator

import pytest

from kproxy_ipt.daemon.machine import Target
from kproxy_ipt.testing.api_faults import Fault
from kproxy_ipt.testing.api_server import ApiServer
from kproxy_ipt.testing.daemon_process import DaemonProcess, lab_arguments, wait_until
from kproxy_ipt.testing.lab_objects import own_node
from kproxy_ipt.testing.objects import endpoint_slice, service

pytestmark = pytest.mark.kernel

_WEB, _LATER = service("web"), service("later", cluster_ip="10.96.0.77")


@pytest.fixture
def api() -> Iterator[ApiServer]:
    """A server with a Node and a Service of one endpoint."""
    with ApiServer() as server:
        server.put(own_node(), _WEB, endpoint_slice(_WEB))
        yield server


@pytest.fixture
def daemon(target: Target, api: ApiServer) -> Iterator[DaemonProcess]:
    """A daemon in step with the server."""
    with DaemonProcess(str(target.netns), *lab_arguments(api.url, "nft")) as made:
        made.wait_in_step()
        wait_until(lambda: api.watches() == 3, "three watches")
        yield made


@pytest.fixture
def has(look: Callable[..., str]) -> Callable[[str], bool]:
    """Whether the kernel has a rule with that text."""
    return lambda text: text in look("iptables-nft-save")


def _change(api: ApiServer) -> None:
    """Add a Service, and move the endpoint of the first one."""
    api.put(_LATER, endpoint_slice(_LATER, ["10.244.1.77"]), endpoint_slice(_WEB, ["10.244.1.88"]))


def _is_current(has: Callable[[str], bool]) -> bool:
    return has("10.244.1.77:80") and has("10.244.1.88:80") and not has("10.244.1.2:80")


def test_outage_keeps_rules_and_ends_with_all_changes(
    api: ApiServer, daemon: DaemonProcess, has: Callable[[str], bool]
) -> None:
    """The server is away while objects change: rules stay, trouble is told, then everything is caught up with."""
    api.stop()
    _change(api)
    daemon.wait_for_log("source", count=2)
    kept = (has("10.244.1.2:80"), daemon.get("/livez").status)
    api.start()
    wait_until(lambda: _is_current(has), "caught up")

    assert (True, 200) == kept


@pytest.mark.usefixtures("daemon")
def test_expired_version_leads_to_a_new_list(api: ApiServer, has: Callable[[str], bool]) -> None:
    """410 after a compaction: everything is listed anew, and deletions in the gap are seen."""
    gone = service("gone", cluster_ip="10.96.0.66")
    api.put(gone, endpoint_slice(gone, ["10.244.1.66"]))
    wait_until(lambda: has("10.244.1.66:80"), "the Service that will go")
    api.stop()
    api.delete("Service", "gone")
    _change(api)
    api.compact()
    api.start()

    wait_until(lambda: _is_current(has) and not has("10.244.1.66"), "caught up")


@pytest.mark.usefixtures("daemon")
def test_watches_that_end_all_the_time_lose_nothing_and_make_no_busy_loop(
    api: ApiServer, has: Callable[[str], bool]
) -> None:
    """Watches that end after a fifth of a second deliver every change, with few requests."""
    api.watch_limit_s = 0.2
    api.end_watches()
    before = len(api.requests)
    for number in range(5):
        api.put(endpoint_slice(_WEB, [f"10.244.1.{100 + number}"]))
        wait_until(lambda last=100 + number: has(f"10.244.1.{last}:80"), "the change")  # type: ignore[misc]  # bound at once

    assert len(api.requests) - before < 150


@pytest.mark.usefixtures("daemon")
def test_bookmarks_alone_keep_it_content(api: ApiServer, has: Callable[[str], bool]) -> None:
    """A server that sends bookmarks only, often, gets no further request, and its next change is taken in."""

    def asked() -> int:
        return sum(request.is_watch for request in api.requests)

    before = asked()
    api.bookmark_interval_s = 0.02
    api.end_watches()
    wait_until(lambda: asked() == before + 3, "watches again")
    _change(api)
    wait_until(lambda: _is_current(has), "the change")

    assert before + 3 == asked()


def test_cut_and_garbled_watches_are_told_and_recovered_from(
    api: ApiServer, daemon: DaemonProcess, has: Callable[[str], bool]
) -> None:
    """Watches that break in the middle of a line, and lines that are no JSON, cost nothing for good."""
    api.cut_watches(after=b'{"type":"ADDED","obj')
    _change(api)
    wait_until(lambda: _is_current(has), "after the cut")
    wait_until(lambda: api.watches() == 3, "watches again")
    api.send_line(b"<html>no JSON</html>")
    api.put(endpoint_slice(_WEB, ["10.244.1.99"]))

    wait_until(lambda: has("10.244.1.99:80"), "after the garbage")
    assert daemon.wait_for_log("source")


def test_refused_requests_keep_rules_until_they_are_granted(
    api: ApiServer, daemon: DaemonProcess, has: Callable[[str], bool]
) -> None:
    """403, 429 and 500 to everything: rules stay; once all is well again changes are there."""
    for fault in (Fault.forbidden(), Fault.too_many_requests(1), Fault.server_error()):
        api.schedule(fault, times=3)
    api.cut_watches()
    _change(api)
    daemon.wait_for_log("source")
    kept = has("10.244.1.2:80") or _is_current(has)
    api.unschedule()
    wait_until(lambda: _is_current(has), "granted")

    assert kept


def test_object_without_sense_is_named_and_its_good_version_counts(
    api: ApiServer, daemon: DaemonProcess, has: Callable[[str], bool]
) -> None:
    """Odd types cost one Service until a good version comes; others stay, and the state is that of a fresh start."""
    odd = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "later", "namespace": "default"}}
    api.put(odd | {"spec": {"clusterIP": 17, "ports": [None, {"port": 10**30}]}})
    wait_until(lambda: daemon.log("object"), "a finding")
    kept = has("10.244.1.2:80")
    _change(api)

    wait_until(lambda: _is_current(has), "the good version")
    assert kept
    assert any("default/later" in str(line["finding"]) for line in daemon.log("object"))


def test_silence_of_the_api_is_told_and_costs_no_health(api: ApiServer, daemon: DaemonProcess) -> None:
    """Frozen watches: the age of the last contact grows in metrics and in ?verbose, livez stays 200."""
    api.freeze_watches()
    daemon.wait_for_metric("kproxy_ipt_api_silence_seconds", 1.0, resource="services")
    verbose = json.loads(daemon.get("/healthz?verbose").body)["api"]["services"]

    assert (True, None) == (verbose["silentSeconds"] >= 1.0, verbose["lastError"])
    assert 200 == daemon.get("/livez").status
