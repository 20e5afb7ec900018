"""Chains that have to go: in which order, and which must stay because somebody else jumps to them."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from kproxy_ipt.rules.names import is_own_chain
from kproxy_ipt.ruleset.scan import SavedChain, SavedTables, jumps_to


def deletion_order(actual: SavedTables, table: str, names: Iterable[str]) -> list[str]:
    """*names* such that a chain of *actual* comes before those that it jumps to; jumps in circles end anywhere."""
    chains = actual.tables.get(table, {})
    wanted = dict.fromkeys(names)
    done: dict[str, None] = {}
    for first in reversed(wanted):
        path = [(first, _targets(chains, first, wanted))]
        started = {first}
        while path:
            name, targets = path[-1]
            target = next((one for one in targets if one not in done and one not in started), None)
            if target is None:
                done[name] = None
                path.pop()
            else:
                started.add(target)
                path.append((target, _targets(chains, target, wanted)))
    return list(reversed(done))


def _targets(chains: Mapping[str, SavedChain], name: str, wanted: Mapping[str, None]) -> Iterator[str]:
    saved = chains.get(name)
    targets = (jumps_to(line) for line in (saved.lines if saved else ()))
    return (target for target in targets if target is not None and target in wanted)


def kept_for_others(
    actual: SavedTables,
    table: str,
    names: Iterable[str],
    *,
    counts_not: Callable[[str, str], bool] = is_own_chain,
) -> Mapping[str, str]:
    """
    Which of *names* must stay because a chain that is not ours leads to them, directly or through others of *names*.

    Args:
        actual: All tables of one family.
        table: The table of *names*.
        names: Chains that should go.
        counts_not: Of table and chain: whose jumps keep nothing, beside those of *names*.

    Returns:
        For each such name one chain that jumps to it.
    """
    candidates = set(names)
    kept: dict[str, str] = {}
    if not candidates:
        return kept
    chains = actual.tables.get(table, {})
    reached = [chain for chain in chains if chain not in candidates and not counts_not(table, chain)]
    while reached:
        chain = reached.pop()
        for line in chains[chain].lines:
            target = jumps_to(line)
            if target in candidates and target not in kept:
                kept[target] = chain
                reached.append(target)
    return kept
