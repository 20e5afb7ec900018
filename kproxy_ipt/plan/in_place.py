"""
Chains that are written anew -> chains that are changed where they stand, where that costs the kernel less.

On nf_tables a rule that is written lets the kernel check every rule of the table that a packet can reach; one that is
deleted does not. And writing thousands of rules anew takes longer than finding the few that differ. Measured on
iptables 1.8.9, Linux 6.18, 10,000 services of 5 endpoints: deleting one rule of a small chain takes 16 ms where writing
it takes 160 ms; deleting one of 10,000 rules takes 220 ms where writing them all takes 870 ms.
"""

from collections.abc import Iterable, Iterator, Mapping

from kproxy_ipt.errors import RulesetError
from kproxy_ipt.plan.stages import Step
from kproxy_ipt.plan.wanted import Lines, Wanted
from kproxy_ipt.ruleset.edits import DeleteChain, Edit, EditChain, WriteChain
from kproxy_ipt.ruleset.matches import OpaqueMatch
from kproxy_ipt.ruleset.parse import parse_rule
from kproxy_ipt.ruleset.scan import SavedTables, jumps_to
from kproxy_ipt.ruleset.targets import OpaqueTarget

_MOST_DELETED = 32
"""The program looks through the whole chain for each rule."""

_LARGE = 64
"""A chain of fewer rules is as soon written as searched, if it must be written to at all."""

_SMALL_PART = 8
"""At most one of so many rules may differ."""


def in_place(steps: Iterable[Step], actual: SavedTables, wanted: Wanted) -> Iterator[Step]:
    """
    *steps* with the same effect, chain by chain; chains of service ports are left as they are.

    Args:
        steps: In the order in which they take effect.
        actual: What the kernel has before them, of every chain that they write and that exists.
        wanted: What they lead to.
    """
    now: dict[tuple[str, str], Lines] = {}
    for step in steps:
        edits: list[Edit] = []
        for edit in step.edits:
            if isinstance(edit, WriteChain):
                old = _lines(now, actual, step.table, edit.name) if edit.name not in wanted.owners else ()
                edits.append(_shorter(edit, old))
                now[step.table, edit.name] = edit.rules
            else:
                edits.append(edit)
                if isinstance(edit, DeleteChain):
                    now[step.table, edit.name] = ()
        yield Step(step.table, tuple(edits))


def _lines(now: Mapping[tuple[str, str], Lines], actual: SavedTables, table: str, name: str) -> Lines:
    if (table, name) in now:
        return now[table, name]
    saved = actual.chain(table, name)
    return saved.lines if saved else ()


def _shorter(edit: WriteChain, old: Lines) -> WriteChain | EditChain:
    if not old or not edit.rules:
        return edit
    before, after = frozenset(old), frozenset(edit.rules)
    deleted = tuple(line for line in old if line not in after)
    inserted = tuple((at, line) for at, line in enumerate(edit.rules, start=1) if line not in before)
    is_cheap = len(edit.rules) >= _LARGE and (len(deleted) + len(inserted)) * _SMALL_PART <= len(edit.rules)
    if len(deleted) > _MOST_DELETED or len(inserted) > _MOST_DELETED or (inserted and not is_cheap):
        return edit
    if not _same_order(old, edit.rules, before, after) or not all(map(_is_understood, deleted)):
        return edit
    return EditChain(edit.name, deleted, inserted)


def _is_understood(line: str) -> bool:
    """Whether a rule can be deleted by its text for sure: others may have written what the program reads otherwise."""
    try:
        # Whatever the family: it decides about what the text leaves out, and not about what is known.
        _, rule = parse_rule(line, (jumps_to(line) or "",))
    except RulesetError:
        return False
    return not any(isinstance(part, OpaqueMatch | OpaqueTarget) for part in (*rule.matches, rule.target))


def _same_order(old: Lines, new: Lines, before: frozenset[str], after: frozenset[str]) -> bool:
    """Whether what stays stands in the same order, and no rule is there twice."""
    if len(before) != len(old) or len(after) != len(new):
        return False
    return [line for line in old if line in after] == [line for line in new if line in before]
