"""Chains that are parsed when they are looked at are the chains that are parsed at once."""

from pathlib import Path

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.errors import RulesetError
from kproxy_ipt.ruleset.parse import parse_save
from kproxy_ipt.ruleset.reading import read_save

_GOLDEN = Path(__file__).parents[1] / "golden"
_BROKEN = "*nat\n:GOOD - [0:0]\n:BAD - [0:0]\n-A GOOD -j RETURN\n-A BAD --no-such-option\nCOMMIT\n"


@pytest.mark.parametrize("folder", sorted(_GOLDEN.glob("[0-9]*")), ids=lambda folder: folder.name)
def test_looking_at_every_chain_gives_the_whole_ruleset(folder: Path) -> None:
    """Nothing is lost and nothing changes by waiting."""
    text = (folder / "iptables.txt").read_text()
    whole, waiting = parse_save(text, Family.IPV4), read_save(text, Family.IPV4)

    assert {name: dict(table.chains) for name, table in waiting.tables.items()} == {
        name: dict(table.chains) for name, table in whole.tables.items()
    }


def test_rule_that_cannot_be_read_costs_nobody_who_does_not_look() -> None:
    """The error comes with the chain that holds it."""
    ruleset = read_save(_BROKEN, Family.IPV4)

    assert ruleset.chain("nat", "GOOD") is not None
    with pytest.raises(RulesetError, match="no-such-option"):
        ruleset.chain("nat", "BAD")


def test_restore_file_is_read_as_well() -> None:
    """Long options are no form that `iptables-save` prints."""
    ruleset = read_save("*nat\n:A - [0:0]\n--append A --jump RETURN\nCOMMIT\n", Family.IPV4)
    chain = ruleset.chain("nat", "A")

    assert chain is not None
    assert len(chain.rules) == 1


def test_broken_listing_is_no_empty_one() -> None:
    """A table without its end is an error at once."""
    with pytest.raises(RulesetError):
        read_save("*nat\n:A - [0:0]\n-A A -j RETURN\n", Family.IPV4)
