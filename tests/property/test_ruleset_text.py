"""Whatever rule can be built: text and value are two forms of one thing, for us and for the kernel."""

import string
import subprocess

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from kproxy_ipt.addresses import Family
from kproxy_ipt.errors import RulesetError
from kproxy_ipt.ruleset.canonical import canonical, canonical_ruleset
from kproxy_ipt.ruleset.diff import compare_chains, compare_rulesets
from kproxy_ipt.ruleset.matches import (
    AddressType,
    Comment,
    Conntrack,
    Mark,
    Match,
    Nfacct,
    OpaqueMatch,
    PortMatch,
    Recent,
    StatisticNth,
    StatisticRandom,
)
from kproxy_ipt.ruleset.model import Chain, Counters, Rule, Ruleset, Table
from kproxy_ipt.ruleset.parse import parse_rule, parse_save
from kproxy_ipt.ruleset.prefixes import printed_prefix
from kproxy_ipt.ruleset.render import render_chain, render_rule, render_save
from kproxy_ipt.ruleset.rule_reader import RuleReader
from kproxy_ipt.ruleset.saved_rule import read_saved_rule
from kproxy_ipt.ruleset.scan import jumps_to, scan_save
from kproxy_ipt.ruleset.targets import (
    Dnat,
    Jump,
    Masquerade,
    OpaqueTarget,
    Reject,
    SetMark,
    Snat,
    Target,
    Verdict,
)
from kproxy_ipt.testing.namespaces import temporary_namespace

WORDS = st.text(string.ascii_letters + string.digits + "_.", min_size=1, max_size=12)
FREE_TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\n\r\0"), max_size=40)
PRINTED_TEXTS = st.text(string.printable.replace("\n", "").replace("\r", ""), max_size=40)
BITS32 = st.integers(0, 0xFFFFFFFF)
STATES = ("INVALID", "NEW", "RELATED", "ESTABLISHED", "UNTRACKED", "SNAT", "DNAT")
TYPES = ("UNICAST", "LOCAL", "ANYCAST", "MULTICAST")


def _some(members: tuple[str, ...]) -> st.SearchStrategy[tuple[str, ...]]:
    """At least one of *members*, in their order."""
    chosen = st.sets(st.sampled_from(members), min_size=1)
    return chosen.map(lambda found: tuple(member for member in members if member in found))


def _ports(lowest: int) -> st.SearchStrategy[tuple[int, int]]:
    """Ranges that do not hold all ports: those ask for nothing and are not printed."""
    ends = st.tuples(st.integers(lowest, 65534), st.integers(lowest, 65534))
    return ends.map(lambda found: (min(found), max(found)))


def _prefixes(family: Family) -> st.SearchStrategy[str]:
    address = st.ip_addresses(v=4 if family is Family.IPV4 else 6)
    return st.tuples(address, st.integers(1, family.bits)).map(lambda found: printed_prefix(f"{found[0]}/{found[1]}"))


def _port_matches(protocol: str) -> st.SearchStrategy[Match]:
    either = st.none() | _ports(1)
    return st.builds(PortMatch, st.just(protocol), either, either, st.booleans(), st.booleans()).map(
        lambda found: PortMatch(
            protocol,
            found.destination,
            found.source,
            found.destination_negated and found.destination is not None,
            found.source_negated and found.source is not None,
        )
    )


def _masked_mark(value: int, mask: int, negated: bool) -> Mark:  # noqa: FBT001 - a field
    return Mark(value & mask, mask, negated)


def _matches(family: Family, texts: st.SearchStrategy[str]) -> st.SearchStrategy[Match]:
    """Every match that needs neither a protocol nor an object in the kernel."""
    types = st.just("") | _some(TYPES).map(",".join)
    mask = "255.255.255.255" if family is Family.IPV4 else "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"
    return st.one_of(
        st.builds(Comment, texts),
        st.builds(Conntrack, _some(STATES), st.booleans()),
        st.builds(_masked_mark, BITS32, BITS32, st.booleans()),
        st.tuples(types, types, st.booleans(), st.booleans())
        .filter(lambda found: bool(found[0] or found[1]))
        .map(lambda found: AddressType(found[0], found[1], bool(found[0]) and found[2], bool(found[1]) and found[3])),
        st.builds(StatisticRandom, st.integers(0, 1 << 31), st.booleans()),
        st.integers(1, 1000).flatmap(
            lambda every: st.builds(StatisticNth, st.just(every), st.integers(0, every - 1), st.booleans())
        ),
        st.builds(
            Recent,
            st.just("LIST"),
            st.sampled_from(["rcheck", "update"]),
            st.just(mask),
            st.integers(1, 10**6),
            st.booleans(),
            st.integers(0, 4),
            st.booleans(),
            st.sampled_from(["rsource", "rdest"]),
            st.booleans(),
        ).map(lambda found: found if found.hitcount else Recent(found.name, found.action, found.mask, found.seconds)),
        st.just(OpaqueMatch("limit", "--limit 3/min --limit-burst 10")),
        st.integers(1, 255).map(lambda port: OpaqueMatch("length", f"--length {port}:9000")),
    )


