"""
Doing without: what rules become where kernel or programs lack an optional part.

A part is missed before rules are written, never by a refused sync. What of a Service can be served without it is
served, the rest is left out, and `FALLBACKS` says what that costs. With every part there nothing here changes any rule.

Decided against: balancing by bits of the client's address where there is no dice (it looks like balancing and sends
everything that comes through one router to one endpoint): one endpoint, said loudly, is found at once.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from kproxy_ipt.addresses import Family, family_of, is_loopback
from kproxy_ipt.errors import Finding, Severity
from kproxy_ipt.objects.model import Service
from kproxy_ipt.selection.node_ports import NodePortEntry
from kproxy_ipt.selection.usable import UsableEndpoints, usable_endpoints
from kproxy_ipt.state.model import MachineFacts, NodeFacts, OptionalPart, ServicePort, ServiceState
from kproxy_ipt.state.services import service_ports

_SHOWN_SERVICES = 5


class Fallback(msgspec.Struct, frozen=True):
    """
    What is lost without a part, and what is done instead.

    Attributes:
        concerns: The Services or features that it is for.
        instead: What they get.
    """

    concerns: str
    instead: str


FALLBACKS: Mapping[OptionalPart, Fallback] = {
    OptionalPart.NFACCT: Fallback(
        "two metrics: packets dropped as INVALID, connections to node ports on localhost",
        "the rules do without counting, the metrics are not published",
    ),
    OptionalPart.RANDOM_FULLY: Fallback(
        "masqueraded connections", "source ports are chosen in order, which may lose one of two that begin at once"
    ),
    OptionalPart.RECENT: Fallback(
        "Services with session affinity ClientIP", "they are served without affinity: any connection to any endpoint"
    ),
    OptionalPart.ADDRTYPE: Fallback(
        "node ports, and traffic of the node itself to Services of external policy Local",
        "rules name each address of the node's interfaces, and follow them",
    ),
    OptionalPart.SCTP: Fallback("Services of protocol SCTP", "their SCTP ports are set aside, the others are served"),
    OptionalPart.STATISTIC: Fallback(
        "Services with several endpoints", "ALL THEIR CONNECTIONS GO TO THE FIRST ENDPOINT, none is balanced"
    ),
}
"""By part, the same for both families."""


def own_addresses(machine: MachineFacts, family: Family) -> tuple[str, ...]:
    """The addresses of *family* on the node's interfaces, loopback included, sorted as text."""
    return tuple(sorted(address for address in machine.interface_addresses if family_of(address) is family))


def listed_node_ports(entry: NodePortEntry, addresses: Iterable[str]) -> NodePortEntry:
    """*entry* with all *addresses* of the node by name, where it says no more than "all"."""
    if not entry.all_addresses:
        return entry
    known = tuple(addresses)
    skipped = () if entry.localhost else tuple(address for address in known if is_loopback(address))
    return NodePortEntry(
        all_addresses=False,
        addresses=tuple(address for address in known if address not in skipped),
        skipped_loopback=skipped,
        localhost=entry.localhost,
    )


def served_without(
    lacking: frozenset[OptionalPart], state: ServiceState, node: NodeFacts
) -> tuple[ServicePort, UsableEndpoints] | None:
    """What of *state* can be served without the parts *lacking*: the service port and its endpoints, or None."""
    service_port = state.service_port
    if service_port.protocol == "sctp" and OptionalPart.SCTP in lacking:
        return None
    if OptionalPart.RECENT in lacking:
        service_port = msgspec.structs.replace(service_port, affinity_timeout_s=0)
    usable = usable_endpoints(service_port, state.endpoints, node)
    return service_port, _first_alone(usable) if OptionalPart.STATISTIC in lacking else usable


def _first_alone(usable: UsableEndpoints) -> UsableEndpoints:
    cluster, local = usable.cluster[:1], usable.local[:1]
    reachable = tuple(endpoint for endpoint in usable.reachable if endpoint in (*cluster, *local))
    return UsableEndpoints(cluster, local, reachable, any_usable=usable.any_usable)


def missed_parts(
    lacking: frozenset[OptionalPart], states: Iterable[ServiceState], node: NodeFacts
) -> frozenset[OptionalPart]:
    """Those of *lacking* that any of *states* would be served differently with."""
    return frozenset(part for state in states for part in lacking if _misses(part, state, node))


def _misses(part: OptionalPart, state: ServiceState, node: NodeFacts) -> bool:
    service_port = state.service_port
    if part is OptionalPart.RECENT:
        return bool(service_port.affinity_timeout_s)
    if part is OptionalPart.SCTP:
        return service_port.protocol == "sctp"
    if part is OptionalPart.ADDRTYPE:
        return bool(service_port.node_port) or (service_port.external_local and service_port.externally_accessible)
    if part is OptionalPart.STATISTIC:
        usable = usable_endpoints(service_port, state.endpoints, node)
        return max(len(usable.cluster), len(usable.local)) > 1
    return False


def fallback_notes(lacking: frozenset[OptionalPart], states: Iterable[ServiceState], node: NodeFacts) -> Iterator[str]:
    """A line for each part of *lacking*: what is done instead, and for which Services."""
    missed: dict[OptionalPart, list[str]] = defaultdict(list)
    for state in states:
        for part in missed_parts(lacking, (state,), node):
            missed[part].append(f"{state.service_port.namespace}/{state.service_port.name}")
    for part in sorted(lacking):
        names = list(dict.fromkeys(missed[part]))
        shown = ", ".join(names[:_SHOWN_SERVICES])
        more = f" and {len(names) - _SHOWN_SERVICES} more" if len(names) > _SHOWN_SERVICES else ""
        whom = f"; this concerns {shown}{more}" if names else ""
        yield f"the machine lacks {part}: {FALLBACKS[part].instead}{whom}"


def set_aside_findings(services: Iterable[Service], machine: MachineFacts) -> Iterator[Finding]:
    """A rejection for each Service with ports that cannot be served on a machine without the match for SCTP."""
    families = sorted(family for family, part in machine.lacking if part is OptionalPart.SCTP)
    for service in services:
        missing = [
            family.api_name
            for family in families
            if any(port.protocol == "sctp" for port in service_ports(service, family))
        ]
        if missing:
            yield Finding(
                object=f"Service {service.metadata.namespace}/{service.metadata.name}",
                field="spec.ports",
                found="protocol SCTP",
                expected="a machine that has the match sctp",
                consequence=f"ports of this protocol are set aside ({', '.join(missing)})",
                severity=Severity.REJECTED,
            )
