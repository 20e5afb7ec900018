"""
Which tracked flows may go on, and which are stale: the rule of connection tracking clean-up, without any I/O.

A NAT decision is made for the first packet of a flow and kept in its record. Flows of UDP never end, so a record that
was made under other rules must be deleted, or the client goes on to send where nobody (or somebody else) is. What is
stale follows from the state alone, not from the event that led to it: a clean-up that failed is simply done again, and
after a restart nothing is deleted that would not be deleted at any other time.

Keys of the table are entries: an address and port that rules of a service port translate. Values are the endpoints that
a flow to this entry may end at. Three decisions:

* A flow may stay with an endpoint as long as that one is *ready or serving*. New flows are balanced by topology hints,
  and over terminating endpoints only if nothing else is left, but both are preferences: hints change all the time, and
  an endpoint that drains is meant to finish what it has. (Ready alone counts as well: `publishNotReadyAddresses` makes
  endpoints ready that do not serve.)
* Internal policy Local is no preference: from the cluster IP traffic must stay on the node. So for a cluster IP with
  that policy only local endpoints count, and the answer does not depend on what other nodes have. Addresses from
  outside keep all endpoints even with external policy Local, since traffic of the node and its pods may use them there.
* What was an entry and is none any more (`former`) is known beside the state, which does not say anything about a
  Service that was deleted: `flow_memory.py` remembers it until it has been cleaned.

Decided against: kube-proxy's way (v1.36), which compares the ports of all flows with the numbers of node ports whatever
their address, skips service ports without a serving endpoint, and knows nothing of deleted ones.

Source: `pkg/proxy/conntrack` behaviour of Kubernetes 1.36; kubernetes#126934, #98305, #122740.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from kproxy_ipt.config.model import ExternalIPs
from kproxy_ipt.state.model import Endpoint, ServicePort, ServiceState

EndpointAddress = tuple[str, int]
"""Address and port of an endpoint."""


class Entry(msgspec.Struct, frozen=True, gc=False):
    """
    Where flows enter a service port.

    Attributes:
        address: Canonical; "" for a node port, which is entered by every address of the node that answers them.
        port: Service port or node port.
        protocol: `tcp`, `udp` or `sctp`.
    """

    address: str
    port: int
    protocol: str


class Flow(msgspec.Struct, frozen=True, gc=False):
    """
    One tracked flow: where its first packet was sent from and to, and where answers come from and go to.

    The reply source of a translated flow is its endpoint, that of any other flow equals the destination.
    """

    protocol: str
    source: str
    source_port: int
    destination: str
    port: int
    reply_source: str
    reply_source_port: int

    @property
    def is_translated(self) -> bool:
        """Whether the destination was rewritten."""
        return (self.reply_source, self.reply_source_port) != (self.destination, self.port)


class EntryOptions(msgspec.Struct, frozen=True, kw_only=True):
    """
    What decides about entries beside the service port itself, for one family.

    Attributes:
        node_addresses: Canonical addresses of the node's interfaces that answer node ports.
        localhost: Whether all of 127.0.0.0/8 answers node ports.
        external_ips: Which external IPs are translated.
    """

    node_addresses: frozenset[str] = frozenset()
    localhost: bool = False
    external_ips: ExternalIPs = ExternalIPs()


class FlowTable(msgspec.Struct, frozen=True, kw_only=True):
    """
    What flows of one family may do.

    Attributes:
        allowed: For each entry the endpoints that a flow may end at; none at all where a service port has no endpoint.
        former: Entries that were ours and are none any more: nothing of theirs may go on.
        options: Which addresses answer node ports.
    """

    allowed: Mapping[Entry, frozenset[EndpointAddress]] = msgspec.field(default_factory=dict)
    former: frozenset[Entry] = frozenset()
    options: EntryOptions = EntryOptions()

    @property
    def is_empty(self) -> bool:
        """Whether no flow can be stale."""
        return not (self.allowed or self.former)

    @property
    def protocols(self) -> frozenset[str]:
        """The protocols of all entries: a flow of another protocol is never stale."""
        return frozenset(entry.protocol for entries in (self.allowed, self.former) for entry in entries)


def entries_of(service_port: ServicePort, options: EntryOptions) -> tuple[Entry, ...]:
    """All entries of a service port: the cluster IP first, the node port last."""
    protocol, port = service_port.protocol, service_port.port
    return (
        Entry(service_port.cluster_ip, port, protocol),
        *(Entry(address, port, protocol) for address in _outer_addresses(service_port, options)),
        *((Entry("", service_port.node_port, protocol),) if service_port.node_port else ()),
    )


def flow_table(
    states: Iterable[ServiceState],
    options: EntryOptions,
    *,
    protocols: Iterable[str] = ("udp",),
    former: Iterable[Entry] = (),
) -> FlowTable:
    """
    The table for all service ports of one family.

    Args:
        states: All of them, with all known endpoints. Where several claim one entry, the endpoints of each may be
            used: which of them gets the traffic depends on who has endpoints at the moment.
        options: Of the family.
        protocols: Service ports of other protocols are left out.
        former: What may have been an entry before, as a run without memory learns it from the rules that it removes;
            what is an entry still is left out.
    """
    wanted = frozenset(protocols)
    allowed = union_by_entry((state for state in states if state.service_port.protocol in wanted), options)
    gone = frozenset(entry for entry in former if entry not in allowed and entry.protocol in wanted)
    return FlowTable(allowed=allowed, former=gone, options=options)


def union_by_entry(states: Iterable[ServiceState], options: EntryOptions) -> Mapping[Entry, frozenset[EndpointAddress]]:
    """For each entry of *states* the endpoints that its flows may end at, of all service ports that claim it."""
    allowed: dict[Entry, frozenset[EndpointAddress]] = {}
    for state in states:
        for entry, endpoints in _allowed_by(state, options):
            known = allowed.get(entry)
            allowed[entry] = endpoints if known is None else known | endpoints
    return allowed


def is_stale(flow: Flow, table: FlowTable) -> bool:
    """
    Whether a flow must end so that its next packet is decided about by the rules in force.

    A flow to a foreign address is never stale, whatever its ports. A flow to a former node port that was not translated
    belongs to a process of the node.
    """
    service, node_port = Entry(flow.destination, flow.port, flow.protocol), Entry("", flow.port, flow.protocol)
    at_node = answers_node_ports(flow.destination, table.options)
    endpoint = (flow.reply_source, flow.reply_source_port)
    current = [entry for entry in (service, *((node_port,) if at_node else ())) if entry in table.allowed]
    if current:
        return all(endpoint not in table.allowed[entry] for entry in current)
    return service in table.former or (at_node and flow.is_translated and node_port in table.former)


def answers_node_ports(address: str, options: EntryOptions) -> bool:
    """Whether node ports are answered on a canonical address."""
    return address in options.node_addresses or (options.localhost and address.startswith("127."))


def _outer_addresses(service_port: ServicePort, options: EntryOptions) -> Iterator[str]:
    yield from (address for address in service_port.external_ips if options.external_ips.permit(address))
    yield from service_port.load_balancer_ips


def _allowed_by(state: ServiceState, options: EntryOptions) -> Iterator[tuple[Entry, frozenset[EndpointAddress]]]:
    cluster, *outer = entries_of(state.service_port, options)
    every = _addresses(state.endpoints)
    is_local = state.service_port.internal_local
    yield cluster, _addresses(each for each in state.endpoints if each.is_local) if is_local else every
    yield from ((entry, every) for entry in outer)


def _addresses(endpoints: Iterable[Endpoint]) -> frozenset[EndpointAddress]:
    return frozenset((each.address, each.port) for each in endpoints if each.ready or each.serving)
