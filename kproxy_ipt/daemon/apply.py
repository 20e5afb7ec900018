"""A plan goes into the kernel, all but what it refuses; or the kernel is left as it was."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.isolate import Applied, applied
from kproxy_ipt.daemon.log import Log
from kproxy_ipt.daemon.machine import Machine
from kproxy_ipt.daemon.report import Progress
from kproxy_ipt.errors import KernelError, LockTimeoutError, RestoreError
from kproxy_ipt.kernel.nft_tables import delete_void_table
from kproxy_ipt.plan.flows import leaving_lines
from kproxy_ipt.plan.plan import Plan
from kproxy_ipt.plan.rollback import plan_rollback
from kproxy_ipt.ruleset.render import render_sections
from kproxy_ipt.ruleset.scan import SavedTables


def apply_plan(
    machine: Machine,
    family: Family,
    plan: Plan,
    before: SavedTables,
    *,
    owners: Mapping[str, str],
    isolate: Callable[[], Applied],
    log: Log,
    progress: Progress | None = None,
) -> Applied:
    """
    Apply *plan*; if the kernel refuses a part of it and no Service is to blame, take back what was written.

    Args:
        machine: Of the current namespace.
        family: Of the plan.
        plan: From `plan_sync`; an empty one runs nothing.
        before: What the plan was made from.
        owners: Text of the service port for each chain that belongs to one.
        isolate: Called after a refusal: writes everything but the Services to blame, see `write_without_refused`.
        log: Gets a line for each step.
        progress: Called for each transaction that the restore program has begun to read.

    Returns:
        What was written.

    Raises:
        KernelError: As `Iptables.restore`; the tables are as *before*, or a note in the text says what could not be
            taken back.
    """
    if not plan.transactions:
        return Applied()
    log.debug("restoring", family=family, transactions=len(plan.transactions))
    try:
        outcome = machine.iptables[family].restore_sections(
            lambda: _told(render_sections(plan.restore_input), f"{family} rules", len(plan.transactions), progress),
            owner_of=lambda chain: owners.get(chain, ""),
        )
    except LockTimeoutError:
        raise
    except RestoreError as error:
        log.warning("refused", family=family, error=str(error))
        with _taking_back(machine, family, before, log):
            written = isolate()
            # Some of what was refused as a whole had been written before; flows are judged by what stands.
            return msgspec.structs.replace(written, leaving=(*leaving_lines(plan, before), *written.leaving))
    except KernelError as error:
        log.warning("refused", family=family, error=str(error))
        _take_back(machine, family, before, error, log)
        raise
    log.info(
        "restored",
        family=family,
        transactions=outcome.transactions,
        bytes=outcome.bytes,
        seconds=round(outcome.seconds, 3),
    )
    return applied(plan, before, outcome.bytes)


@contextmanager
def _taking_back(machine: Machine, family: Family, before: SavedTables, log: Log) -> Iterator[None]:
    """Restore *before* if the block fails."""
    try:
        yield
    except KernelError as error:
        _take_back(machine, family, before, error, log)
        raise


def _told(sections: Iterator[str], what: str, total: int, progress: Progress | None) -> Iterator[str]:
    for number, section in enumerate(sections, start=1):
        yield section
        if progress is not None:
            progress(what, number, total)


def _take_back(machine: Machine, family: Family, before: SavedTables, error: KernelError, log: Log) -> None:
    iptables = machine.iptables[family]
    try:
        actual = machine.scan(family)
        rollback = plan_rollback(before, actual, staged=machine.is_staged)
        iptables.restore_sections(lambda: render_sections(rollback.restore_input))
        for table in rollback.void_tables:
            delete_void_table(family, table)
    except KernelError as second:
        error.add_note(f"what was written before could not be taken back: {second}")
        return
    log.info("taken back", family=family, transactions=len(rollback.transactions))
