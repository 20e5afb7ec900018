"""The canonical form, as the golden files have it."""

import random
from pathlib import Path

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.ruleset.canonical import UNORDERED, canonical, canonical_ruleset
from kproxy_ipt.ruleset.parse import parse_save
from kproxy_ipt.testing.save_text import save_text

GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("*/ip*tables.txt"))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_golden_file_is_its_own_canonical_form(path: Path) -> None:
    """A canonical text stays as it is, read either way."""
    text = path.read_text()

    assert text == canonical(text)
    assert text == canonical_ruleset(parse_save(text, Family.IPV6 if "ip6" in path.name else Family.IPV4))


@pytest.mark.parametrize("path", GOLDEN[::20], ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_order_of_chains_and_of_unordered_rules_does_not_matter(path: Path) -> None:
    """Shuffled chain lines and shuffled rules of the unordered chains end in the same text."""
    text = path.read_text()
    tables = text.split("COMMIT\n")[:-1]
    shuffled = "".join(f"{_shuffle(table)}COMMIT\n" for table in reversed(tables))

    assert text == canonical(shuffled)


def _shuffle(section: str) -> str:
    """Shuffle the lines of one table as far as the canonical form hides it."""
    source = random.Random(section)
    table, *lines = section.splitlines()
    chains = [line for line in lines if line.startswith(":")]
    unordered = [f"-A {name} " for name in UNORDERED[table[1:]]]
    free = [line for line in lines if line.startswith(tuple(unordered))]
    fixed = [line for line in lines if line.startswith("-A ") and line not in free]
    source.shuffle(chains)
    source.shuffle(free)
    return "".join(f"{line}\n" for line in (table, *chains, *free, *fixed))


def test_what_two_rule_sets_need_not_share_is_dropped() -> None:
    """Comments, counters, other tables, the canary, and unused built-in chains with the policy ACCEPT."""
    text = save_text(
        {
            "security": {"X": ["-j RETURN"]},
            "mangle": {"KUBE-PROXY-CANARY": []},
            "nat": {"B": ["-j A"], "A": [], "OUTPUT": ["-j B"]},
        },
        policies={("nat", "INPUT"): "DROP"},
    )

    assert canonical(text) == "*nat\n:A -\n:B -\n:INPUT DROP\n:OUTPUT ACCEPT\n-A B -j A\n-A OUTPUT -j B\nCOMMIT\n"


def test_tables_come_in_the_order_of_the_golden_files() -> None:
    """filter, nat, mangle: whatever the order of the text."""
    text = save_text({"mangle": {"A": []}, "nat": {"A": []}, "filter": {"A": []}})

    assert [line for line in canonical(text).splitlines() if line.startswith("*")] == ["*filter", "*nat", "*mangle"]


def test_node_port_jumps_come_last_in_services() -> None:
    """In KUBE-SERVICES of nat alone the jumps to KUBE-NODEPORTS are sorted behind everything else."""
    rules = ["-j KUBE-NODEPORTS", "-d 10.0.0.2/32 -j Z", "-d 10.0.0.1/32 -j KUBE-NODEPORTS", "-j Z"]
    text = save_text({"nat": {"KUBE-SERVICES": rules}, "filter": {"KUBE-SERVICES": rules}})

    lines = [line.removeprefix("-A KUBE-SERVICES ") for line in canonical(text).splitlines() if line.startswith("-A")]

    assert lines[:4] == sorted(rules)
    assert lines[4:] == ["-d 10.0.0.2/32 -j Z", "-j Z", "-d 10.0.0.1/32 -j KUBE-NODEPORTS", "-j KUBE-NODEPORTS"]


def test_nothing_left_is_an_empty_text() -> None:
    """A kernel with empty tables has an empty canonical form."""
    assert canonical(save_text({"filter": {}, "nat": {}})) == ""
