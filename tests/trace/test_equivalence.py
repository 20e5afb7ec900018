"""Two Rulesets compared by what becomes of packets."""

import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config, IptablesConfig
from kproxy_ipt.rules.build import with_base_chains
from kproxy_ipt.ruleset.canonical import UNORDERED
from kproxy_ipt.ruleset.model import Chain, Rule, Ruleset, Table
from kproxy_ipt.ruleset.parse import parse_save
from kproxy_ipt.ruleset.targets import Jump, Verdict
from kproxy_ipt.testing.desired import desired_for
from kproxy_ipt.testing.objects import endpoint_slice, service, service_port
from kproxy_ipt.testing.recorded import INTERFACE_ADDRESSES, recorded_case
from kproxy_ipt.trace.equivalence import EquivalenceReport, Marks, compare_behaviour
from kproxy_ipt.trace.packet import End, Host, Origin

GOLDEN = Path(__file__).parents[1] / "golden"
CASES = sorted(path.parent for path in GOLDEN.glob("*/case.yaml"))
HOST = Host(addresses=frozenset(INTERFACE_ADDRESSES))

Rules = tuple[Rule, ...]


def _cluster(endpoints: int = 2, *, bit: int = 14, affinity_s: int | None = None, name: str = "web") -> Ruleset:
    """The rules of one Service with a node port."""
    web = service(
        name,
        service_type="NodePort",
        ports=[service_port(80, node_port=30080, target_port=8080)],
        affinity_timeout_s=affinity_s,
    )
    behind = endpoint_slice(web, [f"10.244.1.{number}" for number in range(2, endpoints + 2)])
    config = Config(cluster_cidrs=("10.244.0.0/16",), iptables=IptablesConfig(masquerade_bit=bit))
    return with_base_chains(desired_for(web, behind, config=config))


def _golden(name: str) -> Ruleset:
    return parse_save((GOLDEN / name / "iptables.txt").read_text(), Family.IPV4)


def _changed(ruleset: Ruleset, table: str, chain: str, change: Callable[[Rules], Rules]) -> Ruleset:
    """*ruleset* with other rules in one chain; *chain* may be the beginning of a name."""
    chains = dict(ruleset.tables[table].chains)
    name = next(found for found in chains if found.startswith(chain))
    chains[name] = msgspec.structs.replace(chains[name], rules=change(chains[name].rules))
    return Ruleset(ruleset.family, {**ruleset.tables, table: Table(table, chains)})


def _compared(first: Ruleset, second: Ruleset) -> EquivalenceReport:
    return compare_behaviour(first, second, HOST)


@pytest.mark.parametrize("family", list(Family))
@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_recorded_rules_act_as_those_that_we_build(folder: Path, family: Family) -> None:
    """Every recorded rule set equals itself and ours, by behaviour."""
    case = recorded_case(folder)
    recorded = parse_save(case.canonical[family], family)
    report = compare_behaviour(recorded, with_base_chains(case.desired(family)), HOST)

    assert report.equal
    assert report.differences == ()
    assert report.classes >= 4


def test_most_recorded_rules_act_differently_from_each_other() -> None:
    """Each case against the next one: the judge is not blind. Equal ones show other fields than rules."""
    equal = [
        first.name
        for first, second in pairwise(CASES[25:51])
        if _compared(_golden(first.name), _golden(second.name)).equal
    ]

    assert len(equal) <= 5


@pytest.mark.parametrize("folder", CASES[25:50:4], ids=lambda folder: folder.name)
def test_order_in_unordered_chains_does_not_matter(folder: Path) -> None:
    """Shuffled dispatch is the same dispatch, as long as jumps to node ports stay last and localhost stays first."""
    ruleset = shuffled = _golden(folder.name)
    for table, names in UNORDERED.items():
        for name in names if table == "filter" else ():
            if shuffled.chain(table, name):
                shuffled = _changed(shuffled, table, name, lambda rules: rules[::-1])
    if (services := ruleset.chain("nat", "KUBE-SERVICES")) and len(services.rules) > 1:
        shuffled = _changed(shuffled, "nat", "KUBE-SERVICES", lambda rules: (*rules[:-1][::-1], rules[-1]))

    assert _compared(ruleset, shuffled).equal


