"""
What others left on a node, judged: what is kept, what a sync replaces, what is removed, and why.

kube-proxy in iptables mode has the chains that we have, so a sync takes them over in place, and the first one leaves no
connection without rules. What is left to judge is all that a sync does not touch: the other backend, the other modes of
kube-proxy, older versions.

Two scopes. `START` is what a daemon does once its own rules stand: it removes what answers for the same Services a
second time, which is the rules in the other backend and the tables of the nftables mode. `ALL` is for a person who asks
for it: also what the ipvs mode and older versions left. Where our rules do not stand yet the scope is `NOTHING`: what
is there may be all that answers for Services.

Only exact names count, and nothing goes that a chain of somebody else leads to.

Source: a start of kube-proxy v1.36 in iptables mode removes the tables of the nftables mode and nothing else; its
`--cleanup` removes what all modes left, with all of IPVS, which may be somebody else's, so that we do not.
"""

from collections.abc import Iterable, Iterator
from enum import StrEnum
from itertools import pairwise

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.plan.cleanup import OfChain, goes_in_cleanup, plan_removal, table_removal
from kproxy_ipt.plan.former_names import IPVS_SETS, KUBE_MARK_DROP, KUBELET_CHAINS, is_ipvs_chain, is_older_chain
from kproxy_ipt.plan.plan import Plan
from kproxy_ipt.rules.dispatch_tree import BRANCH_COMMENT
from kproxy_ipt.rules.names import (
    KUBE_FIREWALL,
    KUBE_PROXY_CANARY,
    KUBE_SERVICES,
    is_changing_chain,
    is_own_chain,
    is_service_chain,
)
from kproxy_ipt.ruleset.edits import DeleteChain
from kproxy_ipt.ruleset.scan import SavedChain, SavedTables, jumps_to


class Scope(StrEnum):
    """How much is taken away."""

    NOTHING = "nothing"
    START = "start"
    ALL = "all"


class Fate(StrEnum):
    """What becomes of a thing; `REPLACED` is done by a sync."""

    KEPT = "kept"
    REPLACED = "replaced"
    REMOVED = "removed"


class Kind(StrEnum):
    """Where a thing comes from."""

    SAME_CHAINS = "iptables mode"
    SHAPE = "tree or groups"
    OTHER_BACKEND = "other backend"
    IPVS = "ipvs mode"
    NFTABLES = "nftables mode"
    OLDER = "older version"
    SHARED = "shared"
    FOREIGN = "foreign"


class Place(msgspec.Struct, frozen=True):
    """
    One store of rules.

    Attributes:
        backend: `nft` or `legacy`.
        family: Of the addresses.
        is_used: Whether our rules go there.
    """

    backend: str
    family: Family
    is_used: bool


class Leftover(msgspec.Struct, frozen=True, kw_only=True):
    """
    Things of one kind in one place that share a fate.

    Attributes:
        kind: Where they come from.
        place: For people: `nft ipv4 nat`, `ipset`, `link`.
        names: Sorted; of foreign rules in the other backend the chains that hold them.
        fate: What becomes of them.
        why: One clause.
    """

    kind: Kind
    place: str
    names: tuple[str, ...]
    fate: Fate
    why: str


_WHY = {
    Kind.SAME_CHAINS: "a sync writes what differs, in place, and removes what no Service needs",
    Kind.SHAPE: "a sync brings them into the shape of its configuration",
    Kind.OTHER_BACKEND: "they answer for Services beside the rules of the backend in use",
    Kind.IPVS: "only the ipvs mode of kube-proxy makes them",
    Kind.OLDER: "this version of kube-proxy makes them no more",
    Kind.SHARED: "the kubelet has them too, or they mark whose a table is",
    Kind.FOREIGN: "neither kube-proxy nor kproxy-ipt gives such names",
}
_NOT_YET = "they may be all that answers for Services: first `run` or `sync --once` has to write our rules"
_AS_KUBE_PROXY = "kube-proxy leaves them too when it starts in iptables mode; `kproxy-ipt takeover` removes them"

_BALANCING = ("KUBE-SVC-", "KUBE-SVL-")
_KEPT_IN = {Scope.NOTHING: _NOT_YET, Scope.START: _AS_KUBE_PROXY}


