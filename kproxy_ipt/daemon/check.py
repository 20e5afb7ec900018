"""
Kernel against objects, by meaning: what differs, and whose it is.

Spelling does not matter, nor order where order changes nothing for any packet. Foreign chains and rules are not looked
at, but for the jumps that lead from built-in chains into ours.
"""

import re
from collections.abc import Callable, Iterator, Mapping

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config
from kproxy_ipt.daemon.log import SilentLog
from kproxy_ipt.daemon.machine import Target
from kproxy_ipt.daemon.sync import Prepared, Stopwatch, prepare
from kproxy_ipt.errors import Finding, KproxyError
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.objects.model import Objects
from kproxy_ipt.plan.actual import has_base_jump
from kproxy_ipt.rules.build import Desired, build_ruleset
from kproxy_ipt.rules.names import KUBE_FIREWALL, is_own_chain
from kproxy_ipt.rules.shared_chains import branched_places
from kproxy_ipt.ruleset.diff import ChainDifference, DifferenceKind, compare_chains
from kproxy_ipt.ruleset.render import render_rule
from kproxy_ipt.ruleset.scan import SavedTables, jumps_to, scan_save
from kproxy_ipt.state.snapshot import take_snapshot

_SHOWN_OWNERS = 3
_SERVICE_PORT_COMMENT = re.compile(r'--comment "?([a-z0-9.-]+/[a-z0-9.-]+(?::[a-z0-9-]+)?)(?=[ "]|$)')
"""How comments of rules begin that are for one service port."""


class FamilyCheck(msgspec.Struct, frozen=True):
    """
    One family's part of a check.

    Attributes:
        differences: Empty if the kernel does what the objects say.
        chains: Chains that were compared.
        rules: Rules that they should hold.
        error: Why nothing can be told, or None.
    """

    differences: tuple[ChainDifference, ...] = ()
    chains: int = 0
    rules: int = 0
    error: KproxyError | None = None


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """A check over all families; see `RunReport` for the other fields."""

    backend: str
    reason: str
    node: str
    families: Mapping[Family, FamilyCheck]
    unavailable: Mapping[Family, str]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    seconds: Mapping[str, float]

    @property
    def has_drift(self) -> bool:
        """Whether anything differs in a family that could be compared."""
        return any(family.differences for family in self.families.values())

    @property
    def error(self) -> KproxyError | None:
        """Why a family could not be compared, or None."""
        return next((family.error for family in self.families.values() if family.error), None)


def check(read_objects: Callable[[], Objects], config: Config, node_name: str, target: Target) -> CheckReport:
    """
    Compare the kernel with what the objects say; write nothing.

    Raises:
        SourceError: Objects cannot be read.
        ConfigError: The configuration does not fit the node.
        KernelError: The machine cannot be used at all.
    """
    watch = Stopwatch()
    prepared = prepare(read_objects, config, node_name, target, watch, write=False, log=SilentLog())
    with inside(target.netns):
        families = {family: _check_family(family, prepared, config) for family in prepared.saves}
    choice = prepared.machine.choice
    return CheckReport(
        backend=choice.backend,
        reason=choice.reason,
        node=node_name,
        families=families,
        unavailable=choice.unavailable,
        findings=prepared.objects.findings,
        notes=prepared.notes,
        seconds=watch.total(),
    )


def _check_family(family: Family, prepared: Prepared, config: Config) -> FamilyCheck:
    snapshot = take_snapshot(prepared.objects, family, prepared.node)
    desired = build_ruleset(snapshot, config, prepared.facts)
    try:
        actual = scan_save(prepared.saves[family].text())
    except KproxyError as error:
        return FamilyCheck(error=error)
    if branched := desired.keeping & branched_places(actual):
        desired = build_ruleset(snapshot, config, prepared.facts, branched)
    tables = desired.ruleset.tables.values()
    return FamilyCheck(
        tuple(differences(desired, actual)),
        chains=sum(len(table.chains) for table in tables),
        rules=sum(len(chain.rules) for table in tables for chain in table.chains.values()),
    )


def differences(desired: Desired, actual: SavedTables) -> Iterator[ChainDifference]:
    """
    What of ours is missing, too much or different in *actual*, table by table, jumps from built-in chains last.

    The owner of a difference in a fixed chain is that of the rules concerned; several are joined by commas.
    """
    for table, wanted in desired.ruleset.tables.items():
        ours = {
            name: chain
            for name, chain in actual.tables.get(table, {}).items()
            if name in wanted.chains or is_own_chain(table, name)
        }
        for difference in compare_chains(
            wanted.chains, ours, table=table, family=desired.ruleset.family, owners=desired.owners
        ):
            judged = _without_foreign_guards(difference)
            if judged:
                yield _with_owner(judged, desired)
    yield from _missing_jumps(desired, actual)


def _without_foreign_guards(difference: ChainDifference) -> ChainDifference | None:
    """KUBE-FIREWALL is the kubelet's as well: only what is missing of ours counts there."""
    if difference.chain != KUBE_FIREWALL:
        return difference
    return msgspec.structs.replace(difference, extra=()) if difference.missing else None


def _with_owner(difference: ChainDifference, desired: Desired) -> ChainDifference:
    if difference.owner:
        return difference
    found = (_owner_of(line, desired) for line in (*difference.missing, *difference.extra))
    owners = tuple(dict.fromkeys(owner for owner in found if owner))
    shown = ", ".join(owners[:_SHOWN_OWNERS])
    more = len(owners) - _SHOWN_OWNERS
    return msgspec.structs.replace(difference, owner=f"{shown} and {more} more" if more > 0 else shown)


def _owner_of(line: str, desired: Desired) -> str:
    """The service port that a rule is for: that of the chain it leads to, else the one that its comment begins with."""
    target = jumps_to(line)
    comment = _SERVICE_PORT_COMMENT.search(line)
    return (target and desired.owners.get(target)) or (comment[1] if comment else "")


def _missing_jumps(desired: Desired, actual: SavedTables) -> Iterator[ChainDifference]:
    missing: dict[tuple[str, str], list[str]] = {}
    for jump in desired.base_jumps:
        if not has_base_jump(jump, actual):
            missing.setdefault((jump.table, jump.chain), []).append(render_rule(jump.chain, jump.rule))
    for (table, chain), lines in missing.items():
        yield ChainDifference(table, chain, "", DifferenceKind.CHANGED, tuple(lines), ())
