"""Text of any origin becomes the values whose text iptables-save prints."""

from pathlib import Path

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.errors import RulesetError
from kproxy_ipt.ruleset.matches import OpaqueMatch, PortMatch
from kproxy_ipt.ruleset.model import Chain, Counters, Rule
from kproxy_ipt.ruleset.parse import parse_rule, parse_save
from kproxy_ipt.ruleset.render import render_rule, render_save
from kproxy_ipt.ruleset.targets import Jump, OpaqueTarget, Reject

Rows = list[tuple[str, str, str, Rule]]
SAVES = sorted((Path(__file__).parent / "saves").glob("*.txt"))
GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("*/ip*tables.txt"))


def _family(path: Path) -> Family:
    return Family.IPV6 if "ipv6" in path.name or "ip6" in path.name else Family.IPV4


def test_every_row_parses_to_its_value(rows: Rows) -> None:
    """The table of rules holds value and text of every class; the parser makes one of the other."""
    assert [(chain, rule) for _, chain, _, rule in rows] == [parse_rule(line) for _, _, line, _ in rows]


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_golden_file_comes_back_unchanged(path: Path) -> None:
    """Parsing and rendering a recorded file gives the same text, byte by byte."""
    text = path.read_text()

    assert text == render_save(parse_save(text, _family(path)))


@pytest.mark.parametrize("path", SAVES, ids=lambda path: path.stem)
def test_foreign_save_comes_back_unchanged(path: Path) -> None:
    """Rules of docker, ufw, firewalld, calico and CNI plugins are kept to the letter, counters included."""
    text = path.read_text()
    without_comments = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))

    assert without_comments == render_save(parse_save(text, _family(path)))