def plan_takeover(actual: SavedTables, place: Place, scope: Scope, *, staged: bool) -> Plan:
    """
    The way from *actual* to the same tables without what goes in that scope.

    Args:
        actual: All tables of *place*.
        place: Which store that is.
        scope: How much goes.
        staged: As for `plan_cleanup`.
    """
    return plan_removal(actual, _goes(actual, place, scope), staged=staged, counts_not=_none)


def judge_tables(actual: SavedTables, place: Place, scope: Scope) -> tuple[Leftover, ...]:
    """What in the tables of *place* has to do with kube-proxy or us, and foreign rules in the backend not in use."""
    found: dict[tuple[str, Kind, Fate, str], list[str]] = {}
    goes = _goes(actual, place, scope)
    for table, chains in actual.tables.items():
        removal = table_removal(actual, table, goes, counts_not=_none)
        shaped, deleted = set(_shaped(table, chains.values())), set(removal.deleted)
        for name in chains:
            kind = _kind(table, name, place, in_shape=name in shaped)
            if kind is not None:
                fate, why = _fate(name, kind, scope, referrer=removal.kept.get(name), leaves=name in deleted)
                found.setdefault((table, kind, fate, why), []).append(name)
    judged = [
        Leftover(
            kind=kind,
            place=f"{place.backend} {place.family} {table}",
            names=tuple(sorted(names)),
            fate=fate,
            why=why,
        )
        for (table, kind, fate, why), names in found.items()
    ]
    return (*judged, *(() if place.is_used else _foreign_rules(actual, place)))


def judge_sets(names: tuple[str, ...], used: frozenset[str], scope: Scope) -> tuple[Leftover, ...]:
    """
    Judge sets of addresses.

    Args:
        names: Of all sets.
        used: Those that something which stays still refers to.
        scope: How much goes.
    """
    ours = [name for name in sorted(names) if name in IPVS_SETS]
    free = tuple(name for name in ours if name not in used)
    held = tuple(name for name in ours if name in used)
    fate, why = (Fate.REMOVED, _WHY[Kind.IPVS]) if scope is Scope.ALL else (Fate.KEPT, _KEPT_IN[scope])
    rows = ((free, fate, why), (held, Fate.KEPT, "rules that stay still ask them"))
    return tuple(
        Leftover(kind=Kind.IPVS, place="ipset", names=group, fate=one, why=reason)
        for group, one, reason in rows
        if group
    )


def judge_interface(name: str, link_kind: str, scope: Scope) -> Leftover:
    """Judge an interface that has the name of the one of the ipvs mode; *link_kind* is that of the kernel."""
    if link_kind != "dummy":
        fate, why = Fate.KEPT, f"it is no dummy interface but {link_kind or 'a device'}, so kube-proxy did not make it"
    elif scope is Scope.ALL:
        fate, why = Fate.REMOVED, "it makes addresses of Services local ones"
    else:
        fate, why = Fate.KEPT, _KEPT_IN[scope]
    return Leftover(kind=Kind.IPVS, place="link", names=(name,), fate=fate, why=why)


def judge_virtual_services(count: int) -> Leftover:
    """Judge *count* virtual services of IPVS: they are never touched."""
    return Leftover(
        kind=Kind.IPVS,
        place="ipvs",
        names=(f"{count} virtual services",),
        fate=Fate.KEPT,
        why="nothing tells kube-proxy's from others; without kube-ipvs0 no packet reaches kube-proxy's",
    )


def judge_nftables(family: Family, table: str, scope: Scope) -> Leftover:
    """Judge a table of the nftables mode: it goes in either scope, as kube-proxy has it."""
    goes = scope is not Scope.NOTHING
    why = "it answers for the same Services; kube-proxy removes it when it starts in iptables mode"
    return Leftover(
        kind=Kind.NFTABLES,
        place=f"nf_tables {'ip6' if family is Family.IPV6 else 'ip'}",
        names=(table,),
        fate=Fate.REMOVED if goes else Fate.KEPT,
        why=why if goes else _NOT_YET,
    )


def rules_stand(actual: SavedTables) -> bool:
    """Whether tables dispatch Services as the iptables mode does, not as the ipvs mode, which asks sets."""
    dispatch = actual.chain("nat", KUBE_SERVICES)
    return dispatch is not None and bool(dispatch.lines) and not any(" --match-set " in line for line in dispatch.lines)


