"""
Virtual servers and real servers: the rules of one family in the words of IPVS, with the connections of each.

An address and port that rules translate is a virtual server, an endpoint behind it a real server. IPVS gives real
servers whole weights; here a weight is the share of the endpoint in units of the smallest one, which is 1 for all of
them unless somebody else wrote the rules. What connection tracking still holds to endpoints that rules do not lead to
any more is kept apart: in IPVS these are real servers of weight 0.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from ipaddress import ip_address

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.ruleset.model import Ruleset
from kproxy_ipt.state.flows import Entry
from kproxy_ipt.trace.service_reading import read_services
from kproxy_ipt.trace.service_views import EndpointView, EntryKind, EntryView, ServiceView

_LISTED = (EntryKind.CLUSTER_IP, EntryKind.EXTERNAL_IP, EntryKind.LOAD_BALANCER_IP, EntryKind.NODE_PORT)


class Connections(msgspec.Struct, frozen=True):
    """
    Tracked connections of one virtual server to one endpoint.

    Attributes:
        active: TCP and SCTP: established. UDP: both sides have sent, more than once (`ASSURED`).
        inactive: All others that are tracked: on their way in or out, or a single UDP question.
    """

    active: int = 0
    inactive: int = 0


Tally = Mapping[Entry, Mapping[str, Connections]]
"""By entry and endpoint text; entries and endpoints without a connection may be left out."""

_NO_CONNECTIONS = Connections()


class RealServer(msgspec.Struct, frozen=True, kw_only=True):
    """
    An endpoint behind a virtual server.

    Attributes:
        endpoint: `ip:port` or `[ip]:port`.
        weight: Its share in units of the smallest share of this virtual server; 0 where new connections never go.
        share: Part of new connections, 0 to 1.
        active: See `Connections`.
        inactive: See `Connections`.
    """

    endpoint: str
    weight: int
    share: float
    active: int = 0
    inactive: int = 0


class VirtualServer(msgspec.Struct, frozen=True, kw_only=True):
    """
    An address and port that rules translate.

    Attributes:
        service_port: `namespace/name:port_name`.
        protocol: `tcp`, `udp` or `sctp`.
        family: Of the address.
        kind: How traffic finds it.
        address: "" for a node port, which is answered by addresses of the node.
        port: Service port or node port.
        scheduler: `random` or `rr`; "" where there is no choice.
        affinity_s: How long a client is sent back to its endpoint, 0 for no affinity.
        policy: `Cluster` or `Local`: which endpoints traffic from outside reaches here.
        real_servers: Sorted by text; none means that new connections are refused or dropped.
        gone: Endpoints that connections go on to though no rule leads there any more.
    """

    service_port: str
    protocol: str
    family: Family
    kind: EntryKind
    address: str
    port: int
    scheduler: str = ""
    affinity_s: int = 0
    policy: str = "Cluster"
    real_servers: tuple[RealServer, ...] = ()
    gone: tuple[RealServer, ...] = ()

    @property
    def entry(self) -> Entry:
        """Where connection tracking finds it."""
        return Entry(self.address, self.port, self.protocol)


def virtual_servers(ruleset: Ruleset) -> tuple[VirtualServer, ...]:
    """
    All virtual servers of the rules, without any connections.

    Returns:
        Sorted by protocol, address (node ports first) and port, as IPVS tools do.
    """
    found = (server for view in read_services(ruleset).values() for server in _servers_of(view, ruleset.family))
    return tuple(sorted(found, key=lambda one: (one.protocol, _address_order(one.address), one.port)))


def with_connections(servers: Sequence[VirtualServer], tally: Tally) -> tuple[VirtualServer, ...]:
    """
    *servers* in their order, with the connections of *tally*.

    An endpoint that only another virtual server of the same service port leads to (policy Local lets traffic of the
    node itself reach all of them) becomes a real server of weight 0; one that none leads to is `gone`.
    """
    reached: dict[tuple[str, str], set[str]] = defaultdict(set)
    for server in servers:
        reached[server.service_port, server.protocol].update(one.endpoint for one in server.real_servers)
    return tuple(
        _with_connections(server, tally.get(server.entry, {}), reached[server.service_port, server.protocol])
        for server in servers
    )


def _servers_of(view: ServiceView, family: Family) -> Iterator[VirtualServer]:
    """One for each address: where rules of both tables name it, the one that translates counts."""
    by_entry: dict[tuple[str, int], EntryView] = {}
    for entry in map(_anywhere, view.entries):
        if entry.kind in _LISTED or (entry.kind is EntryKind.REFUSED and (entry.address, entry.port) not in by_entry):
            by_entry[entry.address, entry.port] = entry
    for entry in by_entry.values():
        policy = _policy(view, entry)
        endpoints = view.local_endpoints if policy == "Local" else view.endpoints
        if entry.kind is EntryKind.REFUSED:
            endpoints = ()
        yield VirtualServer(
            service_port=view.text,
            protocol=view.protocol,
            family=family,
            kind=entry.kind,
            address=entry.address,
            port=entry.port,
            scheduler=view.scheduler or ("random" if endpoints else ""),
            affinity_s=view.affinity_s,
            policy=policy,
            real_servers=tuple(_real_servers(endpoints)),
        )


def _anywhere(entry: EntryView) -> EntryView:
    """A node port has another rule for 127.0.0.0/8, where that is counted; it is one virtual server all the same."""
    return msgspec.structs.replace(entry, address="") if entry.kind is EntryKind.NODE_PORT else entry


def _policy(view: ServiceView, entry: EntryView) -> str:
    if entry.fate == "local endpoints":
        return "Local"
    is_external = entry.fate in ("external policy", "source ranges")
    return (view.external_policy or "Cluster") if is_external else "Cluster"


def _real_servers(endpoints: tuple[EndpointView, ...]) -> Iterator[RealServer]:
    least = min((one.share for one in endpoints if one.share), default=0)
    for one in endpoints:
        weight = max(1, round(one.share / least)) if one.share and least else 0
        yield RealServer(endpoint=one.destination, weight=weight, share=float(one.share))


def _with_connections(
    server: VirtualServer, found: Mapping[str, Connections], reached: AbstractSet[str]
) -> VirtualServer:
    own = {one.endpoint for one in server.real_servers}
    others = {
        endpoint: RealServer(endpoint=endpoint, weight=0, share=0.0, active=one.active, inactive=one.inactive)
        for endpoint, one in sorted(found.items())
        if endpoint not in own
    }
    known = [_filled(one, found.get(one.endpoint, _NO_CONNECTIONS)) for one in server.real_servers]
    known += [one for endpoint, one in others.items() if endpoint in reached]
    gone = tuple(one for endpoint, one in others.items() if endpoint not in reached)
    return msgspec.structs.replace(server, real_servers=tuple(sorted(known, key=lambda one: one.endpoint)), gone=gone)


def _filled(server: RealServer, connections: Connections) -> RealServer:
    return msgspec.structs.replace(server, active=connections.active, inactive=connections.inactive)


def _address_order(address: str) -> tuple[int, ...]:
    """By number, not by text; node ports, which have no address, come first."""
    packed = ip_address(address).packed if address else b""
    return (len(packed), *packed)
