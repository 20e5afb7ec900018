"""The real programs print what the renderer prints, on both backends."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.ruleset.canonical import canonical
from kproxy_ipt.ruleset.check import MAX_JUMP_DEPTH
from kproxy_ipt.ruleset.edits import (
    AppendRule,
    DeleteChain,
    DeleteRule,
    EnsureChain,
    InsertRule,
    RestoreInput,
    Transaction,
    WriteChain,
)
from kproxy_ipt.ruleset.matches import Comment
from kproxy_ipt.ruleset.model import Chain, Rule, Ruleset, Table
from kproxy_ipt.ruleset.render import render_input, render_rule, render_save
from kproxy_ipt.ruleset.scan import SavedChain, scan_save
from kproxy_ipt.ruleset.targets import Jump, Verdict

pytestmark = pytest.mark.kernel

Program = Callable[..., str]
Rows = list[tuple[str, str, str, Rule]]

SAVES = sorted((Path(__file__).parent / "saves").glob("*.txt"))
GOLDEN = Path(__file__).parents[1] / "golden"
NETWORK_SETS = ("trusted", "cali40masq-ipam-pools", "cali40all-ipam-pools", "cali40all-hosts-net", "cali40s:abc_DEF-1")


def _lines(text: str) -> dict[str, dict[str, tuple[str, ...]]]:
    """Table -> chain -> lines, without chains that have none."""
    return {
        table: {name: chain.lines for name, chain in chains.items() if chain.lines}
        for table, chains in scan_save(text).tables.items()
    }


def _ruleset(rows: Rows) -> Ruleset:
    """The rows as chains, and the chain that some of them jump to; nfacct matches need an object, so not here."""
    chains: dict[tuple[str, str], list[Rule]] = {("filter", "CUSTOM"): []}
    for table, chain, line, rule in rows:
        if "nfacct" not in line:
            chains.setdefault((table, chain), []).append(rule)
    tables: dict[str, dict[str, Chain]] = {}
    for (table, name), rules in chains.items():
        tables.setdefault(table, {})[name] = Chain(name, tuple(rules), "ACCEPT" if "ROUTING" in name else "-")
    return Ruleset(Family.IPV4, {name: Table(name, found) for name, found in tables.items()})


def test_every_row_is_printed_as_it_was_written(rows: Rows, program: Program, backend: str) -> None:
    """Each rule of the table is loaded and comes back with the same text."""
    text = render_save(_ruleset(rows))

    program(f"iptables-{backend}-restore", text=text)

    assert _lines(text) == _lines(program(f"iptables-{backend}-save"))


def test_every_character_in_a_comment_comes_back(program: Program, backend: str) -> None:
    """Quoting is that of iptables for every printable character, alone and among others."""
    characters = [chr(code) for code in (*range(32, 127), 0xE9, 0x4E2D)]
    texts = [*characters, *(f"a{character}b" for character in characters), "", "-j ACCEPT", "--comment", " a "]
    rules = tuple(Rule(matches=(Comment(text),)) for text in texts)
    text = render_save(Ruleset(Family.IPV4, {"filter": Table("filter", {"C": Chain("C", rules)})}))

    program(f"iptables-{backend}-restore", text=text)

    assert _lines(text) == _lines(program(f"iptables-{backend}-save", "-t", "filter"))


@pytest.mark.parametrize("path", SAVES, ids=lambda path: path.stem)
def test_foreign_saves_are_what_this_kernel_prints(path: Path, program: Program, backend: str) -> None:
    """The kept saves are real: the programs load them and print every rule with the same text."""
    programs, set_family = ("ip6tables", "inet6") if "ipv6" in path.name else ("iptables", "inet")
    for name in NETWORK_SETS:
        program("ipset", "create", name, "hash:net", "family", set_family)
    program("ipset", "create", "ports", "bitmap:port", "range", "0-65535")

    program(f"{programs}-{backend}-restore", text=path.read_text())

    assert _lines(path.read_text()) == _lines(program(f"{programs}-{backend}-save"))


@pytest.mark.parametrize("name", ["05-cluster-ip-ten-endpoints", "48-load-balancer-affinity-ranges", "67-dual-stack"])
@pytest.mark.parametrize("family", list(Family))
def test_golden_rules_come_back(
    name: str, family: Family, family_programs: dict[Family, str], program: Program, backend: str
) -> None:
    """Recorded rules are loaded and saved again to the same canonical form; the nfacct matches are left out."""
    file_name = f"{family_programs[family]}.txt"
    text = "".join(
        line for line in (GOLDEN / name / file_name).read_text().splitlines(keepends=True) if "nfacct" not in line
    )

    program(f"{family_programs[family]}-{backend}-restore", text=text)

    assert text == canonical(program(f"{family_programs[family]}-{backend}-save"))


def test_restore_input_does_what_its_edits_say(program: Program, backend: str) -> None:
    """Chains are written, rules inserted, appended and deleted, chains removed; a foreign rule stays."""
    to_a, to_old = Rule(target=Jump("A")), Rule(target=Jump("OLD"))
    first = Transaction("nat", (WriteChain("OLD", ("-A OLD -j RETURN",)), InsertRule("OUTPUT", to_old)))
    second = (
        DeleteChain("OLD"),
        DeleteRule("OUTPUT", to_old),
        WriteChain("A", ("-A A -j B",)),
        EnsureChain("B"),
        AppendRule("OUTPUT", to_a),
        InsertRule("OUTPUT", Rule(target=Verdict("RETURN")), 2),
    )
    program(f"iptables-{backend}", "-t", "nat", "-A", "OUTPUT", "-d", "192.0.2.1", "-j", "ACCEPT")

    for transaction in (first, Transaction("nat", second)):
        program(f"iptables-{backend}-restore", "--noflush", text=render_input(RestoreInput((transaction,))))

    saved = scan_save(program(f"iptables-{backend}-save", "-t", "nat"))
    assert saved.tables["nat"]["OUTPUT"].lines == (
        "-A OUTPUT -d 192.0.2.1/32 -j ACCEPT",
        "-A OUTPUT -j RETURN",
        "-A OUTPUT -j A",
    )
    assert saved.chain("nat", "A") == SavedChain("A", "-", ("-A A -j B",))
    assert saved.chain("nat", "OLD") is None


def test_jump_depth_of_the_check_is_that_of_the_kernel(program: Program) -> None:
    """nf_tables takes a way of 16 chains, the built-in one included, and refuses one of 17."""
    names = ["OUTPUT", *(f"C{index}" for index in range(1, MAX_JUMP_DEPTH + 1))]

    def text(length: int) -> str:
        way = names[:length]
        rules = [render_rule(here, Rule(target=Jump(there))) for here, there in pairwise(way)]
        return "\n".join(["*nat", *(f":{name} - [0:0]" for name in way[1:]), *rules, "COMMIT", ""])

    program("iptables-nft-restore", text=text(MAX_JUMP_DEPTH))
    with pytest.raises(AssertionError):
        program("iptables-nft-restore", text=text(MAX_JUMP_DEPTH + 1))
