"""Groups of endpoints: stable, small, and with equal shares."""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Balance, Config, ShapeConfig
from kproxy_ipt.rules import groups as groups_module
from kproxy_ipt.rules.build import Desired, service_port_rules
from kproxy_ipt.rules.groups import (
    GROUP_CAPACITY,
    Group,
    GroupWriter,
    dices,
    group_chain_name,
    group_chain_names,
    groups_of,
)
from kproxy_ipt.rules.names import is_service_chain, service_suffix
from kproxy_ipt.rules.options import rule_options
from kproxy_ipt.ruleset.matches import PROBABILITY_ONE, Comment, StatisticRandom
from kproxy_ipt.ruleset.model import Chain, Rule
from kproxy_ipt.ruleset.targets import Jump
from kproxy_ipt.state.model import Endpoint, MachineFacts, NodeFacts
from kproxy_ipt.testing.desired import desired_for, snapshot_of
from kproxy_ipt.testing.objects import endpoint_slice, service

SIZES = [25, 26, 60, 100, 384, 1000, 1501, 3000, 5000, 10_000]


def _address(number: int) -> str:
    return f"10.{200 + number // 60000}.{number // 250 % 240}.{number % 250 + 1}"


def _endpoints(numbers: Sequence[int]) -> list[tuple[Endpoint, str]]:
    texts = [(_address(number), f"{_address(number)}:80") for number in numbers]
    return [(Endpoint(address=address, port=80, text=text), f"SEP {text}") for address, text in texts]


def _texts(members: Sequence[tuple[Endpoint, str]]) -> list[str]:
    return [endpoint.text for endpoint, _ in members]


def _leaves(groups: Sequence[Group]) -> list[Group]:
    return [leaf for group in groups for leaf in (_leaves(group.parts) if group.parts else [group])]


def _grouped(count: int) -> Desired:
    web = service()
    addresses = [_address(number) for number in range(count)]
    return desired_for(web, endpoint_slice(web, addresses), config=Config(shape=ShapeConfig(balance=Balance.GROUPED)))


@pytest.mark.parametrize("count", [0, 1, GROUP_CAPACITY])
def test_few_endpoints_have_no_groups(count: int) -> None:
    """They fit into the chain of the service port."""
    assert groups_of(_endpoints(range(count))) == ()


@pytest.mark.parametrize("count", SIZES)
def test_every_endpoint_is_in_one_small_group(count: int) -> None:
    """No group holds more than its capacity, and a group above has all members of its parts."""
    groups = groups_of(_endpoints(range(count)))
    leaves = _leaves(groups)

    assert len(groups) <= 16
    assert max(len(leaf.members) for leaf in leaves) <= GROUP_CAPACITY
    assert sorted(_texts(_endpoints(range(count)))) == sorted(text for leaf in leaves for text in _texts(leaf.members))
    assert all(len(group.members) == sum(len(part.members) for part in group.parts) for group in groups if group.parts)


def test_group_of_just_its_capacity_is_not_split() -> None:
    """One endpoint more would be too many."""
    endpoints = _endpoints(range(200))
    capacity = max(len(group.members) for group in groups_of(endpoints))

    assert not [group for group in groups_of(endpoints, capacity) if group.parts]
    assert [group for group in groups_of(endpoints, capacity - 1) if group.parts]


@given(st.sets(st.integers(0, 5000), max_size=120), st.integers(0, 5000), st.integers(1, 5))
def test_groups_depend_on_the_set_alone_and_one_endpoint_changes_one(
    numbers: set[int], other: int, capacity: int
) -> None:
    """Whatever the order; a further endpoint changes the group that it joins, whose split included, and no other."""
    order = sorted(numbers - {other})
    before = _by_path(groups_of(_endpoints(order), capacity))
    after = _by_path(groups_of(_endpoints([other, *reversed(order)]), capacity))
    joined = {path for path, members in after.items() if f"{_address(other)}:80" in members}

    if before:
        assert len(joined) == 1
        assert all(before.get(path) == members for path, members in after.items() if not _is_kin(path, before, after))


def _by_path(groups: Sequence[Group]) -> Mapping[str, frozenset[str]]:
    return {leaf.path: frozenset(endpoint.text for endpoint, _ in leaf.members) for leaf in _leaves(groups)}


def _is_kin(path: str, before: Mapping[str, frozenset[str]], after: Mapping[str, frozenset[str]]) -> bool:
    """Whether a leaf took the new endpoint, or came out of the split of one that did."""
    if path in before:
        return before[path] < after[path]
    return any(path.startswith(old) and old not in after for old in before) or len(after[path]) == 1


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=60).map(tuple))
def test_each_way_of_a_row_of_dices_is_within_one_step_of_its_due(weights: tuple[int, ...]) -> None:
    """Errors do not add up along the row: 2**-31 bounds every share, the last one too."""
    remaining, worst = Fraction(1), Fraction(0)
    for weight, probability in zip(weights, (*dices(weights), PROBABILITY_ONE), strict=True):
        share = remaining * Fraction(probability, PROBABILITY_ONE)
        worst = max(worst, abs(share - Fraction(weight, sum(weights))))
        remaining -= share

    assert worst <= Fraction(1, PROBABILITY_ONE)
    assert remaining == 0