def sets_in_use(actual: SavedTables, plan: Plan) -> frozenset[str]:
    """Names of sets that rules of *actual* ask, without those of chains that *plan* deletes."""
    deleted = {
        (transaction.table, edit.name)
        for transaction in plan.transactions
        for edit in transaction.edits
        if isinstance(edit, DeleteChain)
    }
    return frozenset(
        name
        for table, chains in actual.tables.items()
        for chain in chains.values()
        if (table, chain.name) not in deleted
        for line in chain.lines
        for name in _sets_of(line)
    )


def _sets_of(line: str) -> Iterator[str]:
    words = line.split()
    return (after for word, after in pairwise(words) if word == "--match-set")


def _goes(actual: SavedTables, place: Place, scope: Scope) -> OfChain:
    in_cleanup = goes_in_cleanup(actual)
    has_kubelet = any(name in KUBELET_CHAINS for chains in actual.tables.values() for name in chains)

    def goes(table: str, name: str) -> bool:
        if scope is not Scope.NOTHING and not place.is_used and in_cleanup(table, name):
            return True
        if scope is not Scope.ALL or (name == KUBE_MARK_DROP and has_kubelet):
            return False
        return is_ipvs_chain(table, name) or is_older_chain(table, name)

    return goes


def _none(_table: str, _chain: str) -> bool:
    """Our own chains count as any other: where they stand, what they jump to stays; in the other store they go too."""
    return False


def _kind(table: str, name: str, place: Place, *, in_shape: bool) -> Kind | None:
    if name in KUBELET_CHAINS or name == KUBE_FIREWALL or (name == KUBE_PROXY_CANARY and place.is_used):
        return Kind.SHARED
    if is_own_chain(table, name) or name == KUBE_PROXY_CANARY:
        if not place.is_used:
            return Kind.OTHER_BACKEND
        return Kind.SHAPE if in_shape else Kind.SAME_CHAINS
    if is_ipvs_chain(table, name):
        return Kind.IPVS
    if is_older_chain(table, name):
        return Kind.OLDER
    return Kind.FOREIGN if name.startswith("KUBE-") else None


def _fate(name: str, kind: Kind, scope: Scope, *, referrer: str | None, leaves: bool) -> tuple[Fate, str]:
    if referrer is not None:
        return Fate.KEPT, f"chain {referrer} jumps to it"
    if leaves:
        return Fate.REMOVED, _WHY[kind] if kind is not Kind.SHARED else _WHY[Kind.OTHER_BACKEND]
    if kind in (Kind.SAME_CHAINS, Kind.SHAPE):
        return Fate.REPLACED, _WHY[kind]
    if kind in (Kind.IPVS, Kind.OLDER, Kind.OTHER_BACKEND) and scope is not Scope.ALL:
        return Fate.KEPT, _KEPT_IN[scope]
    if name == KUBE_MARK_DROP:
        return Fate.KEPT, "the kubelet up to v1.27 has it too, and there is a kubelet"
    return Fate.KEPT, _WHY[kind]


def _shaped(table: str, chains: Iterable[SavedChain]) -> Iterator[str]:
    """Parts of dispatch trees, and groups of endpoints: chains that kube-proxy has no kind of."""
    for chain in chains:
        if table == "filter" and is_changing_chain(table, chain.name):
            yield chain.name
        for line in chain.lines:
            target = jumps_to(line) or ""
            if is_service_chain(table, target) and (
                BRANCH_COMMENT in line or _chooses_a_group(chain.name, line, target)
            ):
                yield target


def _chooses_a_group(chain: str, line: str, target: str) -> bool:
    """In kube-proxy's shape such a chain leads to endpoints alone; in a tree the rules that it has match an address."""
    return chain.startswith(_BALANCING) and target.startswith(_BALANCING) and " -d " not in line


def _foreign_rules(actual: SavedTables, place: Place) -> Iterator[Leftover]:
    """Rules of others in the store that is not in use: packets meet both."""
    for table, chains in actual.tables.items():
        names = [
            chain.name
            for chain in chains.values()
            if any(not _is_about_us(chain.name, jumps_to(line) or "") for line in chain.lines)
        ]
        if names:
            yield Leftover(
                kind=Kind.FOREIGN,
                place=f"{place.backend} {place.family} {table}",
                names=tuple(sorted(names)),
                fate=Fate.KEPT,
                why="rules of others beside the backend in use: packets meet both",
            )


def _is_about_us(chain: str, target: str) -> bool:
    return chain.startswith("KUBE-") or target.startswith("KUBE-")