def test_node_port_jump_moved_up_is_found() -> None:
    """A load balancer address of the node itself, on a port that is a node port too, ends somewhere else."""
    first = service("a", service_type="NodePort", ports=[service_port(80, node_port=30080)])
    second = service("b", cluster_ip="10.96.0.11", external_ips=["172.31.0.2"], ports=[30080])
    ruleset = with_base_chains(
        desired_for(first, second, endpoint_slice(first), endpoint_slice(second, ["10.244.1.9"]))
    )
    moved = _changed(ruleset, "nat", "KUBE-SERVICES", lambda rules: (rules[-1], *rules[:-1]))
    report = _compared(ruleset, moved)

    assert {(one.packet.destination, one.packet.destination_port) for one in report.differences} == {
        ("172.31.0.2", 30080)
    }


def test_loopback_rule_after_the_general_one_changes_nothing_but_the_counter() -> None:
    """Both lead to the same chain, so only the accounting object would tell."""
    ruleset = _cluster()
    swapped = _changed(ruleset, "nat", "KUBE-NODEPORTS", lambda rules: rules[::-1])

    assert ruleset != swapped
    assert _compared(ruleset, swapped).equal


def test_loopback_rule_with_a_fate_of_its_own_must_come_first() -> None:
    """A rule for localhost that accepts keeps node ports there from being translated, if it is the first to match."""

    def accepting(rules: Rules) -> Rules:
        return (msgspec.structs.replace(rules[0], target=Verdict("ACCEPT")), *rules[1:])

    first = _changed(_cluster(), "nat", "KUBE-NODEPORTS", accepting)
    last = _changed(first, "nat", "KUBE-NODEPORTS", lambda rules: rules[::-1])
    report = _compared(first, last)

    assert report.differences
    assert all(one.packet.destination.startswith("127.") for one in report.differences)
    assert {one.packet.destination_port for one in report.differences} == {30080}


def test_number_of_endpoints_is_noticed() -> None:
    """Four endpoints are not five; both distributions are told."""
    report = _compared(_cluster(4), _cluster(5))
    outcomes = [(len(one.outcomes_a), len(one.outcomes_b)) for one in report.differences]

    assert not report.equal
    assert (4, 5) in outcomes
    assert {one.service for one in report.differences} == {"default/web"}


def test_names_of_services_and_chains_do_not_matter() -> None:
    """The same Service under another name has other chains and other comments, and acts alike."""
    first, second = _cluster(3, affinity_s=600), _cluster(3, affinity_s=600, name="other")

    assert not set(first.tables["nat"].chains) >= set(second.tables["nat"].chains)
    assert _compared(first, second).equal


def test_affinity_is_noticed() -> None:
    """With and without, and with another timeout: known clients are sent elsewhere."""
    without, short, long = _cluster(), _cluster(affinity_s=600), _cluster(affinity_s=10800)

    assert not _compared(without, short).equal
    report = _compared(short, long)
    assert all("known to the list clients-of-10.244.1." in one.client for one in report.differences)
    assert report.differences


def test_masquerade_bit_matters_to_marks_alone() -> None:
    """With another bit packets that arrive with either mark differ; without marks all are treated alike."""
    first, second = _cluster(), _cluster(bit=15)
    report = _compared(first, second)

    assert not report.equal
    assert all(
        one.packet.mark or {out.mark for out in one.outcomes_a} != {out.mark for out in one.outcomes_b}
        for one in report.differences
    )
    assert compare_behaviour(first, second, HOST, marks=Marks.IGNORED).equal


