"""Save texts for tests look like those of the programs."""

from kproxy_ipt.testing.save_text import save_text


def test_save_text_has_built_in_chains_first_and_ends_with_commit() -> None:
    """Chains with their policies, then the rules chain by chain."""
    text = save_text({"nat": {"A": ["-j RETURN", ""], "OUTPUT": ["-j A"]}}, policies={("nat", "INPUT"): "DROP"})

    assert [line for line in text.splitlines() if not line.startswith("#")] == [
        "*nat",
        *(":PREROUTING ACCEPT [0:0]", ":INPUT DROP [0:0]", ":OUTPUT ACCEPT [0:0]", ":POSTROUTING ACCEPT [0:0]"),
        ":A - [0:0]",
        *("-A OUTPUT -j A", "-A A -j RETURN", "-A A"),
        "COMMIT",
    ]


def test_save_text_of_no_tables_is_empty() -> None:
    """A kernel without tables prints nothing."""
    assert save_text({}) == ""
