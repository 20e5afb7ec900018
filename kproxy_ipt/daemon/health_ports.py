"""
Health check node ports: one small HTTP server for each Service with `externalTrafficPolicy: Local` and such a port.

A balancer asks each node there whether to send it traffic of that Service: 200 while the node has ready endpoints of
its own and the proxy is healthy, 503 otherwise. Each family listens for itself and answers with its own count. The
node's eligibility plays no part: a node that drains still finishes what it has.

As kube-proxy 1.36, with these differences:

- A count that falls can be told before rules change (`lower`), so that the answer turns negative no later than the
  rules do; counts that rise are told afterwards.
- A port that two Services claim has one winner, the same on every node: a node port of another Service, since its rules
  take all traffic to that port; else the first by namespace and name. The loser is reported and gets no listener.
- A port that cannot be opened is tried again every 5 seconds, not only at the next sync.
- The addresses may change while the daemon runs; ports are then opened anew.
- It works without the health server too.

Everything happens on the event loop.
"""

import asyncio
import json
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.answers import JSON, Answer, Request
from kproxy_ipt.daemon.http import RETRY_S, HttpListener, Pause
from kproxy_ipt.daemon.listen import listen_on
from kproxy_ipt.daemon.log import Log
from kproxy_ipt.errors import ListenError
from kproxy_ipt.selection.node_ports import NodePortEntry
from kproxy_ipt.state.health_counts import ServiceName


class HealthPortProblem(msgspec.Struct, frozen=True):
    """A Service whose health check node port is not served; *message* is for its Kubernetes event."""

    service: ServiceName
    port: int
    message: str


class WantedPorts(msgspec.Struct, frozen=True, kw_only=True):
    """
    The health check node ports of one family.

    Attributes:
        services: The port of each Service.
        node_ports: The owner of each TCP node port.
        addresses: To listen on, of that family; a wildcard means all.
    """

    services: Mapping[ServiceName, int]
    node_ports: Mapping[int, ServiceName] = msgspec.field(default_factory=dict)
    addresses: tuple[str, ...]


def listen_addresses(entry: NodePortEntry, family: Family) -> tuple[str, ...]:
    """The addresses of *family* on which node ports answer, loopback ones too; none where none matches."""
    if entry.all_addresses:
        return ("0.0.0.0",) if family is Family.IPV4 else ("::",)
    return tuple(sorted((*entry.addresses, *entry.skipped_loopback)))


class HealthPorts:
    """
    Opens, closes and answers.

    Args:
        is_healthy: Whether the rules of all families are up to date.
        node_name: For messages.
        netns: Name or path of the network namespace, None: where we are.
        report: Told once about each new problem, for an event `FailedToStartServiceHealthcheck` on the Service.
        log: Gets a line for each port that is opened, closed or refused.
        pause: Waits some seconds.
    """

    def __init__(
        self,
        is_healthy: Callable[[], bool],
        *,
        node_name: str,
        netns: str | None,
        report: Callable[[HealthPortProblem], None],
        log: Log,
        pause: Pause = asyncio.sleep,
    ) -> None:
        self._is_healthy = is_healthy
        self._node_name = node_name
        self._netns = netns
        self._report = report
        self._log = log
        self._pause = pause
        self._wanted: dict[Family, WantedPorts] = {}
        self._open: dict[Family, dict[ServiceName, _OpenPort]] = {}
        self._problems: dict[Family, dict[ServiceName, HealthPortProblem]] = {}
        self._busy = asyncio.Lock()
        self._retry: asyncio.Task[None] | None = None

    async def update(self, family: Family, wanted: WantedPorts, counts: Mapping[ServiceName, int]) -> None:
        """After a successful sync of *family*: first the ports, then the counts."""
        await self.update_ports(family, wanted)
        self.update_counts(family, counts)

    async def update_ports(self, family: Family, wanted: WantedPorts) -> None:
        """
        Close what is no longer wanted, then open what is missing; a new port counts 0 endpoints.

        Nothing is raised: a port that cannot be opened is a problem that is reported and tried again.
        """
        async with self._busy:
            self._wanted[family] = wanted
            await self._apply(family)
        self._retry_while_needed()

    def update_counts(self, family: Family, counts: Mapping[ServiceName, int]) -> None:
        """Local and ready endpoints of each Service; one that is missing has 0, one without a port is ignored."""
        for service, port in self._open.get(family, {}).items():
            port.count = counts.get(service, 0)

    def lower(self, family: Family, counts: Mapping[ServiceName, int]) -> None:
        """Before rules change: take over those counts that are lower than what is being answered."""
        for service, port in self._open.get(family, {}).items():
            port.count = min(port.count, counts.get(service, 0))

    def problems(self, family: Family) -> tuple[HealthPortProblem, ...]:
        """The ports of *family* that should be served and are not, sorted by Service."""
        return tuple(problem for _, problem in sorted(self._problems.get(family, {}).items()))

    def open_ports(self, family: Family) -> Mapping[ServiceName, int]:
        """The ports of *family* that are served."""
        return {service: port.number for service, port in self._open.get(family, {}).items()}

    async def close(self) -> None:
        """Close all ports and give up trying; afterwards the ports are free."""
        async with self._busy:
            if self._retry is not None:
                self._retry.cancel()
                await asyncio.gather(self._retry, return_exceptions=True)
                self._retry = None
            for opened in self._open.values():
                await _close_all(opened.values())
            self._open.clear()
            self._wanted.clear()
            self._problems.clear()

    async def _apply(self, family: Family) -> None:
        wanted = self._wanted[family]
        winners, problems = settle(wanted, self._node_name)
        opened = self._open.setdefault(family, {})
        await self._close_unwanted(opened, winners, wanted.addresses)
        for service, number in winners.items():
            if service in opened:
                continue
            port = _OpenPort(service, number, wanted.addresses, self._is_healthy, self._log)
            opened[service] = port
            try:
                await port.open(self._netns)
            except ListenError as error:
                del opened[service]
                problems[service] = _problem(self._node_name, service, number, str(error))
            else:
                self._log.info("health check node port opened", service="/".join(service), port=number)
        self._tell(family, problems)

    async def _close_unwanted(
        self, opened: "dict[ServiceName, _OpenPort]", winners: Mapping[ServiceName, int], addresses: tuple[str, ...]
    ) -> None:
        gone = [
            port
            for service, port in opened.items()
            if winners.get(service) != port.number or port.addresses != addresses
        ]
        for port in gone:
            del opened[port.service]
            self._log.info("health check node port closed", service="/".join(port.service), port=port.number)
        await _close_all(gone)

    def _tell(self, family: Family, problems: dict[ServiceName, HealthPortProblem]) -> None:
        """Report what no family had before."""
        known = {problem for found in self._problems.values() for problem in found.values()}
        self._problems[family] = problems
        for problem in problems.values():
            if problem not in known:
                self._log.warning("health check node port not served", problem=problem.message)
                self._report(problem)

    def _retry_while_needed(self) -> None:
        is_running = self._retry is not None and not self._retry.done()
        if any(self._problems.values()) and not is_running:
            self._retry = asyncio.create_task(self._keep_trying())

    async def _keep_trying(self) -> None:
        while any(self._problems.values()):
            await self._pause(RETRY_S)
            async with self._busy:
                for family in [family for family, problems in self._problems.items() if problems]:
                    await self._apply(family)


