"""The health and metrics servers over real connections, and the pages of the metrics server."""

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config
from kproxy_ipt.daemon.answers import Answer, Request, Responder, text_answer
from kproxy_ipt.daemon.health import ProxyHealth
from kproxy_ipt.daemon.health_pages import HealthPages
from kproxy_ipt.daemon.http import Server, Servers
from kproxy_ipt.daemon.kernel_thread import KernelThread
from kproxy_ipt.daemon.log import SilentLog
from kproxy_ipt.daemon.metrics import Metrics
from kproxy_ipt.daemon.metrics_pages import MetricsPages, Process
from kproxy_ipt.errors import ListenError
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.testing.clock import ManualClock
from kproxy_ipt.testing.namespaces import temporary_namespace
from kproxy_ipt.testing.objects import node
from kproxy_ipt.testing.probe import Probed, probe, probe_from_loop

TEXT = "text/plain; charset=utf-8"


class Turnstile:
    """A pause that lasts until the test ends it; remembers the lengths that were asked for."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self._open = asyncio.Semaphore(0)
        self._arrived = asyncio.Semaphore(0)

    async def pause(self, seconds: float) -> None:
        """Wait for the test."""
        self.asked.append(seconds)
        self._arrived.release()
        await self._open.acquire()

    async def arrival(self) -> None:
        """Wait until a pause begins."""
        await self._arrived.acquire()

    def let_one_pass(self) -> None:
        """End one pause."""
        self._open.release()


def _ok(_request: Request) -> Answer:
    return text_answer("fine")


@asynccontextmanager
async def _serving(respond: Responder, address: str = "127.0.0.1:0", netns: str | None = None) -> AsyncIterator[int]:
    """A server; its port."""
    servers = Servers([Server("test", address, respond)], netns=netns, hard_fail=True, log=SilentLog())
    await servers.start()
    try:
        yield servers.port("test") or 0
    finally:
        await servers.close()


def _ask(respond: Responder, path: str, *, method: str = "GET", body: bytes | None = None) -> Probed:
    """One answer of a server that lives for one question."""

    async def _once() -> Probed:
        async with _serving(respond) as port:
            return await probe_from_loop("127.0.0.1", port, path, method=method, body=body)

    return asyncio.run(_once())


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
    answer = _ask(_health_pages().respond, path, method=method)

    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert int(answer.headers["content-length"]) > 0
    assert answer.body == b"" if method == "HEAD" else answer.body.startswith(b'{"lastUpdated":"2023-')
    assert b"\n" not in answer.body


@pytest.mark.parametrize("path", ["/", "/metrics", "/readyz", "/healthz/ping"])
def test_health_server_knows_no_other_page(path: str) -> None:
    """Only /healthz and /livez are there."""
    assert _ask(_health_pages().respond, path).status == 404


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
    answer = _ask(_metrics_pages().respond, path)

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

    assert b"kproxy-ipt\0run" == _ask(pages.respond, "/debug/pprof/cmdline").body
    assert b"in _stacks" in _ask(pages.respond, "/debug/pprof/goroutine").body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"])
@pytest.mark.parametrize("path", ["/healthz", "/metrics", "/debug/flags/v", "/nowhere"])
def test_only_reading_is_allowed(method: str, path: str) -> None:
    """Whatever the page, there or not: 405 before anybody looks at it, and nothing is counted or set."""
    verbosities: list[int] = []
    pages = _metrics_pages(Config(enable_profiling=True), verbosities)
    for respond in (pages.respond, _health_pages().respond):
        answer = _ask(respond, path, method=method, body=b"4")

        assert answer.status == 405
        assert answer.headers["allow"] == "GET, HEAD"
    assert verbosities == []


def test_scrape_does_not_wait_for_a_sync() -> None:
    """Metrics and health are answered while the kernel thread is busy."""
    release = threading.Event()

    async def _scrape() -> tuple[int, int, bool]:
        kernel = KernelThread(None, "kernel")
        sync = asyncio.create_task(kernel.call(release.wait))
        async with _serving(_metrics_pages().respond) as metrics, _serving(_health_pages().respond) as health:
            first = await probe_from_loop("127.0.0.1", metrics, "/metrics")
            second = await probe_from_loop("127.0.0.1", health, "/healthz")
            was_running = not sync.done()
            release.set()
            await sync
        kernel.close()
        return first.status, second.status, was_running

    assert (200, 200, True) == asyncio.run(_scrape())


def test_page_that_fails_is_an_answer_too() -> None:
    """An error of ours gives 500, and the next question is answered."""

    def respond(request: Request) -> Answer:
        return text_answer(request.query["name"])

    async def _ask() -> list[int]:
        async with _serving(respond) as port:
            return [(await probe_from_loop("127.0.0.1", port, path)).status for path in ("/", "/?name=x&name=y")]

    assert [500, 200] == asyncio.run(_ask())


def test_nonsense_is_refused_without_a_word_in_the_log(capfd: pytest.CaptureFixture[str]) -> None:
    """Whoever scans ports must not fill the log."""

    async def _ask() -> bytes:
        async with _serving(_ok) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"\x16\x03\x01 nonsense\r\n\r\n")
            answer = await reader.read()
            writer.close()
            await writer.wait_closed()
            return answer

    assert asyncio.run(_ask()).startswith(b"HTTP/1.0 400")
    assert capfd.readouterr().err == ""


def test_server_without_an_address_is_not_opened() -> None:
    """A health server that is turned off is no error."""

    async def _start() -> int | None:
        servers = Servers([Server("healthz", "", _ok)], netns=None, hard_fail=True, log=SilentLog())
        await servers.start()
        port = servers.port("healthz")
        await servers.close()
        return port

    assert asyncio.run(_start()) is None


def test_address_that_is_none_is_told() -> None:
    """It is no reason to end, unless the configuration says so."""
    nonsense = Server("metrics", "here", _ok)

    async def _start(*, hard_fail: bool) -> int | None:
        servers = Servers([nonsense], netns=None, hard_fail=hard_fail, log=SilentLog(), pause=Turnstile().pause)
        await servers.start()
        port = servers.port("metrics")
        await servers.close()
        return port

    with pytest.raises(ListenError, match="here is no address with a port"):
        asyncio.run(_start(hard_fail=True))
    assert asyncio.run(_start(hard_fail=False)) is None


def test_taken_port_is_tried_again_every_five_seconds() -> None:
    """The server opens as soon as the port is free."""

    async def _start(taken: socket.socket) -> tuple[int | None, list[float], bytes]:
        port, turnstile = taken.getsockname()[1], Turnstile()
        server = Server("metrics", f"127.0.0.1:{port}", _ok)
        servers = Servers([server], netns=None, hard_fail=False, log=SilentLog(), pause=turnstile.pause)
        await servers.start()
        await turnstile.arrival()
        turnstile.let_one_pass()
        await turnstile.arrival()
        refused = servers.port("metrics")
        taken.close()
        turnstile.let_one_pass()
        async with asyncio.timeout(5):
            while servers.port("metrics") is None:
                await asyncio.sleep(0)
        answer = await probe_from_loop("127.0.0.1", port)
        await servers.close()
        return refused, turnstile.asked, answer.body

    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert (None, [5.0, 5.0], b"fine") == asyncio.run(_start(taken))


def test_hard_fail_makes_a_taken_port_an_error_and_closes_the_others() -> None:
    """The message names the address; no port stays open."""

    async def _start(taken: int) -> int | None:
        servers = Servers(
            [Server("healthz", "127.0.0.1:0", _ok), Server("metrics", f"127.0.0.1:{taken}", _ok)],
            netns=None,
            hard_fail=True,
            log=SilentLog(),
        )
        with pytest.raises(ListenError, match=f"listen tcp 127.0.0.1:{taken}: address already in use"):
            await servers.start()
        return servers.port("healthz")

    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert asyncio.run(_start(taken.getsockname()[1])) is None


def test_closing_ends_the_attempts_to_open() -> None:
    """A daemon that stops does not wait for a port."""

    async def _stop(taken: int) -> int:
        server = Server("metrics", f"127.0.0.1:{taken}", _ok)
        servers = Servers([server], netns=None, hard_fail=False, log=SilentLog(), pause=Turnstile().pause)
        await servers.start()
        await servers.close()
        return len(asyncio.all_tasks())

    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert asyncio.run(_stop(taken.getsockname()[1])) == 1


def test_closed_port_refuses_and_can_be_opened_again_at_once() -> None:
    """Connections that are still open do not keep the port."""

    async def _reopen() -> tuple[bytes, bytes]:
        async with _serving(_ok) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            await reader.readuntil(b"fine")
        with pytest.raises(ConnectionRefusedError):
            await probe_from_loop("127.0.0.1", port)
        async with _serving(_ok, f"127.0.0.1:{port}"):
            answer = await probe_from_loop("127.0.0.1", port)
        rest = await reader.read()
        writer.close()
        await writer.wait_closed()
        return rest, answer.body

    assert (b"", b"fine") == asyncio.run(_reopen())


@pytest.mark.kernel
@pytest.mark.parametrize("address", ["0.0.0.0:10256", "[::]:10256"])
def test_wildcard_address_answers_both_families_in_the_namespace(address: str) -> None:
    """One socket in the target namespace; the namespace of the process is left alone."""

    def ask(netns: str, host: str) -> bytes:
        with inside(netns):
            return probe(host, 10256).body

    async def _serve() -> list[bytes]:
        with temporary_namespace("http") as netns, temporary_namespace("http") as other:
            async with _serving(_ok, address, netns):
                with pytest.raises(ConnectionRefusedError):
                    await asyncio.to_thread(ask, other, "127.0.0.1")
                return [await asyncio.to_thread(ask, netns, host) for host in ("127.0.0.1", "::1")]

    assert [b"fine", b"fine"] == asyncio.run(_serve())


def test_missing_namespace_is_a_reason_not_to_listen() -> None:
    """It may come later, so it is treated like a taken port."""

    async def _start() -> None:
        async with _serving(_ok, netns="kpt-nowhere"):
            pass

    with pytest.raises(ListenError, match="there is no network namespace kpt-nowhere"):
        asyncio.run(_start())


def test_page_is_made_after_what_has_to_be_waited_for() -> None:
    """Each request names its path to whoever prepares; the answer is that of the moment after it."""
    prepared: list[str] = []

    async def prepare(path: str) -> None:
        await asyncio.sleep(0)
        prepared.append(path)

    async def run() -> Probed:
        server = Server("test", "127.0.0.1:0", lambda _: text_answer(str(prepared)), prepare)
        servers = Servers([server], netns=None, hard_fail=True, log=SilentLog())
        await servers.start()
        try:
            return await probe_from_loop("127.0.0.1", servers.port("test") or 0, "/metrics")
        finally:
            await servers.close()

    assert b"['/metrics']" == asyncio.run(run()).body
