"""Fixtures of the ruleset tests: one table of rules that names every class, and the programs of both backends."""

import subprocess
from collections.abc import Callable, Iterator

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.ruleset.matches import (
    AddressType,
    Comment,
    Conntrack,
    Mark,
    Nfacct,
    OpaqueMatch,
    PortMatch,
    Recent,
    StatisticNth,
    StatisticRandom,
)
from kproxy_ipt.ruleset.model import Rule
from kproxy_ipt.ruleset.targets import Dnat, Jump, Masquerade, OpaqueTarget, Reject, SetMark, Snat, Verdict
from kproxy_ipt.testing.namespaces import temporary_namespace

ALL_ONES_IPV6 = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"
IPV4_MASK = "255.255.255.255"

Row = tuple[str, str, Rule]


def _matching(*matches: object, protocol: str = "") -> Rule:
    return Rule(protocol=protocol, matches=matches)  # type: ignore[arg-type]  # a row may hold any match


FILTER_ROWS: tuple[tuple[str, Rule], ...] = (
    ("", Rule()),
    (" -s 10.0.0.1/32 -d 10.0.0.0/8", Rule(source="10.0.0.1/32", destination="10.0.0.0/8")),
    (" ! -s 10.0.0.0/255.0.255.0", Rule(source="10.0.0.0/255.0.255.0", source_negated=True)),
    (" ! -d 10.0.0.1/32", Rule(destination="10.0.0.1/32", destination_negated=True)),
    (" -i eth+ ! -o lo", Rule(in_interface="eth+", out_interface="lo", out_interface_negated=True)),
    (" ! -i eth0 -o br-1", Rule(in_interface="eth0", out_interface="br-1", in_interface_negated=True)),
    (" ! -p tcp", Rule(protocol="tcp", protocol_negated=True)),
    (" -p 200", Rule(protocol="200")),
    (" -p tcp -f", Rule(protocol="tcp", fragment="-f")),
    (" ! -f", Rule(fragment="! -f")),
    (" -m comment --comment plain_Text-1", _matching(Comment("plain_Text-1"))),
    (' -m comment --comment "ns/name:port -> 1.2.3.4:5"', _matching(Comment("ns/name:port -> 1.2.3.4:5"))),
    (r' -m comment --comment "a\"b\\c\'d"', _matching(Comment("a\"b\\c'd"))),
    (' -m comment --comment ""', _matching(Comment(""))),
    (" -m comment --comment -j", _matching(Comment("-j"))),
    (" -m conntrack --ctstate RELATED,ESTABLISHED", _matching(Conntrack(("RELATED", "ESTABLISHED")))),
    (" -m conntrack ! --ctstate DNAT", _matching(Conntrack(("DNAT",), negated=True))),
    (" -m mark --mark 0x4000/0x4000", _matching(Mark(0x4000, 0x4000))),
    (" -m mark ! --mark 0x1", _matching(Mark(1, negated=True))),
    (" -m addrtype --dst-type LOCAL", _matching(AddressType(destination="LOCAL"))),
    (
        " -m addrtype --src-type UNICAST,LOCAL ! --dst-type BROADCAST",
        _matching(AddressType("UNICAST,LOCAL", "BROADCAST", destination_negated=True)),
    ),
    (" -p tcp -m tcp --dport 80", _matching(PortMatch("tcp", (80, 80)), protocol="tcp")),
    (
        " -p udp -m udp ! --sport 1:10 ! --dport 5:65535",
        _matching(PortMatch("udp", (5, 65535), (1, 10), True, True), protocol="udp"),
    ),
    (" -p sctp -m sctp --sport 7", _matching(PortMatch("sctp", source=(7, 7)), protocol="sctp")),
    (" -m statistic --mode random --probability 0.33333333349", _matching(StatisticRandom(715827883))),
    (" -m statistic --mode random ! --probability 1.00000000000", _matching(StatisticRandom(1 << 31, negated=True))),
    (" -m statistic --mode nth --every 3 --packet 2", _matching(StatisticNth(3, 2))),
    (" -m statistic --mode nth ! --every 4 --packet 0", _matching(StatisticNth(4, negated=True))),
    (f" -m recent --set --name A --mask {IPV4_MASK} --rsource", _matching(Recent("A", "set", IPV4_MASK))),
    (
        f" -m recent --rcheck --seconds 10800 --reap --name B --mask {IPV4_MASK} --rsource",
        _matching(Recent("B", "rcheck", IPV4_MASK, 10800, reap=True)),
    ),
    (
        " -m recent ! --update --seconds 5 --reap --hitcount 4 --rttl --name C --mask 255.255.255.0 --rdest",
        _matching(Recent("C", "update", "255.255.255.0", 5, True, 4, True, "rdest", True)),
    ),
    (f" -m recent --remove --name D --mask {IPV4_MASK} --rsource", _matching(Recent("D", "remove", IPV4_MASK))),
    (" -m limit --limit 3/min --limit-burst 10", _matching(OpaqueMatch("limit", "--limit 3/min --limit-burst 10"))),
    (
        ' -p tcp -m string --string "a\\"b -j DROP" --algo bm',
        _matching(OpaqueMatch("string", r'--string "a\"b -j DROP" --algo bm'), protocol="tcp"),
    ),
    (
        " -p tcp -m tcp ! --tcp-flags FIN,SYN,RST,ACK SYN",
        _matching(OpaqueMatch("tcp", "! --tcp-flags FIN,SYN,RST,ACK SYN"), protocol="tcp"),
    ),
    (" -j CUSTOM", Rule(target=Jump("CUSTOM"))),
    (" -g CUSTOM", Rule(target=Jump("CUSTOM", goto=True))),
    (" -j ACCEPT", Rule(target=Verdict("ACCEPT"))),
    (" -j DROP", Rule(target=Verdict("DROP"))),
    (" -j RETURN", Rule(target=Verdict("RETURN"))),
    (" -j REJECT --reject-with icmp-port-unreachable", Rule(target=Reject("icmp-port-unreachable"))),
    (' -j LOG --log-prefix "a b "', Rule(target=OpaqueTarget("LOG", '--log-prefix "a b "'))),
)

