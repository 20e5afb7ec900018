"""Differences of two rule sets, by meaning and chain."""

from collections.abc import Sequence

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.ruleset.diff import ChainDifference, DifferenceKind, compare_chains, compare_rulesets
from kproxy_ipt.ruleset.model import Chain
from kproxy_ipt.ruleset.parse import parse_rule, parse_save
from kproxy_ipt.ruleset.scan import SavedChain
from kproxy_ipt.testing.save_text import save_text

LAST = "-m addrtype --dst-type LOCAL -j KUBE-NODEPORTS"


def _desired(name: str, rules: Sequence[str]) -> dict[str, Chain]:
    return {name: Chain(name, tuple(parse_rule(f"-A {name} {rule}")[1] for rule in rules))}


def _actual(name: str, rules: Sequence[str]) -> dict[str, SavedChain]:
    return {name: SavedChain(name, "-", tuple(f"-A {name} {rule}" for rule in rules))}


def _compare(name: str, wanted: Sequence[str], found: Sequence[str], table: str = "nat") -> tuple[ChainDifference, ...]:
    return compare_chains(
        _desired(name, wanted), _actual(name, found), table=table, family=Family.IPV4, owners={name: "ns/svc:http"}
    )


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("-p tcp -m tcp --dport 80 -j X", "-p tcp -m tcp --dport 80 -j X"),
        ("-m mark --mark 0x1 -j X", "-m mark --mark 0x1/0xffffffff -j X"),
        ("-s 10.0.0.1/32 -j X", "-s 10.0.0.1 -j X"),
        ("-m nfacct --nfacct-name  n -j X", "-m nfacct --nfacct-name n -j X"),
        (
            '-p tcp -m comment --comment "a b" -m tcp --dport 80 -j X',
            '-p tcp -m tcp --dport 80 -m comment --comment "a b" -j X',
        ),
        (
            "-m addrtype --dst-type LOCAL -m mark --mark 0x1 -j X",
            "-m mark --mark 0x1 -m addrtype --dst-type LOCAL -j X",
        ),
        ("-p tcp -m tcp -j DNAT --to-destination 10.0.0.1:80", "-p tcp -j DNAT --to-destination 10.0.0.1:80"),
        ("-p udp -m udp ! --sport 0:10", "-p udp -m udp --sport 11:65535"),
        ("-p udp -m udp ! --dport 5:65535", "-p udp -m udp --dport 0:4"),
        ("-j REJECT --reject-with icmp-port-unreachable", "-j REJECT"),
        ("-m conntrack --ctstate RELATED,ESTABLISHED -j X", "-m conntrack --ctstate ESTABLISHED,RELATED -j X"),
        (
            "-m statistic --mode random --probability 0.5 -j X",
            "-m statistic --mode random --probability 0.50000000000 -j X",
        ),
    ],
)
def test_other_spelling_of_a_rule_is_no_difference(wanted: str, found: str) -> None:
    """Rules are compared by what they mean, not by how a version of iptables writes them."""
    assert _compare("A", [wanted], [found]) == ()


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("-m mark --mark 0x1 -m nfacct --nfacct-name  n -j X", "-m nfacct --nfacct-name  n -m mark --mark 0x1 -j X"),
        ("-m limit --limit 1/sec -m mark --mark 0x1", "-m mark --mark 0x1 -m limit --limit 1/sec"),
        ("-s 10.0.0.1/32 -j X", "! -s 10.0.0.1/32 -j X"),
        ("-j X", "-g X"),
        ("-p tcp -m tcp --dport 80 -j X", "-p tcp -m tcp -j X"),
        ("! -p tcp -m tcp -j X", "! -p tcp -j X"),
        ('-m comment --comment "a b" -j X', '-m comment --comment "a  b" -j X'),
    ],
)
def test_rule_that_does_something_else_is_a_difference(wanted: str, found: str) -> None:
    """A match with a memory keeps its place; negation, goto, ports and comments count."""
    (difference,) = _compare("A", [wanted], [found])

    assert difference.kind is DifferenceKind.CHANGED
    assert difference.extra == (f"-A A {found}",)


def test_missing_and_extra_rules_are_named_as_often_as_they_are() -> None:
    """A rule that should be there twice and is there once is missing once."""
    (difference,) = _compare("A", ["-j X", "-j X", "-j Y"], ["-j X", "-j Z", "-j Y", "-j Z"])

    assert difference == ChainDifference(
        "nat", "A", "ns/svc:http", DifferenceKind.CHANGED, ("-A A -j X",), ("-A A -j Z", "-A A -j Z")
    )


def test_missing_chain_is_one_difference_with_its_rules() -> None:
    """A chain that is not there is named with its owner."""
    differences = compare_chains(
        _desired("A", ["-j X"]), {}, table="nat", family=Family.IPV4, owners={"A": "ns/svc:http"}
    )

    assert differences == (
        ChainDifference("nat", "A", "ns/svc:http", DifferenceKind.MISSING_CHAIN, missing=("-A A -j X",)),
    )


