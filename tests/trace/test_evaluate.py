"""Single rules: which packets they match, and what has to be assumed."""

from fractions import Fraction

import msgspec
import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.ruleset.parse import parse_rule
from kproxy_ipt.trace.evaluate import Answer, evaluate
from kproxy_ipt.trace.moving import start
from kproxy_ipt.trace.packet import Host, Origin, Packet

_PACKET = Packet(
    family=Family.IPV4,
    source="10.244.1.11",
    destination="192.0.2.10",
    source_port=40000,
    destination_port=80,
    in_interface="eth0",
    mark=0x4001,
)
_HOST = Host(addresses=frozenset({"192.0.2.10"}), sets={"friends": ("10.244.0.0/16",), "web": ("192.0.2.10,tcp:80",)})


def _evaluate(text: str, packet: Packet = _PACKET) -> Answer:
    _, rule = parse_rule(f"-A X {text}", family=packet.family)
    return evaluate(rule, msgspec.structs.replace(start(packet), hook="FORWARD"), _HOST)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-s 10.244.0.0/16",
        "-d 192.0.2.10/32 -i eth+",
        "! -s 10.0.0.0/255.0.0.1 ! -i lo",
        "-p tcp -m tcp --dport 80 ! --sport 53",
        "-p tcp -m tcp --dport 79:81 -m comment --comment why",
        "-p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN",
        "-m mark --mark 0x4000/0x4000 -m mark ! --mark 0x4000",
        "-m conntrack --ctstate NEW,ESTABLISHED -m conntrack ! --ctstate INVALID",
        "-m state --state NEW",
        "-m addrtype --dst-type LOCAL -m addrtype ! --src-type LOCAL",
        "-m addrtype --src-type UNICAST",
        "-m recent --set --name a --mask 255.255.255.255 --rsource",
        "-p tcp -m multiport --dports 22,80,8000:8010",
        "-p tcp -m multiport ! --sports 1:1023",
        "-m iprange --src-range 10.244.1.1-10.244.1.20",
        "-m physdev ! --physdev-is-bridged",
        "-m set --match-set friends src",
        "-m set --match-set web dst,dst",
        "-m set ! --match-set friends dst",
        "-m connmark --mark 0x0/0xf",
        "-m pkttype --pkt-type unicast",
        "-p tcp -m tcp --dport 80 --syn",
        "-d 192.0.2.10",
    ],
)
def test_rule_surely_matches(text: str) -> None:
    """Everything it asks for is so."""
    assert _evaluate(text) == Answer(Fraction(1))


@pytest.mark.parametrize(
    "text",
    [
        "-s 10.245.0.0/16",
        "! -d 192.0.2.10/32",
        "-i eth1",
        "-p udp",
        "-p tcp -m tcp --dport 81",
        "-p tcp -m tcp ! --dport 80",
        "-p tcp -m tcp --tcp-flags SYN,ACK ACK",
        "-f",
        "-m mark --mark 0x4000",
        "-m conntrack --ctstate RELATED,ESTABLISHED",
        "-m state --state ESTABLISHED",
        "-m addrtype --dst-type MULTICAST",
        "-m addrtype --src-type LOCAL --limit-iface-in -p udp",
        "-p tcp -m multiport --dports 22,443",
        "-m iprange ! --src-range 10.244.1.1-10.244.1.20",
        "-m physdev --physdev-in veth0",
        "-m owner --uid-owner 0",
        "-p icmp -m icmp --icmp-type 8",
        "-m set --match-set friends dst",
        "-p udp -m limit --limit 3/min",
        "-m udp --dport 80",
        "-m icmp --icmp-type 8",
        "-m tcp --dport 81 --syn",
        "-p tcp -m tcp ! --syn",
    ],
)
def test_rule_surely_does_not_match(text: str) -> None:
    """Something it asks for is not so, and nothing had to be assumed to know it."""
    assert _evaluate(text) == Answer(Fraction(0))


