"""
Services that are set aside: since which refusal, and when to try again.

Pure: time comes in as seconds of any clock that never goes back. After the first refusal of what a Service means it is
tried again in a minute, then in 2, 4, 8 and from then on 10 minutes. A Service that means something else is tried at
once by the sync that takes this up, and its waiting starts anew.
"""

from collections.abc import Mapping

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.state.tracker import ServiceName

FIRST_RETRY_S = 60.0
LONGEST_RETRY_S = 600.0


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """
    A Service whose rules the kernel refused.

    Attributes:
        service: Namespace and name.
        family: Of the rules.
        reason: What the kernel or the program said, and the rule where it named one.
        stays: Whether earlier rules of the Service stay in force.
        failures: Refusals of the same meaning, 1 or more.
        due_s: When to try again.
    """

    service: ServiceName
    family: Family
    reason: str
    stays: bool
    failures: int
    due_s: float

    @property
    def text(self) -> str:
        """The Service as people write it."""
        return "/".join(self.service)

    @property
    def rules(self) -> str:
        """What the Service has now."""
        return "the last good ones stay" if self.stays else "none"


class Quarantine:
    """The Services of one family that are set aside."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self._refusals: dict[ServiceName, Refusal] = {}
        self._retried: frozenset[ServiceName] = frozenset()

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """All of them, by namespace and name."""
        return tuple(self._refusals[name] for name in sorted(self._refusals))

    def due_s(self) -> float | None:
        """When the next one is to be tried again; None if there is none."""
        return min((one.due_s for one in self._refusals.values()), default=None)

    def take_due(self, now_s: float) -> frozenset[ServiceName]:
        """Those that the sync which begins at *now_s* has to try again."""
        due = frozenset(name for name, one in self._refusals.items() if one.due_s <= now_s)
        self._retried |= due
        return due

    def refused(self, reasons: Mapping[ServiceName, str], aside: Mapping[ServiceName, bool], now_s: float) -> None:
        """
        Take in what a sync set aside, whether it succeeded or not.

        Args:
            reasons: Services that it set aside, and why.
            aside: All that are set aside, and whether earlier rules stay.
            now_s: When it ended.
        """
        for name in self._retried & self._refusals.keys():
            # A sync that failed has not asked the kernel about them: the same wait again.
            one = self._refusals[name]
            self._refusals[name] = msgspec.structs.replace(one, due_s=now_s + _wait_s(one.failures))
        for name, reason in reasons.items():
            known = self._refusals.get(name) if name in self._retried else None
            failures = known.failures + 1 if known else 1
            self._refusals[name] = Refusal(
                service=name,
                family=self._family,
                reason=reason,
                stays=aside.get(name, False),
                failures=failures,
                due_s=now_s + _wait_s(failures),
            )
        self._retried -= reasons.keys()

    def succeeded(self, aside: Mapping[ServiceName, bool]) -> tuple[ServiceName, ...]:
        """A sync succeeded: those that are not set aside any more are forgotten, and returned."""
        back = tuple(name for name in self._refusals if name not in aside)
        for name in back:
            del self._refusals[name]
        self._retried = frozenset()
        return back


def _wait_s(failures: int) -> float:
    return float(min(FIRST_RETRY_S * 2 ** min(failures - 1, 30), LONGEST_RETRY_S))
