"""Health check node ports: real listeners, asked as a balancer asks them."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.health_ports import HealthPortProblem, HealthPorts, WantedPorts, listen_addresses, settle
from kproxy_ipt.daemon.log import SilentLog
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.selection.node_ports import node_port_entry
from kproxy_ipt.state.health_counts import ServiceName
from kproxy_ipt.testing.namespaces import temporary_namespace
from kproxy_ipt.testing.probe import Probed, probe, probe_from_loop
from kproxy_ipt.testing.sockets import reserved_port

WEB, API = ("shop", "web"), ("shop", "api")
V4, V6 = Family.IPV4, Family.IPV6

FreePorts = Callable[[int], list[int]]


class Node1:
    """The health check node ports of a node on the loopback address, and what was reported."""

    def __init__(self, netns: str | None = None) -> None:
        self.healthy = True
        self.reported: list[HealthPortProblem] = []
        self.pauses: asyncio.Queue[float] = asyncio.Queue()
        self.retry = asyncio.Semaphore(0)
        self.ports = HealthPorts(
            lambda: self.healthy,
            node_name="n1",
            netns=netns,
            report=self.reported.append,
            log=SilentLog(),
            pause=self._pause,
        )

    async def _pause(self, seconds: float) -> None:
        self.pauses.put_nowait(seconds)
        await self.retry.acquire()

    async def want(self, services: Mapping[ServiceName, int], *addresses: str, family: Family = V4) -> None:
        """Say which ports there should be."""
        wanted = WantedPorts(services=services, addresses=addresses or ("127.0.0.1",))
        await self.ports.update_ports(family, wanted)


def _run(test: Callable[[Node1], Awaitable[None]]) -> None:
    async def _run() -> None:
        here = Node1()
        try:
            await test(here)
        finally:
            await here.ports.close()

    asyncio.run(_run())


@pytest.fixture
def free_ports() -> Iterator[FreePorts]:
    """Ports that the system gives to nobody else while the test runs."""
    with ExitStack() as stack:
        yield lambda count: [stack.enter_context(reserved_port()).getsockname()[1] for _ in range(count)]


async def _ask(port: int, path: str = "/") -> Probed:
    return await probe_from_loop("127.0.0.1", port, path)


async def _weight(port: int) -> tuple[int, str]:
    answer = await _ask(port)
    return answer.status, answer.headers["x-load-balancing-endpoint-weight"]


def test_answer_is_that_of_kube_proxy(free_ports: FreePorts) -> None:
    """Body indented by tabs without a line feed at the end, headers, any path."""
    (port,) = free_ports(1)

    async def _test(here: Node1) -> None:
        await here.want({WEB: port})
        here.ports.update_counts(V4, {WEB: 2})
        answer = await _ask(port, "/any/path?x=1")
        expected = (
            b'{\n\t"service": {\n\t\t"namespace": "shop",\n\t\t"name": "web"\n\t},\n\t"localEndpoints": 2,\n'
            b'\t"serviceProxyHealthy": true\n}'
        )
        headers = {name: answer.headers[name] for name in ("content-type", "x-content-type-options")}

        assert (200, expected) == (answer.status, answer.body)
        assert {"content-type": "application/json", "x-content-type-options": "nosniff"} == headers
        assert answer.headers["x-load-balancing-endpoint-weight"] == "2"

    _run(_test)


def test_status_follows_the_number_of_local_endpoints(free_ports: FreePorts) -> None:
    """503 without, 200 with, 503 again, also when the Service is missing from the counts."""
    (port,) = free_ports(1)

    async def _test(here: Node1) -> None:
        await here.want({WEB: port})
        answers = [await _weight(port)]
        for counts in ({WEB: 18}, {WEB: 0}, {WEB: 3, API: 9}, {API: 9}):
            here.ports.update_counts(V4, counts)
            answers.append(await _weight(port))

        assert [(503, "0"), (200, "18"), (503, "0"), (200, "3"), (503, "0")] == answers

    _run(_test)


def test_unhealthy_proxy_says_503_with_the_true_count(free_ports: FreePorts) -> None:
    """The balancer learns both; a healthy proxy says 200 again."""
    (port,) = free_ports(1)

    async def _test(here: Node1) -> None:
        await here.want({WEB: port})
        here.ports.update_counts(V4, {WEB: 5})
        here.healthy = False
        sick = await _ask(port)
        here.healthy = True

        assert (503, "5") == (sick.status, sick.headers["x-load-balancing-endpoint-weight"])
        assert b'"localEndpoints": 5,\n\t"serviceProxyHealthy": false' in sick.body
        assert await _weight(port) == (200, "5")

    _run(_test)


def test_removed_service_closes_its_port_and_its_connections(free_ports: FreePorts) -> None:
    """New connections are refused, a kept one ends."""
    (port,) = free_ports(1)

    async def _test(here: Node1) -> None:
        await here.want({WEB: port})
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        await reader.readuntil(b"true\n}")
        await here.want({})
        rest = await reader.read()
        writer.close()
        await writer.wait_closed()

        assert rest == b""
        with pytest.raises(ConnectionRefusedError):
            await _ask(port)

    _run(_test)


def test_changed_port_is_reopened_and_counts_nothing_until_told(free_ports: FreePorts) -> None:
    """The old port refuses; the new one says 503 until counts come."""
    old, new = free_ports(2)

    async def _test(here: Node1) -> None:
        await here.ports.update(V4, WantedPorts(services={WEB: old}, addresses=("127.0.0.1",)), {WEB: 4})
        await here.want({WEB: new})
        answers = [await _weight(new)]
        here.ports.update_counts(V4, {WEB: 4})

        assert [(503, "0"), (200, "4")] == [*answers, await _weight(new)]
        with pytest.raises(ConnectionRefusedError):
            await _ask(old)

    _run(_test)


def test_ports_that_stay_keep_their_listener_and_count(free_ports: FreePorts) -> None:
    """A change of one Service does not touch the port of another."""
    first, second = free_ports(2)

    async def _test(here: Node1) -> None:
        await here.want({WEB: first})
        here.ports.update_counts(V4, {WEB: 4})
        await here.want({WEB: first, API: second})

        assert [(200, "4"), (503, "0")] == [await _weight(first), await _weight(second)]
        assert {WEB: first, API: second} == here.ports.open_ports(V4)

    _run(_test)


def test_counts_that_fall_can_be_told_before_rules_change(free_ports: FreePorts) -> None:
    """Lower ones are taken over at once, higher ones wait for the sync."""
    first, second = free_ports(2)

    async def _test(here: Node1) -> None:
        await here.want({WEB: first, API: second})
        here.ports.update_counts(V4, {WEB: 2, API: 2})
        here.ports.lower(V4, {WEB: 0, API: 5})

        assert [(503, "0"), (200, "2")] == [await _weight(first), await _weight(second)]

    _run(_test)


def test_taken_port_is_reported_once_and_tried_again_every_five_seconds(free_ports: FreePorts) -> None:
    """The other Services work meanwhile; the port opens when it is free."""
    port, other = free_ports(2)

    async def _test(here: Node1) -> None:
        with socket.create_server(("127.0.0.1", port)):
            await here.want({WEB: port, API: other})
            await here.want({WEB: port, API: other})
            messages = [problem.message for problem in here.reported]
            pause_s = await here.pauses.get()
            assert await _weight(other) == (503, "0")
        here.retry.release()
        async with asyncio.timeout(5):
            while here.ports.problems(V4):
                await asyncio.sleep(0)

        reason = f"listen tcp 127.0.0.1:{port}: address already in use"
        assert [f'node n1 failed to start healthcheck "shop/web" on port {port}: {reason}'] == messages
        assert (5.0, (503, "0")) == (pause_s, await _weight(port))

    _run(_test)


def test_one_address_that_fails_leaves_no_other_open(free_ports: FreePorts) -> None:
    """All addresses or none, so that a balancer sees one state."""
    (port,) = free_ports(1)

    async def _test(here: Node1) -> None:
        await here.want({WEB: port}, "127.0.0.1", "192.0.2.77")

        assert [WEB] == [problem.service for problem in here.ports.problems(V4)]
        with pytest.raises(ConnectionRefusedError):
            await _ask(port)

    _run(_test)


def test_changed_addresses_open_the_port_anew(free_ports: FreePorts) -> None:
    """Interfaces come and go while the daemon runs."""
    (port,) = free_ports(1)

    async def _test(here: Node1) -> None:
        await here.want({WEB: port}, "127.0.0.1")
        await here.want({WEB: port}, "127.0.0.2")
        answer = await probe_from_loop("127.0.0.2", port)

        assert answer.status == 503
        with pytest.raises(ConnectionRefusedError):
            await _ask(port)

    _run(_test)


@pytest.mark.parametrize("services", [{WEB: 30073, API: 30073}, {API: 30073, WEB: 30073}])
def test_first_service_by_name_wins_a_port_that_two_claim(services: dict[ServiceName, int]) -> None:
    """The same winner in any order; the loser's problem names the winner and the port."""
    winners, problems = settle(WantedPorts(services=services, addresses=()), "n1")
    reason = "it is the health check node port of Service shop/api"

    assert {API: 30073} == winners
    assert {WEB} == set(problems)
    assert problems[WEB].message == f'node n1 failed to start healthcheck "shop/web" on port 30073: {reason}'


