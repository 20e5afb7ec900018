"""
Look before you write: contradictions of rules that the kernel would refuse, or worse, accept.

Run on all desired rules before they are turned into restore inputs. A finding is a bug of ours, never of the user.
"""

import itertools
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

from kproxy_ipt.errors import RulesetError
from kproxy_ipt.ruleset.scan import jumps_to
from kproxy_ipt.ruleset.target_readers import TARGET_EXTENSIONS, VERDICTS
from kproxy_ipt.ruleset.words import split_words

MAX_NAME_LENGTH = 28
"""Characters of a chain name: XT_EXTENSION_MAXNAMELEN minus the terminating zero."""

MAX_COMMENT_BYTES = 255
"""Bytes of a comment: XT_MAX_COMMENT_LEN minus the terminating zero."""

MAX_JUMP_DEPTH = 16
"""Chains that a packet may be inside of at a time, the base chain included: NFT_JUMP_STACK_SIZE of nf_tables."""


_NO_CHAINS = frozenset({*VERDICTS, *TARGET_EXTENSIONS})
"""Words after `-j` that are no chains."""

Jumps = Mapping[str, Sequence[str]]
"""Chain -> the chains that it jumps to, each once, in the order of the rules."""


def _checked_targets(table: str, chain: str, lines: Iterable[str]) -> Sequence[str]:
    """The chains that *lines* of a chain jump to, each once; comments are measured on the way: one loop, not two."""
    found: list[str] = []
    for line in lines:
        if len(line) > MAX_COMMENT_BYTES or not line.isascii():
            _check_comment_of_line(table, chain, line)
        last = line.rfind(" ") + 1
        # Most lines end with the jump; a quoted text would end with its quote.
        is_plain = line.startswith(" -j ", last - 4) and not line.endswith('"')
        target = line[last:] if is_plain else jumps_to(line)
        if target is not None and target not in _NO_CHAINS:
            found.append(target)
    return found if len(found) < 2 else [*dict.fromkeys(found)]


def _check_names(table: str, names: Iterable[str]) -> None:
    for name in names:
        if len(name) > MAX_NAME_LENGTH or not name:
            raise RulesetError(
                f"table {table}: chain name {name!r} has {len(name)} characters, expected 1 to {MAX_NAME_LENGTH}"
            )


def _check_jumps(table: str, jumps: Jumps, empty: AbstractSet[str]) -> None:
    """Check that every jump leads to a chain, and to none of *empty*."""
    reached = frozenset(itertools.chain.from_iterable(jumps.values()))
    if reached <= jumps.keys() and reached.isdisjoint(empty):
        return
    for name, targets in jumps.items():
        for target in targets:
            if target not in jumps:
                raise RulesetError(f"table {table}: chain {name} jumps to {target}, which is missing")
            if target in empty:
                raise RulesetError(f"table {table}: chain {name} jumps to {target}, which has no rules")


def _check_comment_of_line(table: str, chain: str, line: str) -> None:
    for option, word in itertools.pairwise(split_words(line)):
        if option.text == "--comment" and option.is_option:
            _check_comment(table, chain, word.text)


def _check_comment(table: str, chain: str, text: str) -> None:
    length = len(text.encode())
    if length > MAX_COMMENT_BYTES:
        raise RulesetError(
            f"table {table}: a comment in chain {chain} has {length} bytes, expected at most"
            f" {MAX_COMMENT_BYTES}: {text[:80]!r}..."
        )


def _check_depth(table: str, jumps: Jumps) -> None:
    """Find loops and too long ways: chains are settled once all their targets are, without recursion."""
    depths: dict[str, int] = {}
    for start, targets in jumps.items():
        if start not in depths:
            if all(target in depths for target in targets):
                _settle(table, start, targets, depths)
            else:
                _settle_with_targets(table, start, jumps, depths)


def _settle_with_targets(table: str, start: str, jumps: Jumps, depths: dict[str, int]) -> None:
    open_chains: dict[str, Iterator[str]] = {start: iter(jumps[start])}
    while open_chains:
        chain, rest = next(reversed(open_chains.items()))
        target = next(rest, None)
        if target is None:
            del open_chains[chain]
            _settle(table, chain, jumps[chain], depths)
        elif target in open_chains:
            way = " -> ".join([*list(open_chains)[list(open_chains).index(target) :], target])
            raise RulesetError(f"table {table}: the jumps form a loop: {way}")
        elif target not in depths:
            open_chains[target] = iter(jumps[target])


def _settle(table: str, chain: str, targets: Sequence[str], depths: dict[str, int]) -> None:
    depths[chain] = depth = 1 + max([depths[name] for name in targets], default=0)
    if depth > MAX_JUMP_DEPTH:
        raise RulesetError(
            f"table {table}: a way through {chain} enters {depth} chains, expected at most {MAX_JUMP_DEPTH}"
        )


def check_lines(tables: Mapping[str, Mapping[str, Sequence[str]]], *, may_be_empty: Container[str] = ()) -> None:
    """
    Raise for the first contradiction: 100,000 rules take 0.1 to 0.2 s.

    Args:
        tables: Table -> chain -> `-A` lines as `render_chain` gives them, complete: every chain that is jumped to is
            there, foreign ones included.
        may_be_empty: Chains that may be jumped to although they have no rules: those that only dispatch.

    Raises:
        RulesetError: A chain name is longer than 28 characters; a comment than 255 bytes; a jump leads to a chain that
            is missing or empty; jumps form a loop, or a way of more than 16 chains.
    """
    for table, chains in tables.items():
        _check_names(table, chains)
        jumps = {name: _checked_targets(table, name, lines) for name, lines in chains.items()}
        _check_jumps(table, jumps, {name for name, lines in chains.items() if not lines and name not in may_be_empty})
        _check_depth(table, jumps)
