"""The shape of dispatch trees: a pure function of the rules, small changes for small changes, nothing lost."""

import random
from collections.abc import Iterable, Iterator
from ipaddress import ip_address, ip_network

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Dispatch
from kproxy_ipt.rules import dispatch_tree
from kproxy_ipt.rules.dispatch_tree import (
    LEAF_RULES,
    MOST_LEVELS,
    Branch,
    DispatchTree,
    Entry,
    Node,
    Place,
    dispatch_key,
    is_branched,
)
from kproxy_ipt.rules.names import is_own_chain, is_service_chain
from kproxy_ipt.rules.shared_chains import ROW_BELOW, TREE_FROM, keeps_its_form, wants_tree
from kproxy_ipt.ruleset.matches import Comment, PortMatch
from kproxy_ipt.ruleset.model import Rule
from kproxy_ipt.ruleset.render import render_rule
from kproxy_ipt.ruleset.targets import Jump

_BY_ADDRESS = Place("nat", "KUBE-SERVICES")
_BY_PORT = Place("filter", "KUBE-EXTERNAL-SERVICES", ports_first=True)
_SERVICE_NETWORK = ip_network("10.96.0.0/12")


def _rule(address: str, port: int, protocol: str = "tcp", family: Family = Family.IPV4) -> Rule:
    return Rule(
        destination=f"{address}/{family.bits}" if address else "",
        protocol=protocol,
        matches=(PortMatch(protocol, (port, port)),),
        target=Jump("X"),
    )


def _entries(rules: Iterable[Rule], place: Place = _BY_ADDRESS, family: Family = Family.IPV4) -> list[Entry[Rule]]:
    return [
        Entry(dispatch_key(rule, family, ports_first=place.ports_first), ("ns", f"s{number:05}", 0), rule)
        for number, rule in enumerate(rules)
    ]


def _grown(
    entries: Iterable[Entry[Rule]], place: Place = _BY_ADDRESS, family: Family = Family.IPV4
) -> DispatchTree[Rule]:
    tree = DispatchTree[Rule](place, family)
    tree.replace((), entries)
    return tree


def _cluster(services: int, seed: int = 1) -> list[Entry[Rule]]:
    """Addresses as the API server draws them: anywhere in the network of the Services."""
    numbers = random.Random(seed).sample(range(1, _SERVICE_NETWORK.num_addresses - 1), services)
    return _entries(_rule(str(_SERVICE_NETWORK[number]), 80) for number in numbers)


def _rules_of(tree: DispatchTree[Rule]) -> list[Entry[Rule]]:
    return [one for node in tree.nodes.values() for one in node.contents if isinstance(one, Entry)]


def _looks(tree: DispatchTree[Rule], name: str = "KUBE-SERVICES", before: int = 0) -> Iterator[int]:
    """For each rule how many are looked at until it matches, itself included."""
    for position, one in enumerate(tree.nodes[name].contents, start=1):
        if isinstance(one, Branch):
            yield from _looks(tree, one.chain, before + position)
        else:
            yield before + position


@st.composite
def _some_rules(draw: st.DrawFn, family: Family) -> list[Rule]:
    """Close and far addresses, one address with many ports, rules without address, the same rule twice."""
    text = {Family.IPV4: ("10.96.0.", "10.96.7.", "203.0.113."), Family.IPV6: ("fd00::", "fd00::7:", "2001:db8::")}
    addresses = st.builds(
        lambda start, number: str(ip_address(f"{start}{number}")), st.sampled_from(text[family]), st.integers(1, 9)
    )
    ports = st.sampled_from((53, 80, 443, 30080, 30081, 65535, 1))
    protocols = st.sampled_from(("tcp", "udp", "sctp"))
    one = st.builds(_rule, addresses | st.just(""), ports, protocols, st.just(family))
    return draw(st.lists(one, max_size=40))


@pytest.mark.parametrize(
    ("destination", "family", "by_address", "by_port"),
    [
        ("10.96.0.1/32", Family.IPV4, "0a600001t0050", "t00500a600001"),
        ("fd00::1/128", Family.IPV6, f"fd{29 * '0'}1t0050", f"t0050fd{29 * '0'}1"),
        ("", Family.IPV4, "", "t0050"),
        ("127.0.0.0/8", Family.IPV4, "", "t0050"),
    ],
)
def test_key_ends_where_rules_may_match_the_same_packets(
    destination: str, family: Family, by_address: str, by_port: str
) -> None:
    """A rule for any address has no digits of one, and nothing comes after what it leaves open."""
    rule = msgspec.structs.replace(_rule("", 80), destination=destination)

    assert dispatch_key(rule, family, ports_first=False) == by_address
    assert dispatch_key(rule, family, ports_first=True) == by_port