def test_rounding_of_probabilities_is_no_difference() -> None:
    """A share that is off by some steps of 2**-31 is the same; by a thousandth it is not."""

    def shifted(steps: int) -> Callable[[Rules], Rules]:
        def change(rules: Rules) -> Rules:
            dice = rules[1].matches[-1]
            moved = msgspec.structs.replace(dice, probability=dice.probability + steps)  # type: ignore[union-attr]
            return (rules[0], msgspec.structs.replace(rules[1], matches=(*rules[1].matches[:-1], moved)), *rules[2:])

        return change

    ruleset = _cluster()
    close, far = (_changed(ruleset, "nat", "KUBE-SVC-", shifted(steps)) for steps in (4, 2**21))

    assert _compared(ruleset, close).equal
    assert not _compared(ruleset, far).equal
    assert not compare_behaviour(ruleset, close, HOST, tolerance=0).equal


def test_grouped_balancing_equals_a_row_of_dices() -> None:
    """Two groups of two with a dice each, and one row of four: a quarter for each endpoint either way."""
    ruleset = _cluster(4)
    name = next(name for name in ruleset.tables["nat"].chains if name.startswith("KUBE-SVC-"))
    chain = ruleset.tables["nat"].chains[name]
    mark, *row = chain.rules
    half = next(
        match for match in _cluster(2).tables["nat"].chains[name].rules[1].matches if hasattr(match, "probability")
    )
    group = [Rule(matches=(half,), target=row[0].target), Rule(target=row[1].target)]
    rest = [Rule(matches=(half,), target=row[2].target), Rule(target=row[3].target)]
    chains = {
        **ruleset.tables["nat"].chains,
        "G": Chain("G", tuple(group)),
        name: Chain(name, (mark, Rule(matches=(half,), target=Jump("G")), *rest)),
    }
    grouped = Ruleset(ruleset.family, {**ruleset.tables, "nat": Table("nat", chains)})
    report = _compared(ruleset, grouped)

    assert report.equal
    assert report.packets == 0


def test_policy_of_a_built_in_chain_counts() -> None:
    """FORWARD with policy DROP drops what no rule accepts."""
    ruleset = _cluster()
    chains = dict(ruleset.tables["filter"].chains)
    chains["FORWARD"] = msgspec.structs.replace(chains["FORWARD"], policy="DROP")
    report = _compared(ruleset, Ruleset(ruleset.family, {**ruleset.tables, "filter": Table("filter", chains)}))

    assert any(End.DROPPED in {out.end for out in one.outcomes_b} for one in report.differences)


def test_empty_rules_let_everything_pass() -> None:
    """A machine without rules differs from one with a Service only in packets that the Service is about."""
    report = _compared(Ruleset(Family.IPV4), _cluster())
    touched = {(one.packet.destination, one.packet.destination_port) for one in report.differences}

    assert ("10.96.0.10", 80) in touched
    assert compare_behaviour(Ruleset(Family.IPV4), Ruleset(Family.IPV4), Host()).equal


def test_local_addresses_are_looked_at_without_a_known_host() -> None:
    """A node port is found even if nobody says which addresses the node has, and not only on loopback."""
    ruleset = _cluster()
    without = _changed(ruleset, "nat", "KUBE-NODEPORTS", lambda rules: rules[:1])
    report = compare_behaviour(ruleset, without, Host())

    assert {one.packet.destination_port for one in report.differences} == {30080}
    assert not any(one.packet.destination.startswith("127.") for one in report.differences)


def test_search_ends_with_the_wanted_number_of_differences() -> None:
    """A cut search says so."""
    report = compare_behaviour(_cluster(4), _cluster(5), HOST, most_differences=1)

    assert len(report.differences) == 1
    assert report.is_cut


def _branched(ruleset: Ruleset, dice: random.Random) -> Iterator[tuple[str, Chain]]:
    """The nat chains, where rules for service addresses, shuffled, moved to a chain behind a prefix."""
    for name, chain in ruleset.tables["nat"].chains.items():
        if name != "KUBE-SERVICES":
            yield name, chain
            continue
        hosts = [rule for rule in chain.rules if rule.destination.endswith("/32")]
        rest = [rule for rule in chain.rules if not rule.destination.endswith("/32")]
        dice.shuffle(hosts)
        top = Rule(destination="10.96.0.0/12", target=Jump("T"))
        inside = tuple(rule for rule in hosts if rule.destination.startswith("10.96."))
        outside = tuple(rule for rule in hosts if not rule.destination.startswith("10.96."))
        yield "T", Chain("T", inside)
        yield name, Chain(name, (top, *outside, *rest))


