"""A packet on its way through hooks, tables and chains: the order, who decides, and how the ways part."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproxy_ipt.addresses import Family
from kproxy_ipt.errors import RulesetError
from kproxy_ipt.ruleset.matches import Mark, StatisticNth, StatisticRandom
from kproxy_ipt.ruleset.model import Chain, Rule, Ruleset, Table
from kproxy_ipt.ruleset.parse import parse_save
from kproxy_ipt.ruleset.targets import Jump, Reject, SetMark, Target, Verdict
from kproxy_ipt.trace.packet import End, Host, Origin, Outcome, Packet
from kproxy_ipt.trace.walk import walk

_NODE = "192.0.2.10"
_HOST = Host(addresses=frozenset({_NODE}))
_ALL_TABLES = {
    "raw": ("PREROUTING", "OUTPUT"),
    "mangle": ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"),
    "nat": ("PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"),
    "filter": ("INPUT", "FORWARD", "OUTPUT"),
    "security": ("INPUT", "FORWARD", "OUTPUT"),
}
_COUNTING = "".join(
    f"*{table}\n" + "".join(f":{hook} ACCEPT\n-A {hook}\n" for hook in hooks) + "COMMIT\n"
    for table, hooks in _ALL_TABLES.items()
)


def _packet(
    destination: str = "10.96.0.10", *, origin: Origin = Origin.REMOTE, state: str = "NEW", mark: int = 0
) -> Packet:
    return Packet(
        family=Family.IPV4,
        source="10.244.1.11",
        destination=destination,
        destination_port=80,
        in_interface="" if origin is Origin.NODE else "eth0",
        out_interface="eth1",
        origin=origin,
        state=state,
        mark=mark,
    )


def _walk(text: str, packet: Packet | None = None) -> tuple[Outcome, ...]:
    return walk(parse_save(text, Family.IPV4), packet or _packet(), _HOST)


def _places(outcome: Outcome) -> list[str]:
    return [f"{step.table} {step.hook}" for step in outcome.path if step.position]


def test_forwarded_packets_meet_the_tables_in_the_order_of_the_kernel() -> None:
    """PREROUTING raw, mangle, nat; FORWARD mangle, filter, security; POSTROUTING mangle, nat."""
    (outcome,) = _walk(_COUNTING)

    assert _places(outcome) == [
        *("raw PREROUTING", "mangle PREROUTING", "nat PREROUTING"),
        *("mangle FORWARD", "filter FORWARD", "security FORWARD"),
        *("mangle POSTROUTING", "nat POSTROUTING"),
    ]
    assert not outcome.delivered_locally


def test_packets_for_the_node_end_in_input() -> None:
    """The node's own address leads to INPUT, whose nat comes after the filter."""
    (outcome,) = _walk(_COUNTING, _packet(_NODE))

    assert _places(outcome)[3:] == ["mangle INPUT", "filter INPUT", "security INPUT", "nat INPUT"]
    assert outcome.delivered_locally


def test_packets_of_the_node_to_itself_come_back_over_loopback() -> None:
    """OUTPUT, POSTROUTING, and back in without being translated again."""
    (outcome,) = _walk(_COUNTING, _packet("127.0.0.1", origin=Origin.NODE))

    assert _places(outcome) == [
        *("raw OUTPUT", "mangle OUTPUT", "nat OUTPUT", "filter OUTPUT", "security OUTPUT"),
        *("mangle POSTROUTING", "nat POSTROUTING"),
        *("raw PREROUTING", "mangle PREROUTING"),
        *("mangle INPUT", "filter INPUT", "security INPUT"),
    ]
    assert outcome.delivered_locally


def test_known_flows_do_not_meet_nat() -> None:
    """NAT is decided for the first packet of a flow."""
    (outcome,) = _walk(_COUNTING, _packet(state="ESTABLISHED"))

    assert not [place for place in _places(outcome) if place.startswith("nat")]


def test_raw_comes_before_conntrack() -> None:
    """There every packet is without a record; what is exempted there stays untracked, and is not translated."""
    text = (
        "*raw\n:PREROUTING ACCEPT\n-A PREROUTING -m conntrack --ctstate NEW -j DROP\n"
        "-A PREROUTING -p tcp -m conntrack --ctstate INVALID -m tcp --tcp-flags SYN SYN{}\nCOMMIT\n"
        "*nat\n:PREROUTING ACCEPT\n-A PREROUTING -j DNAT --to-destination 10.0.0.1\nCOMMIT\n"
    )
    (tracked,), (exempt,) = (_walk(text.format(target)) for target in ("", " -j CT --notrack"))

    assert (tracked.destination, exempt.destination) == ("10.0.0.1", "10.96.0.10")


