"""The pages of the health server and of the metrics server, over real connections where that matters."""

import asyncio
import json
import threading

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config
from kproxy_ipt.daemon.answers import Request
from kproxy_ipt.daemon.health import ProxyHealth
from kproxy_ipt.daemon.health_pages import HealthPages
from kproxy_ipt.daemon.kernel_thread import KernelThread
from kproxy_ipt.daemon.metrics import Metrics
from kproxy_ipt.daemon.metrics_pages import MetricsPages, Process
from kproxy_ipt.testing.clock import ManualClock
from kproxy_ipt.testing.objects import node
from kproxy_ipt.testing.page_server import ask, serving
from kproxy_ipt.testing.probe import probe_from_loop

TEXT = "text/plain; charset=utf-8"


def _health_pages() -> HealthPages:
    clock = ManualClock()
    health = ProxyHealth(Family, sync_period_s=30, clock=clock, wall_clock_ns=clock.wall_ns)
    health.node_seen(node())
    return HealthPages(health, Metrics())


def _metrics_pages(config: Config | None = None, verbosities: list[int] | None = None) -> MetricsPages:
    clock = ManualClock()
    seen = [] if verbosities is None else verbosities
    process = Process(
        flags={"v": "2", "hostname-override": "n1"},
        command_line=("kproxy-ipt", "run"),
        started_ns=clock.wall_ns(),
        set_verbosity=seen.append,
    )
    clock.advance(3_725)
    return MetricsPages(Metrics(), config or Config(), process, wall_clock_ns=clock.wall_ns)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("path", ["/healthz", "/livez"])
def test_health_server_answers_both_methods_alike(method: str, path: str) -> None:
    """Status and headers are those of kube-proxy; the body is one line of JSON, but for HEAD."""
    answer = ask(_health_pages().respond, path, method=method)

    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert int(answer.headers["content-length"]) > 0
    assert answer.body == b"" if method == "HEAD" else answer.body.startswith(b'{"lastUpdated":"2023-')
    assert b"\n" not in answer.body


@pytest.mark.parametrize("path", ["/", "/metrics", "/readyz", "/healthz/ping"])
def test_health_server_knows_no_other_page(path: str) -> None:
    """Only /healthz and /livez are there."""
    assert ask(_health_pages().respond, path).status == 404


@pytest.mark.parametrize(
    ("path", "content_type", "start"),
    [
        ("/metrics", "text/plain; version=0.0.4; charset=utf-8", b"# HELP "),
        ("/metrics/slis", "text/plain; version=0.0.4; charset=utf-8", b""),
        ("/healthz", TEXT, b"ok"),
        ("/healthz/ping", TEXT, b"ok"),
        ("/proxyMode", TEXT, b"iptables"),
        ("/configz", "application/json", b'{"kubeproxy.config.k8s.io":{'),
        ("/flagz", TEXT, b"\nkube-proxy flagz\nWarning: "),
        ("/statusz", TEXT, b"\nkube-proxy statusz\nWarning: "),
    ],
)
def test_metrics_server_has_the_pages_of_kube_proxy(path: str, content_type: str, start: bytes) -> None:
    """Status, type and the begin of the body."""
    answer = ask(_metrics_pages().respond, path)

    assert (200, content_type, "nosniff") == (
        answer.status,
        answer.headers["content-type"],
        answer.headers["x-content-type-options"],
    )
    assert answer.body.startswith(start)


@pytest.mark.parametrize("path", ["/", "/livez", "/readyz", "/healthz/other", "/debug/pprof/"])
def test_metrics_server_has_no_other_pages(path: str) -> None:
    """Without profiling the debug pages are not there."""
    assert _metrics_pages().respond(Request(path=path)).status == 404


def test_proxy_mode_and_ping_have_no_line_feed() -> None:
    """Scripts compare the whole body."""
    pages = _metrics_pages()

    assert b"iptables" == pages.respond(Request(path="/proxyMode")).body
    assert b"ok" == pages.respond(Request(path="/healthz")).body


def test_pings_are_counted_as_service_levels() -> None:
    """Each question for /healthz is one check."""
    pages = _metrics_pages()
    pages.respond(Request(path="/healthz"))
    pages.respond(Request(path="/healthz/ping"))

    assert b'status="success",type="healthz"} 2.0\n' in pages.respond(Request(path="/metrics/slis")).body


def test_configz_is_the_effective_configuration() -> None:
    """The whole document with kind and version, node port addresses as they were given."""
    pages = _metrics_pages(Config(hostname_override="n1", node_port_addresses=("primary",)))
    document = json.loads(pages.respond(Request(path="/configz")).body)["kubeproxy.config.k8s.io"]

    assert ("KubeProxyConfiguration", "kubeproxy.config.k8s.io/v1alpha1") == (document["kind"], document["apiVersion"])
    assert ("n1", ["primary"]) == (document["hostnameOverride"], document["nodePortAddresses"])


def test_flags_and_uptime_are_shown_to_people() -> None:
    """Flags sorted by name; time since the start."""
    pages = _metrics_pages()

    assert b"\n\nhostname-override=n1\nv=2\n" in pages.respond(Request(path="/flagz")).body
    assert b"\nUp: 1 hr 02 min 05 sec\n" in pages.respond(Request(path="/statusz")).body


def test_feature_gates_turn_the_pages_for_people_off() -> None:
    """ComponentFlagz and ComponentStatusz, as in kube-proxy."""
    pages = _metrics_pages(Config(feature_gates={"ComponentFlagz": False, "ComponentStatusz": False}))

    assert (404, 404) == tuple(pages.respond(Request(path=path)).status for path in ("/flagz", "/statusz"))


def test_profiling_shows_command_line_and_stacks() -> None:
    """Every thread and every task is named, this one too."""
    pages = _metrics_pages(Config(enable_profiling=True))

    assert b"kproxy-ipt\0run" == ask(pages.respond, "/debug/pprof/cmdline").body
    assert b"in _stacks" in ask(pages.respond, "/debug/pprof/goroutine").body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"])
@pytest.mark.parametrize("path", ["/healthz", "/metrics", "/debug/flags/v", "/nowhere"])
def test_only_reading_is_allowed(method: str, path: str) -> None:
    """Whatever the page, there or not: 405 before anybody looks at it, and nothing is counted or set."""
    verbosities: list[int] = []
    pages = _metrics_pages(Config(enable_profiling=True), verbosities)
    for respond in (pages.respond, _health_pages().respond):
        answer = ask(respond, path, method=method, body=b"4")

        assert answer.status == 405
        assert answer.headers["allow"] == "GET, HEAD"
    assert verbosities == []


def test_scrape_does_not_wait_for_a_sync() -> None:
    """Metrics and health are answered while the kernel thread is busy."""
    release = threading.Event()

    async def _scrape() -> tuple[int, int, bool]:
        kernel = KernelThread(None, "kernel")
        sync = asyncio.create_task(kernel.call(release.wait))
        async with serving(_metrics_pages().respond) as metrics, serving(_health_pages().respond) as health:
            first = await probe_from_loop("127.0.0.1", metrics, "/metrics")
            second = await probe_from_loop("127.0.0.1", health, "/healthz")
            was_running = not sync.done()
            release.set()
            await sync
        kernel.close()
        return first.status, second.status, was_running

    assert (200, 200, True) == asyncio.run(_scrape())
