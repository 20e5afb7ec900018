"""The judge is judged: rules with one random change against packets that walk both Rulesets whole."""

import random
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import product

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config
from kproxy_ipt.rules.build import with_base_chains
from kproxy_ipt.ruleset.matches import Mark, PortMatch, StatisticRandom
from kproxy_ipt.ruleset.model import Rule, Ruleset, Table
from kproxy_ipt.ruleset.targets import Dnat, Jump, SetMark, Verdict
from kproxy_ipt.testing.desired import desired_for
from kproxy_ipt.testing.objects import endpoint_slice, node, service, service_port, slice_endpoint
from kproxy_ipt.trace.classes import address_number
from kproxy_ipt.trace.equivalence import compare_behaviour
from kproxy_ipt.trace.indexed import Place
from kproxy_ipt.trace.normal_form import IndexedRuleset
from kproxy_ipt.trace.packet import End, Host, Origin, Outcome, Packet
from kproxy_ipt.trace.walk import walk

NODE = "192.0.2.10"
HOST = Host(addresses=frozenset({NODE}))
Mutation = Callable[[Rule, random.Random], Rule]


def _world() -> Ruleset:
    """A node with a Service of each kind."""
    web = service(
        "web", service_type="NodePort", ports=[service_port(80, node_port=30080, target_port=8080)], labels={}
    )
    shop = service(
        "shop",
        cluster_ip="10.96.0.11",
        service_type="LoadBalancer",
        ingress=["203.0.113.10"],
        source_ranges=["198.51.100.0/24"],
        external_policy="Local",
        health_check_node_port=31000,
        ports=[service_port(443, node_port=30443, target_port=8443)],
    )
    dns = service("dns", cluster_ip="10.96.0.12", ports=[service_port(53, protocol="UDP")], affinity_timeout_s=600)
    empty = service("empty", cluster_ip="10.96.0.13", external_ips=["203.0.113.20"])
    api = service("api", cluster_ip="10.96.0.14", ports=[service_port(443, target_port=6443)])
    return with_base_chains(
        desired_for(
            *(web, shop, dns, empty, api, node()),
            endpoint_slice(web, ["10.244.1.2", "10.244.2.3", "10.244.2.4"]),
            endpoint_slice(shop, [slice_endpoint("10.244.1.5", node_name="node1"), slice_endpoint("10.244.2.6")]),
            endpoint_slice(dns, ["10.244.1.7", "10.244.2.8"]),
            endpoint_slice(api, [NODE]),
            config=Config(cluster_cidrs=("10.244.0.0/16",)),
        )
    )


WORLD = _world()
PLACES = [
    (table.name, chain.name, position)
    for table in WORLD.tables.values()
    for chain in table.chains.values()
    for position in range(len(chain.rules))
]
DESTINATIONS = (
    "10.96.0.10",
    "10.96.0.11",
    "10.96.0.12",
    "10.96.0.13",
    "10.96.0.14",
    "203.0.113.10",
    "203.0.113.20",
    NODE,
    "127.0.0.1",
    "10.244.1.2",
    "8.8.8.8",
)
SOURCES = ("8.8.4.4", "198.51.100.9", "10.244.1.2", "10.244.1.5", "10.244.1.7", "10.244.9.9", NODE, "127.0.0.1")
PORTS = (80, 81, 443, 53, 30080, 30443, 31000, 6443)
PACKETS = [
    Packet(
        family=Family.IPV4,
        source=source,
        source_port=40000,
        destination=destination,
        destination_port=port,
        protocol=protocol,
        state=state,
        mark=mark,
        origin=origin,
    )
    for destination, source, port, protocol, state, mark, origin in product(
        DESTINATIONS, SOURCES, PORTS, ("tcp", "udp"), ("NEW", "NEW", "INVALID", "ESTABLISHED"), (0, 0, 0x4000), Origin
    )
]


def _with_port(rule: Rule, _dice: random.Random) -> Rule:
    changed = tuple(
        msgspec.structs.replace(match, destination=(81, 81)) if isinstance(match, PortMatch) else match
        for match in rule.matches
    )
    return msgspec.structs.replace(rule, matches=changed)


