"""
The rules that one family should have, as text: what plans compare and write.

Text is what the kernel prints and takes, so it is compared and kept; rules as values are only needed to make it.
"""

from collections.abc import Iterable, Mapping

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.rules.build import Desired
from kproxy_ipt.rules.fixed import BaseJump
from kproxy_ipt.ruleset.model import Chain, Ruleset
from kproxy_ipt.ruleset.render import render_chain

Lines = tuple[str, ...]
"""The `-A` lines of one chain, in order."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """
    Wanted chains; see `Desired` for the other fields.

    Attributes:
        tables: Table -> chain -> lines, for `filter` and `nat`; chains of service ports after those they jump to.
    """

    family: Family
    tables: Mapping[str, Mapping[str, Lines]]
    base_jumps: tuple[BaseJump, ...] = ()
    shared_chains: tuple[tuple[str, str], ...] = ()
    owners: Mapping[str, str] = msgspec.field(default_factory=dict)


def chain_lines(chains: Iterable[Chain]) -> dict[str, Lines]:
    """Render *chains*; they keep their order."""
    return {chain.name: render_chain(chain) for chain in chains}


def table_lines(ruleset: Ruleset) -> dict[str, dict[str, Lines]]:
    """Render *ruleset*, table by table."""
    return {name: chain_lines(table.chains.values()) for name, table in ruleset.tables.items()}


def wanted_of(desired: Desired) -> Wanted:
    """Render *desired*."""
    return Wanted(
        family=desired.ruleset.family,
        tables=table_lines(desired.ruleset),
        base_jumps=desired.base_jumps,
        shared_chains=desired.shared_chains,
        owners=desired.owners,
    )
