"""Contradictions are found before the kernel sees them."""

from collections.abc import Container
from pathlib import Path

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.errors import RulesetError
from kproxy_ipt.plan.wanted import table_lines
from kproxy_ipt.ruleset.check import MAX_JUMP_DEPTH, check_lines
from kproxy_ipt.ruleset.matches import Comment
from kproxy_ipt.ruleset.model import Chain, Rule, Ruleset, Table
from kproxy_ipt.ruleset.parse import parse_save
from kproxy_ipt.ruleset.targets import Jump, Verdict

GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("*/ip*tables.txt"))
DISPATCH = frozenset(
    {"KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-NODEPORTS", "KUBE-PROXY-FIREWALL", "KUBE-FIREWALL"}
)
RETURN = Rule(target=Verdict("RETURN"))


def check(ruleset: Ruleset, *, may_be_empty: Container[str] = ()) -> None:
    """Check the text of *ruleset*."""
    check_lines(table_lines(ruleset), may_be_empty=may_be_empty)


def _ruleset(**targets: list[str]) -> Ruleset:
    """Chains that jump to others; one without targets returns at once."""
    chains = {
        name: Chain(name, tuple(Rule(target=Jump(target)) for target in found) or (RETURN,))
        for name, found in targets.items()
    }
    return Ruleset(Family.IPV4, {"nat": Table("nat", chains)})


def _line_of(length: int) -> Ruleset:
    return _ruleset(**{f"C{index}": [f"C{index + 1}"] for index in range(length - 1)}, **{f"C{length - 1}": []})


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_recorded_rules_are_consistent(path: Path) -> None:
    """What a real kube-proxy wrote passes; only chains that dispatch may be empty."""
    family = Family.IPV6 if "ip6" in path.name else Family.IPV4

    check(parse_save(path.read_text(), family), may_be_empty=DISPATCH)


@pytest.mark.parametrize("goto", [False, True])
def test_jump_to_a_missing_chain_is_found(goto: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """The kernel would refuse the whole transaction."""
    chain = Chain("A", (Rule(target=Jump("B", goto)),))

    with pytest.raises(RulesetError, match="table nat: chain A jumps to B, which is missing"):
        check(Ruleset(Family.IPV4, {"nat": Table("nat", {"A": chain})}))


def test_chain_of_another_table_is_missing() -> None:
    """A jump cannot leave its table."""
    tables = {
        "nat": Table("nat", {"B": Chain("B", (RETURN,))}),
        "filter": Table("filter", {"A": Chain("A", (Rule(target=Jump("B")),))}),
    }

    with pytest.raises(RulesetError, match="table filter: chain A jumps to B"):
        check(Ruleset(Family.IPV4, tables))


def test_jump_to_an_empty_chain_is_found_unless_it_is_allowed() -> None:
    """A half-filled service would lose its packets; a dispatch chain without services is fine."""
    chains = {"A": Chain("A", (Rule(target=Jump("B")),)), "B": Chain("B")}
    ruleset = Ruleset(Family.IPV4, {"nat": Table("nat", chains)})

    check(ruleset, may_be_empty={"B"})
    with pytest.raises(RulesetError, match="chain A jumps to B, which has no rules"):
        check(ruleset)


def test_empty_chain_that_nobody_jumps_to_is_fine() -> None:
    """Only what a packet can reach matters."""
    check(Ruleset(Family.IPV4, {"nat": Table("nat", {"A": Chain("A")})}))


def test_name_longer_than_the_kernel_holds_is_found() -> None:
    """28 characters fit, 29 do not."""
    check(_ruleset(**{"A" * 28: []}))
    with pytest.raises(RulesetError, match="has 29 characters, expected 1 to 28"):
        check(_ruleset(**{"A" * 29: []}))


def test_comment_is_measured_in_bytes() -> None:
    """255 bytes fit; 128 characters of two bytes each do not."""
    fits, too_long = Comment("a" * 255), Comment("\u00e9" * 128)

    for comment in (fits, too_long):
        chains = {"A": Chain("A", (Rule(matches=(comment,)),))}
        ruleset = Ruleset(Family.IPV4, {"nat": Table("nat", chains)})
        if comment is fits:
            check(ruleset)
        else:
            with pytest.raises(RulesetError, match="chain A has 256 bytes, expected at most 255"):
                check(ruleset)


@pytest.mark.parametrize(
    ("targets", "way"),
    [
        ({"A": ["A"]}, "A -> A"),
        ({"A": ["B"], "B": ["C"], "C": ["B"]}, "B -> C -> B"),
        ({"Z": [], "A": ["Z", "B"], "B": ["Z", "A"]}, "A -> B -> A"),
    ],
)
def test_loop_of_jumps_is_found(targets: dict[str, list[str]], way: str) -> None:
    """A loop is named chain by chain."""
    with pytest.raises(RulesetError, match=f"the jumps form a loop: {way}$"):
        check(_ruleset(**targets))


def test_two_ways_to_one_chain_are_no_loop() -> None:
    """Chains are shared: every service jumps to KUBE-MARK-MASQ."""
    check(_ruleset(A=["B", "C"], B=["D"], C=["D"], D=[]))


def test_way_of_too_many_chains_is_found() -> None:
    """nf_tables refuses a jump out of the 16th chain."""
    check(_line_of(MAX_JUMP_DEPTH))
    with pytest.raises(RulesetError, match="enters 17 chains, expected at most 16"):
        check(_line_of(MAX_JUMP_DEPTH + 1))


def test_very_long_way_needs_no_recursion() -> None:
    """A way of 5,000 chains is reported as such, not as an exhausted stack."""
    with pytest.raises(RulesetError, match="enters 17 chains"):
        check(_line_of(5000))


def test_word_that_looks_like_a_jump_in_a_comment_is_none() -> None:
    """What stands between quotes leads nowhere, at the end of a rule too."""
    comments = (Comment("x -j NOPE"), Comment("y -j NOPE z"), Comment('" -j NOPE'))
    chains = {"A": Chain("A", tuple(Rule(matches=(comment,)) for comment in comments))}

    check(Ruleset(Family.IPV4, {"nat": Table("nat", chains)}))


def test_jump_behind_a_comment_that_looks_like_one_is_found() -> None:
    """The chain that the rule leads to is looked for, not the one in its comment."""
    chains = {"A": Chain("A", (Rule(matches=(Comment("x -j A y"),), target=Jump("B")),))}

    with pytest.raises(RulesetError, match="chain A jumps to B, which is missing"):
        check(Ruleset(Family.IPV4, {"nat": Table("nat", chains)}))
