"""The walk and the kernel agree: real packets meet the rules that a trace walked, and end where it said."""

from collections.abc import Callable, Iterator

import msgspec
import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config, IptablesConfig
from kproxy_ipt.daemon.report import RunReport
from kproxy_ipt.kernel.addresses import interface_addresses
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.objects.model import EndpointSlice, Service
from kproxy_ipt.ruleset.model import Ruleset
from kproxy_ipt.ruleset.parse import parse_save
from kproxy_ipt.testing.lab import Lab, Place
from kproxy_ipt.testing.lab_objects import NODE_PORT, balancer_ip, cluster_ip, endpoint, endpoints, open_service
from kproxy_ipt.testing.topology import CLUSTER_CIDRS
from kproxy_ipt.testing.traffic import Outcome as Seen
from kproxy_ipt.trace.packet import End, Host, Origin, Outcome, Packet
from kproxy_ipt.trace.walk import walk

pytestmark = pytest.mark.kernel

Objects = tuple[Service | EndpointSlice, ...]
_CONFIG = Config(cluster_cidrs=tuple(CLUSTER_CIDRS.values()))
_MANY, _DROPPED_S = 24, 0.25
_MOST_ROUNDS = 10
"""One of four endpoints is not met by so many connections in one of 10^29 runs."""


def _plain(lab: Lab, family: Family) -> Objects:
    web = open_service(family)
    return web, endpoints(web, family, lab.pod("podB"), lab.remote)


def _external_local(lab: Lab, family: Family) -> Objects:
    web = open_service(family, external_policy="Local")
    return web, endpoints(web, family, lab.pod("podB"), lab.remote)


def _external_local_without(lab: Lab, family: Family) -> Objects:
    web = open_service(family, external_policy="Local")
    return web, endpoints(web, family, lab.remote)


def _internal_local(lab: Lab, family: Family) -> Objects:
    web = open_service(family, internal_policy="Local")
    return web, endpoints(web, family, lab.pod("podB"), lab.remote)


def _internal_local_without(lab: Lab, family: Family) -> Objects:
    web = open_service(family, internal_policy="Local")
    return web, endpoints(web, family, lab.remote)


def _no_endpoints(_lab: Lab, family: Family) -> Objects:
    return (open_service(family),)


def _source_ranges(lab: Lab, family: Family) -> Objects:
    web = open_service(family, source_ranges=(f"{lab.pod('podA').address(family)}/{family.bits}",))
    return web, endpoints(web, family, lab.pod("podB"))


def _hairpin(lab: Lab, family: Family) -> Objects:
    web = open_service(family)
    return web, endpoints(web, family, lab.pod("podA"))


def _terminating(lab: Lab, family: Family) -> Objects:
    web = open_service(family, external_policy="Local")
    leaving = endpoint(lab.pod("podB"), family, ready=False)
    return web, endpoints(web, family, leaving, lab.remote)


def _four(lab: Lab, family: Family) -> Objects:
    web = open_service(family)
    return web, endpoints(web, family, *(lab.pod(name) for name in ("podB", "podC", "podD")), lab.remote)


_WORLDS: dict[str, Callable[[Lab, Family], Objects]] = {
    build.__name__.strip("_"): build
    for build in (
        *(_plain, _external_local, _external_local_without, _internal_local, _internal_local_without),
        *(_no_endpoints, _source_ranges, _hairpin, _terminating, _four),
    )
}


def _saved(lab: Lab, family: Family, backend: str) -> Ruleset:
    word = "ip6tables" if family is Family.IPV6 else "iptables"
    return parse_save(lab.node.run(f"{word}-{backend}-save"), family)


def _host(lab: Lab) -> Host:
    with inside(lab.node.netns):
        return Host(addresses=frozenset(interface_addresses()))


def _probes(lab: Lab, family: Family) -> Iterator[tuple[Place, str, int]]:
    ways = ((cluster_ip(family), 80), (lab.node.address(family), NODE_PORT), (balancer_ip(family), 80))
    for place in (lab.pod("podA"), lab.node, lab.client):
        for address, port in ways:
            yield place, address, port


