"""
The takeover of a daemon: once its rules stand, what would answer for the same Services a second time goes.

kube-proxy does this before it writes anything, so for a moment nothing answers. Here it comes after the first sync:
both sets of rules lead to the same endpoints, so which one decides about a packet makes no difference.
"""

import asyncio
from collections import Counter

from kproxy_ipt.daemon.kernel_thread import KernelThread
from kproxy_ipt.daemon.log import Log
from kproxy_ipt.daemon.machine import Target
from kproxy_ipt.daemon.metrics import Metrics
from kproxy_ipt.daemon.takeover import TakeoverReport, take_over
from kproxy_ipt.errors import KproxyError
from kproxy_ipt.plan.takeover import Fate, Leftover, Scope

_SHOWN_NAMES = 5
_FIRST_PAUSE_S = 2.0
_LONGEST_PAUSE_S = 300.0


async def remove_leftovers(target: Target, log: Log, metrics: Metrics) -> None:
    """
    Look, tell, remove; what cannot be removed (the lock is held) is tried again, until cancelled.

    Args:
        target: With the backend in use, never `auto`.
        log: Told each thing that was found, and each problem, once.
        metrics: Counts them.
    """
    told: set[tuple[Leftover, str]] = set()
    warned: set[tuple[str, str]] = set()
    pause_s = _FIRST_PAUSE_S
    while problems := await _once(target, log, metrics, told):
        for place, error in problems.items() - warned:
            log.warning("leftovers", place=place, error=error, again_in_s=pause_s)
        warned.update(problems.items())
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


async def _once(target: Target, log: Log, metrics: Metrics, told: set[tuple[Leftover, str]]) -> dict[str, str]:
    """Problems by place."""
    thread = KernelThread(None, "leftovers")
    try:
        report = await thread.call(take_over, target, Scope.START)
    except KproxyError as error:
        return {"node": str(error)}
    finally:
        thread.close()
    fates = {one: "failed" if _failed(one, report) else str(one.fate) for one in report.leftovers}
    counts: Counter[tuple[str, str]] = Counter()
    for one, fate in fates.items():
        counts[(str(one.kind), fate)] += len(one.names)
        if (one, fate) not in told:
            told.add((one, fate))
            _tell(one, fate, log)
    metrics.leftovers_found(counts)
    log.info("looked for leftovers", found=counts.total())
    return {place: str(error) for place, error in report.errors.items()}


def _tell(one: Leftover, fate: str, log: Log) -> None:
    log.warning(
        "leftover",
        kind=str(one.kind),
        place=one.place,
        fate=fate,
        why=one.why,
        count=len(one.names),
        first=list(one.names[:_SHOWN_NAMES]),
    )


def _failed(one: Leftover, report: TakeoverReport) -> bool:
    """Whether it was to go and did not: an error names its place, with or without its table or name."""
    return one.fate is Fate.REMOVED and any(
        place.startswith(one.place) or one.place.startswith(place) for place in report.errors
    )