NFACCT_ROWS: tuple[tuple[str, Rule], ...] = ((" -m nfacct --nfacct-name  some_pkts", _matching(Nfacct("some_pkts"))),)

MANGLE_ROWS: tuple[tuple[str, Rule], ...] = (
    (" -j MARK --set-xmark 0x4000/0x4000", Rule(target=SetMark(0x4000, 0x4000))),
    (" -j MARK --set-xmark 0x4000/0x0", Rule(target=SetMark(0x4000, 0))),
    (" -j MARK --set-xmark 0x5/0xffffffff", Rule(target=SetMark(5, 0xFFFFFFFF))),
)

RAW_ROWS: tuple[tuple[str, Rule], ...] = (
    (" -m rpfilter", _matching(OpaqueMatch("rpfilter"))),
    (" -j TRACE", Rule(target=OpaqueTarget("TRACE"))),
)

NAT_ROWS: tuple[tuple[str, Rule], ...] = (
    (
        " -p tcp -j DNAT --to-destination 10.0.0.1:80 --random --persistent",
        Rule(protocol="tcp", target=Dnat("10.0.0.1:80", random=True, persistent=True)),
    ),
    (" -j DNAT --to-destination 10.0.0.1-10.0.0.9", Rule(target=Dnat("10.0.0.1-10.0.0.9"))),
)

POSTROUTING_ROWS: tuple[tuple[str, Rule], ...] = (
    (
        " -p tcp -j SNAT --to-source 10.0.0.1:80-90 --random --random-fully --persistent",
        Rule(protocol="tcp", target=Snat("10.0.0.1:80-90", True, True, True)),
    ),
    (" -j MASQUERADE --random-fully", Rule(target=Masquerade(random_fully=True))),
    (
        " -p tcp -j MASQUERADE --to-ports 80-90 --random",
        Rule(protocol="tcp", target=Masquerade("80-90", random=True)),
    ),
)

_ROWS: dict[tuple[str, str], tuple[tuple[str, Rule], ...]] = {
    ("filter", "CHAIN"): (*FILTER_ROWS, *NFACCT_ROWS),
    ("mangle", "PREROUTING"): MANGLE_ROWS,
    ("raw", "PREROUTING"): RAW_ROWS,
    ("nat", "PREROUTING"): NAT_ROWS,
    ("nat", "POSTROUTING"): POSTROUTING_ROWS,
}


@pytest.fixture(scope="session")
def rows() -> list[tuple[str, str, str, Rule]]:
    """Table, chain, text and value of rules that between them use every class."""
    return [
        (table, chain, f"-A {chain}{text}", rule) for (table, chain), found in _ROWS.items() for text, rule in found
    ]


@pytest.fixture(params=["nft", "legacy"])
def backend(request: pytest.FixtureRequest) -> str:
    """Each backend of iptables once."""
    return str(request.param)


Program = Callable[..., str]


@pytest.fixture
def program() -> Iterator[Program]:
    """Run a program in a network namespace of its own; its output. It fails the test if the program fails."""
    with temporary_namespace("ruleset") as namespace:

        def run(*command: str, text: str = "") -> str:
            done = subprocess.run(
                ["ip", "netns", "exec", namespace, *command], input=text, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}\n{text}"
            return done.stdout

        yield run


@pytest.fixture(scope="session")
def family_programs() -> dict[Family, str]:
    """The beginning of the program names of each family."""
    return {Family.IPV4: "iptables", Family.IPV6: "ip6tables"}
