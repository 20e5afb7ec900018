"""
All Services as rows of a table: found by words, by state, and cut into pages.

A row is a function of the Service and what it means; it is computed anew only when one of these is another value, so a
second look at 5,000 Services costs some milliseconds.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum

import msgspec

from kproxy_ipt.addresses import canonical_address
from kproxy_ipt.daemon.status.scene import Scene
from kproxy_ipt.objects.model import Service
from kproxy_ipt.selection.usable import usable_endpoints
from kproxy_ipt.state.model import NodeFacts
from kproxy_ipt.state.tracker import ServiceName, States
from kproxy_ipt.trace.explain_service import no_rules_reason

ROWS_OF_A_PAGE = 200


class ServiceCondition(StrEnum):
    """How a Service is served, the one that matters most."""

    SET_ASIDE = "set-aside"
    NO_ENDPOINT = "no-endpoint"
    WAITING = "waiting"
    PARTLY = "partly"
    SERVED = "served"
    NO_RULES = "no-rules"

    @property
    def words(self) -> str:
        """For people."""
        return _WORDS[self]


_WORDS = {
    ServiceCondition.SET_ASIDE: "set aside",
    ServiceCondition.NO_ENDPOINT: "no endpoint",
    ServiceCondition.WAITING: "not yet written",
    ServiceCondition.PARTLY: "some out",
    ServiceCondition.SERVED: "served",
    ServiceCondition.NO_RULES: "no rules",
}


class ServiceRow(msgspec.Struct, frozen=True, kw_only=True):
    """
    One Service.

    Attributes:
        cluster_ips: Canonical; empty for a headless one.
        ports: `80/tcp http`.
        used: Endpoints, counted by address and port, that any traffic may go to.
        known: All of them.
        why: What the condition comes from, "" where its words say all.
    """

    namespace: str
    name: str
    type: str
    cluster_ips: tuple[str, ...]
    ports: tuple[str, ...]
    used: int
    known: int
    condition: ServiceCondition
    why: str = ""

    @property
    def text(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """
    Which rows are wanted.

    Attributes:
        words: Each must be in the name, an address or a port; an address also finds the Services of an endpoint.
        condition: None for all.
        page: From 1.
    """

    words: str = ""
    condition: ServiceCondition | None = None
    page: int = 1


class ServicePage(msgspec.Struct, frozen=True, kw_only=True):
    """
    A part of the table.

    Attributes:
        found: Rows that fit the query, on all pages.
        counts: Services by condition, whatever the query says.
        endpoints: Over all Services; `used` of `known`.
    """

    query: Query
    rows: tuple[ServiceRow, ...]
    found: int
    page: int
    pages: int
    counts: Mapping[ServiceCondition, int]
    used: int
    known: int

    @property
    def services(self) -> int:
        """All Services."""
        return sum(self.counts.values())


class _Kept(msgspec.Struct, frozen=True):
    """A row and the values that it was computed from."""

    service: Service
    states: tuple[States, ...]
    node: NodeFacts
    row: ServiceRow

    def holds(self, service: Service, states: tuple[States, ...], node: NodeFacts) -> bool:
        same = self.service is service and len(self.states) == len(states) and (self.node is node or self.node == node)
        return same and all(known is now for known, now in zip(self.states, states, strict=True))


class ServiceTable:
    """Rows that are kept from one look to the next; used by one thread."""

    def __init__(self) -> None:
        self._kept: dict[ServiceName, _Kept] = {}

    def row(self, scene: Scene, name: ServiceName) -> ServiceRow | None:
        """The row of one Service; None if there is none of that name."""
        service = scene.services.get(name)
        return None if service is None else self._judged(scene, name, service, _set_aside(scene))

    def page(self, scene: Scene, query: Query) -> ServicePage:
        """The rows that *query* asks for; a page beyond the last is the last."""
        aside = _set_aside(scene)
        rows = [self._judged(scene, name, scene.services[name], aside) for name in sorted(scene.services)]
        self._forget(scene.services)
        found = [row for row in _matching(scene, rows, query.words) if query.condition in (None, row.condition)]
        pages = max(1, -(-len(found) // ROWS_OF_A_PAGE))
        page = min(max(query.page, 1), pages)
        first = (page - 1) * ROWS_OF_A_PAGE
        counts = dict.fromkeys(ServiceCondition, 0)
        for row in rows:
            counts[row.condition] += 1
        return ServicePage(
            query=query,
            rows=tuple(found[first : first + ROWS_OF_A_PAGE]),
            found=len(found),
            page=page,
            pages=pages,
            counts=counts,
            used=sum(row.used for row in rows),
            known=sum(row.known for row in rows),
        )

    def _judged(
        self, scene: Scene, name: ServiceName, service: Service, aside: Mapping[ServiceName, str]
    ) -> ServiceRow:
        """The kept row, with what may be another at each look."""
        row = self._plain(scene, name, service)
        if name in aside:
            return msgspec.structs.replace(row, condition=ServiceCondition.SET_ASIDE, why=aside[name])
        if name in scene.unwritten and row.condition is not ServiceCondition.NO_RULES:
            return msgspec.structs.replace(row, condition=ServiceCondition.WAITING)
        return row

    def _plain(self, scene: Scene, name: ServiceName, service: Service) -> ServiceRow:
        states = tuple(known.get(name, ()) for known in scene.states.values())
        kept = self._kept.get(name)
        if kept is None or not kept.holds(service, states, scene.node):
            kept = _Kept(service, states, scene.node, _row(service, states, scene.node))
            self._kept[name] = kept
        return kept.row

    def _forget(self, services: Mapping[ServiceName, Service]) -> None:
        if len(self._kept) > len(services):
            self._kept = {name: kept for name, kept in self._kept.items() if name in services}


def _set_aside(scene: Scene) -> Mapping[ServiceName, str]:
    return {refusal.service: refusal.reason for refusal in scene.refusals}


def _row(service: Service, by_family: Iterable[States], node: NodeFacts) -> ServiceRow:
    used: set[str] = set()
    known: set[str] = set()
    states = [state for states in by_family for state in states]
    for state in states:
        known.update(endpoint.text for endpoint in state.endpoints)
        used.update(one.text for one in usable_endpoints(state.service_port, state.endpoints, node).reachable)
    reason = no_rules_reason(service)
    why = reason.sentence if reason else "" if states else "no family that is served here has an address of it"
    return ServiceRow(
        namespace=service.metadata.namespace or "",
        name=service.metadata.name,
        type=service.spec.type or "ClusterIP",
        cluster_ips=_cluster_ips(service),
        ports=tuple(_ports(service)),
        used=len(used),
        known=len(known),
        condition=_condition(len(used), len(known), has_rules=not why),
        why=why,
    )


def _condition(used: int, known: int, *, has_rules: bool) -> ServiceCondition:
    if not has_rules:
        return ServiceCondition.NO_RULES
    if not used:
        return ServiceCondition.NO_ENDPOINT
    return ServiceCondition.PARTLY if used < known else ServiceCondition.SERVED


def _cluster_ips(service: Service) -> tuple[str, ...]:
    texts = (service.spec.cluster_ip or "", *(service.spec.cluster_ips or ()))
    return tuple(dict.fromkeys(address for text in texts if (address := canonical_address(text))))


def _ports(service: Service) -> Iterator[str]:
    for port in service.spec.ports or ():
        node_port = f":{port.node_port}" if port.node_port else ""
        name = f" {port.name}" if port.name else ""
        yield f"{port.port}{node_port}/{(port.protocol or 'TCP').lower()}{name}"


def _matching(scene: Scene, rows: Sequence[ServiceRow], words: str) -> Iterable[ServiceRow]:
    wanted = words.lower().split()
    if not wanted:
        return rows
    behind = frozenset(name for word in wanted for name in _behind(scene, canonical_address(word)))
    return (row for row in rows if (row.namespace, row.name) in behind or _fits(row, wanted))


def _fits(row: ServiceRow, words: Sequence[str]) -> bool:
    text = " ".join((row.text, row.type, *row.cluster_ips, *row.ports)).lower()
    return all(word in text for word in words)


def _behind(scene: Scene, address: str | None) -> Iterator[ServiceName]:
    """The Services that have an endpoint with *address*."""
    if address is None:
        return
    for known in scene.states.values():
        for name, states in known.items():
            if any(endpoint.address == address for state in states for endpoint in state.endpoints):
                yield name
