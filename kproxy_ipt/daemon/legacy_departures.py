"""
What rules of the legacy backend had counted when a sync took them away.

Legacy tables tell nobody about deleted rules, so their counters are read right before the write that deletes them:
those of the chains that the plan touches and that count for a service port, and nothing where it touches none. What is
counted between reading and writing, some 10 milliseconds, is lost.

The kernel copies the whole table for that, which takes a quarter of the time that writing it takes. Large tables are
not read, so as not to hold up changes where they are slow anyway: then what is lost is what was counted since the last
reading for metrics.
"""

from collections.abc import Callable, Iterator, Sequence

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.log import Log
from kproxy_ipt.kernel.legacy_counters import chain_counters, table_octets
from kproxy_ipt.plan.plan import Plan
from kproxy_ipt.ruleset.counted import REFUSAL_MARKS, scan_counters
from kproxy_ipt.ruleset.edits import DeleteChain, EditChain, WriteChain
from kproxy_ipt.stats.ended_rule import EndedRule

MOST_OCTETS = 6 << 20
"""Size of a table up to which its counters are read before a write: some 1,000 Services of 5 endpoints, 50 ms."""

LinesOf = Callable[[str, str], Sequence[str]]
"""The lines that a chain of a table has before the write."""

Departures = Callable[[Plan, LinesOf], Callable[[], None]]
"""Called before a plan is written; what it returns is called once the kernel has taken the plan."""


class LegacyDepartures:
    """Reads the counters of rules that a plan of one family ends, in the namespace of the calling thread."""

    def __init__(
        self, family: Family, tell: Callable[[Sequence[EndedRule]], None], is_wanted: Callable[[], bool], log: Log
    ) -> None:
        """
        Prepare.

        Args:
            family: Of the plans.
            tell: Given what has ended, in any thread.
            is_wanted: Whether anybody counts.
            log: Told if counters cannot be read; the write goes on.
        """
        self._family = family
        self._tell = tell
        self._is_wanted = is_wanted
        self._log = log

    def __call__(self, plan: Plan, lines_of: LinesOf) -> Callable[[], None]:
        """See `Departures`; never raises."""
        ended: list[EndedRule] = []
        if self._is_wanted():
            try:
                ended += self._read(plan, lines_of)
            except Exception as error:  # noqa: BLE001 - no bug here may keep rules from being written
                self._log.warning("departing counters", family=self._family, error=repr(error), now="sums lack them")
        return lambda: self._tell(ended)

    def _read(self, plan: Plan, lines_of: LinesOf) -> Iterator[EndedRule]:
        for table in ("nat", "filter"):
            going = dict(_going(plan, table, lines_of))
            if not going or table_octets(self._family, table) > MOST_OCTETS:
                continue
            counted = chain_counters(self._family, table, going)
            for chain, lines in going.items():
                numbered = zip(lines_of(table, chain), counted.get(chain, ()), strict=False)
                text = "\n".join(f"[{packets}:0] {line}" for line, packets in numbered if line in lines)
                found = scan_counters(text)
                yield from (EndedRule(self._family, one, "", packets) for one, packets in found.endpoints.items())
                yield from (EndedRule(self._family, "", one, packets) for one, packets in found.refusals.items())


def _going(plan: Plan, table: str, lines_of: LinesOf) -> Iterator[tuple[str, frozenset[str]]]:
    """The chains that lose rules which count for a service port, and these rules."""
    for transaction in plan.transactions:
        for edit in transaction.edits if transaction.table == table else ():
            if isinstance(edit, WriteChain | DeleteChain):
                lines: Sequence[str] = lines_of(table, edit.name)
            elif isinstance(edit, EditChain):
                lines = edit.deleted
            else:
                continue
            counting = frozenset(line for line in lines if _counts(table, edit.name, line))
            if counting:
                yield edit.name, counting


def _counts(table: str, chain: str, line: str) -> bool:
    if table == "nat":
        return chain.startswith("KUBE-SEP-") and " --to-destination " in line
    return any(mark in line for mark in REFUSAL_MARKS)