SAME_RULES = [
    ("--append C --source 10.0.0.1 --in-interface lo --protocol TCP --jump X", "-A C -s 10.0.0.1/32 -i lo -p tcp -j X"),
    ("-A C -j X -p tcp -d 10.1.2.3/255.0.0.0", "-A C -d 10.0.0.0/8 -p tcp -j X"),
    ("-A C -s ! 10.0.0.1", "-A C ! -s 10.0.0.1/32"),
    ("-A C -p ! tcp -o ! eth0", "-A C ! -o eth0 ! -p tcp"),
    ("-A C -s 0.0.0.0/0 -d 1.2.3.4/0 -i +", "-A C"),
    ("-A C ! -s 0.0.0.0/0", "-A C ! -s 0.0.0.0/0"),
    ("-A C -s 10.1.2.3/0.0.0.255", "-A C -s 0.0.0.3/0.0.0.255"),
    ("-A C -s FD00::00A", "-A C -s fd00::a/128"),
    ("-A C -s fd00::1/ffff::", "-A C -s fd00::/16"),
    ("-A C -s ::ffff:1.2.3.4", "-A C -s ::ffff:1.2.3.4/128"),
    ("-A C -s ::1.2.3.4/126", "-A C -s ::1.2.3.4/126"),
    ("-A C -p 6", "-A C -p tcp"),
    ("-A C -p 17 -j X", "-A C -p udp -j X"),
    ("-A C -p 132", "-A C -p sctp"),
    ("-A C -p 1", "-A C -p icmp"),
    ("-A C -p 58", "-A C -p ipv6-icmp"),
    ("-A C -p icmpv6", "-A C -p ipv6-icmp"),
    ("-A C -p all", "-A C"),
    ("-A C -p tcp --dport 80", "-A C -p tcp -m tcp --dport 80"),
    ("-A C -p udp --source-port 1: -m udp", "-A C -p udp -m udp --sport 1:65535 -m udp"),
    ("-A C -p tcp -m comment --comment x --dport ! :80", "-A C -p tcp -m comment --comment x -m tcp ! --dport 0:80"),
    ("-A C -p tcp -m state --state NEW --dport 22", "-A C -p tcp -m state --state NEW -m tcp --dport 22"),
    (
        "-A C -p tcp --dport 5 -m comment --comment x --sport 6",
        "-A C -p tcp -m tcp --sport 6 --dport 5 -m comment --comment x",
    ),
    ("-A C -p tcp -m tcp --dport 0:65535", "-A C -p tcp -m tcp"),
    ("-A C -p tcp -j X --destination-port 5:5", "-A C -p tcp -m tcp --dport 5 -j X"),
    ("-A C -p icmp --icmp-type 8", "-A C -p icmp -m icmp --icmp-type 8"),
    ("-A C -p tcp --syn", "-A C -p tcp -m tcp --syn"),
    ("-A C -m mark --mark 16384/0x4000", "-A C -m mark --mark 0x4000/0x4000"),
    ("-A C -m mark --mark 010/0xffffffff", "-A C -m mark --mark 0x8"),
    ("-A C -m addrtype --dst-type broadcast,local", "-A C -m addrtype --dst-type LOCAL,BROADCAST"),
    ("-A C -m conntrack --ctstate ESTABLISHED,RELATED", "-A C -m conntrack --ctstate RELATED,ESTABLISHED"),
    ("-A C -m conntrack ! --ctstate snat,NEW", "-A C -m conntrack ! --ctstate NEW,SNAT"),
    (
        "-A C -m statistic --mode random --probability 0.3333333333",
        "-A C -m statistic --mode random --probability 0.33333333349",
    ),
    ("-A C -m statistic --probability .5 --mode random", "-A C -m statistic --mode random --probability 0.50000000000"),
    ("-A C -m statistic --mode nth --every 3", "-A C -m statistic --mode nth --every 3 --packet 0"),
    ("-A C -m recent --set", "-A C -m recent --set --name DEFAULT --mask 255.255.255.255 --rsource"),
    (
        "-A C -m recent --name X --rsource --rcheck --reap --seconds 5",
        "-A C -m recent --rcheck --seconds 5 --reap --name X --mask 255.255.255.255 --rsource",
    ),
    ("-A C -m nfacct --nfacct-name x", "-A C -m nfacct --nfacct-name  x"),
    ("-A C -m comment --comment 'x'", "-A C -m comment --comment \"\\'x\\'\""),
    ('-A C -m comment --comment "plain"', "-A C -m comment --comment plain"),
    ("-A C\t-m comment   --comment x  -j X", "-A C -m comment --comment x -j X"),
    ("-A C -j REJECT", "-A C -j REJECT --reject-with icmp-port-unreachable"),
    ("-A C -j REJECT --reject-with net-unreach", "-A C -j REJECT --reject-with icmp-net-unreachable"),
    ("-A C -j MARK --set-mark 5", "-A C -j MARK --set-xmark 0x5/0xffffffff"),
    ("-A C -j MARK --set-mark 6/5", "-A C -j MARK --set-xmark 0x6/0x7"),
    ("-A C -j MARK --or-mark 0x4000", "-A C -j MARK --set-xmark 0x4000/0x4000"),
    ("-A C -j MARK --and-mark 5", "-A C -j MARK --set-xmark 0x0/0xfffffffa"),
    ("-A C -j MARK --xor-mark 5", "-A C -j MARK --set-xmark 0x5/0x0"),
    (
        "-A C -p tcp -j DNAT --persistent --to 10.0.0.1:80",
        "-A C -p tcp -j DNAT --to-destination 10.0.0.1:80 --persistent",
    ),
    ("-A C -j SNAT --to 10.0.0.1", "-A C -j SNAT --to-source 10.0.0.1"),
    ("-A C -j MASQUERADE --random --to-ports 5", "-A C -j MASQUERADE --to-ports 5 --random"),
]


@pytest.mark.parametrize(("line", "printed"), SAME_RULES)
def test_other_spelling_becomes_that_of_iptables_save(line: str, printed: str) -> None:
    """Long options, any order, old negation, masks, implied matches and short forms all end in one text."""
    chain, rule = parse_rule(line)

    assert printed == render_rule(chain, rule)


