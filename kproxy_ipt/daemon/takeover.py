"""
Taking a node over: what others left is looked at, judged (`plan/takeover.py`), and removed where it is to go.

A removal of one thing that fails leaves the others to be tried. Each table is one plan of transactions, so nothing is
half-removed.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.machine import Target
from kproxy_ipt.errors import KproxyError
from kproxy_ipt.kernel import leftovers as kernel
from kproxy_ipt.kernel.backend import Backend, choose_backend
from kproxy_ipt.kernel.command import Runner, SubprocessRunner
from kproxy_ipt.kernel.iptables import Iptables
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.kernel.nft_tables import delete_void_table
from kproxy_ipt.kernel.programs import Programs, installed_programs
from kproxy_ipt.kernel.xtables_proc import legacy_tables
from kproxy_ipt.plan.former_names import IPVS_INTERFACE, NFTABLES_TABLE
from kproxy_ipt.plan.plan import Plan
from kproxy_ipt.plan.takeover import (
    Fate,
    Leftover,
    Place,
    Scope,
    judge_interface,
    judge_nftables,
    judge_sets,
    judge_tables,
    judge_virtual_services,
    plan_takeover,
    rules_stand,
    sets_in_use,
)
from kproxy_ipt.ruleset.render import render_input
from kproxy_ipt.ruleset.scan import SavedTables, scan_save


class TakeoverReport(msgspec.Struct, frozen=True, kw_only=True):
    """
    What was found, and what was done.

    Attributes:
        backend: Where our rules go.
        reason: Why there.
        leftovers: Everything that was found, judged before anything was removed.
        errors: What could not be looked at or removed, by place.
        is_plan: Whether nothing was removed because nobody asked for it.
    """

    backend: str
    reason: str
    leftovers: tuple[Leftover, ...]
    errors: Mapping[str, KproxyError] = msgspec.field(default_factory=dict)
    is_plan: bool = False

    @property
    def removed(self) -> tuple[Leftover, ...]:
        """Those that go."""
        return tuple(one for one in self.leftovers if one.fate is Fate.REMOVED)


class _Store(msgspec.Struct, frozen=True):
    """The tables of one backend and family, the plan for them, and the programs."""

    place: Place
    actual: SavedTables
    plan: Plan
    iptables: Iptables
    scope: Scope


_TABLES = ("nat", "filter", "mangle")
"""Where kube-proxy ever had chains."""

_REMOVERS: Mapping[str, Callable[[str], None]] = {
    "nf_tables ip": partial(kernel.delete_nf_table, Family.IPV4),
    "nf_tables ip6": partial(kernel.delete_nf_table, Family.IPV6),
    "ipset": kernel.destroy_set,
    "link": kernel.remove_link,
}
"""By the place of a leftover."""


def take_over(target: Target, scope: Scope, *, dry_run: bool = False, runner: Runner | None = None) -> TakeoverReport:
    """
    Look at everything that was left on a node, and remove what goes in that scope.

    Args:
        target: Where our rules go; its backend is the one in use, the other one is looked at as well.
        scope: How much is removed.
        dry_run: Look and judge only.
        runner: Starts the programs.

    Raises:
        KernelError: The machine cannot be used at all.
    """
    with inside(target.netns):
        return _Takeover(target, scope, runner or SubprocessRunner()).run(dry_run=dry_run)


class _Takeover:
    """One look at a node, and one removal."""

    def __init__(self, target: Target, scope: Scope, runner: Runner) -> None:
        self._target = target
        self._scope = scope
        self._runner = runner
        self._errors: dict[str, KproxyError] = {}
        self._scopes: dict[Family, Scope] = {}

    def run(self, *, dry_run: bool) -> TakeoverReport:
        choice = choose_backend(self._runner, self._target.backend, self._target.families)
        installed = installed_programs(self._runner, self._target.families)
        stores: list[_Store] = []
        for family in choice.programs:
            stores.extend(self._stores(family, installed[family].programs, choice.backend))
        leftovers = [one for store in stores for one in judge_tables(store.actual, store.place, store.scope)]
        leftovers += self._beside_tables(stores)
        if not dry_run:
            self._remove(stores, leftovers)
        return TakeoverReport(
            backend=choice.backend.value,
            reason=choice.reason,
            leftovers=tuple(leftovers),
            errors=self._errors,
            is_plan=dry_run,
        )

    def _stores(self, family: Family, programs: Mapping[Backend, Programs], used: Backend) -> Iterator[_Store]:
        """The store in use, unless a daemon has just written it; and the other one, judged by whether that stands."""
        scope = self._scope
        if scope is not Scope.START:
            mine = self._read(Place(used, family, is_used=True), programs, scope)
            scope = scope if mine is not None and rules_stand(mine.actual) else Scope.NOTHING
            if mine is not None:
                yield mine if scope is self._scope else self._planned(mine.place, mine.actual, mine.iptables, scope)
        self._scopes[family] = scope
        other = self._read(Place(_other(used), family, is_used=False), programs, scope)
        if other is not None:
            yield other

    def _read(self, place: Place, programs: Mapping[Backend, Programs], scope: Scope) -> _Store | None:
        backend = Backend(place.backend)
        # Asking the legacy programs about tables that do not exist would create them.
        if backend not in programs or (backend is Backend.LEGACY and not legacy_tables(place.family)):
            return None
        iptables = Iptables(self._runner, programs[backend], lock_wait_s=self._target.lock_wait_s)
        try:
            return self._planned(place, scan_save(iptables.start_save(_TABLES).text()), iptables, scope)
        except KproxyError as error:
            self._errors[_word(place)] = error
            return None

    def _planned(self, place: Place, actual: SavedTables, iptables: Iptables, scope: Scope) -> _Store:
        plan = plan_takeover(actual, place, scope, staged=place.backend == Backend.NFT)
        return _Store(place, actual, plan, iptables, scope)

    def _beside_tables(self, stores: list[_Store]) -> list[Leftover]:
        found: list[Leftover] = []
        scope = Scope.NOTHING if Scope.NOTHING in self._scopes.values() else self._scope
        used = frozenset[str]().union(*(sets_in_use(store.actual, store.plan) for store in stores))
        self._try("nf_tables", lambda: found.extend(self._nftables()))
        self._try("ipset", lambda: found.extend(judge_sets(kernel.set_names(), used, scope)))
        self._try("link", lambda: found.extend(_interface(scope)))
        if count := kernel.virtual_service_count():
            found.append(judge_virtual_services(count))
        return found

    def _nftables(self) -> Iterator[Leftover]:
        for family, scope in self._scopes.items():
            if kernel.has_nf_table(family, NFTABLES_TABLE):
                yield judge_nftables(family, NFTABLES_TABLE, scope)

    def _remove(self, stores: list[_Store], leftovers: list[Leftover]) -> None:
        """Rules first: a set that they ask cannot go before them."""
        for store in stores:
            self._try(_word(store.place), partial(_remove_from, store))
        for one in leftovers:
            remove = _REMOVERS.get(one.place)
            if one.fate is Fate.REMOVED and remove is not None:
                for name in one.names:
                    self._try(f"{one.place} {name}", partial(remove, name))

    def _try(self, place: str, work: Callable[[], None]) -> None:
        try:
            work()
        except KproxyError as error:
            self._errors[place] = error


def _interface(scope: Scope) -> Iterator[Leftover]:
    link_kind = kernel.link_kind(IPVS_INTERFACE)
    if link_kind is not None:
        yield judge_interface(IPVS_INTERFACE, link_kind, scope)


def _other(backend: Backend) -> Backend:
    return Backend.LEGACY if backend is Backend.NFT else Backend.NFT


def _word(place: Place) -> str:
    return f"{place.backend} {place.family}"


def _remove_from(store: _Store) -> None:
    if store.plan.transactions:
        store.iptables.restore(render_input(store.plan.restore_input))
        for table in store.plan.void_tables:
            delete_void_table(store.place.family, table)