def test_routing_follows_the_rewritten_destination() -> None:
    """What is sent to the node and rewritten to a pod is forwarded; the other way round it is delivered."""
    text = "*nat\n:PREROUTING ACCEPT\n-A PREROUTING -d {} -j DNAT --to-destination {}:8080\nCOMMIT\n"
    (forwarded,) = _walk(text.format(_NODE, "10.244.1.12"), _packet(_NODE))
    (delivered,) = _walk(text.format("10.96.0.10", _NODE))

    assert (forwarded.destination, forwarded.destination_port) == ("10.244.1.12", 8080)
    assert forwarded.translated
    assert not forwarded.delivered_locally
    assert delivered.delivered_locally


@pytest.mark.parametrize("first", ["DNAT --to-destination 10.0.0.1", "ACCEPT"])
def test_the_first_decision_ends_nat(first: str) -> None:
    """After a rule that translates, or accepts, no other rule of the hook is asked, in the calling chains neither."""
    (outcome,) = _walk(
        f"*nat\n:PREROUTING ACCEPT\n:CHAIN -\n-A PREROUTING -j CHAIN\n-A PREROUTING -j DNAT --to-destination 10.0.0.2\n"
        f"-A CHAIN -j {first}\nCOMMIT\n"
    )

    assert outcome.destination == ("10.96.0.10" if first == "ACCEPT" else "10.0.0.1")


def test_return_goes_back_and_goto_does_not() -> None:
    """RETURN leads to the rule after the jump; from a chain that was gone to, behind the jump before that."""
    (outcome,) = _walk(
        "*filter\n:FORWARD DROP\n:A -\n:B -\n-A FORWARD -j A\n-A FORWARD -p tcp -j ACCEPT\n"
        "-A A -g B\n-A A -j DROP\n-A B -j RETURN\n-A B -j DROP\nCOMMIT\n"
    )

    assert [f"{step.chain} {step.position}" for step in outcome.path] == ["FORWARD 1", "A 1", "B 1", "FORWARD 2"]
    assert [step.depth for step in outcome.path] == [0, 1, 2, 0]
    assert outcome.end is End.ACCEPTED


def test_return_from_a_built_in_chain_leads_to_its_policy() -> None:
    """So does the end of the chain; the policy is a step of the path."""
    (outcome,) = _walk("*filter\n:FORWARD DROP\n-A FORWARD -j RETURN\n-A FORWARD -j ACCEPT\nCOMMIT\n")

    assert outcome.end is End.DROPPED
    assert (outcome.path[-1].line, outcome.path[-1].position) == ("policy DROP", 0)


def test_accept_of_one_table_does_not_spare_the_next() -> None:
    """ACCEPT in mangle ends mangle; filter still drops."""
    (outcome,) = _walk(
        "*mangle\n:FORWARD ACCEPT\n-A FORWARD -j ACCEPT\nCOMMIT\n*filter\n:FORWARD ACCEPT\n-A FORWARD -j DROP\nCOMMIT\n"
    )

    assert outcome.end is End.DROPPED


def test_a_refusal_says_how() -> None:
    """REJECT ends the walk with its kind."""
    (outcome,) = _walk("*filter\n:FORWARD ACCEPT\n-A FORWARD -j REJECT --reject-with tcp-reset\nCOMMIT\n")

    assert (outcome.end, outcome.reject_with) == (End.REJECTED, "tcp-reset")


def test_marks_are_cleared_by_mask_then_xored() -> None:
    """`--set-xmark VALUE/MASK`; each step shows the mark after it."""
    (outcome,) = _walk(
        "*mangle\n:PREROUTING ACCEPT\n-A PREROUTING -j MARK --set-xmark 0x4000/0x4000\n"
        "-A PREROUTING -m mark --mark 0x4000/0x4000 -j MARK --set-xmark 0x4000/0x0\nCOMMIT\n",
        _packet(mark=0xFF),
    )

    assert [step.mark for step in outcome.path] == [0x40FF, 0xFF]
    assert outcome.mark == 0xFF


