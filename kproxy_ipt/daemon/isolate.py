"""
`sync --once` where the kernel refused something: everything but the Services to blame is written.

The rules are built once more, Service by Service as in the daemon, for only so can one of them be held back. This costs
memory and time that a sync without trouble does not need.
"""

import zlib
from collections.abc import Iterable, Mapping
from itertools import islice

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.log import Log
from kproxy_ipt.daemon.machine import Machine
from kproxy_ipt.daemon.set_aside import SetAside
from kproxy_ipt.daemon.write import MOST_RUNS_ONCE, PersistentWriter, Steps, Written, plan_run, with_sums
from kproxy_ipt.plan.family_rules import FamilyRules
from kproxy_ipt.plan.flows import leaving_lines
from kproxy_ipt.plan.plan import Plan
from kproxy_ipt.rules.options import RuleOptions
from kproxy_ipt.ruleset.render import render_sections
from kproxy_ipt.ruleset.scan import SavedTables
from kproxy_ipt.state.model import ServiceState
from kproxy_ipt.state.tracker import ServiceName

_PACKED_TOGETHER = 500
"""States: the text of all at once would be as large as what is saved."""


class PackedStates:
    """
    What all Services mean, kept small for the case that something is refused.

    10,000 Services of 5 endpoints are half a MiB in the place of ten, for a tenth of a second.
    """

    def __init__(self, states: Iterable[ServiceState]) -> None:
        """Pack *states*, which are of one family."""
        rest, parts = iter(states), list[bytes]()
        while part := tuple(islice(rest, _PACKED_TOGETHER)):
            parts.append(zlib.compress(msgspec.msgpack.encode(part), 1))
        self._parts = tuple(parts)

    def by_service(self) -> Mapping[ServiceName, tuple[ServiceState, ...]]:
        """The states of each Service, in the order in which they were given."""
        found: dict[ServiceName, list[ServiceState]] = {}
        for part in self._parts:
            for state in msgspec.msgpack.decode(zlib.decompress(part), type=tuple[ServiceState, ...]):
                found.setdefault((state.service_port.namespace, state.service_port.name), []).append(state)
        return {name: tuple(states) for name, states in found.items()}


class Applied(Written, frozen=True, kw_only=True):
    """
    What was written, over all restore runs that the kernel took.

    Attributes:
        leaving: Lines of the table nat that went.
        set_aside: By namespace and name.
    """

    rules_written: int = 0
    rules_deleted: int = 0
    leaving: tuple[str, ...] = ()
    set_aside: tuple[SetAside, ...] = ()


def applied(plan: Plan, actual: SavedTables, size: int) -> Applied:
    """One run: *plan* was made from *actual*, and its text has *size* bytes."""
    return Applied(
        transactions=len(plan.transactions),
        bytes=size,
        chains_written=plan.chains_written,
        chains_deleted=plan.chains_deleted,
        rules_written=plan.rules_written,
        rules_deleted=plan.rules_deleted,
        leaving=leaving_lines(plan, actual),
    )


def write_without_refused(
    machine: Machine, family: Family, states: PackedStates, options: RuleOptions, log: Log
) -> Applied:
    """
    Write what *states* ask for, but for Services that the kernel refuses.

    Args:
        machine: Of the current namespace.
        family: Of everything else.
        states: Of all Services.
        options: What rules depend on.
        log: Gets a line for each restore run.

    Raises:
        KernelError: No Service is to blame, or too many are; part of the rest may be written.
    """
    rules = FamilyRules()
    rules.set_options(options)
    rules.update(states.by_service())

    def apply(plan: Plan, actual: SavedTables, is_full: bool) -> Applied:  # noqa: ARG001, FBT001 - a step's form
        outcome = machine.iptables[family].restore_sections(
            lambda: render_sections(plan.restore_input), owner_of=rules.owner_of
        )
        log.debug("restoring", family=family, transactions=outcome.transactions)
        return applied(plan, actual, outcome.bytes)

    steps = Steps(lambda is_full: plan_run(rules, machine, family, is_full=is_full), apply)
    writer = PersistentWriter(rules, steps, most_runs=MOST_RUNS_ONCE)
    writer.write(is_full=True)
    aside = rules.aside
    told = tuple(
        SetAside("/".join(name), reason, aside.get(name, False)) for name, reason in sorted(writer.set_aside.items())
    )
    return msgspec.structs.replace(_sum_of(writer.taken), set_aside=told)


def _sum_of(runs: list[Applied]) -> Applied:
    whole = Applied(
        rules_written=sum(one.rules_written for one in runs),
        rules_deleted=sum(one.rules_deleted for one in runs),
        leaving=tuple(line for one in runs for line in one.leaving),
    )
    return with_sums(whole, runs)
