"""
Clean-up: all of ours out of the kernel, of every backend that holds any of it.

Needs no objects, no configuration and no name of a node.
"""

from collections.abc import Iterator, Mapping

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.machine import Machine, Target, open_machine
from kproxy_ipt.daemon.report import FamilyReport, RunReport
from kproxy_ipt.daemon.sync import Stopwatch
from kproxy_ipt.errors import KproxyError, MissingProgramError
from kproxy_ipt.kernel.backend import Backend
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.kernel.nft_tables import delete_void_table
from kproxy_ipt.kernel.xtables_proc import legacy_tables
from kproxy_ipt.plan.cleanup import plan_cleanup
from kproxy_ipt.ruleset.render import render_input
from kproxy_ipt.ruleset.scan import scan_save


def clean_up(target: Target, *, dry_run: bool = False) -> tuple[RunReport, ...]:
    """
    Remove our chains and jumps.

    Args:
        target: With backend `auto`, every installed backend is cleaned.
        dry_run: Plan everything, write nothing.

    Returns:
        One report for each backend that was looked at.

    Raises:
        KernelError: The machine cannot be used at all.
    """
    with inside(target.netns):
        return tuple(_clean_backends(target, dry_run=dry_run))


def _clean_backends(target: Target, *, dry_run: bool) -> Iterator[RunReport]:
    if target.backend != "auto":
        yield _clean_backend(open_machine(target), dry_run=dry_run)
        return
    first = open_machine(target)
    yield _clean_backend(first, dry_run=dry_run)
    other = Backend.LEGACY if first.choice.backend is Backend.NFT else Backend.NFT
    # Asking the legacy programs about tables that do not exist would create them.
    if other is Backend.LEGACY and not any(legacy_tables(family) for family in target.families):
        return
    try:
        second = open_machine(msgspec.structs.replace(target, backend=other.value))
    except MissingProgramError:
        return
    yield _clean_backend(second, dry_run=dry_run)


def _clean_backend(machine: Machine, *, dry_run: bool) -> RunReport:
    watch = Stopwatch()
    reports: Mapping[Family, FamilyReport] = {
        family: _clean_family(machine, family, dry_run=dry_run) for family in machine.iptables
    }
    return RunReport(
        backend=machine.choice.backend,
        reason=machine.choice.reason,
        families=reports,
        unavailable=machine.choice.unavailable,
        seconds=watch.total(),
        dry_run=dry_run,
    )


def _clean_family(machine: Machine, family: Family, *, dry_run: bool) -> FamilyReport:
    watch = Stopwatch()
    iptables = machine.iptables[family]
    try:
        with watch.phase("list"):
            save = iptables.start_save().text()
        with watch.phase("plan"):
            plan = plan_cleanup(scan_save(save), staged=machine.is_staged)
            text = render_input(plan.restore_input)
        if plan.transactions and not dry_run:
            with watch.phase("restore"):
                iptables.restore(text, owner_of=lambda _chain: "")
                for table in plan.void_tables:
                    delete_void_table(family, table)
    except KproxyError as error:
        return FamilyReport(error=error, seconds=watch.total())
    return FamilyReport(
        transactions=len(plan.transactions),
        bytes=len(text),
        chains_written=plan.chains_written,
        chains_deleted=plan.chains_deleted,
        rules_written=plan.rules_written,
        rules_deleted=plan.rules_deleted,
        seconds=watch.total(),
        notes=plan.notes,
    )
