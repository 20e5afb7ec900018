"""Values become the text that iptables-save prints."""

from typing import get_args

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.errors import RulesetError
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
from kproxy_ipt.ruleset.matches import Comment, Match
from kproxy_ipt.ruleset.model import Chain, Counters, Rule, Ruleset, Table
from kproxy_ipt.ruleset.render import quote, render_chain, render_input, render_rule, render_save
from kproxy_ipt.ruleset.targets import Jump, Target, Verdict

Rows = list[tuple[str, str, str, Rule]]


def test_every_row_renders_to_its_text(rows: Rows) -> None:
    """The table of rules holds value and text of every class; the renderer makes one of the other."""
    assert [line for _, _, line, _ in rows] == [render_rule(chain, rule) for _, chain, _, rule in rows]


def test_every_match_class_has_a_row(rows: Rows) -> None:
    """A new match class without a row in the table is found here."""
    used = {type(match) for *_, rule in rows for match in rule.matches}

    assert used == set(get_args(Match))


def test_every_target_class_has_a_row(rows: Rows) -> None:
    """A new target class without a row in the table is found here."""
    used = {type(rule.target) for *_, rule in rows if rule.target is not None}

    assert used == set(get_args(Target))


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("plain_Text-1", "plain_Text-1"),
        ("-j", "-j"),
        ("", '""'),
        ("a b", '"a b"'),
        ("ns/name", '"ns/name"'),
        ('say "hi"', r'"say \"hi\""'),
        ("back\\slash", r'"back\\slash"'),
        ("it's", r'"it\'s"'),
        ("caf\u00e9", '"caf\u00e9"'),
        ("a\tb", '"a\tb"'),
    ],
)
def test_words_are_quoted_as_iptables_does(text: str, word: str) -> None:
    """Quotes stand where a character other than a letter, digit, `_` or `-` does; three characters are escaped."""
    assert word == quote(text)


@pytest.mark.parametrize("text", ["a\nb", "a\n-A INPUT -j DROP", "a\0b", "\n"])
def test_line_break_in_a_comment_is_refused(text: str) -> None:
    """A comment cannot smuggle a second line into a restore input."""
    with pytest.raises(RulesetError, match="line break or NUL"):
        render_rule("A", Rule(matches=(Comment(text),)))


def test_header_comes_in_the_order_of_iptables_save() -> None:
    """Source, destination, interfaces, protocol, fragment, matches, target: whatever order they were given in."""
    rule = Rule(
        target=Verdict("DROP"),
        matches=(Comment("x"),),
        fragment="-f",
        protocol="tcp",
        out_interface="o0",
        in_interface="i0",
        destination="10.0.0.2/32",
        source="10.0.0.1/32",
        counters=Counters(1, 2),
    )

    line = "-A C -s 10.0.0.1/32 -d 10.0.0.2/32 -i i0 -o o0 -p tcp -f -m comment --comment x -j DROP"
    assert line == render_rule("C", rule)


def test_chain_renders_to_its_lines_in_order() -> None:
    """`render_chain` gives one line a rule, in the order of the rules."""
    chain = Chain("C", (Rule(target=Jump("D")), Rule(target=Verdict("RETURN"))))

    assert render_chain(chain) == ("-A C -j D", "-A C -j RETURN")


def test_save_text_holds_policies_and_counters() -> None:
    """Counters of chains and rules are printed where the values hold them, and nowhere else."""
    chains = {
        "INPUT": Chain("INPUT", (Rule(target=Jump("C"), counters=Counters(3, 4)),), "DROP", Counters(1, 2)),
        "C": Chain("C", (Rule(),)),
    }

    text = render_save(Ruleset(Family.IPV4, {"filter": Table("filter", chains)}))

    assert text == "*filter\n:INPUT DROP [1:2]\n:C -\n[3:4] -A INPUT -j C\n-A C\nCOMMIT\n"


def test_save_text_of_no_tables_is_empty() -> None:
    """A Ruleset without tables has no text."""
    assert render_save(Ruleset(Family.IPV6)) == ""


def test_restore_input_has_chains_then_rules_then_removals() -> None:
    """Whatever the order of the edits: chain lines, written rules, single rules in order, deletions."""
    rule = Rule(target=Jump("B"))
    edits = (
        DeleteChain("OLD"),
        InsertRule("INPUT", rule),
        WriteChain("B", ("-A B -j C",)),
        DeleteRule("OUTPUT", rule),
        EnsureChain("C"),
        AppendRule("FORWARD", rule),
        InsertRule("INPUT", Rule(), 2),
    )

    assert render_input(RestoreInput((Transaction("nat", edits),))).splitlines() == [
        "*nat",
        *(":OLD - [0:0]", ":B - [0:0]", ":C - [0:0]"),
        "-A B -j C",
        *("-I INPUT 1 -j B", "-D OUTPUT -j B", "-A FORWARD -j B", "-I INPUT 2"),
        "-X OLD",
        "COMMIT",
    ]


def test_each_transaction_is_a_section_of_its_own() -> None:
    """Two transactions of one table are two `*table ... COMMIT` sections, in their order."""
    sections = tuple(Transaction("nat", (EnsureChain(name),)) for name in ("A", "B"))

    text = render_input(RestoreInput(sections))

    assert text == "*nat\n:A - [0:0]\nCOMMIT\n*nat\n:B - [0:0]\nCOMMIT\n"


def test_chain_is_declared_once_in_a_transaction() -> None:
    """A second chain line would empty the chain that was just filled."""
    edits = (EnsureChain("A"), WriteChain("A", ("-A A -j RETURN",)))

    text = render_input(RestoreInput((Transaction("nat", edits),)))

    assert text.count(":A ") == 1


def test_restore_input_without_transactions_is_empty() -> None:
    """Nothing to do is no text at all."""
    assert render_input(RestoreInput()) == ""