def settle(wanted: WantedPorts, node_name: str) -> tuple[dict[ServiceName, int], dict[ServiceName, HealthPortProblem]]:
    """The Services that get their port, sorted by namespace and name, and those that lose it to another Service."""
    winners: dict[ServiceName, int] = {}
    problems: dict[ServiceName, HealthPortProblem] = {}
    owners: dict[int, ServiceName] = {}
    for service, port in sorted(wanted.services.items()):
        node_port_owner = wanted.node_ports.get(port)
        owner = owners.setdefault(port, service) if node_port_owner is None else node_port_owner
        if node_port_owner is None and owner == service:
            winners[service] = port
            continue
        what = "health check node port" if node_port_owner is None else "node port"
        problems[service] = _problem(node_name, service, port, f"it is the {what} of Service {'/'.join(owner)}")
    return winners, problems


def _problem(node_name: str, service: ServiceName, port: int, reason: str) -> HealthPortProblem:
    message = f'node {node_name} failed to start healthcheck "{"/".join(service)}" on port {port}: {reason}'
    return HealthPortProblem(service, port, message)


class _OpenPort:
    """The listener of one Service in one family."""

    def __init__(
        self,
        service: ServiceName,
        number: int,
        addresses: tuple[str, ...],
        is_healthy: Callable[[], bool],
        log: Log,
    ) -> None:
        self.number = number
        self.addresses = addresses
        self.count = 0
        self.service = service
        self._is_healthy = is_healthy
        self._listener = HttpListener(self._respond, log)

    async def open(self, netns: str | None) -> None:
        """
        Listen on all addresses, or on none.

        Raises:
            ListenError: One of them cannot be listened on.
        """
        with ExitStack() as stack:
            sockets = [
                stack.enter_context(listen_on(address, self.number, netns=netns, dual_stack=False))
                for address in self.addresses
            ]
            stack.pop_all()
        await self._listener.open(sockets)

    def stop_listening(self) -> None:
        """Close sockets: from now on the port is free."""
        self._listener.stop_listening()

    async def close(self) -> None:
        """Close sockets and connections."""
        await self._listener.close()

    def _respond(self, _request: Request) -> Answer:
        is_healthy = self._is_healthy()
        namespace, name = self.service
        return Answer(
            status=200 if self.count and is_healthy else 503,
            body=health_check_body(namespace, name, self.count, is_healthy=is_healthy),
            content_type=JSON,
            headers={"X-Load-Balancing-Endpoint-Weight": str(self.count)},
        )


async def _close_all(ports: Collection[_OpenPort]) -> None:
    for port in ports:
        port.stop_listening()
    await asyncio.gather(*(port.close() for port in ports))


def health_check_body(namespace: str, name: str, count: int, *, is_healthy: bool) -> bytes:
    """The answer of a health check node port as kube-proxy writes it: indented by tabs, no line feed at the end."""
    document = {
        "service": {"namespace": namespace, "name": name},
        "localEndpoints": count,
        "serviceProxyHealthy": is_healthy,
    }
    return json.dumps(document, indent="\t").encode()