def _targets(family: Family) -> st.SearchStrategy[Target | None]:
    kind = "icmp-port-unreachable" if family is Family.IPV4 else "icmp6-port-unreachable"
    return st.one_of(
        st.none(),
        st.builds(Jump, st.just("OTHER"), st.booleans()),
        st.sampled_from(["ACCEPT", "DROP", "RETURN"]).map(Verdict),
        st.just(Reject(kind)),
        st.just(OpaqueTarget("LOG", '--log-prefix "a \\"b\\" "')),
    )


def _unseen_targets() -> st.SearchStrategy[Target | None]:
    """Targets of other tables, and such as no kernel has."""
    flags = st.booleans()
    return st.one_of(
        st.builds(SetMark, BITS32, BITS32),
        st.builds(Dnat, WORDS, flags, flags),
        st.builds(Snat, WORDS, flags, flags, flags),
        st.builds(Masquerade, st.just("") | WORDS, flags, flags),
        st.builds(OpaqueTarget, st.just("FOO"), st.sampled_from(["--a b", '--a "b c" ! --d', "--x"])),
    )


@st.composite
def rules(
    draw: st.DrawFn, family: Family, texts: st.SearchStrategy[str] = FREE_TEXTS, *, all_kinds: bool = True
) -> Rule:
    """A rule with any header, up to four matches and any target; only those of the filter table unless *all_kinds*."""
    protocol = draw(st.sampled_from(["", "tcp", "udp", "sctp"]))
    matches = draw(
        st.lists(_matches(family, texts) | st.just(Nfacct("n")) if all_kinds else _matches(family, texts), max_size=3)
    )
    if protocol and draw(st.booleans()):
        matches.insert(draw(st.integers(0, len(matches))), draw(_port_matches(protocol)))
    interfaces = st.just("") | st.sampled_from(["eth0", "veth+", "cni0"])
    header = {
        "source": draw(st.just("") | _prefixes(family)),
        "destination": draw(st.just("") | _prefixes(family)),
        "in_interface": draw(interfaces),
        "out_interface": draw(interfaces),
        "protocol": protocol,
    }
    is_negatable = {"protocol": not any(isinstance(match, PortMatch) for match in matches)}
    negated = {
        f"{name}_negated": bool(text) and is_negatable.get(name, True) and draw(st.booleans())
        for name, text in header.items()
    }
    target = draw(_targets(family) | _unseen_targets() if all_kinds else _targets(family))
    return Rule(matches=tuple(matches), target=target, **header, **negated)  # type: ignore[arg-type]  # by name


FEW = settings(max_examples=25, deadline=None)
MANY = settings(max_examples=100, deadline=None)

FAMILIES = st.sampled_from(list(Family))
ANY_RULES = FAMILIES.flatmap(lambda family: st.tuples(st.just(family), rules(family)))


@st.composite
def rulesets(draw: st.DrawFn) -> Ruleset:
    """One to three tables with a few chains each, counters here and there."""
    family = draw(FAMILIES)
    counters = st.none() | st.builds(Counters, st.integers(0, 10**12), st.integers(0, 10**15))
    counted = st.builds(lambda rule, found: msgspec.structs.replace(rule, counters=found), rules(family), counters)
    names = st.sampled_from(["A", "KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-PROXY-CANARY", "OTHER"])
    tables: dict[str, Table] = {}
    for table in draw(st.sets(st.sampled_from(["filter", "nat", "mangle", "raw"]), min_size=1, max_size=3)):
        chains = [
            Chain(name, tuple(draw(st.lists(counted, max_size=3))), counters=draw(counters))
            for name in draw(st.sets(names, min_size=1))
        ]
        built_in = Chain("OUTPUT", policy=draw(st.sampled_from(["ACCEPT", "DROP"])))
        tables[table] = Table(table, {chain.name: chain for chain in (built_in, *chains)})
    return Ruleset(family, tables)


@MANY
@given(ANY_RULES)
def test_parsing_a_rendered_rule_gives_the_rule(found: tuple[Family, Rule]) -> None:
    """Text is a complete form of the value."""
    family, rule = found

    assert parse_rule(render_rule("C", rule), family=family) == ("C", rule)


@MANY
@given(ANY_RULES)
def test_short_and_long_way_to_read_a_rule_agree(found: tuple[Family, Rule]) -> None:
    """The reader for saved lines never says anything else than the complete one."""
    family, rule = found
    line = render_rule("C", rule)
    reader = RuleReader(line, {"OTHER"}, family)
    reader.read()

    assert read_saved_rule(line, {"OTHER"}, family) in (None, ("C", reader.rule()))


