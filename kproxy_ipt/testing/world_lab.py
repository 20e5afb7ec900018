"""
Do real packets end where the walk says? A lab for the worlds of `worlds.py`, and the comparison of one world.

The rules of a world are written by a sync, read back from the kernel and walked: from pods, the node, and clients in
and out of the source ranges, to every address and port of every Service. Then the same packets are sent. Compared are
verdict, endpoints (all that the walk names, and no other), source address as the endpoint sees it, and, for one entry
of a world, the shares.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import product
from typing import cast

import msgspec

from kproxy_ipt.addresses import Family, family_of
from kproxy_ipt.daemon.machine import BackendWish, Target
from kproxy_ipt.daemon.sync import sync_once
from kproxy_ipt.kernel.addresses import interface_addresses
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.objects.model import Objects, Service
from kproxy_ipt.ruleset.model import Ruleset
from kproxy_ipt.ruleset.parse import parse_save
from kproxy_ipt.testing.lab import NODE_NAME, Lab, Place
from kproxy_ipt.testing.lab_objects import SECOND_NODE_ADDRESS, own_node, stranger
from kproxy_ipt.testing.shares import sample_shares
from kproxy_ipt.testing.sockets import Protocol
from kproxy_ipt.testing.topology import BOTH, LOAD_BALANCER_CIDRS, SERVICE_CIDRS
from kproxy_ipt.testing.traffic import Exchange, Traffic
from kproxy_ipt.testing.traffic import Outcome as Seen
from kproxy_ipt.testing.worlds import (
    NODE_PORTS,
    PODS,
    SERVICE_PORTS,
    TARGET_PORTS,
    World,
    node_address,
    pod_addresses,
    remote_addresses,
    service_addresses,
)
from kproxy_ipt.trace.distribution import distribution
from kproxy_ipt.trace.packet import End, Host, Origin, Outcome, Packet
from kproxy_ipt.trace.walk import walk

_REMOTE_NODE = {Family.IPV4: "192.0.2.20", Family.IPV6: "2001:db8::20"}
_LOOPBACK = {Family.IPV4: "127.0.0.1", Family.IPV6: "::1"}
_PROTOCOLS: tuple[Protocol, ...] = ("tcp", "udp")
_DROPPED_S, _ANSWERED_S = 0.25, 2.0
_WAITING_AT_ONCE = 48
_EACH, _MOST_ROUNDS = 8, 6
"""Exchanges for each endpoint and round: chance alone misses one of four in all rounds less often than once in 1e20."""
_PARALLEL = 64
_COUNTED = 200
"""Exchanges of a round of shares; see `shares.py`."""


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """
    One way into a Service.

    Attributes:
        sticky: Whether the Service keeps a client with its endpoint.
    """

    place: str
    source: str
    address: str
    port: int
    protocol: Protocol
    sticky: bool

    def __str__(self) -> str:
        return f"{self.place} {self.source} -> {self.address} {self.protocol} {self.port}"


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """
    One world compared.

    Attributes:
        probes: How many, by what the walk says: `answered`, `refused`, `dropped`.
        exchanges: How many exchanges were made.
        shares: Whether shares were counted; some worlds have no entry with several endpoints.
        disagreements: One line for each probe that ended elsewhere.
    """

    probes: Counter[str]
    exchanges: int
    shares: bool
    disagreements: tuple[str, ...]


def probes(world: World) -> Iterator[Probe]:
    """Every way into every Service of *world* from every kind of source."""
    family = world.family
    sources = (
        *zip(PODS, pod_addresses(family), strict=True),
        ("node", node_address(family)),
        ("client", stranger(family, 1)),
        ("client", stranger(family, 200)),
    )
    for owner in world.services:
        for address, port, protocol in _entries(owner, family):
            for place, source in (("node", address),) if address == _LOOPBACK[family] else sources:
                yield Probe(
                    place=place,
                    source=source,
                    address=address,
                    port=port,
                    protocol=protocol,
                    sticky=owner.spec.session_affinity is not None,
                )


def _entries(owner: Service, family: Family) -> Iterator[tuple[str, int, Protocol]]:
    spec, balancer = owner.spec, owner.status and owner.status.load_balancer
    ingress = tuple(entry.ip for entry in (balancer.ingress or () if balancer else ()) if entry.ip)
    addresses = (spec.cluster_ip or "", *(spec.external_ips or ()), *ingress)
    for port in spec.ports or ():
        protocol = cast("Protocol", (port.protocol or "TCP").lower())
        yield from ((address, port.port or 0, protocol) for address in addresses)
        if port.node_port:
            yield from ((address, port.node_port, protocol) for address in _node_addresses(family))


def _node_addresses(family: Family) -> tuple[str, ...]:
    return node_address(family), SECOND_NODE_ADDRESS[family], _LOOPBACK[family]


class WorldLab:
    """
    A lab with everything that worlds name; made by `world_lab`.

    Attributes:
        lab: Its namespaces.
    """

    def __init__(self, lab: Lab, backend: BackendWish) -> None:
        self.lab = lab
        self._backend: BackendWish = backend
        with inside(lab.node.netns):
            self._host = Host(addresses=frozenset(interface_addresses()))
        self._places = {place.name: place for place in (*lab.pods, lab.node, lab.client)}

    def compare(self, world: World) -> Comparison:
        """
        Write the rules of *world*, walk them, send what was walked, and compare.

        Raises:
            KproxyError: The rules could not be written.
        """
        rules = self._written(world)
        expected = [_Expected(probe, self._walked(rules, probe), self._host) for probe in probes(world)]
        with ThreadPoolExecutor(_WAITING_AT_ONCE) as pool:
            # What is not answered takes its time, hence all of it at once.
            unanswered = list(pool.map(self._unanswered, (one for one in expected if one.is_silent)))
        talking = [self._talking(one) for one in expected if not one.is_silent]
        shared = [self._shared(one) for one in [one for one in expected if one.has_shares][:1]]
        sent = (*unanswered, *talking, *shared)
        return Comparison(
            probes=Counter(one.kind for one in expected),
            exchanges=sum(count for count, _ in sent),
            shares=bool(shared),
            disagreements=tuple(line for _, line in sent if line),
        )

    def _written(self, world: World) -> Ruleset:
        node, family = self.lab.node, world.family
        node.run("conntrack", "-F")
        objects = Objects(services=world.services, endpoint_slices=world.slices, nodes=(own_node(),))
        target = Target(netns=node.netns, backend=self._backend, families=(family,))
        report = sync_once(lambda: objects, world.config, NODE_NAME, target)
        if report.error:
            raise report.error
        word = "ip6tables" if family is Family.IPV6 else "iptables"
        return parse_save(node.run(f"{word}-{self._backend}-save"), family)

    def _walked(self, rules: Ruleset, probe: Probe) -> tuple[Outcome, ...]:
        packet = Packet(
            family=rules.family,
            source=probe.source,
            destination=probe.address,
            protocol=probe.protocol,
            destination_port=probe.port,
            origin=Origin.NODE if probe.place == "node" else Origin.REMOTE,
        )
        return distribution(walk(rules, packet, self._host))

    def _send(self, probe: Probe, count: int, timeout_s: float) -> Traffic:
        place: Place = self._places[probe.place]
        return place.send(
            *(probe.address, probe.port),
            protocol=probe.protocol,
            count=count,
            sources=(probe.source,),
            timeout_s=timeout_s,
            # First connections of a client that begin together are each balanced before the other is remembered.
            parallel=1 if probe.sticky else _PARALLEL,
        )

    def _unanswered(self, expected: "_Expected") -> tuple[int, str]:
        exchanges = self._send(expected.probe, 1, _DROPPED_S).exchanges
        return len(exchanges), expected.disagreement(exchanges)

    def _talking(self, expected: "_Expected") -> tuple[int, str]:
        """Send until every endpoint was reached, or it cannot be chance that one was not."""
        exchanges: list[Exchange] = []
        for _ in range(_MOST_ROUNDS):
            exchanges += self._send(expected.probe, expected.count, _ANSWERED_S).exchanges
            if not expected.may_be_chance(exchanges):
                break
        return len(exchanges), expected.disagreement(exchanges)

    def _shared(self, expected: "_Expected") -> tuple[int, str]:
        """Count how often each endpoint answers."""
        counted = 0

        def ask() -> Counter[str]:
            nonlocal counted
            counted += _COUNTED
            exchanges = self._send(expected.probe, _COUNTED, _ANSWERED_S).exchanges
            return Counter(one.name or one.outcome.value for one in exchanges)

        sample = sample_shares(ask, expected.shares)
        return counted, "" if sample.fits else f"{expected.probe}: the walk says other shares: {sample}"


class _Expected:
    """What the walk says about one probe, in words of traffic."""

    def __init__(self, probe: Probe, outcomes: Sequence[Outcome], host: Host) -> None:
        self.probe = probe
        self.kind = _kind(outcomes)
        self._own = {address for address in host.addresses if family_of(address) is family_of(probe.address)}
        self._outcomes = outcomes

    @property
    def is_silent(self) -> bool:
        """Whether nobody answers."""
        return self.kind == "dropped"

    @property
    def shares(self) -> dict[str, float]:
        """How often each endpoint answers."""
        found: dict[str, float] = {}
        for outcome in self._outcomes:
            found[_name(outcome)] = found.get(_name(outcome), 0.0) + float(outcome.share)
        return found

    @property
    def has_shares(self) -> bool:
        """Whether shares can be counted: several endpoints, chosen anew for each flow."""
        return self.kind == "answered" and len(self.shares) > 1 and not self.probe.sticky

    @property
    def count(self) -> int:
        """Exchanges in a round."""
        return _EACH * len(self.shares) if self.kind == "answered" and len(self.shares) > 1 else 1

    def may_be_chance(self, exchanges: Sequence[Exchange]) -> bool:
        """Whether all is well but for an endpoint that was not reached yet."""
        return (
            self.has_shares
            and {one.name for one in exchanges} < set(self.shares)
            and all(one.name for one in exchanges)
        )

    def disagreement(self, exchanges: Sequence[Exchange]) -> str:
        """What is unlike the walk, "" if nothing is."""
        wrong = self._wrong_outcomes({exchange.outcome for exchange in exchanges})
        if not wrong and self.kind == "answered":
            wrong = self._wrong_endpoints({exchange.name for exchange in exchanges}) or self._wrong_sources(exchanges)
        return f"{self.probe}: the walk says {self.kind}, {wrong}" if wrong else ""

    def _wrong_outcomes(self, seen: set[Seen]) -> str:
        fits = bool(seen) and seen <= _SEEN.get(self.kind, set())
        return "" if fits else f"seen {', '.join(sorted(seen))}"

    def _wrong_endpoints(self, names: set[str]) -> str:
        expected = set(self.shares)
        fits = len(names) == 1 and names <= expected if self.probe.sticky else names == expected
        return "" if fits else f"by {sorted(expected)}, seen {sorted(names)}"

    def _wrong_sources(self, exchanges: Sequence[Exchange]) -> str:
        allowed: dict[str, set[str]] = {}
        for outcome in self._outcomes:
            sources = self._own if outcome.masqueraded else {outcome.source}
            allowed.setdefault(_name(outcome), set()).update(sources)
        strange = {(one.name, one.seen_address) for one in exchanges if one.seen_address not in allowed[one.name]}
        return f"from one of {allowed}, seen {sorted(strange)}" if strange else ""


_SEEN = {
    "answered": {Seen.ANSWERED},
    "refused": {Seen.REFUSED},
    "dropped": {Seen.TIMEOUT},
}


def _kind(outcomes: Sequence[Outcome]) -> str:
    kinds = {_kind_of(outcome.end) for outcome in outcomes}
    return kinds.pop() if len(kinds) == 1 else "mixed"


def _kind_of(end: End) -> str:
    # What no rule touches meets a listener too, so that it differs from what is dropped or refused.
    return {End.ACCEPTED: "answered", End.DROPPED: "dropped", End.REJECTED: "refused"}[end]


def _name(outcome: Outcome) -> str:
    """The name that the server at the end of *outcome* answers with."""
    return _server_name(outcome.destination, outcome.destination_port)


def _server_name(address: str, port: int) -> str:
    return f"{address}/{port}"


@contextmanager
def world_lab(backend: BackendWish) -> Iterator[WorldLab]:
    """
    Make a lab in which every endpoint of every world answers with its own address and port.

    So do the node on all node ports and a host outside on all addresses of Services: nobody sees them unless rules let
    a packet through as it is.
    """
    with Lab(PODS) as lab:
        for family in BOTH:
            _give_ways_out(lab, family)
            servers = {
                **{address: lab.pod(pod) for pod, address in zip(PODS, pod_addresses(family), strict=True)},
                **dict.fromkeys(remote_addresses(family), lab.remote),
                node_address(family): lab.node,
            }
            for (address, place), port, protocol in product(servers.items(), TARGET_PORTS, _PROTOCOLS):
                place.serve(port, protocol=protocol, name=_server_name(address, port), addresses=(address,))
            for address, port, protocol in product(_node_addresses(family), NODE_PORTS, _PROTOCOLS):
                lab.node.serve(port, protocol=protocol, name=_server_name(address, port), addresses=(address,))
            for address, port, protocol in product(service_addresses(family), SERVICE_PORTS, _PROTOCOLS):
                lab.remote.serve(port, protocol=protocol, name=_server_name(address, port), addresses=(address,))
        yield WorldLab(lab, backend)


def _give_ways_out(lab: Lab, family: Family) -> None:
    """A second address of the node, and its way into the world, as every node has."""
    second, client = SECOND_NODE_ADDRESS[family], lab.client.address(family)
    lab.node.run("ip", "address", "add", f"{second}/{family.bits}", "dev", "lo")
    word = "-6" if family is Family.IPV6 else "-4"
    lab.node.run("ip", word, "route", "replace", "default", "via", client)
    for prefix in (SERVICE_CIDRS[family], LOAD_BALANCER_CIDRS[family]):
        lab.node.run("ip", "route", "add", prefix, "via", _REMOTE_NODE[family])
        lab.remote.run("ip", word, "route", "add", "local", prefix, "dev", "lo")