@pytest.mark.parametrize(
    ("text", "share", "assumed"),
    [
        ("-m limit --limit 3/min", 1, "not exceeded"),
        ("-m connlimit --connlimit-above 16 --connlimit-mask 32 --connlimit-saddr", 0, "not exceeded"),
        ("-m hashlimit --hashlimit-upto 1/sec --hashlimit-name a", 1, "not exceeded"),
        ("-m u32 --u32 0x1=0x2", 0, "taken as not matching"),
        ("-m set --match-set strangers src", 0, "taken as not matching"),
        ("-m recent --rcheck --seconds 10800 --name a --mask 255.255.255.255 --rsource", 0, "not known yet"),
        ("-m recent ! --update --seconds 9 --name a --mask 255.255.255.255 --rsource", 1, "not known yet"),
        ("-o eth1", 0, "outgoing interface is not given"),
        ("! -o eth1", 1, "outgoing interface is not given"),
        ("-m addrtype --src-type BROADCAST", 0, "depends on routes"),
        ("-p tcp -m multiport --dports 80 --ports-of-all", 0, "taken as not matching"),
        ("-p tcp -m tcp --dport http", 0, "taken as not matching"),
        ("-p tcp -m tcp --dport 80 --tcp-option 2", 0, "taken as not matching"),
        ("-m state --state NEW --new-option", 0, "taken as not matching"),
        ("-m connmark", 0, "taken as not matching"),
    ],
)
def test_unknown_parts_are_assumed_and_said(text: str, share: int, assumed: str) -> None:
    """Of what a model cannot know one answer is taken, with words about it."""
    answer = _evaluate(text)

    assert answer.share == share
    assert assumed in answer.assumption


def test_chances_multiply() -> None:
    """Two games of chance in one rule: nth is one in N, random its 31 bits."""
    answer = _evaluate("-m statistic --mode random --probability 0.5 -m statistic --mode nth --every 3 --packet 0")

    assert answer == Answer(Fraction(1, 6))


def test_what_surely_fails_needs_no_assumption() -> None:
    """A limit in front of a port that differs says nothing."""
    assert _evaluate("-p tcp -m limit --limit 3/min -m tcp --dport 81") == Answer(Fraction(0))


def test_ports_that_are_not_given_are_those_of_clients() -> None:
    """A range with all ports that clients get matches, another one does not; both are said."""
    packet = msgspec.structs.replace(_PACKET, source_port=0)
    answers = [_evaluate(f"-p tcp -m tcp --sport {ports}", packet) for ports in ("1024:65535", "53")]

    assert [answer.share for answer in answers] == [1, 0]
    assert all("source port" in answer.assumption for answer in answers)


def test_icmp_is_an_echo_request_unless_it_says_otherwise() -> None:
    """Both families."""
    ping = msgspec.structs.replace(_PACKET, protocol="icmp")
    ping6 = Packet(family=Family.IPV6, source="fd00::1", destination="fd00::2", protocol="ipv6-icmp")
    solicitation = msgspec.structs.replace(ping6, icmp_type=135)

    assert _evaluate("-p icmp -m icmp --icmp-type 8", ping).share == 1
    assert _evaluate("-p icmp -m icmp --icmp-type 3/4", ping).share == 0
    assert _evaluate("-p ipv6-icmp -m icmp6 --icmpv6-type 128", ping6).share == 1
    assert _evaluate("-p ipv6-icmp -m icmp6 --icmpv6-type 135", solicitation).share == 1


def test_icmp_types_that_have_unknown_names_are_assumed() -> None:
    """Which number a rare name stands for is not known here."""
    ping = msgspec.structs.replace(_PACKET, protocol="icmp")

    assert "cannot be told" in _evaluate("-p icmp -m icmp --icmp-type redirect", ping).assumption


@pytest.mark.parametrize("text", ["-m iprange --src-range 10.0.0.1-10.0.0.9", "-m set --match-set friends src"])
def test_a_masqueraded_source_is_not_known(text: str) -> None:
    """Which address the node will take is not looked up: what asks for it is assumed not to match."""
    _, rule = parse_rule(f"-A X {text}")
    moving = msgspec.structs.replace(start(_PACKET), hook="POSTROUTING", source="")

    answer = evaluate(rule, moving, _HOST)

    assert answer.share == 0
    assert "taken as not matching" in answer.assumption


def test_the_mark_of_a_known_connection_is_not_known() -> None:
    """Unless a rule of this walk has set it."""
    known = msgspec.structs.replace(_PACKET, state="ESTABLISHED")

    assert "taken as not matching" in _evaluate("-m connmark --mark 0x0/0xf", known).assumption


def test_packets_of_the_node_have_no_incoming_interface() -> None:
    """Nothing is assumed about it; and whose process it is cannot be told."""
    own = msgspec.structs.replace(_PACKET, in_interface="", origin=Origin.NODE)

    assert _evaluate("-i eth0", own) == Answer(Fraction(0))
    assert "owner" in _evaluate("-m owner --uid-owner 0", own).assumption


def test_ipv6_addresses_are_compared_by_value() -> None:
    """Rules print some of them in another way than the rest of the world."""
    packet = Packet(family=Family.IPV6, source="::a00:1", destination="fd00:10:96::a", destination_port=80)

    assert _evaluate("-s ::10.0.0.1/128 -d fd00:10:96::/112", packet) == Answer(Fraction(1))
