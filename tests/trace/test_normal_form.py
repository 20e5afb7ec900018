"""What rules do for one class of packets, whatever chains they are cut into."""

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.ruleset.parse import parse_save
from kproxy_ipt.ruleset.render import render_save
from kproxy_ipt.trace.classes import address_number
from kproxy_ipt.trace.indexed import Place
from kproxy_ipt.trace.normal_form import Block, Choice, IndexedRuleset, View
from kproxy_ipt.trace.packet import Host

_HOST = Host(addresses=frozenset({"192.0.2.1"}))


def _view(rules: str, destination: str = "10.0.0.1", port: int = 80, protocol: str = "tcp") -> View:
    """The view of rules without `-A`, one a line, in table nat with user chains A, B and C."""
    lines = "".join(f"-A {line}\n" for line in rules.strip().splitlines())
    text = f"*nat\n:A - [0:0]\n:B - [0:0]\n:C - [0:0]\n{lines}COMMIT\n".replace("-A     ", "-A ")
    place = Place(address_number(destination), port, destination == "192.0.2.1")
    return IndexedRuleset(parse_save(text, Family.IPV4), _HOST).view(place, protocol)


def _block(rules: str, destination: str = "10.0.0.1", port: int = 80, protocol: str = "tcp") -> Block:
    view = _view(rules, destination, port, protocol)
    return view.blocks(view.places()).get(("nat", "PREROUTING"), Block())


@pytest.mark.parametrize(
    ("rules", "same"),
    [
        ("PREROUTING -j A\nA -d 10.0.0.1 -j ACCEPT", "PREROUTING -j ACCEPT"),
        ("PREROUTING -d 10.0.0.0/8 -j A\nA -j B\nB -p tcp -m tcp --dport 80 -j ACCEPT", "PREROUTING -j ACCEPT"),
        ("PREROUTING -d 10.0.0.2 -j DROP\nPREROUTING -j ACCEPT", "PREROUTING -j ACCEPT"),
        ("PREROUTING -p udp -j DROP\nPREROUTING -j ACCEPT", "PREROUTING -j ACCEPT"),
        ("PREROUTING -m addrtype --dst-type LOCAL -j DROP\nPREROUTING -j ACCEPT", "PREROUTING -j ACCEPT"),
        ("PREROUTING -m comment --comment x\nPREROUTING -j ACCEPT", "PREROUTING -j ACCEPT"),
        ("PREROUTING -j ACCEPT\nPREROUTING -j DROP", "PREROUTING -j ACCEPT"),
        ("PREROUTING -s 10.9.0.0/16 -j A\nPREROUTING -j ACCEPT", "PREROUTING -j ACCEPT"),
    ],
)
def test_shapes_that_mean_the_same_have_one_form(rules: str, same: str) -> None:
    """Chains, dead rules, fixed conditions and jumps to nowhere leave no trace."""
    assert _block(same).clauses
    assert _block(rules) == _block(same)


@pytest.mark.parametrize(
    ("rules", "other"),
    [
        ("PREROUTING -j A\nA -s 10.9.0.0/16 -j RETURN\nA -j ACCEPT\nPREROUTING -j DROP", "PREROUTING -j ACCEPT"),
        (
            "PREROUTING -g A\nA -s 10.9.0.0/16 -j ACCEPT\nPREROUTING -j DROP",
            "PREROUTING -j A\nA -s 10.9.0.0/16 -j ACCEPT\nPREROUTING -j DROP",
        ),
        ("PREROUTING ! -d 10.0.0.1 -j DROP", "PREROUTING -d 10.0.0.1 -j DROP"),
        ("PREROUTING -p tcp -m tcp ! --dport 80 -j DROP", "PREROUTING -p tcp -m tcp --dport 80 -j DROP"),
        ("PREROUTING -m recent --set --name x", "PREROUTING -m recent --set --name y"),
    ],
)
def test_shapes_that_mean_something_else_differ(rules: str, other: str) -> None:
    """RETURN, goto, negation and side effects are kept."""
    assert _block(rules) != _block(other)


def test_row_of_dices_is_one_choice() -> None:
    """A third each, whether in a row or in groups."""
    third, half = 0.33333333349, 0.5
    row = f"""PREROUTING -m statistic --mode random --probability {third} -j DNAT --to-destination 10.1.0.1:1
    PREROUTING -m statistic --mode random --probability {half} -j DNAT --to-destination 10.1.0.2:1
    PREROUTING -p tcp -j DNAT --to-destination 10.1.0.3:1""".replace("-m stat", "-p tcp -m stat")
    choice = _block(row).clauses[0].action

    assert isinstance(choice, Choice)
    assert [share for share, _ in choice.ways] == pytest.approx([1 / 3] * 3)


def test_places_are_those_that_translation_leads_to() -> None:
    """The first destination, then one for each DNAT that can be reached; None where a target is not understood."""
    dnat = "PREROUTING -p tcp -m tcp --dport 80 -j DNAT --to-destination 192.0.2.1:8080"
    found = _view(dnat).places()

    assert found is not None
    assert found[1:] == (Place(address_number("192.0.2.1"), 8080, is_local=True),)
    assert len(_view(dnat, port=81).places() or ()) == 1
    assert _view("PREROUTING -p tcp -j REDIRECT --to-ports 81").places() is None
    assert _view("PREROUTING -p tcp -j DNAT --to-destination 10.1.0.1-10.1.0.9").places() is None


def test_restricted_rules_hold_nothing_of_other_classes() -> None:
    """Rules for another address are left out, base chains stay."""
    view = _view("PREROUTING -d 10.0.0.1 -j ACCEPT\nPREROUTING -d 10.0.0.2 -j ACCEPT")
    view.blocks(view.places())
    text = render_save(view.restricted())

    assert "10.0.0.1" in text
    assert "10.0.0.2" not in text