def _walk(lab: Lab, rules: Ruleset, place: Place, address: str, port: int) -> tuple[Outcome, ...]:
    own = place.name == "node"
    packet = Packet(
        family=rules.family,
        source=place.address(rules.family),
        destination=address,
        destination_port=port,
        origin=Origin.NODE if own else Origin.REMOTE,
    )
    return walk(rules, packet, _host(lab))


def _compare(lab: Lab, rules: Ruleset, place: Place, address: str, port: int) -> None:
    """Send what was walked, and compare verdict, endpoints and source."""
    family = rules.family
    outcomes = _walk(lab, rules, place, address, port)
    (end,) = {outcome.end for outcome in outcomes}
    if end is not End.ACCEPTED:
        seen = place.send(address, port, timeout_s=_DROPPED_S).outcomes
        assert seen == {Seen.TIMEOUT if end is End.DROPPED else Seen.REFUSED: 1}
        return
    if not any(outcome.translated for outcome in outcomes):  # it leaves as it is, and no endpoint ever sees it
        assert place.send(address, port, timeout_s=_DROPPED_S).names == {}
        return
    names = {each.address(family): each.name for each in (*lab.pods, lab.remote)}
    expected, met = {names[outcome.destination] for outcome in outcomes}, set[str]()
    for _ in range(_MOST_ROUNDS):
        traffic = place.send(address, port, count=_MANY if len(outcomes) > 1 else 2)
        met |= set(traffic.names)
        if met >= expected:
            break
    assert met == expected
    (masqueraded,) = {outcome.masqueraded for outcome in outcomes}
    own = place.name == "node" or masqueraded
    allowed = set(_host(lab).addresses) if own else {place.address(family)}
    assert set(traffic.seen_addresses) <= allowed


@pytest.mark.parametrize("world", _WORLDS)
def test_packets_end_where_the_walk_says(
    lab: Lab, sync: Callable[..., RunReport], backend: str, family: Family, world: str
) -> None:
    """From a pod, the node and a client, by cluster IP, node port and load balancer IP."""
    sync(*_WORLDS[world](lab, family))
    rules = _saved(lab, family, backend)

    for place, address, port in _probes(lab, family):
        _compare(lab, rules, place, address, port)


def test_masquerade_all_and_another_bit_agree_too(
    lab: Lab, sync: Callable[..., RunReport], backend: str, family: Family
) -> None:
    """Pods are masqueraded on cluster IPs, by bit 3 of the mark."""
    config = msgspec.structs.replace(_CONFIG, iptables=IptablesConfig(masquerade_all=True, masquerade_bit=3))
    sync(*_plain(lab, family), config=config)
    rules = _saved(lab, family, backend)
    outcomes = _walk(lab, rules, lab.pod("podA"), cluster_ip(family), 80)

    assert all(outcome.masqueraded and outcome.path[-1].mark == 0 for outcome in outcomes)
    _compare(lab, rules, lab.pod("podA"), cluster_ip(family), 80)


def test_foreign_drops_and_policies_agree_too(
    fresh: Lab, sync: Callable[..., RunReport], iptables: Callable[..., str], backend: str, family: Family
) -> None:
    """Policy DROP lets marked traffic through; a foreign rule in front of ours stops one client and no other."""
    sync(*_plain(fresh, family), into=fresh)
    iptables(fresh, "-P", "FORWARD", "DROP")
    iptables(fresh, "-A", "FORWARD", "-m", "conntrack", "--ctstate", "ESTABLISHED", "-j", "ACCEPT")
    iptables(fresh, "-I", "FORWARD", "-s", fresh.pod("podA").address(family), "-j", "REJECT")
    rules = _saved(fresh, family, backend)

    for place, address, port in _probes(fresh, family):
        _compare(fresh, rules, place, address, port)
