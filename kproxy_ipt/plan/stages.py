"""
Steps -> transactions: what goes into the kernel together.

On nf_tables the time of one transaction grows with (rules x chains) in it, so a large change is cut into transactions
of bounded size; a step is never cut, and the order of steps is kept, which makes every moment in between a good one.
On the legacy backend every transaction copies the whole table, so there is one for each table.

Measured on iptables 1.8.9, Linux 6.18: 5,000 services of 5 endpoints took 97 s and more in one nf_tables transaction,
1.1 s in transactions of 100 services.
"""

from collections.abc import Iterable, Iterator

import msgspec

from kproxy_ipt.ruleset.edits import Edit, EditChain, Transaction, WriteChain

MAX_LINES = 2500
"""Chain lines and rules in one staged transaction: some 100 services of 5 endpoints."""


class Step(msgspec.Struct, frozen=True):
    """Edits of one table that must take effect at the same moment."""

    table: str
    edits: tuple[Edit, ...]

    @property
    def lines(self) -> int:
        """Lines of the restore input that the step makes."""
        return sum(_lines_of(edit) for edit in self.edits)


def _lines_of(edit: Edit) -> int:
    if isinstance(edit, WriteChain):
        return 1 + len(edit.rules)
    return len(edit.deleted) + len(edit.inserted) if isinstance(edit, EditChain) else 1


def fits_one_transaction(steps: Iterable[Step], max_lines: int = MAX_LINES) -> bool:
    """Whether *steps*, all of one table, are small enough to go into the kernel together on nf_tables."""
    return sum(step.lines for step in steps) <= max_lines


def pack(steps: Iterable[Step], *, staged: bool, max_lines: int = MAX_LINES) -> tuple[Transaction, ...]:
    """
    Put steps into transactions.

    Args:
        steps: In the order in which they have to take effect.
        staged: Whether size is bounded; if not, only a change of table begins a new transaction.
        max_lines: The bound; a single step may exceed it.
    """
    return tuple(_packed(steps, max_lines if staged else None))


def _packed(steps: Iterable[Step], limit: int | None) -> Iterator[Transaction]:
    table, lines = "", 0
    edits: list[Edit] = []
    for step in steps:
        full = limit is not None and lines + step.lines > limit
        if edits and (step.table != table or full):
            yield Transaction(table, tuple(edits))
            edits, lines = [], 0
        table = step.table
        edits.extend(step.edits)
        lines += step.lines
    if edits:
        yield Transaction(table, tuple(edits))
