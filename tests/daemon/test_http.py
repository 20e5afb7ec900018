"""Servers over real connections: opening, answering, closing."""

import asyncio
import socket

import pytest

from kproxy_ipt.daemon.answers import Answer, Request, text_answer
from kproxy_ipt.daemon.http import Server, Servers
from kproxy_ipt.daemon.log import SilentLog
from kproxy_ipt.errors import ListenError
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.testing.namespaces import temporary_namespace
from kproxy_ipt.testing.page_server import serving
from kproxy_ipt.testing.probe import Probed, probe, probe_from_loop


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


def test_page_that_fails_is_an_answer_too() -> None:
    """An error of ours gives 500, and the next question is answered."""

    def respond(request: Request) -> Answer:
        return text_answer(request.query["name"])

    async def _ask() -> list[int]:
        async with serving(respond) as port:
            return [(await probe_from_loop("127.0.0.1", port, path)).status for path in ("/", "/?name=x&name=y")]

    assert [500, 200] == asyncio.run(_ask())


def test_nonsense_is_refused_without_a_word_in_the_log(capfd: pytest.CaptureFixture[str]) -> None:
    """Whoever scans ports must not fill the log."""

    async def _ask() -> bytes:
        async with serving(_ok) as port:
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
        async with serving(_ok) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            await reader.readuntil(b"fine")
        with pytest.raises(ConnectionRefusedError):
            await probe_from_loop("127.0.0.1", port)
        async with serving(_ok, f"127.0.0.1:{port}"):
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
            async with serving(_ok, address, netns):
                with pytest.raises(ConnectionRefusedError):
                    await asyncio.to_thread(ask, other, "127.0.0.1")
                return [await asyncio.to_thread(ask, netns, host) for host in ("127.0.0.1", "::1")]

    assert [b"fine", b"fine"] == asyncio.run(_serve())


def test_missing_namespace_is_a_reason_not_to_listen() -> None:
    """It may come later, so it is treated like a taken port."""

    async def _start() -> None:
        async with serving(_ok, netns="kpt-nowhere"):
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
