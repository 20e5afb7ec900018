"""What the comparison of two Rulesets cannot decide about, and what it refuses."""

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.errors import RulesetError
from kproxy_ipt.rules.build import with_base_chains
from kproxy_ipt.ruleset.model import Chain, Rule, Ruleset, Table
from kproxy_ipt.ruleset.parse import parse_save
from kproxy_ipt.testing.desired import desired_for
from kproxy_ipt.testing.objects import endpoint_slice, service
from kproxy_ipt.testing.recorded import INTERFACE_ADDRESSES
from kproxy_ipt.trace.equivalence import compare_behaviour
from kproxy_ipt.trace.packet import Host

HOST = Host(addresses=frozenset(INTERFACE_ADDRESSES))
RULES = with_base_chains(desired_for(service(), endpoint_slice(service())))
FORWARD = RULES.tables["filter"].chains["FORWARD"]


def _parsed(rule: str) -> tuple[Rule, ...]:
    return parse_save(f"*filter\n-A FORWARD {rule}\nCOMMIT\n", Family.IPV4).tables["filter"].chains["FORWARD"].rules


def _forwarding(*rules: Rule) -> Ruleset:
    """Our rules, but with these in FORWARD."""
    chains = {**RULES.tables["filter"].chains, "FORWARD": Chain("FORWARD", rules, FORWARD.policy)}
    return Ruleset(RULES.family, {**RULES.tables, "filter": Table("filter", chains)})


STRANGE = _forwarding(*_parsed("-m string --string x --algo bm -j DROP"), *FORWARD.rules)


def test_what_is_not_understood_is_not_called_equal() -> None:
    """A rule that asks for something unknown, and is on one side only, leaves it open."""
    report = compare_behaviour(RULES, STRANGE, HOST)

    assert not report.equal
    assert report.differences == ()
    assert "string" in report.undecided[0]
    assert compare_behaviour(STRANGE, STRANGE, HOST).equal


_EIGHT_BITS = "\n-A FORWARD ".join(f"-m mark --mark {1 << bit:#x}/{1 << bit:#x} -j ACCEPT" for bit in range(8))


@pytest.mark.parametrize(
    ("rules", "what"),
    [
        ("-j FANCY --much", "target 'FANCY'"),
        ("-m statistic --mode nth --every 3 --packet 0 -j ACCEPT", "match 'statistic --mode nth'"),
        ("-m recent --rcheck --hitcount 5 --name a --rsource -j ACCEPT", "match 'recent' with more than"),
        ("-m addrtype --src-type BROADCAST -j ACCEPT", "match 'addrtype' with types other than LOCAL"),
        ("-m state --state ESTABLISHED -j ACCEPT", "match 'state'"),
        ("-s 10.0.0.0/255.0.255.0 -j ACCEPT", "a mask with gaps"),
        ("-d 10.0.0.0/255.0.255.0 -j ACCEPT", "a mask of a destination has gaps"),
        ("-f -j ACCEPT", "fragments"),
        (_EIGHT_BITS, "a mark of more than 6 bits"),
    ],
)
def test_reason_why_nothing_is_decided_is_told(rules: str, what: str) -> None:
    """Rules that change nothing as far as packets can be tried, and are not called equal for what cannot."""
    report = compare_behaviour(RULES, _forwarding(*FORWARD.rules, *_parsed(rules)), HOST)

    assert report.differences == ()
    assert not report.equal
    assert any(what in reason for reason in report.undecided), report.undecided


def test_families_cannot_be_compared() -> None:
    """Rules of IPv4 and IPv6 have no packet in common."""
    with pytest.raises(RulesetError, match="cannot be compared"):
        compare_behaviour(Ruleset(Family.IPV4), Ruleset(Family.IPV6), Host())


def test_jumps_in_circles_are_refused() -> None:
    """Rules that no kernel takes are an error, not an endless search."""
    text = "*filter\n:A - [0:0]\n:B - [0:0]\n-A FORWARD -j A\n-A A -j B\n-A B -j A\nCOMMIT\n"
    circle = parse_save(text, Family.IPV4)

    with pytest.raises(RulesetError, match="circles"):
        compare_behaviour(circle, circle, HOST)
