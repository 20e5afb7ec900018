"""
The wanted rules of one family, kept up to date Service by Service, and what of them the kernel has.

Work is proportional to what changed: rules of one Service are built and rendered when it changes, and a partial plan
looks at its chains and, if its addresses changed, at the shared chains that hold them. Rules are kept as text only,
once, whether wanted or applied; a change that the kernel refused stays in the difference between both.

A Service whose rules the kernel refuses can be set aside, so that it costs the others nothing: until it means something
else, or is tried again, it keeps what still serves of the rules that it has.

Memory: 5,000 Services of 5 endpoints are some 115,000 lines, 15 MiB.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from kproxy_ipt.plan.contribution import NOTHING, Contribution, contribution_of
from kproxy_ipt.plan.dispatch_lines import DispatchLines, SharedChain
from kproxy_ipt.plan.last_good import standing_rules, stands, still_serving
from kproxy_ipt.plan.plan import Plan, plan_wanted
from kproxy_ipt.plan.stages import MAX_LINES
from kproxy_ipt.plan.wanted import Lines, Wanted, wanted_of
from kproxy_ipt.rules.build import assemble
from kproxy_ipt.rules.names import KUBE_MARK_MASQ
from kproxy_ipt.rules.options import LARGE_CLUSTER_ENDPOINTS, RuleOptions
from kproxy_ipt.rules.shared_chains import branched_places
from kproxy_ipt.ruleset.edits import Transaction, WriteChain
from kproxy_ipt.ruleset.scan import SavedChain, SavedTables
from kproxy_ipt.state.tracker import ServiceName, States

_NO_TABLES = SavedTables({})


class FamilyRules:
    """
    Wanted and applied rules of one family.

    The order of use: `set_options` and `update` say what is wanted, `plan_full` or `plan_partial` what is to be
    written, and `commit` that the kernel took it. Nothing else moves the line between wanted and applied.
    """

    def __init__(self) -> None:
        self._options: RuleOptions | None = None
        self._states: dict[ServiceName, States] = {}
        self._contributions: dict[ServiceName, Contribution] = {}
        self._order: list[ServiceName] = []
        self._aside: dict[ServiceName, States] = {}
        self._kept: dict[ServiceName, Contribution] = {}
        self._fixed: Wanted | None = None
        self._applied: dict[str, dict[str, Lines]] = {"filter": {}, "nat": {}}
        self._applied_chains: dict[ServiceName, tuple[str, ...]] = {}
        self._applied_rules = {"filter": 0, "nat": 0}
        self._touched: set[ServiceName] = set()
        self._dispatch: DispatchLines | None = None
        self._needs_full = True
        self._planned: Wanted | None = None
        self._is_full = False
        self.endpoint_count = 0

    @property
    def needs_full(self) -> bool:
        """Whether the kernel has to be read before anything can be planned."""
        return self._needs_full

    def require_full(self) -> None:
        """Say that what the kernel has is not known any more."""
        self._needs_full = True

    @property
    def options(self) -> RuleOptions:
        """The options in force; `set_options` comes first."""
        if self._options is None:
            raise RuntimeError("options are not set")
        return self._options

    def set_options(self, options: RuleOptions) -> bool:
        """
        Set what all rules depend on; returns whether it is news, which means that every rule is built anew.

        Whether rules of endpoints carry comments follows from the number of endpoints, whatever *options* say.
        """
        options = msgspec.structs.replace(options, endpoint_comments=self.endpoint_count <= LARGE_CLUSTER_ENDPOINTS)
        old, self._options = self._options, options
        if options == old:
            return False
        self._aside.clear()
        self._kept.clear()
        if self._dispatch is None:
            self._dispatch = DispatchLines(options.family, self._order)
        if old is None or msgspec.structs.replace(old, endpoint_comments=options.endpoint_comments) != options:
            self._fixed = wanted_of(assemble((), options, endpoint_count=0))
            self._needs_full = True
        self._rebuild(self._states)
        return True

    def update(self, changes: Mapping[ServiceName, States]) -> None:
        """Take in what Services mean now; an empty tuple means that there is nothing to serve."""
        for name, states in changes.items():
            if self._aside.get(name) != states:
                self._aside.pop(name, None)
                self._kept.pop(name, None)
            self._place(name, present=bool(states))
            self.endpoint_count += _endpoint_count(states) - _endpoint_count(self._states.get(name, ()))
            if states:
                self._states[name] = states
            else:
                self._states.pop(name, None)
        is_news = self.set_options(self.options)
        # New options built everything that is there, but what is gone is not among the states any more.
        self._rebuild([name for name, states in changes.items() if not states] if is_news else changes)

    @property
    def aside(self) -> Mapping[ServiceName, bool]:
        """Services that are set aside because the kernel refused their rules, and whether earlier rules stay."""
        return {name: self._kept[name] is not NOTHING for name in self._aside}

    def service_of(self, chain_name: str, line: str) -> ServiceName | None:
        """The Service that a chain, or a line of a shared chain, is there for; None for others; looks through all."""
        for name, one in self._contributions.items():
            if chain_name in one.owners:
                return name
        return self.dispatch.service_of(line)

    def suspects(self, actual: SavedTables) -> tuple[ServiceName, ...]:
        """The Services, in order, of whose rules *actual* does not have all in force."""
        standing = standing_rules(actual, self._contributions.keys(), self.options.family)
        return tuple(
            name
            for name in self._order
            if (one := self._contributions.get(name))
            and not stands(one, standing.get(name, NOTHING), self.options.family)
        )

    def hold(self, names: Iterable[ServiceName], actual: SavedTables) -> None:
        """
        Leave Services, until they are released, with what they have, as far as it still serves.

        Args:
            names: None of them is held already.
            actual: What the kernel has.
        """
        held = tuple(names)
        standing = standing_rules(actual, frozenset(held), self.options.family)
        for name in held:
            wanted = self._contributions.get(name, NOTHING)
            self._kept[name] = still_serving(standing.get(name, NOTHING), wanted)
        self._rebuild(held)

    def release(self, names: Iterable[ServiceName]) -> None:
        """Want the rules of Services again that were held or set aside; of others nothing changes."""
        held = [name for name in names if name in self._kept]
        for name in held:
            del self._kept[name]
            self._aside.pop(name, None)
        self._rebuild(held)

    def set_aside(self, name: ServiceName, actual: SavedTables = _NO_TABLES) -> None:
        """Hold a Service until it, or what all rules depend on, changes; or until it is released."""
        if name not in self._kept:
            self.hold((name,), actual)
        self._aside[name] = self._states[name]

    def harmless_plan(self) -> Plan:
        """A chain that every family has is written as it is: nothing changes, and nothing is there to be refused."""
        lines = self.fixed.tables["nat"][KUBE_MARK_MASQ]
        return Plan(transactions=(Transaction("nat", (WriteChain(KUBE_MARK_MASQ, lines),)),))

    def _place(self, name: ServiceName, *, present: bool) -> None:
        position = bisect_left(self._order, name)
        known = position < len(self._order) and self._order[position] == name
        if present and not known:
            self._order.insert(position, name)
        elif known and not present:
            del self._order[position]

    def _rebuild(self, names: Iterable[ServiceName]) -> None:
        for name in names:
            old = self._contributions.pop(name, NOTHING)
            states = self._states.get(name, ())
            new = self._kept.get(name) or (contribution_of(states, self.options) if states else NOTHING)
            if new is not NOTHING:
                self._contributions[name] = new
            if new != old:
                self._touched.add(name)
            self.dispatch.put(name, new.shared)

    @property
    def dispatch(self) -> DispatchLines:
        """The chains that all Services share."""
        if self._dispatch is None:
            raise RuntimeError("options are not set")
        return self._dispatch

    def _with_end(self, place: SharedChain, lines: Lines) -> Lines:
        """What Services have in a shared chain, and what ends it."""
        return (*lines, *self.fixed.tables[place[0]].get(place[1], ()))

    def _ordered(self) -> Iterator[Contribution]:
        return (self._contributions[name] for name in self._order if name in self._contributions)

    @property
    def fixed(self) -> Wanted:
        """Chains and jumps that know no Service."""
        if self._fixed is None:
            raise RuntimeError("options are not set")
        return self._fixed

    def wanted(self) -> Wanted:
        """All wanted rules."""
        self.dispatch.settle(self.options.dispatch)
        contributions = [*self._ordered()]
        nat = {name: lines for one in contributions for name, lines in one.chains.items()}
        tables = {"filter": dict(self.fixed.tables["filter"]), "nat": {**nat, **self.fixed.tables["nat"]}}
        for place, lines in self.dispatch.chains():
            tables[place[0]][place[1]] = self._with_end(place, lines)
        owners = {name: owner for one in contributions for name, owner in one.owners.items()}
        return msgspec.structs.replace(self.fixed, tables=tables, owners=owners)

    def plan_full(self, actual: SavedTables, *, staged: bool) -> Plan:
        """The way from what the kernel was found to have to all that is wanted."""
        if not self._applied["nat"]:
            self.dispatch.learn(branched_places(actual))
        self._planned, self._is_full = self.wanted(), True
        return plan_wanted(self._planned, actual, staged=staged)

    def plan_partial(self, *, staged: bool, max_lines: int = MAX_LINES) -> Plan:
        """
        The way from what was applied to what is wanted, looking at nothing but what changed.

        Raises:
            RuntimeError: `needs_full`.
        """
        if self._needs_full:
            raise RuntimeError("what the kernel has is not known")
        self.dispatch.settle(self.options.dispatch)
        wanted: dict[str, dict[str, Lines]] = {"filter": {}, "nat": {}}
        actual: dict[str, dict[str, SavedChain]] = {"filter": {}, "nat": {}}
        owners: dict[str, str] = {}
        for name in sorted(self._touched):
            contribution = self._contributions.get(name, NOTHING)
            wanted["nat"].update(contribution.chains)
            owners.update(contribution.owners)
            for one in (*contribution.chains, *self._applied_chains.get(name, ())):
                self._look_up(actual, ("nat", one))
        for place in self.dispatch.touched():
            lines = self.dispatch.lines(*place)
            if lines is not None:
                wanted[place[0]][place[1]] = self._with_end(place, lines)
            self._look_up(actual, place)
        part = Wanted(family=self.fixed.family, tables=wanted, owners=owners)
        self._planned, self._is_full = part, False
        return plan_wanted(part, SavedTables(actual), staged=staged, max_lines=max_lines)

    def _look_up(self, actual: dict[str, dict[str, SavedChain]], place: SharedChain) -> None:
        lines = self._applied[place[0]].get(place[1])
        if lines is not None:
            actual[place[0]][place[1]] = SavedChain(place[1], "-", lines)

    def applied_lines(self, table: str, name: str) -> Lines:
        """The lines of a chain that the kernel has, as far as we know; () for an unknown one."""
        return self._applied[table].get(name, ())

    def commit(self) -> None:
        """
        The kernel took the last plan: what is wanted is what it has.

        Raises:
            RuntimeError: There is no plan, or it was committed already.
        """
        if self._planned is None:
            raise RuntimeError("nothing is planned")
        if self._is_full:
            self._applied = {table: dict(chains) for table, chains in self._planned.tables.items()}
            self._applied_rules = {table: sum(map(len, chains.values())) for table, chains in self._applied.items()}
            self._applied_chains = {name: tuple(one.chains) for name, one in self._contributions.items()}
        else:
            for name in self._touched:
                self._commit_service(name)
            for place in self.dispatch.touched():
                self._set_applied(place, self._planned.tables[place[0]].get(place[1]))
        self._planned = None
        self._touched.clear()
        self.dispatch.commit()
        self._needs_full = False

    def _commit_service(self, name: ServiceName) -> None:
        chains = self._contributions.get(name, NOTHING).chains
        for gone in self._applied_chains.pop(name, ()):
            if gone not in chains:
                self._set_applied(("nat", gone), None)
        for own, lines in chains.items():
            self._set_applied(("nat", own), lines)
        if chains:
            self._applied_chains[name] = tuple(chains)

    def _set_applied(self, place: SharedChain, lines: Lines | None) -> None:
        """The kernel has a chain with *lines*, or None of that name; counts follow."""
        table, name = place
        old = self._applied[table].pop(name, ())
        if lines is not None:
            self._applied[table][name] = lines
        self._applied_rules[table] += len(lines or ()) - len(old)

    def owner_of(self, chain_name: str) -> str:
        """Text of the service port that a chain belongs to, "" for other chains; looks through all: for errors."""
        for one in self._contributions.values():
            if chain_name in one.owners:
                return one.owners[chain_name]
        return ""

    def counts(self) -> Mapping[str, tuple[int, int]]:
        """By table: chains and rules that the kernel has of us, as far as we know."""
        return {table: (len(chains), self._applied_rules[table]) for table, chains in self._applied.items()}


def _endpoint_count(states: States) -> int:
    return sum(len(state.endpoints) for state in states)