def test_node_port_of_another_service_wins_over_a_health_check() -> None:
    """Its rules take all traffic to that port, so a listener would never be reached; others are served."""
    wanted = WantedPorts(services={API: 30073, WEB: 30074}, node_ports={30073: ("zoo", "b")}, addresses=())
    winners, problems = settle(wanted, "n1")

    assert {WEB: 30074} == winners
    assert problems[API].message.endswith('"shop/api" on port 30073: it is the node port of Service zoo/b')


def test_conflict_of_both_families_is_reported_once_and_ends_with_its_cause(free_ports: FreePorts) -> None:
    """The winner leaves, the loser takes the port at the next update."""
    (port,) = free_ports(1)

    async def _test(here: Node1) -> None:
        for family in Family:
            await here.want({API: port, WEB: port}, "127.0.0.1" if family is V4 else "127.0.0.2", family=family)
        await here.want({WEB: port})

        assert [WEB] == [problem.service for problem in here.reported]
        assert here.ports.problems(V4) == ()
        assert b'"name": "web"' in (await _ask(port)).body

    _run(_test)


@pytest.mark.parametrize(
    ("prefixes", "family", "expected"),
    [
        ((), V4, ("0.0.0.0",)),
        ((), V6, ("::",)),
        (("0.0.0.0/0",), V4, ("0.0.0.0",)),
        (("192.0.2.0/24",), V4, ("192.0.2.10", "192.0.2.11")),
        (("192.0.2.0/24",), V6, ("::",)),
        (("127.0.0.0/8",), V4, ("127.0.0.1",)),
        (("2001:db8::/64",), V6, ("2001:db8::10",)),
        (("198.51.100.0/24",), V4, ()),
    ],
)
def test_addresses_are_those_of_node_ports(
    prefixes: tuple[str, ...], family: Family, expected: tuple[str, ...]
) -> None:
    """Everything, or what matches; nothing matches: no listener and no error."""
    addresses = ("127.0.0.1", "192.0.2.11", "192.0.2.10", "2001:db8::10", "::1")
    entry = node_port_entry(prefixes, addresses, family, localhost_wanted=False)

    assert expected == listen_addresses(entry, family)


