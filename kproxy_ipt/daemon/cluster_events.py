"""
What the daemon tells the cluster about itself: events for `kubectl get events`.

Source: reasons, types and actions of kube-proxy v1.36.
"""

from kproxy_ipt.daemon.health_ports import HealthPortProblem
from kproxy_ipt.sources.event_recorder import (
    EventNote,
    EventRecorder,
    EventType,
    ObjectReference,
    node_reference,
)


class ClusterEvents:
    """The events of one daemon; without a recorder (files as source) nobody is told."""

    def __init__(self, node_name: str, recorder: EventRecorder | None = None) -> None:
        """Speak for *node_name* through *recorder*."""
        self._node = node_reference(node_name)
        self._recorder = recorder

    def started(self) -> None:
        """The daemon begins."""
        self._record(EventNote(regarding=self._node, reason="Starting", action="StartKubeProxy", note=""))

    def port_not_served(self, problem: HealthPortProblem) -> None:
        """A health check node port of a Service is not answered."""
        namespace, name = problem.service
        self._record(
            EventNote(
                regarding=ObjectReference(kind="Service", namespace=namespace, name=name),
                reason="FailedToStartServiceHealthcheck",
                action="Listen",
                note=problem.message,
                type=EventType.WARNING,
            )
        )

    def _record(self, event: EventNote) -> None:
        if self._recorder is not None:
            self._recorder.record(event)

    async def run(self) -> None:
        """Write events until cancelled."""
        if self._recorder is not None:
            await self._recorder.run()