FRAGMENTS = [
    "! -! -m tcp",
    "--dport 80",
    "-p udp",
    "-p tcp",
    "--sport ! 5",
    "-j X",
    "-j DNAT",
    "-j LOG",
    "--to 1.2.3.4",
    "--to",
    "-s 1.2.3.4",
    "-s 80",
    "foo",
    "-g X",
    '--comment "a b"',
    "--comment -j",
    '"',
    "-m comment",
    "-m mark",
    "--mark 1",
    "! --mark 2",
    "-f",
    "! -f",
    "--x",
    "-m foo",
    "--proto esp",
    "-i lo",
    "!",
    " ",
]


def _read(line: str, *, is_short: bool) -> tuple[str, Rule] | str | None:
    """What one of the two ways makes of *line*; "error" where it raises."""
    try:
        if is_short:
            return read_saved_rule(line, {"X"}, Family.IPV4)
        reader = RuleReader(line, {"X"}, Family.IPV4)
        reader.read()
        return reader.header["A"], reader.rule()
    except RulesetError:
        return "error"


@MANY
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=6))
def test_short_and_long_way_agree_on_any_words(fragments: list[str]) -> None:
    """Also for words in any order: what the short way takes, the long way reads alike."""
    line = " ".join(["-A C", *fragments])

    assert _read(line, is_short=True) in (None, _read(line, is_short=False))


@FEW
@given(rulesets())
def test_parsing_a_rendered_ruleset_gives_the_ruleset(ruleset: Ruleset) -> None:
    """Policies, counters, order of tables and chains: nothing is lost in the text."""
    again = parse_save(render_save(ruleset), ruleset.family)

    assert again == ruleset
    assert [list(table.chains) for table in again.tables.values()] == [
        list(table.chains) for table in ruleset.tables.values()
    ]


@FEW
@given(rulesets())
def test_shallow_reader_sees_the_lines_that_were_rendered(ruleset: Ruleset) -> None:
    """The lines of each chain are those of `render_chain`, with and without counters in the text."""
    saved = scan_save(render_save(ruleset))

    assert {name: {chain.name: chain.lines for chain in chains.values()} for name, chains in saved.tables.items()} == {
        name: {chain.name: render_chain(chain) for chain in table.chains.values()}
        for name, table in ruleset.tables.items()
    }


@MANY
@given(ANY_RULES)
def test_name_after_the_jump_is_that_of_the_target(found: tuple[Family, Rule]) -> None:
    """`jumps_to` finds the target of a line without parsing it, whatever the comments hold."""
    _, rule = found
    target = rule.target
    expected = None if target is None else render_rule("C", Rule(target=target)).split()[3]

    assert expected == jumps_to(render_rule("C", rule))


@FEW
@given(rulesets())
def test_canonical_form_is_its_own_canonical_form(ruleset: Ruleset) -> None:
    """Once canonical, always canonical; and the text and the value have the same one."""
    once = canonical_ruleset(ruleset)

    assert once == canonical(once) == canonical(render_save(ruleset))


@FEW
@given(rulesets())
def test_ruleset_does_not_differ_from_its_own_text(ruleset: Ruleset) -> None:
    """Neither of the two comparisons finds a difference between a Ruleset and itself."""
    again = parse_save(render_save(ruleset), ruleset.family)
    saved = scan_save(render_save(ruleset))

    assert compare_rulesets(ruleset, again) == ()
    for name, table in ruleset.tables.items():
        assert compare_chains(table.chains, saved.tables[name], table=name, family=ruleset.family, owners={}) == ()


@pytest.mark.kernel
@pytest.mark.parametrize("backend", ["nft", "legacy"])
@pytest.mark.parametrize("family", list(Family))
@settings(max_examples=5, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_kernel_prints_what_the_renderer_prints(family: Family, backend: str, data: st.DataObject) -> None:
    """Generated rules are loaded and come back with the same text, counters aside."""
    found = data.draw(st.lists(rules(family, PRINTED_TEXTS, all_kinds=False), min_size=30, max_size=60))
    chain = Chain("C", tuple(found))
    text = render_save(Ruleset(family, {"filter": Table("filter", {"C": chain, "OTHER": Chain("OTHER")})}))
    program = f"{'iptables' if family is Family.IPV4 else 'ip6tables'}-{backend}"
    with temporary_namespace("text") as namespace:
        inside = ("ip", "netns", "exec", namespace)
        loaded = subprocess.run(
            [*inside, f"{program}-restore"], input=text, check=False, text=True, capture_output=True
        )
        assert loaded.returncode == 0, f"{loaded.stderr}{text}"
        saved = subprocess.run([*inside, f"{program}-save"], check=True, text=True, capture_output=True).stdout

    assert render_chain(chain) == scan_save(saved).tables["filter"]["C"].lines
