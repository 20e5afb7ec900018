"""The shallow reader: lines of each chain, and never an empty listing where the text is broken."""

import re
from pathlib import Path

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.errors import RulesetError
from kproxy_ipt.ruleset.parse import parse_save
from kproxy_ipt.ruleset.render import render_chain
from kproxy_ipt.ruleset.scan import SavedChain, jumps_to, scan_save
from kproxy_ipt.testing.save_text import save_text

SAVES = sorted((Path(__file__).parent / "saves").glob("*.txt"))


def test_chains_have_their_lines_in_order() -> None:
    """Each chain of the text is there with policy and lines, an empty one too; other chains do not break in."""
    text = save_text({"nat": {"A": ["-j B", "", "-j RETURN"], "B": []}}, policies={("nat", "INPUT"): "DROP"})

    chains = scan_save(text).tables["nat"]

    assert list(chains) == ["PREROUTING", "INPUT", "OUTPUT", "POSTROUTING", "A", "B"]
    assert chains["A"] == SavedChain("A", "-", ("-A A -j B", "-A A", "-A A -j RETURN"))
    assert chains["B"] == SavedChain("B", "-", ())
    assert chains["INPUT"].policy == "DROP"


def test_lines_of_interleaved_chains_are_put_together() -> None:
    """A restore file jumps between chains; each chain gets its lines in order."""
    saved = scan_save("*nat\n:A - [0:0]\n:B -\n-A A x\n-A B y\n-A A z\n-A A w\n-A B v\nCOMMIT\n")

    assert saved.chain("nat", "A") == SavedChain("A", "-", ("-A A x", "-A A z", "-A A w"))
    assert saved.chain("nat", "B") == SavedChain("B", "-", ("-A B y", "-A B v"))
    assert saved.chain("nat", "C") is None
    assert saved.chain("raw", "A") is None


def test_chain_whose_name_begins_with_that_of_another_is_its_own() -> None:
    """`-A AB x` does not belong to the run of `A`."""
    saved = scan_save("*nat\n:A - [0:0]\n:AB - [0:0]\n-A A x\n-A AB y\nCOMMIT\n")

    assert saved.tables["nat"]["AB"].lines == ("-A AB y",)


def test_counters_and_carriage_returns_are_dropped() -> None:
    """The lines are the texts of the rules alone."""
    saved = scan_save("*nat\r\n:A - [5:6]\r\n[1:2] -A A -j X\r\n-A A -j Y\r\n[0:0] -A A\r\nCOMMIT\r\n")

    assert saved.tables["nat"]["A"].lines == ("-A A -j X", "-A A -j Y", "-A A")


def test_sections_of_one_table_are_one_table() -> None:
    """Two listings in one text, as of both backends, add up."""
    saved = scan_save("*nat\n:A -\n-A A x\nCOMMIT\n# legacy\n*nat\n:A -\n:B -\n-A A y\nCOMMIT\n")

    assert saved.tables["nat"]["A"].lines == ("-A A x", "-A A y")
    assert list(saved.tables["nat"]) == ["A", "B"]


def test_separators_inside_comments_do_not_end_a_line() -> None:
    """Only a line feed ends a line, whatever Unicode holds for one."""
    line = '-A A -m comment --comment "a\u2028b\x0cc\x85d"'

    assert scan_save(f"*nat\n:A -\n{line}\nCOMMIT\n").tables["nat"]["A"].lines == (line,)


@pytest.mark.parametrize(
    "text", ["", "\n", "# Warning: iptables-legacy tables present, use iptables-legacy to see them\n"]
)
def test_text_without_tables_has_none(text: str) -> None:
    """A kernel without tables prints nothing, or a comment."""
    assert scan_save(text).tables == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("*nat\n:A - [0:0]\n-A A x\n", "the text ends inside of table nat, expected `COMMIT`"),
        ("*nat\n", "the text ends inside of table nat"),
        ("*nat\n:A - [0:0]\n-A A x\nCOMM", "line 4: found 'COMM'"),
        (
            "*nat\n:A - [0:0]\n-A A x\n-A B y\nCOMMIT\n",
            "line 4: found '-A B y', expected a rule of a chain declared in table nat",
        ),
        ("*nat\n:A - [0:0]\n-A A x\n\njunk\n-A A y\nCOMMIT\n", "line 5: found 'junk'"),
        ("-A A x\n", "line 1: found '-A A x', expected a table"),
        ("*nat\n:A -\nCOMMIT\n-A A x\n", "line 4: found '-A A x', expected a rule of a chain of an open table"),
        ("*nat\n:A -\n*filter\nCOMMIT\n", "line 3: found '*filter', expected `COMMIT` of table nat"),
        ("*\nCOMMIT\n", "line 1: found '*', expected the name of a table"),
        ("*nat\n:A\nCOMMIT\n", "line 2: found ':A', expected a chain"),
        ("*nat\n:A -\n-I A 1 x\nCOMMIT\n", "line 3: found '-I A 1 x'"),
        ("iptables-save: command not found\n", "line 1: found 'iptables-save: command not found'"),
        ("# Table `nat' is incompatible, use 'nft' tool.\n", "line 1"),
        ("COMMIT\n", "line 1: found 'COMMIT'"),
    ],
)
def test_broken_listing_is_an_error(text: str, message: str) -> None:
    """A text that is cut off or no listing is never taken for an empty one; the line is named."""
    with pytest.raises(RulesetError) as caught:
        scan_save(text)

    assert message in str(caught.value)


def test_foreign_table_that_cannot_be_printed_is_no_error() -> None:
    """What another program does in a table that we do not use is its own affair."""
    assert scan_save("# Table `raw' is incompatible, use 'nft' tool.\n*nat\n:A -\nCOMMIT\n").tables["nat"]


def test_very_long_line_is_shortened_in_the_error() -> None:
    """An error stays readable even if the junk is not."""
    with pytest.raises(RulesetError) as caught:
        scan_save("x" * 100_000)

    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("-A A -j X", "X"),
        ("-A A -g X", "X"),
        ("-A A", None),
        ("-A A -p tcp -m tcp --dport 80", None),
        ("-A A -j DNAT --to-destination 10.0.0.1:80", "DNAT"),
        ('-A A -m comment --comment "a -j B" -j X', "X"),
        ('-A A -m comment --comment "a -j B" -g X', "X"),
        ('-A A -m comment --comment "a -j B"', None),
        ('-A A -m comment --comment "say \\" -j B" -j X', "X"),
        ('-A A -j LOG --log-prefix "a -j B "', "LOG"),
    ],
)
def test_name_after_the_jump_is_found(line: str, name: str | None) -> None:
    """The name after `-j` or `-g`, not one inside of a quoted text."""
    assert name == jumps_to(line)


@pytest.mark.parametrize("path", SAVES, ids=lambda path: path.stem)
def test_both_readers_agree_on_foreign_saves(path: Path) -> None:
    """What the shallow reader calls the lines of a chain is what the full reader renders, apart from counters."""
    text = path.read_text()
    ruleset = parse_save(text, Family.IPV6 if "ipv6" in path.name else Family.IPV4)

    saved = {
        table: {name: chain.lines for name, chain in chains.items()} for table, chains in scan_save(text).tables.items()
    }

    assert saved == {
        name: {chain.name: render_chain(chain) for chain in table.chains.values()}
        for name, table in ruleset.tables.items()
    }
    assert re.search(r"(?m)^-A|\] -A", text)
