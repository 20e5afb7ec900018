"""
Which Services get less than they ask for because the machine lacks an optional part: log and metric.

What is missing was found when the daemon began (`kernel/preflight_probe.py`), and rules already do without.
"""

from collections.abc import Mapping

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.log import Log
from kproxy_ipt.daemon.metrics import Metrics
from kproxy_ipt.rules.fallbacks import FALLBACKS, missed_parts
from kproxy_ipt.rules.options import RuleOptions
from kproxy_ipt.state.model import OptionalPart
from kproxy_ipt.state.tracker import ServiceName, States

_SHOWN_SERVICES = 5


class FallbackWatch:
    """Remembers for one family which Services miss which part."""

    def __init__(self, family: Family, log: Log, metrics: Metrics) -> None:
        self._family = family
        self._log = log
        self._metrics = metrics
        self._missed: dict[ServiceName, frozenset[OptionalPart]] = {}

    def update(self, changes: Mapping[ServiceName, States], options: RuleOptions) -> None:
        """Take in what Services mean now; says which of them have begun to miss a part. Without one it does nothing."""
        if not options.lacking:
            return
        began: dict[OptionalPart, list[ServiceName]] = {}
        for name, states in changes.items():
            missed = missed_parts(options.lacking, states, options.node)
            for part in missed - self._missed.pop(name, frozenset()):
                began.setdefault(part, []).append(name)
            if missed:
                self._missed[name] = missed
        for part in sorted(began):
            self._tell(part, began[part])
        for part in sorted(options.lacking):
            self._metrics.fallback_services(self._family, part, sum(part in each for each in self._missed.values()))

    def _tell(self, part: OptionalPart, names: list[ServiceName]) -> None:
        shown = [f"{namespace}/{name}" for namespace, name in sorted(names)[:_SHOWN_SERVICES]]
        self._log.warning(
            "served with less",
            family=self._family,
            lacking=str(part),
            services=len(names),
            first=shown,
            now=FALLBACKS[part].instead,
        )
