"""
What a restore input does, as values: edits of chains, grouped into transactions.

One `Transaction` is one `*table ... COMMIT` section: the kernel takes all of it or nothing. `render.py` turns a
`RestoreInput` into text for `iptables-restore --noflush`.
"""

from typing import TypeAlias

import msgspec

from kproxy_ipt.ruleset.model import Rule


class WriteChain(msgspec.Struct, frozen=True):
    """Create or empty chain *name* and fill it with *rules*: `-A` lines as `render_chain` gives them."""

    name: str
    rules: tuple[str, ...]


class EditChain(msgspec.Struct, frozen=True):
    """
    Change the existing chain *name* where it stands.

    Attributes:
        deleted: `-A` lines that it has; the first rule that equals each goes.
        inserted: `-A` lines, each with the position (1 is the top) that it has in the end; in that order.
    """

    name: str
    deleted: tuple[str, ...]
    inserted: tuple[tuple[int, str], ...] = ()


class EnsureChain(msgspec.Struct, frozen=True):
    """Create chain *name* if it is missing; in a restore input this empties an existing one, so use it for new ones."""

    name: str


class InsertRule(msgspec.Struct, frozen=True):
    """Insert *rule* into the existing chain *chain* at *position* (1 is the top)."""

    chain: str
    rule: Rule
    position: int = 1


class AppendRule(msgspec.Struct, frozen=True):
    """Append *rule* to the existing chain *chain* without emptying it."""

    chain: str
    rule: Rule


class DeleteRule(msgspec.Struct, frozen=True):
    """Delete the first rule of *chain* that equals *rule*."""

    chain: str
    rule: Rule


class DeleteChain(msgspec.Struct, frozen=True):
    """Empty chain *name* and delete it; nothing outside the transaction may jump to it."""

    name: str


Edit: TypeAlias = WriteChain | EditChain | EnsureChain | InsertRule | AppendRule | DeleteRule | DeleteChain


class Transaction(msgspec.Struct, frozen=True):
    """
    Edits of one table that the kernel applies together.

    The text is in this order whatever the order of *edits*: all chain lines (of written, ensured and deleted chains),
    then rules of written chains, then inserted, appended and deleted rules in the order of *edits* (of an edited chain
    first the deleted ones), then `-X` lines.
    """

    table: str
    edits: tuple[Edit, ...]


class RestoreInput(msgspec.Struct, frozen=True):
    """Transactions that one run of the restore program applies one after the other."""

    transactions: tuple[Transaction, ...] = ()