@pytest.mark.parametrize("line", ["[1:2] -A C -j X", "-A C -c 1 2 -j X", "-A C -j X --set-counters 1 2"])
def test_counters_of_a_rule_are_kept(line: str) -> None:
    """Both ways to write counters end in the same value."""
    assert parse_rule(line) == ("C", Rule(target=Jump("X"), counters=Counters(1, 2)))


def test_name_of_a_declared_chain_is_a_jump() -> None:
    """A chain can have the name of an extension that this program does not know, and even of one that it knows."""
    assert parse_rule("-A C -j LOG", {"LOG"}) == ("C", Rule(target=Jump("LOG")))
    assert parse_rule("-A C -j LOG", set()) == ("C", Rule(target=OpaqueTarget("LOG")))
    assert parse_rule("-A C -j NEWTARGET --x 1") == ("C", Rule(target=OpaqueTarget("NEWTARGET", "--x 1")))


def test_reject_without_kind_depends_on_the_family() -> None:
    """The default answer of REJECT is the port-unreachable message of the family."""
    _, rule = parse_rule("-A C -j REJECT", family=Family.IPV6)

    assert rule.target == Reject("icmp6-port-unreachable")


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("-A C -m foo  --a  b -j X", OpaqueMatch("foo", " --a  b")),
        ('-A C -m foo --a "b c" ! --d e -j X', OpaqueMatch("foo", '--a "b c" ! --d e')),
        ("-A C -m foo --source-thing -5 -j X", OpaqueMatch("foo", "--source-thing -5")),
        ("-A C -m foo --a b -s 10.0.0.1 --c -j X", OpaqueMatch("foo", "--a b --c")),
        ("-A C -p tcp -m tcp --dport http -j X", OpaqueMatch("tcp", "--dport http")),
        ("-A C -m mark --mark 1 --new-option -j X", OpaqueMatch("mark", "--mark 1 --new-option")),
        ("-A C -m mark --mark 0x100000000 -j X", OpaqueMatch("mark", "--mark 0x100000000")),
        (
            "-A C -m statistic --mode random --probability 2 -j X",
            OpaqueMatch("statistic", "--mode random --probability 2"),
        ),
        ("-A C -m recent --set --update -j X", OpaqueMatch("recent", "--set --update")),
        ("-A C -m conntrack --ctproto 6 -j X", OpaqueMatch("conntrack", "--ctproto 6")),
        ("-A C -m policy --dir in --proto esp -j X", OpaqueMatch("policy", "--dir in --proto esp")),
        ("-A C -m conntrack -j X", OpaqueMatch("conntrack")),
        ("-A C -m addrtype --dst-type NEW -j X", OpaqueMatch("addrtype", "--dst-type NEW")),
        ("-A C -m statistic --mode random -j X", OpaqueMatch("statistic", "--mode random")),
        ("-A C -m statistic --probability a --mode random", OpaqueMatch("statistic", "--probability a --mode random")),
        ("-A C -m statistic --mode nth --packet 1 -j X", OpaqueMatch("statistic", "--mode nth --packet 1")),
        ("-A C -m statistic --mode nth --every 0 -j X", OpaqueMatch("statistic", "--mode nth --every 0")),
        ("-A C -m nfacct ! --nfacct-name a -j X", OpaqueMatch("nfacct", "! --nfacct-name a")),
    ],
)
def test_unknown_options_keep_their_text(line: str, match: OpaqueMatch) -> None:
    """What no class holds is an opaque match with its words to the letter."""
    assert parse_rule(line)[1].matches == (match,)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("MARK", "--set-xmark 0x1 --or-mark 0x2"),
        ("MARK", "--or-mark many"),
        ("SNAT", "--random"),
        ("MASQUERADE", "! --random-fully"),
    ],
)
def test_targets_of_unknown_form_keep_their_text(name: str, options: str) -> None:
    """What the class of a target cannot hold is never guessed at."""
    assert parse_rule(f"-A C -j {name} {options}")[1].target == OpaqueTarget(name, options)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "-A CHAIN"),
        ("-A", "a word after '-A'"),
        ("-j X", "expected `-A CHAIN`"),
        ("! -A C -j X", "expected `-A CHAIN`"),
        ("-A C foo", "an option in the place of 'foo'"),
        ("-A C !", "an option in the place of '!'"),
        ("-A C -s host.example", "'host.example', expected an address or a prefix"),
        ("-A C -s 10.0.0.0/33", "expected an address or a prefix"),
        ("-A C -s 10.0.0.1,10.0.0.2", "expected an address or a prefix"),
        ("-A C -s 10.0.0.1/ffff::", "expected an address or a prefix"),
        ("-A C -s 10.0.0.1 -s 10.0.0.2", "expected one -s"),
        ("-A C -j X -g Y", "expected one target"),
        ("-A C ! -j X", "without `!`"),
        ("-A C ! -m tcp", "without `!`"),
        ("-A C -g X --foo", "no options of the chain X"),
        ("-A C --dport 5", "a match or target before its option '--dport'"),
        ('-A C -m comment --comment "x', 'closing `"`'),
        ("-A C -c x 1", "two numbers after -c"),
        ("[1:x] -A C", "PACKETS:BYTES"),
        ('-A "C D" -j X', "a word without blanks and quotes after '-A'"),
        ('-A C -i "eth0 -j ACCEPT"', "a word without blanks and quotes after '-i'"),
        ('-A C -p ""', "a word without blanks and quotes after '-p'"),
        ('-A C -j "X\\"Y"', "a word without blanks and quotes after '-j'"),
    ],
)
def test_text_that_is_no_rule_is_an_error(line: str, message: str) -> None:
    """The error shows what was found and what was expected."""
    with pytest.raises(RulesetError) as caught:
        parse_rule(line)

    assert message in str(caught.value)


