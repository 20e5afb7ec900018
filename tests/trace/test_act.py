"""Targets: what they do to a packet, foreign ones included."""

import msgspec
import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.ruleset.parse import parse_rule
from kproxy_ipt.ruleset.target_readers import TARGET_EXTENSIONS
from kproxy_ipt.trace.act import _OPAQUE, Acted, Fate, act
from kproxy_ipt.trace.moving import Moving, start
from kproxy_ipt.trace.packet import Packet

_MOVING = msgspec.structs.replace(
    start(
        Packet(family=Family.IPV4, source="10.0.0.1", destination="10.96.0.10", destination_port=80, mark=0x12),
    ),
    hook="PREROUTING",
)
_V6 = start(Packet(family=Family.IPV6, source="fd00::1", destination="fd00::2", destination_port=80))


def _act(text: str, moving: Moving = _MOVING) -> Acted:
    _, rule = parse_rule(f"-A X {text}", family=moving.packet.family)
    return act(rule.target, moving)


@pytest.mark.parametrize(
    ("to", "expected"),
    [
        ("10.0.0.9:8080", ("10.0.0.9", 8080)),
        ("10.0.0.9", ("10.0.0.9", 80)),
        (":8080", ("10.96.0.10", 8080)),
        ("10.0.0.5-10.0.0.9:8080-8090", ("10.0.0.5", 8080)),
    ],
)
def test_destinations_are_rewritten(to: str, expected: tuple[str, int]) -> None:
    """Address, port, both; of a range the first, and that is said."""
    fate, moving = _act(f"-p tcp -j DNAT --to-destination {to}")

    assert fate is Fate.ACCEPT
    assert (moving.destination, moving.destination_port) == expected
    assert moving.destination_translated
    assert bool(moving.assumptions) is ("-" in to)


@pytest.mark.parametrize(("to", "port"), [("[fd00::9]:8080", 8080), ("fd00::9", 80), ("[fd00::9]", 80)])
def test_ipv6_destinations_are_rewritten(to: str, port: int) -> None:
    """Brackets belong to the port."""
    _, moving = _act(f"-p tcp -j DNAT --to-destination {to}", _V6)

    assert (moving.destination, moving.destination_port) == ("fd00::9", port)


def test_redirect_leads_to_the_node() -> None:
    """Which of its addresses cannot be known."""
    _, moving = _act("-p tcp -j REDIRECT --to-ports 3128")

    assert (moving.destination, moving.destination_port) == ("127.0.0.1", 3128)
    assert moving.assumptions


def test_connection_marks_are_saved_and_restored() -> None:
    """By their masks, as the kernel does it."""
    _, saved = _act("-j CONNMARK --save-mark --nfmask 0x10 --ctmask 0xffffffff")
    _, restored = _act("-j CONNMARK --restore-mark", msgspec.structs.replace(saved, mark=0))
    _, changed = _act("-j CONNMARK --set-xmark 0x1/0xf", saved)

    assert (saved.connection_mark, restored.mark, changed.connection_mark) == (0x10, 0x10, 0x11)


def test_the_mark_of_a_known_connection_is_taken_as_none() -> None:
    """What an earlier packet of the flow saved is not known, and that is said."""
    known = msgspec.structs.replace(_MOVING, state="ESTABLISHED")
    _, restored = _act("-j CONNMARK --restore-mark", known)

    assert restored.mark == 0
    assert restored.assumptions == ("the mark of the known connection is taken as 0",)


def test_of_a_range_of_sources_the_first_is_taken() -> None:
    """As with destinations, and that is said."""
    fate, moving = _act("-j SNAT --to-source 192.0.2.5-192.0.2.9", msgspec.structs.replace(_MOVING, hook="POSTROUTING"))

    assert (fate, moving.source) == (Fate.ACCEPT, "192.0.2.5")
    assert moving.assumptions == ("of the range 192.0.2.5-192.0.2.9 the first is taken",)


def test_a_tarpit_lets_nothing_through() -> None:
    """Connections are held there, so nothing arrives behind it."""
    assert _act("-p tcp -j TARPIT").fate is Fate.DROP


def test_untracked_packets_have_their_own_state() -> None:
    """`CT --notrack` keeps nat from being asked."""
    assert _act("-j CT --notrack").moving.state == "UNTRACKED"
    assert _act("-j CT --zone 1").moving.state == "NEW"


@pytest.mark.parametrize("text", ["-j LOG --log-prefix x", "-j NFLOG", "-j TCPMSS --clamp-mss-to-pmtu", ""])
def test_targets_that_look_on_change_nothing(text: str) -> None:
    """The packet goes on as it is, and nothing is assumed."""
    assert _act(text) == Acted(Fate.GO_ON, _MOVING)


@pytest.mark.parametrize(
    ("text", "fate", "assumed"),
    [
        ("-j NFQUEUE --queue-num 1", Fate.ACCEPT, "accepts"),
        ("-j FANCY --much", Fate.GO_ON, "'FANCY --much' is not understood"),
        ("-j CONNMARK --set-xmark nonsense", Fate.GO_ON, "not understood"),
        ("-j NETMAP --to 10.1.0.0/16", Fate.ACCEPT, "not modelled"),
    ],
)
def test_unknown_targets_are_said(text: str, fate: Fate, assumed: str) -> None:
    """What is not known is assumed in words."""
    acted = _act(text)

    assert acted.fate is fate
    assert assumed in acted.moving.assumptions[0]


def test_every_modelled_target_is_read_as_one() -> None:
    """A name that the parser does not know would be a jump to a chain."""
    assert _OPAQUE.keys() <= TARGET_EXTENSIONS