def _walked(chains: Mapping[str, Chain], name: str) -> tuple[dict[str, Fraction], Fraction]:
    """Shares of endpoint chains below chain *name*, and how many rules a new connection meets there on average."""
    shares: dict[str, Fraction] = {}
    remaining, met = Fraction(1), Fraction(0)
    for rule in chains[name].rules:
        assert isinstance(rule.target, Jump)
        met += remaining
        dice = [match for match in rule.matches if isinstance(match, StatisticRandom)]
        taken = remaining * (Fraction(dice[0].probability, PROBABILITY_ONE) if dice else 1)
        remaining -= taken
        if rule.target.chain.startswith("KUBE-SEP-"):
            shares[rule.target.chain] = taken
            met += 2 * taken
        else:
            inner, steps = _walked(chains, rule.target.chain)
            shares.update((chain, taken * share) for chain, share in inner.items())
            met += taken * steps
    return shares, met


@pytest.mark.parametrize("count", SIZES)
def test_shares_are_exact_and_few_rules_are_met(count: int, record_property: Callable[[str, object], None]) -> None:
    """Every endpoint within 1e-9 of 1/n; at 5,000 endpoints some 30 rules instead of 2,500."""
    chains = _grouped(count).ruleset.tables["nat"].chains
    (top,) = {name for name in chains if name.startswith("KUBE-SVC-")} - {
        rule.target.chain
        for chain in chains.values()
        for rule in chain.rules
        if isinstance(rule.target, Jump)
        if not chain.name.startswith("KUBE-SERVICES")
    }
    shares, met = _walked(chains, top)
    error = max(abs(share - Fraction(1, count)) for share in shares.values())
    record_property("largest error of a share", float(error))
    record_property("rules that a new connection meets", float(met))

    assert (len(shares), sum(shares.values())) == (count, 1)
    assert error < Fraction(1, 10**9)
    assert met < 40


def test_group_chains_come_before_those_that_jump_to_them() -> None:
    """In the order of chains of a service port nobody jumps forward."""
    seen: set[str] = set()
    desired = _grouped(1000)
    for name in desired.owners:
        chain = desired.ruleset.tables["nat"].chains[name]
        targets = {rule.target.chain for rule in chain.rules if isinstance(rule.target, Jump)} - {"KUBE-MARK-MASQ"}

        assert targets <= seen
        seen.add(name)


def test_names_of_group_chains_are_told_with_the_number_of_endpoints_behind_each() -> None:
    """From the endpoints alone, the chains of groups of groups included: those that are written."""
    count = 1000
    chains = _grouped(count).ruleset.tables["nat"].chains
    top = f"KUBE-SVC-{service_suffix('default/web', 'tcp')}"
    told = [*group_chain_names(top, "default/web", "tcp", groups_of(_endpoints(range(count))))]
    written = {name for name in chains if name.startswith("KUBE-SVC-")} - {top}

    assert sorted(name for name, _ in told) == sorted(written)
    assert all(behind == len(_walked(chains, name)[0]) for name, behind in told)


@pytest.mark.parametrize("with_comments", [True, False])
def test_rules_of_groups_name_where_they_lead_on_demand(*, with_comments: bool) -> None:
    """A group by the number of its endpoints, an endpoint by its text."""
    groups = groups_of(_endpoints(range(60)))
    writer = GroupWriter("KUBE-SVC-AAAAAAAAAAAAAAAA", "ns/a", "tcp", with_comments)
    expected = [f"ns/a -> {len(group.members)} endpoints" for group in groups]
    inner = [f"ns/a -> {text}" for group in groups for text in _texts(group.members)]

    assert _said(writer.row(groups)) == (expected if with_comments else [])
    assert [one for chain in writer.chains(groups) for one in _said(chain.rules)] == (inner if with_comments else [])


def test_chain_of_a_service_port_leads_to_groups_as_options_say() -> None:
    """No group is larger than their capacity, and comments are written where other rules of endpoints have them."""
    web = service()
    state = next(iter(snapshot_of(web, endpoint_slice(web, [_address(n) for n in range(200)])).services.values()))
    config = Config(shape=ShapeConfig(balance=Balance.GROUPED))
    options = rule_options(config, NodeFacts(), MachineFacts(), Family.IPV4, endpoint_count=200)
    small = msgspec.structs.replace(options, group_capacity=5)
    chains = [
        chain
        for chain in service_port_rules(state, NodeFacts(), small).chains
        if not chain.name.startswith("KUBE-SEP-")
    ]
    leaves = [chain for chain in chains if "KUBE-SEP-" in repr(chain.rules)]

    assert max(len(leaf.rules) for leaf in leaves) == 5
    assert all(len(_said(chain.rules)) == len(chain.rules) for chain in chains)


def _said(rules: Sequence[Rule]) -> list[str]:
    return [match.text for rule in rules for match in rule.matches if isinstance(match, Comment)]


def test_endpoints_that_cannot_be_told_apart_share_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Splitting ends with the hash, however many are left."""
    monkeypatch.setattr(groups_module, "_bits", lambda _: "01" * 32)
    (group,) = groups_of(_endpoints(range(30)))

    assert (group.path, group.parts, len(group.members)) == ("0101", (), 30)


def test_group_chains_have_names_that_are_ours() -> None:
    """The kind is that of the chain above; policies, service ports, protocols and groups have names of their own."""
    names = [
        group_chain_name(parent, text, protocol, path)
        for parent in ("KUBE-SVC-AAAAAAAAAAAAAAAA", "KUBE-SVL-AAAAAAAAAAAAAAAA")
        for text in ("ns/a", "ns/b")
        for protocol in ("tcp", "udp")
        for path in ("0000", "0001", "00011")
    ]

    assert all(is_service_chain("nat", name) for name in names)
    assert len({*names}) == len(names)
    assert {name[:9] for name in names} == {"KUBE-SVC-", "KUBE-SVL-"}
