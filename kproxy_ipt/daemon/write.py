"""
Writing until the kernel takes it: a Service that it refuses costs the others nothing.

A restore that was refused is tried again after everything was compared, since the tables may have been others than we
thought. Is it refused again, then

- if the program names the rule, and that is there for one Service, twice in a row: this Service is set aside;
- if it names no rule (`line N failed`, the line of a COMMIT), or one that is there for no Service (nft blames the jump
  that leads to a chain which may not be there): the Service is looked for by halves, see `kproxy_ipt.plan.suspects`;
- if it says nothing about any line, or refuses the rest without all suspects as well: nothing is gained by setting
  Services aside, and the sync fails.

A machine that refuses everything is no Service's fault: before Services are set aside by a write that wrote nothing,
one harmless run is tried, and if that is refused as well, nobody is set aside.

What is set aside keeps the rules that it has, as far as they still serve.
"""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.machine import Machine
from kproxy_ipt.errors import RestoreError
from kproxy_ipt.kernel.refusals import NO_REASON
from kproxy_ipt.plan.family_rules import FamilyRules
from kproxy_ipt.plan.plan import Plan
from kproxy_ipt.plan.suspects import Search
from kproxy_ipt.ruleset.scan import SavedTables
from kproxy_ipt.state.tracker import ServiceName

MOST_ASIDE = 20
"""Services that one sync sets aside at most; where more are refused, something else is wrong as well."""

MOST_RUNS = 60
"""Restore runs of one sync at most: other changes wait. The next sync goes on from what this one found and wrote."""

MOST_RUNS_ONCE = 300
"""The same where no other sync follows: enough for `MOST_ASIDE` Services among 2,000."""

_UNREAD = SavedTables({})

T = TypeVar("T")
W = TypeVar("W", bound="Written")


class Steps(msgspec.Struct, Generic[T], frozen=True):
    """
    What a write is made of.

    Attributes:
        plan: Plans everything, with a listing of the kernel, if its argument is true; else what changed, with an empty
            listing.
        apply: Writes a plan, which is from a listing if the second argument is true; what it returns is kept.
    """

    plan: Callable[[bool], tuple[Plan, SavedTables]]
    apply: Callable[[Plan, SavedTables, bool], T]


def plan_run(rules: FamilyRules, machine: Machine, family: Family, *, is_full: bool) -> tuple[Plan, SavedTables]:
    """What `Steps.plan` is to give, with the tables of *machine*."""
    if not is_full:
        return rules.plan_partial(staged=machine.is_staged), _UNREAD
    actual = machine.scan(family)
    return rules.plan_full(actual, staged=machine.is_staged), actual


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a restore run wrote, or several together.

    Attributes:
        transactions: 0 means that nothing had to be written.
        bytes: Size of the restore input.
    """

    transactions: int = 0
    bytes: int = 0
    chains_written: int = 0
    chains_deleted: int = 0


def with_sums(whole: W, runs: Sequence[Written]) -> W:
    """*whole*, which knows the rest already, with the numbers of all *runs*."""
    return msgspec.structs.replace(
        whole,
        transactions=sum(one.transactions for one in runs),
        bytes=sum(one.bytes for one in runs),
        chains_written=sum(one.chains_written for one in runs),
        chains_deleted=sum(one.chains_deleted for one in runs),
    )


class PersistentWriter(Generic[T]):
    """
    One write of the rules of a family.

    Attributes:
        taken: What `Steps.apply` returned, for each run that the kernel took, in order.
        set_aside: Services that were set aside in this write, and why.
    """

    def __init__(self, rules: FamilyRules, steps: Steps[T], *, most_runs: int = MOST_RUNS) -> None:
        """Prepare to write *rules* by *steps*, with so many restore runs at most."""
        self.taken: list[T] = []
        self.set_aside: dict[ServiceName, str] = {}
        self._rules = rules
        self._steps = steps
        self._most_runs = most_runs
        self._search: Search | None = None
        self._refused_rule = ""
        self._has_written = False

    def write(self, *, is_full: bool) -> None:
        """
        Write, and commit what the kernel took.

        Args:
            is_full: Whether to begin with a listing of the kernel.

        Raises:
            RestoreError: Refused though no Service is to blame, or too many are. Those in `set_aside` stay so.
            KernelError: The machine failed otherwise.
        """
        try:
            self._write(is_full=is_full)
            self._confirm()
        except RestoreError:
            self._rules.require_full()
            self._confirm()
            raise
        except BaseException:
            self._rules.require_full()
            raise
        finally:
            if self._search is not None:
                self._rules.release(self._search.untold)

    def _confirm(self) -> None:
        """Set nobody aside, and raise the error of the machine, if it refuses what nobody could refuse."""
        if not self.set_aside or self._has_written:
            return
        try:
            self._steps.apply(self._rules.harmless_plan(), _UNREAD, False)
            self._has_written = True
        except RestoreError:
            self._rules.release(self.set_aside)
            self.set_aside.clear()
            raise

    def _write(self, *, is_full: bool) -> None:
        last: RestoreError | None = None
        for _ in range(self._most_runs):
            plan, actual = self._steps.plan(is_full)
            try:
                self.taken.append(self._steps.apply(plan, actual, is_full))
                self._has_written |= bool(plan.transactions)
            except RestoreError as error:
                self._rules.require_full()
                if is_full:
                    self._judge(error, actual)
                is_full, last = True, error
                continue
            self._rules.commit()
            if self._search is None or self._is_done(self._search):
                return
            # Later ones are compared too: a trial that is refused has to mean something.
            is_full = True
        if last is not None:
            raise last

    def _is_done(self, search: Search) -> bool:
        """After a run that was taken: whether something is known of every suspect."""
        search.taken()
        self._rules.release(search.trial)
        return not search.untold

    def _judge(self, error: RestoreError, actual: SavedTables) -> None:
        """Decide who keeps the old rules in the next run; raise *error* where that would not help."""
        name = self._rules.service_of(error.chain, error.rule) if error.rule else None
        if len(self.set_aside) >= MOST_ASIDE or error.line is None:
            raise error
        if self._search is not None:
            self._narrow(self._search, name, error, actual)
        elif name is None:
            suspects = self._rules.suspects(actual)
            if not suspects:
                raise error
            self._search = Search(suspects)
            self._rules.hold(suspects, actual)
        elif error.rule == self._refused_rule:
            self._set_aside(name, error, actual)
        self._refused_rule = error.rule

    def _narrow(self, search: Search, name: ServiceName | None, error: RestoreError, actual: SavedTables) -> None:
        known, tried = len(search.found), search.trial
        if not search.refused(name):
            # Held, they are not in the way: what is refused now is another matter, or nobody's fault.
            raise error
        self._rules.hold(tried, actual)
        for culprit in search.found[known:]:
            self._set_aside(culprit, error, actual)
        self._rules.release(search.trial)

    def _set_aside(self, name: ServiceName, error: RestoreError, actual: SavedTables) -> None:
        self._rules.set_aside(name, actual)
        self.set_aside[name] = words_of(error)


def words_of(error: RestoreError) -> str:
    """Why a Service was refused: what the kernel or the program said, and the rule; no line number of an input."""
    if error.message == NO_REASON:
        return "the kernel refuses its rules and gives no reason; its log may (dmesg)"
    rule = f" (rule: {error.rule})" if error.rule else ""
    return f"{error.message}{rule}"
