"""
What others want to know about all Services, kept up to date from those that changed.

Health check node ports, their counts, and the number of service ports that policy Local leaves without an endpoint:
each is a sum over all Services, and none is computed anew for one changed pod.
"""

from collections.abc import Callable, Mapping

import msgspec

from kproxy_ipt.selection.usable import usable_endpoints
from kproxy_ipt.state.health_counts import health_check_ports, local_ready_counts, tcp_node_ports
from kproxy_ipt.state.model import NodeFacts, ServiceState
from kproxy_ipt.state.tracker import ServiceName, States


class WithoutLocal(msgspec.Struct, frozen=True):
    """Service ports with policy Local that have usable endpoints, but none here, by policy."""

    internal: int = 0
    external: int = 0


class ServiceSummaries:
    """
    Summaries of one family.

    Attributes:
        ports: Health check node port of each Service that has one.
        counts: Local and ready endpoints of these Services.
        node_ports: Owner of each TCP node port.
        without_local: See `WithoutLocal`.
    """

    def __init__(self) -> None:
        self.ports: Mapping[ServiceName, int] = {}
        self.counts: Mapping[ServiceName, int] = {}
        self.node_ports: Mapping[int, ServiceName] = {}
        self.without_local = WithoutLocal()
        self._checked: dict[ServiceName, States] = {}
        self._node_port_states: dict[ServiceName, States] = {}
        self._without_local: dict[ServiceName, WithoutLocal] = {}

    def update(self, changes: Mapping[ServiceName, States], node: NodeFacts) -> None:
        """Take in what Services mean now."""
        for name, states in changes.items():
            self._update_without_local(name, states, node)
        if _replace(self._checked, changes, _with_health_port):
            checked = [state for name in sorted(self._checked) for state in self._checked[name]]
            self.ports = health_check_ports(checked)
            self.counts = local_ready_counts(checked)
        if _replace(self._node_port_states, changes, _with_node_port):
            owners = [state for name in sorted(self._node_port_states) for state in self._node_port_states[name]]
            self.node_ports = tcp_node_ports(owners)

    def counts_after(self, changes: Mapping[ServiceName, States]) -> Mapping[ServiceName, int]:
        """The counts as they will be once *changes* are written; for Services with a port now."""
        changed = [state for name, states in changes.items() if name in self.ports for state in states]
        gone = {name: 0 for name in changes if name in self.ports}
        return {**self.counts, **gone, **local_ready_counts(changed)}

    def _update_without_local(self, name: ServiceName, states: States, node: NodeFacts) -> None:
        old = self._without_local.pop(name, WithoutLocal())
        new = _without_local(states, node)
        if new != WithoutLocal():
            self._without_local[name] = new
        self.without_local = WithoutLocal(
            self.without_local.internal - old.internal + new.internal,
            self.without_local.external - old.external + new.external,
        )


def _replace(
    kept: dict[ServiceName, States], changes: Mapping[ServiceName, States], part_of: Callable[[States], States]
) -> bool:
    """Keep of *changes* the part that matters; whether that changed anything."""
    is_news = False
    for name, states in changes.items():
        part = part_of(states)
        if part != kept.get(name, ()):
            is_news = True
            if part:
                kept[name] = part
            else:
                del kept[name]
    return is_news


def _with_health_port(states: States) -> States:
    return states if any(state.service_port.health_check_node_port for state in states) else ()


def _with_node_port(states: States) -> States:
    """Endpoints do not matter to who owns a node port."""
    return tuple(ServiceState(state.service_port) for state in states if state.service_port.node_port)


def _without_local(states: States, node: NodeFacts) -> WithoutLocal:
    internal = external = 0
    for state in states:
        port = state.service_port
        if not (port.internal_local or port.external_local):
            continue
        usable = usable_endpoints(port, state.endpoints, node)
        if usable.any_usable and not usable.local:
            internal += port.internal_local
            external += port.external_local and port.externally_accessible
    return WithoutLocal(internal, external)