@pytest.mark.kernel
def test_families_share_a_number_and_answer_with_their_own_count() -> None:
    """In the namespace of the node: 200 on IPv4, 503 on IPv6."""

    def ask(netns: str, host: str) -> int:
        with inside(netns):
            return probe(host, 30000).status

    async def _serve() -> list[int]:
        with temporary_namespace("ports") as netns:
            here = Node1(netns)
            for family, address, count in ((V4, "0.0.0.0", 1), (V6, "::", 0)):
                await here.ports.update(family, WantedPorts(services={WEB: 30000}, addresses=(address,)), {WEB: count})
            answers = [await asyncio.to_thread(ask, netns, host) for host in ("127.0.0.1", "::1")]
            await here.ports.close()
            return answers

    assert [200, 503] == asyncio.run(_serve())


@pytest.mark.kernel
def test_ports_move_back_and_forth_without_being_in_use() -> None:
    """Twenty rounds of changing the port, deleting and creating the Service, with connections in between."""

    def ask(netns: str, port: int) -> bytes:
        with inside(netns):
            return probe("127.0.0.1", port).body

    async def _rounds(here: Node1, netns: str) -> None:
        for count in range(20):
            for services in ({WEB: 32000}, {WEB: 32001}, {API: 32000}, {API: 32001}, {}):
                wanted = WantedPorts(services=services, addresses=("0.0.0.0",))
                await here.ports.update(V4, wanted, dict.fromkeys(services, count))
                for (_, name), port in services.items():
                    body = await asyncio.to_thread(ask, netns, port)
                    assert f'"name": "{name}"\n\t}},\n\t"localEndpoints": {count},'.encode() in body
        with pytest.raises(ConnectionRefusedError):
            await asyncio.to_thread(ask, netns, 32000)
        await here.ports.close()

    with temporary_namespace("ports") as netns:
        here = Node1(netns)
        asyncio.run(_rounds(here, netns))

    assert here.reported == []