def test_extra_chains_are_those_that_are_ours() -> None:
    """A chain that nobody asked for counts only if it is one of ours."""
    actual = {**_actual("A", ["-j X"]), **_actual("FOREIGN", ["-j X"])}

    differences = compare_chains({}, actual, table="nat", family=Family.IPV4, owners={}, ours={"A"})

    assert [(found.chain, found.kind, found.extra) for found in differences] == [
        ("A", DifferenceKind.EXTRA_CHAIN, ("-A A -j X",))
    ]


def test_order_counts_in_ordinary_chains() -> None:
    """The same rules in another order are a difference of their own kind."""
    (difference,) = _compare("KUBE-SVC-A", ["-j X", "-j Y"], ["-j Y", "-j X"])

    assert (difference.kind, difference.missing, difference.extra) == (DifferenceKind.ORDER, (), ())


@pytest.mark.parametrize(("table", "chain"), [("nat", "KUBE-SERVICES"), ("filter", "KUBE-PROXY-FIREWALL")])
def test_order_does_not_count_in_unordered_chains(table: str, chain: str) -> None:
    """Rules for different addresses may come in any order where each packet fits only one of them."""
    rules = ["-d 10.0.0.1/32 -p tcp -m tcp --dport 80 -j X", "-d 10.0.0.2/32 -p tcp -m tcp --dport 80 -j Y"]

    assert _compare(chain, rules, rules[::-1], table) == ()


def test_rules_for_the_same_packets_keep_their_order_in_unordered_chains() -> None:
    """Two rules of one protocol, address and port: the first one decides."""
    header = "-d 10.0.0.1/32 -p tcp -m tcp --dport 80"
    rules = [f"{header} -m mark --mark 0x1 -j X", f"{header} -j Y", "-d 10.0.0.2/32 -j Z"]

    assert _compare("KUBE-SERVICES", rules, [rules[2], rules[0], rules[1]]) == ()
    assert [found.kind for found in _compare("KUBE-SERVICES", rules, [rules[1], rules[0], rules[2]])] == ["order"]


def test_node_port_rule_that_is_not_last_is_a_difference() -> None:
    """A service behind the jump to the node ports would lose its packets to them."""
    rules = ["-d 10.0.0.1/32 -j X", "-d 10.0.0.2/32 -j Y", LAST]

    assert _compare("KUBE-SERVICES", rules, [rules[1], rules[0], LAST]) == ()
    assert [found.kind for found in _compare("KUBE-SERVICES", rules, [rules[0], LAST, rules[1]])] == ["order"]


def test_localhost_rule_behind_the_general_one_is_a_difference() -> None:
    """The rule for 127.0.0.0/8 counts packets, so it must see them before the general rule takes them."""
    local, general = "-d 127.0.0.0/8 -p tcp -m tcp --dport 30080 -j X", "-p tcp -m tcp --dport 30080 -j X"
    other = "-p udp -m udp --dport 30080 -j X"
    rules = [local, general, other]

    assert _compare("KUBE-NODEPORTS", rules, [other, local, general]) == ()
    assert [found.kind for found in _compare("KUBE-NODEPORTS", rules, [general, local, other])] == ["order"]


def test_line_that_is_no_rule_for_us_is_extra() -> None:
    """A listing of a version that we cannot read is a difference, not a failure."""
    (difference,) = _compare("A", ["-j X"], ["-s a,b -j X"])

    assert difference.extra == ("-A A -s a,b -j X",)


def test_equal_rulesets_have_no_differences() -> None:
    """A Ruleset equals itself whatever its counters."""
    text = save_text({"nat": {"A": ["-j RETURN"]}})
    counted = text.replace("-A A", "[5:6] -A A")

    assert compare_rulesets(parse_save(text, Family.IPV4), parse_save(counted, Family.IPV4)) == ()


def test_rulesets_differ_by_tables_chains_rules_and_policies() -> None:
    """Each kind of difference between two Rulesets is found, table by table."""
    wanted = save_text({"nat": {"A": ["-j RETURN"], "B": []}, "filter": {}}, policies={("filter", "INPUT"): "DROP"})
    found = save_text({"nat": {"A": ["-j ACCEPT"], "C": []}, "filter": {}, "raw": {"D": ["-j ACCEPT"]}})

    differences = compare_rulesets(parse_save(wanted, Family.IPV4), parse_save(found, Family.IPV4))

    assert [(found.table, found.chain, found.kind, found.missing, found.extra) for found in differences] == [
        ("nat", "A", "changed", ("-A A -j RETURN",), ("-A A -j ACCEPT",)),
        ("nat", "B", "missing chain", (), ()),
        ("nat", "C", "extra chain", (), ()),
        ("filter", "INPUT", "changed", (":INPUT DROP",), (":INPUT ACCEPT",)),
        ("raw", "PREROUTING", "extra chain", (), ()),
        ("raw", "OUTPUT", "extra chain", (), ()),
        ("raw", "D", "extra chain", (), ("-A D -j ACCEPT",)),
    ]
