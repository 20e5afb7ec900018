"""
Rule, Chain, Table and Ruleset: the vocabulary of everything that builds, reads, compares or explains rules.

All are frozen values; a changed chain is a new chain. A Ruleset does not know where it came from.
"""

from collections.abc import Mapping

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.ruleset.matches import Match
from kproxy_ipt.ruleset.targets import Target


class Counters(msgspec.Struct, frozen=True, gc=False):
    """`[packets:bytes]`."""

    packets: int = 0
    bytes: int = 0


class Rule(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """
    One rule: the header of the packet, then matches in order, then the target.

    Attributes:
        source: Prefix with its length (`10.0.0.1/32`), or `ADDRESS/MASK` where the mask has gaps; "" means any.
        in_interface: Name, or prefix ending in `+`; "" means any.
        protocol: Name as `iptables-save` prints it (`tcp`), or the number as text; "" means any.
        fragment: "", `-f` or `! -f`.
        matches: In the order of evaluation.
        target: None for a rule that only counts.
        counters: None unless the text that the rule was read from had them.
    """

    source: str = ""
    destination: str = ""
    in_interface: str = ""
    out_interface: str = ""
    protocol: str = ""
    fragment: str = ""
    source_negated: bool = False
    destination_negated: bool = False
    in_interface_negated: bool = False
    out_interface_negated: bool = False
    protocol_negated: bool = False
    matches: tuple[Match, ...] = ()
    target: Target | None = None
    counters: Counters | None = None


class Chain(msgspec.Struct, frozen=True):
    """A chain: *policy* is `ACCEPT` or `DROP` for a built-in one and `-` for all others."""

    name: str
    rules: tuple[Rule, ...] = ()
    policy: str = "-"
    counters: Counters | None = None


class Table(msgspec.Struct, frozen=True):
    """A table: its chains by name, in the order of the text or of building."""

    name: str
    chains: Mapping[str, Chain] = msgspec.field(default_factory=dict)


class Ruleset(msgspec.Struct, frozen=True):
    """The tables of one family by name."""

    family: Family
    tables: Mapping[str, Table] = msgspec.field(default_factory=dict)

    def chain(self, table: str, name: str) -> Chain | None:
        """The chain *name* of *table*, or None."""
        found = self.tables.get(table)
        return found.chains.get(name) if found else None
