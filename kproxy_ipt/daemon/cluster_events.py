"""
What the daemon tells the cluster about itself: events for `kubectl get events`.

Source: reasons, types and actions of kube-proxy v1.36.
"""

import time
from collections.abc import Callable

from kproxy_ipt.daemon.health_ports import HealthPortProblem
from kproxy_ipt.daemon.quarantine import Refusal
from kproxy_ipt.sources.event_recorder import (
    EventNote,
    EventRecorder,
    EventType,
    ObjectReference,
    node_reference,
)
from kproxy_ipt.state.tracker import ServiceName

SERIES_S = 1800.0
"""
Seconds from an event to the next one of the same series: same object, type, reason, action and reporter.

Source: `refreshTime` of client-go `tools/events`; the words of an event do not make another series.
"""


class ClusterEvents:
    """The events of one daemon; without a recorder (files as source) nobody is told."""

    def __init__(
        self,
        node_name: str,
        recorder: EventRecorder | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Speak for *node_name* through *recorder*; *clock* counts seconds and never goes back."""
        self._node = node_reference(node_name)
        self._recorder = recorder
        self._clock = clock
        self._refused_at: dict[ObjectReference, float] = {}

    def started(self) -> None:
        """The daemon begins."""
        self._record(EventNote(regarding=self._node, reason="Starting", action="StartKubeProxy", note=""))

    def port_not_served(self, problem: HealthPortProblem, uid: str = "") -> None:
        """A health check node port of a Service, with *uid* if that is known, is not answered."""
        self._record(
            EventNote(
                regarding=_service_reference(problem.service, uid),
                reason="FailedToStartServiceHealthcheck",
                action="Listen",
                note=problem.message,
                type=EventType.WARNING,
            )
        )

    def rules_refused(self, refusal: Refusal, uid: str = "") -> None:
        """The kernel refuses rules of a Service; said once in half an hour, however often it is tried."""
        service, now_s = _service_reference(refusal.service, uid), self._clock()
        self._refused_at = {one: at for one, at in self._refused_at.items() if now_s - at < SERIES_S}
        if service in self._refused_at:
            return
        self._refused_at[service] = now_s
        note = f"{refusal.family.api_name} rules on node {self._node.name}: {refusal.rules}; refused: {refusal.reason}"
        self._record(
            EventNote(regarding=service, reason="RulesRefused", action="SetAside", note=note, type=EventType.WARNING)
        )

    def _record(self, event: EventNote) -> None:
        if self._recorder is not None:
            self._recorder.record(event)

    async def run(self) -> None:
        """Write events until cancelled."""
        if self._recorder is not None:
            await self._recorder.run()


def _service_reference(service: ServiceName, uid: str) -> ObjectReference:
    namespace, name = service
    return ObjectReference(kind="Service", namespace=namespace, name=name, uid=uid)