def _with_probability(rule: Rule, _dice: random.Random) -> Rule:
    changed = tuple(
        StatisticRandom(match.probability // 2) if isinstance(match, StatisticRandom) else match
        for match in rule.matches
    )
    return msgspec.structs.replace(rule, matches=changed)


def _with_target(rule: Rule, dice: random.Random) -> Rule:
    targets = (Verdict("DROP"), Verdict("ACCEPT"), Verdict("RETURN"), Jump("KUBE-MARK-MASQ"), Dnat("10.9.9.9:99"))
    return msgspec.structs.replace(rule, target=dice.choice(targets))


def _with_mark(rule: Rule, _dice: random.Random) -> Rule:
    changed = tuple(Mark(0x8000, 0x8000) if isinstance(match, Mark) else match for match in rule.matches)
    target = SetMark(0x8000, 0x8000) if isinstance(rule.target, SetMark) else rule.target
    return msgspec.structs.replace(rule, matches=changed, target=target)


def _with_negation(rule: Rule, dice: random.Random) -> Rule:
    if dice.random() < 0.5 and rule.source:
        return msgspec.structs.replace(rule, source_negated=not rule.source_negated)
    return msgspec.structs.replace(rule, destination_negated=bool(rule.destination) and not rule.destination_negated)


MUTATIONS: tuple[Mutation, ...] = (_with_port, _with_probability, _with_target, _with_mark, _with_negation)


def _mutated(place: tuple[str, str, int], kind: int, seed: int) -> Ruleset:
    """*WORLD* with one rule deleted, swapped with the next, or changed."""
    table, name, position = place
    chain = WORLD.tables[table].chains[name]
    rules = list(chain.rules)
    if kind == 0:
        del rules[position]
    elif kind == 1:
        rules[position : position + 2] = rules[position : position + 2][::-1]
    else:
        rules[position] = MUTATIONS[kind - 2](rules[position], random.Random(seed))
    chains = {**WORLD.tables[table].chains, name: msgspec.structs.replace(chain, rules=tuple(rules))}
    return Ruleset(WORLD.family, {**WORLD.tables, table: Table(table, chains)})


def _behaviour(outcomes: tuple[Outcome, ...]) -> dict[object, Fraction]:
    """Shares by everything that one can see from outside."""
    found: dict[object, Fraction] = {}
    for out in outcomes:
        place = (out.destination, out.destination_port, out.source, out.masqueraded, out.delivered_locally, out.mark)
        key = (out.end, out.reject_with, place if out.end is End.ACCEPTED else ())
        found[key] = found.get(key, Fraction(0)) + out.share
    return found


def _sample(seed: int, number: int) -> Iterator[Packet]:
    return iter(random.Random(seed).sample(PACKETS, number))


@settings(max_examples=120, deadline=None, derandomize=True)
@given(place=st.sampled_from(PLACES), kind=st.integers(0, len(MUTATIONS) + 1), seed=st.integers(0, 2**16))
def test_one_changed_rule_is_noticed_or_changes_nothing(place: tuple[str, str, int], kind: int, seed: int) -> None:
    """What is called equal is so for random packets; what is called different is so for the packet that is named."""
    changed = _mutated(place, kind, seed)
    report = compare_behaviour(WORLD, changed, HOST)

    assert report.undecided == ()
    for difference in report.differences:
        assert _behaviour(difference.outcomes_a) != _behaviour(difference.outcomes_b)
    if report.equal:
        for packet in _sample(seed, 150):
            assert _behaviour(walk(WORLD, packet, HOST)) == _behaviour(walk(changed, packet, HOST)), packet


@pytest.mark.parametrize("seed", range(3))
def test_every_packet_that_walks_differently_leads_to_a_difference(seed: int) -> None:
    """The other way round: changes that random packets notice are all found."""
    dice = random.Random(seed)
    for _ in range(25):
        changed = _mutated(dice.choice(PLACES), dice.randrange(len(MUTATIONS) + 2), dice.randrange(1000))
        noticed = any(
            _behaviour(walk(WORLD, packet, HOST)) != _behaviour(walk(changed, packet, HOST))
            for packet in _sample(dice.randrange(10**6), 60)
        )

        assert not (noticed and compare_behaviour(WORLD, changed, HOST).equal)


def test_the_restricted_rules_are_those_that_the_packet_meets() -> None:
    """A packet has the same outcomes, paths aside, in the part of the rules that its class can meet."""
    indexed = IndexedRuleset(WORLD, HOST)
    for packet in _sample(7, 400):
        is_local = packet.destination in (NODE, "127.0.0.1")
        view = indexed.view(
            Place(address_number(packet.destination), packet.destination_port, is_local), packet.protocol
        )
        view.blocks(view.places())

        assert _behaviour(walk(WORLD, packet, HOST)) == _behaviour(walk(view.restricted(), packet, HOST))
