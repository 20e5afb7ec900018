"""Chains that have to go: in which order, and which must stay because somebody else jumps to them."""

from collections.abc import Iterable, Mapping

from kproxy_ipt.rules.names import is_own_chain
from kproxy_ipt.ruleset.scan import SavedTables, jumps_to

_CALLERS_FIRST = ("KUBE-FW-", "KUBE-EXT-", "KUBE-SVL-", "KUBE-SVC-", "KUBE-SEP-")


def _depth(name: str) -> int:
    for position, prefix in enumerate(_CALLERS_FIRST):
        if name.startswith(prefix):
            return position
    return len(_CALLERS_FIRST)


def deletion_order(names: Iterable[str]) -> list[str]:
    """*names* such that a chain comes before those that it may jump to, otherwise in the order given."""
    return sorted(names, key=_depth)


def kept_for_others(actual: SavedTables, table: str, names: Iterable[str]) -> Mapping[str, str]:
    """
    Which of *names* must stay because a chain that is not ours leads to them, directly or through others of *names*.

    Returns:
        For each such name one chain that jumps to it.
    """
    candidates = set(names)
    kept: dict[str, str] = {}
    if not candidates:
        return kept
    chains = actual.tables.get(table, {})
    reached = [chain for chain in chains if not is_own_chain(table, chain)]
    while reached:
        chain = reached.pop()
        for line in chains[chain].lines:
            target = jumps_to(line)
            if target in candidates and target not in kept:
                kept[target] = chain
                reached.append(target)
    return kept
