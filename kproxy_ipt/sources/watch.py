"""
Objects from a cluster, as they change: Services, EndpointSlices and the own Node, each listed and watched by itself.

`kind_watch.py` follows one kind, `watch_stream.py` understands its lines, `api_session.py` sends the requests.

The `aio` part of the `kubernetes` client fits (37.0, measured): it reads streams without a thread for each, and with
its authentication it costs 18 MiB of memory beside what the daemon has anyway. Its resource classes and models would
cost 25 MiB more, and its `Watch` decodes every event into them; both are left out.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping

from kproxy_ipt.objects.events import Event, Kind
from kproxy_ipt.sources.api_session import ApiSession
from kproxy_ipt.sources.cluster import cluster_resources
from kproxy_ipt.sources.kind_watch import KindWatch, Pace, WatchCounts
from kproxy_ipt.sources.kubeconfig import ClusterConnection

__all__ = ["ClusterSource", "Pace", "WatchCounts"]


class ClusterSource:
    """
    Everything that rules are made from, from one API server.

    Args:
        connection: Which cluster, as whom, how fast.
        node_name: Name of the own Node.
        pace: Time and chance; tests choose their own.

    Attributes:
        session: Sends the requests; others who talk to the same server may use it while `run` runs.
        counts: What has happened so far, by kind.
    """

    def __init__(self, connection: ClusterConnection, node_name: str, *, pace: Pace | None = None) -> None:
        self._pace = pace or Pace()
        self.session = ApiSession(connection, clock=self._pace.clock, sleep=self._pace.sleep)
        self.counts: Mapping[Kind, WatchCounts] = {kind: WatchCounts() for kind in Kind}
        self._resources = {Kind(resource.name): resource for resource in cluster_resources(node_name)}

    async def run(self, deliver: Callable[[Event], None]) -> None:
        """
        List and watch until cancelled; all connections are closed then.

        Whatever the server does leads to `Trouble` and new attempts. Credentials are loaded before the first request.

        Args:
            deliver: Called in the loop with each event; what it raises ends everything, as an ExceptionGroup, since an
                event that is lost must not go unnoticed.

        Raises:
            SourceError: No cluster is configured, or its credentials cannot be loaded.
        """
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self.session.close)
            await self.session.open()
            group = await stack.enter_async_context(asyncio.TaskGroup())
            for kind, resource in self._resources.items():
                watch = KindWatch(kind, resource, self.session, deliver, pace=self._pace, counts=self.counts[kind])
                group.create_task(watch.run(), name=f"watch {kind}")