def test_save_of_any_layout_is_read() -> None:
    """Comments, blank lines, CRLF, counters, missing declarations of built-in chains, several sections."""
    text = "# x\r\n*nat\r\n\r\n:A - [0:0]\r\n[1:2] -A A -j B\r\n-N B\r\n-A OUTPUT -j A\r\nCOMMIT\r\n*nat\n-A B\nCOMMIT"

    ruleset = parse_save(text, Family.IPV4)

    assert dict(ruleset.tables["nat"].chains) == {
        "A": Chain("A", (Rule(target=Jump("B"), counters=Counters(1, 2)),), "-", Counters(0, 0)),
        "B": Chain("B", (Rule(),)),
        "OUTPUT": Chain("OUTPUT", (Rule(target=Jump("A")),), "ACCEPT"),
    }


def test_implied_match_is_added_after_those_that_stand_before_it() -> None:
    """`-p tcp -m X --dport` loads the tcp match when it meets the option, as the programs do."""
    _, rule = parse_rule("-A C -p tcp -m limit --limit 1/sec --dport 80")

    assert rule.matches == (OpaqueMatch("limit", "--limit 1/sec"), PortMatch("tcp", (80, 80)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("*nat\n:A - [0:0]\n-A A -j X\n", "ends inside of table nat"),
        ("*nat\n:A - [0:0]\nfoo\nCOMMIT\n", "line 3: found 'foo'"),
        ("*nat\n:A - [0:0]\n\n-A B\nCOMMIT\n", "line 4: found '-A B'"),
        ("*nat\n:A\nCOMMIT\n", "line 2: found ':A'"),
        ("-A A\n", "line 1: found '-A A'"),
        ("*nat\n*filter\nCOMMIT\n", "line 2: found '*filter'"),
        ("*nat\n:A - [0:0]\n-A A -s x\nCOMMIT\n", "line 3: found 'x'"),
        ('*nat\n:A - [0:0]\n-A A -m comment --comment "\0"\nCOMMIT\n', "line 3: found NUL"),
    ],
)
def test_text_that_is_no_save_is_an_error(text: str, message: str) -> None:
    """The error names line, text and what was expected."""
    with pytest.raises(RulesetError, match=r"expected") as caught:
        parse_save(text, Family.IPV4)

    assert message in str(caught.value)
