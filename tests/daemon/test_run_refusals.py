"""A running daemon, an API server and a kernel that refuses one Service: everybody hears of it, nobody else pays."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from kproxy_ipt.daemon.machine import Target
from kproxy_ipt.testing.api_server import ApiServer
from kproxy_ipt.testing.daemon_process import DaemonProcess, lab_arguments, wait_until
from kproxy_ipt.testing.lab_objects import own_node
from kproxy_ipt.testing.objects import endpoint_slice, service
from kproxy_ipt.testing.shims import Shims

pytestmark = pytest.mark.kernel

_UID = "6f1c1f0e-5a0b-4f43-9d9f-0d7f1d3b1a11"
_PLAIN, _OTHER = service("web"), service("other", cluster_ip="10.96.0.77")
_WEB = msgspec.structs.replace(_PLAIN, metadata=msgspec.structs.replace(_PLAIN.metadata, uid=_UID))
# A target that the kernel allows in POSTROUTING alone takes the place of one endpoint.
_POISON = """case "$*" in *--noflush*)
    sed 's/-j DNAT --to-destination 10.244.66.6:80/-j MASQUERADE/' | "$REAL" "$@"; exit $?;;
esac"""


@pytest.fixture
def api() -> Iterator[ApiServer]:
    """A server with a Node and a Service of one endpoint."""
    with ApiServer() as server:
        server.put(own_node(), _WEB, endpoint_slice(_WEB))
        yield server


@pytest.fixture(params=["nft", "legacy"])
def daemon(request: pytest.FixtureRequest, target: Target, api: ApiServer, tmp_path: Path) -> Iterator[DaemonProcess]:
    """A daemon in step with the server, on each backend; one endpoint is poison."""
    shims = Shims(tmp_path / "shims")
    program = f"iptables-{request.param}-restore"
    shims.install(program)
    shims.act(program, _POISON)
    with DaemonProcess(str(target.netns), *lab_arguments(api.url, request.param), shims=shims.folder) as made:
        made.wait_in_step()
        yield made


def _event(api: ApiServer) -> dict[str, object] | None:
    bodies = (request.body for request in api.requests if request.method == "POST" and "/events" in request.path)
    events = (msgspec.json.decode(body, type=dict[str, object]) for body in bodies)
    return next((event for event in events if event["reason"] == "RulesRefused"), None)


def test_refused_service_is_told_everywhere_and_released_when_it_changes(
    api: ApiServer, daemon: DaemonProcess, look: Callable[..., str], request: pytest.FixtureRequest
) -> None:
    """Its old endpoint goes on, the other Service is written, the daemon is alive; then the endpoint is a good one."""
    backend = request.node.callspec.params["daemon"]

    def has(text: str) -> bool:
        return text in look(f"iptables-{backend}-save")

    api.put(_OTHER, endpoint_slice(_OTHER, ["10.244.1.77"]), endpoint_slice(_WEB, ["10.244.1.2", "10.244.66.6"]))
    daemon.wait_for_log("service set aside", service="default/web", rules="the last good ones stay")
    wait_until(lambda: has("10.244.1.77:80"), "the other Service")
    wait_until(lambda: _event(api) is not None, "the event")
    page = daemon.get("/livez?verbose")
    gauge = daemon.metric("kproxy_ipt_quarantined_services", ip_family="IPv4")
    kept = has("10.244.1.2:80")
    api.put(endpoint_slice(_WEB, ["10.244.1.2", "10.244.1.9"]))
    daemon.wait_for_log("service no longer set aside", service="default/web")

    [aside] = json.loads(page.body)["families"]["IPv4"]["setAside"]
    assert (page.status, gauge, kept, has("10.244.1.9:80")) == (200, 1.0, True, True)
    assert (aside["service"], aside["failures"]) == ("default/web", 1)
    event = _event(api) or {}
    assert aside["reason"] in str(event["note"])
    assert {"kind": "Service", "apiVersion": "v1", "name": "web", "namespace": "default", "uid": _UID} == event[
        "regarding"
    ]