@pytest.fixture
def small_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few rules make a tree of many levels."""
    monkeypatch.setattr(dispatch_tree, "LEAF_RULES", 1)


@pytest.mark.usefixtures("small_leaves")
@pytest.mark.parametrize("place", [_BY_ADDRESS, _BY_PORT], ids=["address", "port"])
@pytest.mark.parametrize("family", list(Family))
def test_history_leaves_no_trace(place: Place, family: Family) -> None:
    """Whatever came and went: the chains are those of a tree that was made at once, and what changed was told."""

    @settings(max_examples=60, deadline=None)
    @given(st.lists(_some_rules(family), min_size=1, max_size=4))
    def check(moments: list[list[Rule]]) -> None:
        tree = DispatchTree[Rule](place, family)
        before: list[Entry[Rule]] = []
        for rules in moments:
            now = _entries(rules, place, family)
            known = dict(tree.nodes)
            growth = tree.replace([one for one in before if one not in now], [one for one in now if one not in before])
            fresh = _grown(now, place, family)
            assert {name: node.contents for name, node in tree.nodes.items()} == {
                name: node.contents for name, node in fresh.nodes.items()
            }
            written = {node.name for node in growth.written}
            assert {name for name in tree.nodes if tree.nodes[name] != known.get(name)} <= written
            assert known.keys() - tree.nodes.keys() == growth.gone
            assert sorted(one.order for one in _rules_of(tree)) == sorted(one.order for one in now)
            assert max(node.level for node in tree.nodes.values()) <= MOST_LEVELS
            before = now

    check()


@pytest.mark.usefixtures("small_leaves")
def test_rules_that_one_packet_can_match_stay_in_their_order() -> None:
    """Two Services with one address and port, and a rule for all addresses: the first one decides, as in the row."""
    rules = [_rule("203.0.113.9", 30080), _rule("", 30080), _rule("203.0.113.9", 30080), _rule("203.0.113.8", 30081)]
    tree = _grown(_entries(rules, _BY_PORT), _BY_PORT)
    together = next(node for node in tree.nodes.values() if len(node.contents) == 3)

    assert [one.order[1] for one in together.contents if isinstance(one, Entry)] == ["s00000", "s00001", "s00002"]


@pytest.mark.parametrize("services", [1000, 10_000])
def test_one_service_more_or_less_changes_a_handful_of_small_chains(services: int) -> None:
    """And never a large one; most often the chain that holds its rule alone."""
    entries = _cluster(services + 100)
    tree = _grown(entries[:services])
    sizes: list[int] = []
    for entry in entries[services:]:
        added = tree.replace((), [entry])
        removed = tree.replace([entry], ())
        sizes += [len(growth.written) + len(growth.gone) for growth in (added, removed)]
        assert all(len(node.contents) <= LEAF_RULES + 1 for node in (*added.written, *removed.written))

    assert max(sizes) <= 20
    assert sorted(sizes)[len(sizes) // 2] <= 5


@pytest.mark.parametrize("services", [1000, 10_000, 20_000])
def test_few_rules_are_looked_at_on_the_way(services: int) -> None:
    """The mean over all Services, of rules before and with the one that matches."""
    looks = [*_looks(_grown(_cluster(services)))]

    assert len(looks) == services
    assert sum(looks) / services < 35


def test_packets_to_other_addresses_leave_after_the_first_chain() -> None:
    """The first chain has one rule for each of the prefixes that Services share, however many Services there are."""
    outside = _entries(_rule(f"203.0.113.{number}", 443) for number in range(1, 40))
    tree = _grown([*_cluster(2000), *(one._replace(order=("z", *one.order[1:])) for one in outside)])
    first = tree.nodes["KUBE-SERVICES"]

    assert [one.rule.destination for one in first.contents] == ["10.96.0.0/12", "203.0.113.0/24"]


def test_one_address_with_many_ports_is_parted_by_protocol_and_port() -> None:
    """A load balancer address with 3,000 ports costs as little as 3,000 addresses."""
    tree = _grown(_entries(_rule("203.0.113.9", port, "udp" if port % 2 else "tcp") for port in range(1, 3001)))
    branches = [one.rule for node in tree.nodes.values() for one in node.contents if isinstance(one, Branch)]

    assert max(len(node.contents) for node in tree.nodes.values()) <= LEAF_RULES
    assert {rule.protocol for rule in branches} == {"", "tcp", "udp"}
    assert all(rule.destination == "" for rule in branches[1:])


def _branches(tree: DispatchTree[Rule], name: str) -> list[Branch]:
    return [one for one in tree.nodes[name].contents if isinstance(one, Branch)]


def test_rule_that_is_alone_on_its_way_stands_where_the_way_would_begin() -> None:
    """No chain is made for a single rule."""
    rules = [*(_rule(f"10.96.0.{number}", 80) for number in range(1, 40)), _rule("203.0.113.9", 80)]
    tree = _grown(_entries(rules))

    assert [type(one) for one in tree.nodes["KUBE-SERVICES"].contents] == [Branch, Entry]
    assert all(len(node.contents) > 1 for name, node in tree.nodes.items() if name != "KUBE-SERVICES")


def test_chain_of_rules_keeps_its_name_whatever_they_share() -> None:
    """Another rule on the same way goes into the chain that is there, though the addresses share less then."""
    near, far = ([_rule(f"{start}.{number}", 80) for number in range(1, 11)] for start in ("10.96.0", "203.0.113"))
    *entries, other = _entries([*near, *far, _rule("203.1.5.5", 80)])
    tree = _grown(entries)
    names = {*tree.nodes}
    growth = tree.replace((), [other])

    assert {*tree.nodes} == names
    assert growth.gone == frozenset()
    assert len(growth.written) == 2
    assert other in growth.written[0].contents


def test_parting_earlier_leaves_what_was_parted_as_it_is() -> None:
    """A rule that shares less with the others comes in by one chain above them, which the first chain leads to."""
    *entries, other = _entries([*(_rule(f"10.96.0.{number}", 80) for number in range(1, 40)), _rule("10.97.0.1", 80)])
    tree = _grown(entries)
    before = {name: node.contents for name, node in tree.nodes.items() if name != "KUBE-SERVICES"}
    tree.replace((), [other])
    after = {name: node.contents for name, node in tree.nodes.items() if name != "KUBE-SERVICES"}

    assert before == {name: contents for name, contents in after.items() if name in before}
    assert len(after) == len(before) + 1


def test_chains_of_different_places_have_different_names() -> None:
    """The same rules in another table, or in another chain of it."""
    rules = [_rule(f"10.96.0.{number}", 80) for number in range(1, 40)]
    places = [Place(table, chain) for table in ("nat", "filter") for chain in ("KUBE-SERVICES", "KUBE-NODEPORTS")]
    trees = [_grown(_entries(rules), place) for place in places]
    names = [name for tree in trees for name in tree.nodes]

    assert len(trees[0].nodes) > 3
    assert len(set(names)) == len(names) - 2


def test_ways_by_port_name_protocol_and_range() -> None:
    """The comment says what the matches ask for, and one digit more is asked for at each level."""
    tree = _grown(_entries([_rule("", port) for port in range(1, 41)], _BY_PORT), _BY_PORT)
    (top,) = _branches(tree, "KUBE-EXTERNAL-SERVICES")
    ways = [top, *_branches(tree, top.chain)]

    assert [one.rule for one in ways] == [
        Rule(
            protocol="tcp",
            matches=(Comment(f"services at tcp {first}-{last}"), PortMatch("tcp", (first, last))),
            target=Jump(one.chain),
        )
        for one, (first, last) in zip(ways, [(0, 255), (0, 15), (16, 31), (32, 47)], strict=True)
    ]


def test_ways_behind_a_port_ask_for_the_address_alone() -> None:
    """Protocol and port have been asked for by then, and nothing is asked for twice."""
    rules = [_rule(f"203.0.113.{number}", 30080) for number in range(1, 41)]
    tree = _grown(_entries(rules, _BY_PORT), _BY_PORT)
    (top,) = _branches(tree, "KUBE-EXTERNAL-SERVICES")
    ports = PortMatch("tcp", (30080, 30080))

    assert top.rule == Rule(
        destination="203.0.113.0/24",
        protocol="tcp",
        matches=(Comment("services at 203.0.113.0/24 tcp 30080-30080"), ports),
        target=Jump(top.chain),
    )
    assert [one.rule for one in _branches(tree, top.chain)] == [
        Rule(destination=prefix, matches=(Comment(f"services at {prefix}"),), target=Jump(one.chain))
        for one, prefix in zip(
            _branches(tree, top.chain), ["203.0.113.0/28", "203.0.113.16/28", "203.0.113.32/28"], strict=True
        )
    ]


def test_tree_without_rules_is_an_empty_first_chain() -> None:
    """Before anything comes, and after everything has left."""
    entries = _cluster(100)
    tree = DispatchTree[Rule](_BY_ADDRESS, Family.IPV4)
    empty: list[Node[Rule]] = [Node("KUBE-SERVICES", 0, (), ())]

    assert [*tree.ordered()] == empty
    tree.replace((), entries)
    tree.replace(entries, ())
    assert [*tree.ordered()] == empty


def test_few_rules_are_the_row_itself() -> None:
    """Up to `LEAF_RULES` there is nothing to part."""
    entries = _cluster(LEAF_RULES)
    tree = _grown(entries)

    assert [*tree.nodes] == ["KUBE-SERVICES"]
    assert [one.order for one in _rules_of(tree)] == [one.order for one in entries]


def test_no_way_is_longer_than_nf_tables_allows() -> None:
    """Addresses of which each prefix holds enough to be parted again: the last level holds the rest as a row."""
    numbers = {1 << bit | low for bit in range(4, 32) for low in range(40)}
    tree = _grown(_entries(_rule(str(ip_address(number)), 80) for number in sorted(numbers)))

    assert max(node.level for node in tree.nodes.values()) == MOST_LEVELS
    assert tree.nodes["KUBE-SERVICES"].level == 0
    assert all(child.level == node.level + 1 for node in tree.nodes.values() for child in node.children)
    assert len(_rules_of(tree)) == len(numbers)


def test_names_are_ours_and_those_that_kube_proxy_removes() -> None:
    """In nat as chains of Services; in filter, where kube-proxy removes none, as ours."""
    names = [name for name in _grown(_cluster(500)).nodes if name != "KUBE-SERVICES"]
    ports = _grown(_entries((_rule("", port) for port in range(500)), _BY_PORT), _BY_PORT)
    filters = [name for name in ports.nodes if name != "KUBE-EXTERNAL-SERVICES"]

    assert names
    assert filters
    assert all(is_service_chain("nat", name) and name.startswith("KUBE-SVC-") for name in names)
    assert all(is_own_chain("filter", name) for name in filters)


def test_a_tree_is_recognised_by_its_lines() -> None:
    """Saved lines of the first chain tell whether it is a tree."""
    tree = _grown(_cluster(100))
    lines = [render_rule("KUBE-SERVICES", one.rule) for one in tree.nodes["KUBE-SERVICES"].contents]

    assert is_branched(lines)
    assert not is_branched([render_rule("KUBE-SERVICES", one.rule) for one in _cluster(3)])


@pytest.mark.parametrize(
    ("dispatch", "rules", "is_tree", "wanted"),
    [
        (Dispatch.LINEAR, 10**6, True, False),
        (Dispatch.TREE, 0, False, True),
        (Dispatch.AUTO, TREE_FROM - 1, False, False),
        (Dispatch.AUTO, TREE_FROM, False, True),
        (Dispatch.AUTO, ROW_BELOW, True, True),
        (Dispatch.AUTO, ROW_BELOW - 1, True, False),
    ],
)
def test_auto_has_two_bounds(dispatch: Dispatch, rules: int, *, is_tree: bool, wanted: bool) -> None:
    """Between them everything stays as it is, so that one Service more or less does not move thousands of rules."""
    assert wants_tree(dispatch, rules, is_tree=is_tree) is wanted


@pytest.mark.parametrize(
    ("dispatch", "rules", "keeps"),
    [
        (Dispatch.AUTO, ROW_BELOW - 1, False),
        (Dispatch.AUTO, ROW_BELOW, True),
        (Dispatch.AUTO, TREE_FROM - 1, True),
        (Dispatch.AUTO, TREE_FROM, False),
        (Dispatch.TREE, ROW_BELOW, False),
        (Dispatch.LINEAR, ROW_BELOW, False),
    ],
)
def test_what_the_kernel_has_counts_between_the_bounds_only(dispatch: Dispatch, rules: int, *, keeps: bool) -> None:
    """Elsewhere configuration and number decide."""
    assert keeps_its_form(dispatch, rules) is keeps
