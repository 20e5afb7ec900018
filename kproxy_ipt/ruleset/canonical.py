"""
The canonical form: what two correct rule sets must have in common, as text.

It is the form of the golden files, described in `tests/golden/README.md`. Comments and counters are dropped; of the
tables `filter`, `nat` and `mangle` are kept if anything is left in them; the empty canary chain and built-in chains
without rules and with the policy ACCEPT are dropped; chains come first, sorted, then their rules, sorted where the
order is left to chance. The canonical form of a canonical form is itself.
"""

from collections.abc import Iterator, Mapping, Sequence

from kproxy_ipt.ruleset.model import Ruleset
from kproxy_ipt.ruleset.render import render_chain
from kproxy_ipt.ruleset.scan import SavedChain, SavedTables, scan_save

CANONICAL_TABLES = ("filter", "nat", "mangle")

CANARY = "KUBE-PROXY-CANARY"
"""An empty chain by which kube-proxy notices that the tables were flushed."""

UNORDERED: Mapping[str, frozenset[str]] = {
    "filter": frozenset({"KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-NODEPORTS", "KUBE-PROXY-FIREWALL"}),
    "nat": frozenset({"KUBE-SERVICES", "KUBE-NODEPORTS"}),
    "mangle": frozenset(),
}
"""Table -> chains in which kube-proxy leaves the order of the rules to chance."""


def _is_kept(chain: SavedChain) -> bool:
    return chain.name != CANARY and (chain.policy != "ACCEPT" or bool(chain.lines))


def _is_node_ports_jump(line: str) -> bool:
    return line.endswith(" -j KUBE-NODEPORTS")


def _ordered(table: str, chain: SavedChain) -> Sequence[str]:
    if chain.name not in UNORDERED[table]:
        return chain.lines
    if table == "nat" and chain.name == "KUBE-SERVICES":
        return sorted(chain.lines, key=lambda line: (_is_node_ports_jump(line), line))
    return sorted(chain.lines)


def _table_lines(table: str, chains: Mapping[str, SavedChain]) -> Iterator[str]:
    kept = sorted((chain for chain in chains.values() if _is_kept(chain)), key=lambda chain: chain.name)
    if not kept:
        return
    yield f"*{table}"
    for chain in kept:
        yield f":{chain.name} {chain.policy}"
    for chain in kept:
        yield from _ordered(table, chain)
    yield "COMMIT"


def _canonical(saved: SavedTables) -> str:
    lines = [line for table in CANONICAL_TABLES for line in _table_lines(table, saved.tables.get(table, {}))]
    return "".join(f"{line}\n" for line in lines)


def canonical(text: str) -> str:
    """
    The canonical form of the output of `iptables-save`; "" if nothing is left.

    Raises:
        RulesetError: *text* is no save text, see `scan_save`.
    """
    return _canonical(scan_save(text))


def canonical_ruleset(ruleset: Ruleset) -> str:
    """The canonical form of a Ruleset; the same as that of its save text."""
    return _canonical(
        SavedTables(
            {
                name: {
                    chain.name: SavedChain(chain.name, chain.policy, render_chain(chain))
                    for chain in table.chains.values()
                }
                for name, table in ruleset.tables.items()
            }
        )
    )