def test_virtual_states_tell_what_this_walk_did() -> None:
    """`--ctstate DNAT` matches once the destination was rewritten."""
    text = (
        "*nat\n:PREROUTING ACCEPT\n-A PREROUTING -d 10.96.0.10/32 -j DNAT --to-destination 10.0.0.1\nCOMMIT\n"
        "*filter\n:FORWARD DROP\n-A FORWARD -m conntrack --ctstate DNAT -j ACCEPT\nCOMMIT\n"
    )

    assert [_walk(text, _packet(address))[0].end for address in ("10.96.0.10", "10.96.0.11")] == [
        End.ACCEPTED,
        End.DROPPED,
    ]


def test_shares_are_those_of_the_kernel() -> None:
    """A probability is a number of 31 bits: a third of it is visible as what it is."""
    first, second = _walk(
        "*filter\n:FORWARD ACCEPT\n-A FORWARD -m statistic --mode random --probability 0.33333333349 -j DROP\nCOMMIT\n"
    )

    assert first.share == Fraction(715827883, 2**31)
    assert (first.end, second.end, second.share) == (End.DROPPED, End.ACCEPTED, 1 - first.share)


def test_source_is_empty_once_masqueraded_and_new_once_rewritten() -> None:
    """MASQUERADE takes the address of the interface, which is not known here; SNAT says it."""
    text = "*nat\n:POSTROUTING ACCEPT\n-A POSTROUTING -j {}\nCOMMIT\n"
    (masqueraded,), (rewritten,) = (_walk(text.format(to)) for to in ("MASQUERADE", "SNAT --to-source 192.0.2.9"))

    assert (masqueraded.source, masqueraded.masqueraded) == ("", True)
    assert (rewritten.source, rewritten.masqueraded) == ("192.0.2.9", True)


def test_circles_are_an_error_and_missing_chains_an_assumption() -> None:
    """The kernel takes neither, but a file can hold both."""
    circle = "*filter\n:FORWARD ACCEPT\n:A -\n-A FORWARD -j A\n-A A -j A\nCOMMIT\n"
    with pytest.raises(RulesetError, match="circles"):
        _walk(circle)
    ruleset = Ruleset(
        Family.IPV4, {"filter": Table("filter", {"FORWARD": Chain("FORWARD", (Rule(target=Jump("X")),), "ACCEPT")})}
    )
    (outcome,) = walk(ruleset, _packet(), _HOST)

    assert outcome.assumptions == ("chain X of filter is not known: taken as empty",)


def test_families_do_not_mix() -> None:
    """A packet walks rules of its own family."""
    with pytest.raises(RulesetError, match="ipv6"):
        walk(Ruleset(Family.IPV6), _packet(), _HOST)


_TARGETS: st.SearchStrategy[Target | None] = st.sampled_from(
    [
        *(Verdict("ACCEPT"), Verdict("RETURN"), Verdict("DROP"), Reject("tcp-reset"), SetMark(1, 1), None),
        *(Jump("A"), Jump("B"), Jump("B", goto=True)),
    ]
)
_CHANCES = st.one_of(
    st.just(()),
    st.tuples(st.builds(StatisticRandom, st.integers(0, 2**31), st.booleans())),
    st.tuples(st.builds(StatisticNth, st.integers(1, 5))),
    st.tuples(st.builds(Mark, st.just(1), st.just(1), st.booleans())),
)
_RULES = st.lists(
    st.builds(lambda matches, target: Rule(matches=matches, target=target), _CHANCES, _TARGETS), max_size=4
)


@given(_RULES, _RULES, _RULES)
def test_shares_add_up_to_one(base: list[Rule], first: list[Rule], second: list[Rule]) -> None:
    """Whatever the rules, no packet is lost and none is counted twice."""
    last = [rule for rule in second if not isinstance(rule.target, Jump)]
    middle = [rule for rule in first if rule.target != Jump("A")]
    chains = {
        "FORWARD": Chain("FORWARD", tuple(base), "ACCEPT"),
        "A": Chain("A", tuple(middle)),
        "B": Chain("B", tuple(last)),
    }
    outcomes = walk(Ruleset(Family.IPV4, {"filter": Table("filter", chains)}), _packet(), _HOST)

    assert sum(outcome.share for outcome in outcomes) == 1
    assert all(outcome.share > 0 for outcome in outcomes)