@pytest.mark.parametrize("folder", CASES[25:50:3], ids=lambda folder: folder.name)
def test_dispatch_as_a_tree_equals_the_row(folder: Path) -> None:
    """Rules for one address may stand in a chain that a prefix leads to; nothing has to walk to see it."""
    ruleset = _golden(folder.name)
    chains = dict(_branched(ruleset, random.Random(1)))
    report = _compared(ruleset, Ruleset(ruleset.family, {**ruleset.tables, "nat": Table("nat", chains)}))

    assert report.equal
    assert report.packets == 0


def test_origin_of_a_difference_can_be_the_node() -> None:
    """A jump that is missing in OUTPUT alone is found with a packet of the node."""
    ruleset = _cluster()
    report = _compared(ruleset, _changed(ruleset, "nat", "OUTPUT", lambda rules: rules[1:]))

    assert report.differences
    assert {one.packet.origin for one in report.differences} == {Origin.NODE}


def test_interface_that_tells_local_traffic_is_found() -> None:
    """Masquerading by interface: the difference needs a packet that comes in by the bridge, or by another one."""
    ruleset = _golden("74-local-bridge-interface")

    def negated(rules: Rules) -> Rules:
        return tuple(msgspec.structs.replace(rule, in_interface_negated=False) for rule in rules)

    report = _compared(ruleset, _changed(ruleset, "nat", "KUBE-SVC-", negated))

    assert report.differences
    assert {one.packet.in_interface for one in report.differences} <= {"other0", "cni0"}
    assert all(one.packet.origin is Origin.REMOTE for one in report.differences)


def test_ipv6_is_judged_alike() -> None:
    """A port that is another one in IPv6 rules is found."""
    path = GOLDEN / "68-ipv6-only" / "ip6tables.txt"
    text = path.read_text()
    changed = text.replace("]:8080", "]:8081")
    report = compare_behaviour(parse_save(text, Family.IPV6), parse_save(changed, Family.IPV6), HOST)

    assert text != changed
    assert {":" in one.packet.destination for one in report.differences} == {True}


def test_difference_between_known_sources_is_found() -> None:
    """A source range that is one bit wider is found with a source from the part that only one side lets in."""
    ruleset = _golden("40-source-ranges-with-node")

    def wider(rules: Rules) -> Rules:
        return (msgspec.structs.replace(rules[0], source="10.0.0.0/7"), *rules[1:])

    report = _compared(ruleset, _changed(ruleset, "nat", "KUBE-FW-", wider))

    assert [one.packet.source.partition(".")[0] for one in report.differences] == ["11"]


def test_type_of_a_destination_is_found_where_it_matters() -> None:
    """A rule for broadcasts is met by one address alone, which is looked at though others are alike."""
    line = "*filter\n-A FORWARD -m addrtype --dst-type BROADCAST -j DROP\nCOMMIT\n"
    extra = parse_save(line, Family.IPV4).tables["filter"].chains["FORWARD"].rules
    ruleset = _cluster()
    report = _compared(ruleset, _changed(ruleset, "filter", "FORWARD", lambda rules: (*extra, *rules)))

    assert {one.packet.destination for one in report.differences} == {"255.255.255.255"}


def test_first_of_several_known_lists_counts() -> None:
    """Affinity rules in another order differ only for a client that two lists know."""
    ruleset = _cluster(2, affinity_s=600)
    swapped = _changed(ruleset, "nat", "KUBE-SVC-", lambda rules: (rules[0], rules[2], rules[1], *rules[3:]))
    report = _compared(ruleset, swapped)

    assert report.differences
    assert all(one.client.count("known to the list") == 2 for one in report.differences)
