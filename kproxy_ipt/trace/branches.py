"""
Dispatch trees read as the rows that they stand for.

Every rule of a tree keeps its matches, so putting the parts back in the place of the rules that lead to them changes
nothing about any packet. What reads Services then need not know of trees.
"""

from collections.abc import Iterator

import msgspec

from kproxy_ipt.rules.dispatch_tree import BRANCH_COMMENT
from kproxy_ipt.rules.names import is_changing_chain
from kproxy_ipt.rules.shared_chains import PLACES
from kproxy_ipt.ruleset.matches import Comment
from kproxy_ipt.ruleset.model import Chain, Rule, Ruleset, Table
from kproxy_ipt.ruleset.targets import Jump


def as_rows(ruleset: Ruleset) -> Ruleset:
    """*ruleset* with a row in the place of each dispatch tree; itself if it has none."""
    tables = dict(ruleset.tables)
    has_trees = False
    for place in PLACES.values():
        table = tables.get(place.table)
        first = table.chains.get(place.chain) if table else None
        if table is not None and first is not None and any(_part(place.table, rule) for rule in first.rules):
            tables[place.table] = _joined(table, first)
            has_trees = True
    return Ruleset(ruleset.family, tables) if has_trees else ruleset


def row_of(ruleset: Ruleset, table: str, name: str) -> Iterator[Rule]:
    """The rules of the chain *name*, those of the parts of a tree in their place; looks at no other chain."""
    chain = ruleset.chain(table, name)
    if chain is not None:
        yield from _rules(ruleset.tables[table], chain, {})


def part_of_dispatch(ruleset: Ruleset, name: str) -> str:
    """What a part of a dispatch tree holds, `services at 10.96.0.0/16`; "" if *name* is no such chain."""
    for table in ruleset.tables.values():
        for chain in table.chains.values():
            for rule in chain.rules:
                if _part(table.name, rule) == name:
                    return _comment(rule)
    return ""


def _joined(table: Table, first: Chain) -> Table:
    parts: dict[str, None] = {}
    rules = tuple(_rules(table, first, parts))
    chains = {name: chain for name, chain in table.chains.items() if name not in parts}
    chains[first.name] = msgspec.structs.replace(first, rules=rules)
    return Table(table.name, chains)


def _rules(table: Table, chain: Chain, parts: dict[str, None]) -> Iterator[Rule]:
    """The rules below *chain*; the parts that they stood in are added to *parts*, each of them once."""
    for rule in chain.rules:
        part = _part(table.name, rule)
        below = table.chains.get(part) if part and part not in parts else None
        if below is None:
            yield rule
            continue
        parts[part] = None
        yield from _rules(table, below, parts)


def _part(table: str, rule: Rule) -> str:
    """The chain that a rule leads to as a branch, "" for other rules."""
    chain = rule.target.chain if isinstance(rule.target, Jump) else ""
    return chain if _comment(rule).startswith(BRANCH_COMMENT) and is_changing_chain(table, chain) else ""


def _comment(rule: Rule) -> str:
    return next((match.text for match in rule.matches if isinstance(match, Comment)), "")
