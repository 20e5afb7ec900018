"""
Two Rulesets compared by what they mean: service by service, then chains that know no service, then foreign ones.

What comes in are rules of any origin: of a kernel, of a file, built from objects. What goes out says which service
ports were added, removed or changed, and how, in words. Nothing is left out: rules of ours that are no part of a
service port are compared as rules, and so is the order of rules in shared chains where it decides about packets.
"""

from collections.abc import Iterator
from enum import StrEnum

import msgspec

from kproxy_ipt.rules.names import KUBE_FIREWALL, is_own_chain, is_service_chain
from kproxy_ipt.ruleset.diff import ChainDifference, DifferenceKind, compare_rulesets
from kproxy_ipt.ruleset.model import Chain, Rule, Ruleset, Table
from kproxy_ipt.ruleset.targets import Jump
from kproxy_ipt.trace.branches import as_rows
from kproxy_ipt.trace.service_changes import change_words, summary_words
from kproxy_ipt.trace.service_reading import SHARED_CHAINS, Reading, read_ruleset, read_services
from kproxy_ipt.trace.service_views import EndpointView, EntryKind, EntryView, ServiceView

__all__ = [
    "ChangeKind",
    "Comparison",
    "EndpointView",
    "EntryKind",
    "EntryView",
    "ServiceChange",
    "ServiceView",
    "compare",
    "own_rules",
    "read_services",
]


class ChangeKind(StrEnum):
    """What became of a service port."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


class ServiceChange(msgspec.Struct, frozen=True):
    """
    One service port that differs.

    Attributes:
        service_port: `namespace/name:port/protocol`.
        kind: Whether the second side alone, the first alone, or both have it.
        words: What changed, one fact each; for one that only one side has, its entries and endpoints.
    """

    service_port: str
    kind: ChangeKind
    words: tuple[str, ...]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """
    How the second Ruleset differs from the first.

    Attributes:
        services: In the order of their names.
        fixed: Chains of ours that know no service, jumps from built-in chains into ours, and what else is ours;
            *missing* are lines of the first alone, *extra* of the second alone.
        foreign: Everything else, likewise.
        compared: Service ports that at least one side has.
    """

    services: tuple[ServiceChange, ...]
    fixed: tuple[ChainDifference, ...]
    foreign: tuple[ChainDifference, ...]
    compared: int

    def differs(self, *, foreign: bool) -> bool:
        """Whether anything is different; foreign chains count where *foreign* is set."""
        return bool(self.services or self.fixed or (foreign and self.foreign))


def compare(before: Ruleset, after: Ruleset) -> Comparison:
    """
    Compare two Rulesets of one family.

    Counters, comments, and chains that hold nothing do not count; a dispatch tree is what its row would be.
    """
    before, after = as_rows(before), as_rows(after)
    old, new = read_ruleset(before), read_ruleset(after)
    names = sorted({*old.services, *new.services})
    changes = (_change(name, old.services.get(name), new.services.get(name)) for name in names)
    services = tuple(change for change in changes if change)
    fixed = compare_rulesets(_fixed(before, old), _fixed(after, new))
    return Comparison(
        services=services,
        fixed=(*fixed, *_order(before, after)),
        foreign=compare_rulesets(_foreign(before), _foreign(after)),
        compared=len(names),
    )


def _change(name: str, before: ServiceView | None, after: ServiceView | None) -> ServiceChange | None:
    if before is None or after is None:
        there = before or after
        kind = ChangeKind.ADDED if before is None else ChangeKind.REMOVED
        return ServiceChange(name, kind, summary_words(there) if there else ())
    words = change_words(before, after) if before != after else ()
    return ServiceChange(name, ChangeKind.CHANGED, words) if words else None


def _order(before: Ruleset, after: Ruleset) -> Iterator[ChainDifference]:
    """Shared chains that hold the same rules in an order that decides otherwise about packets."""
    for difference in compare_rulesets(_shared(before), _shared(after)):
        if difference.kind is DifferenceKind.ORDER:
            yield difference


def _shared(ruleset: Ruleset) -> Ruleset:
    tables = {name: dict[str, Chain]() for name in ruleset.tables}
    for table, name in SHARED_CHAINS:
        chain = ruleset.chain(table, name)
        if chain:
            tables[table][name] = chain
    return Ruleset(ruleset.family, {name: Table(name, chains) for name, chains in tables.items()})


def _leads_into_ours(table: str, rule: Rule) -> bool:
    chain = rule.target.chain if isinstance(rule.target, Jump) else ""
    return _is_ours(table, chain)


def _is_ours(table: str, name: str) -> bool:
    return is_own_chain(table, name) or (table == "filter" and name == KUBE_FIREWALL)


def _fixed(ruleset: Ruleset, reading: Reading) -> Ruleset:
    """What is ours and belongs to no service port."""
    orphans = {chain.name for chain in reading.orphans}
    tables: dict[str, Table] = {}
    for name, table in ruleset.tables.items():
        chains: dict[str, Chain] = {}
        for chain in table.chains.values():
            rules = reading.leftovers.get((name, chain.name), chain.rules)
            if not _is_ours(name, chain.name):
                rules = tuple(rule for rule in chain.rules if _leads_into_ours(name, rule))
            elif is_service_chain(name, chain.name) and chain.name not in orphans:
                continue
            if rules:
                chains[chain.name] = Chain(chain.name, rules)
        tables[name] = Table(name, chains)
    return Ruleset(ruleset.family, tables)


def _foreign(ruleset: Ruleset) -> Ruleset:
    """Chains of others, built-in ones without the jumps into ours; empty ones that let everything pass are left out."""
    tables: dict[str, Table] = {}
    for name, table in ruleset.tables.items():
        chains: dict[str, Chain] = {}
        for chain in table.chains.values():
            if _is_ours(name, chain.name):
                continue
            rules = tuple(rule for rule in chain.rules if not _leads_into_ours(name, rule))
            if rules or chain.policy == "DROP":
                chains[chain.name] = Chain(chain.name, rules, chain.policy)
        tables[name] = Table(name, chains)
    return Ruleset(ruleset.family, tables)


def own_rules(ruleset: Ruleset) -> Ruleset:
    """*ruleset* with our chains alone, and of built-in ones the jumps into them."""
    tables: dict[str, Table] = {}
    for name, table in ruleset.tables.items():
        chains: dict[str, Chain] = {}
        for chain in table.chains.values():
            if _is_ours(name, chain.name):
                chains[chain.name] = chain
            elif jumps := tuple(rule for rule in chain.rules if _leads_into_ours(name, rule)):
                chains[chain.name] = Chain(chain.name, jumps, "-" if chain.policy == "-" else "ACCEPT")
        tables[name] = Table(name, chains)
    return Ruleset(ruleset.family, tables)
