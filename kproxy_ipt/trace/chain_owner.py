"""
Chain names back to service ports: names are hashes, so every service port's names are computed and compared.

This is what makes rules readable where comments are left out, above 1,000 endpoints.
"""

from collections.abc import Iterator, Mapping

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import ShapeConfig
from kproxy_ipt.rules import names as fixed
from kproxy_ipt.rules.groups import group_chain_names, groups_of
from kproxy_ipt.rules.names import endpoint_chain_name
from kproxy_ipt.rules.service_chains import chain_names
from kproxy_ipt.rules.shape import is_grouped, scheduler_of
from kproxy_ipt.selection.usable import usable_endpoints
from kproxy_ipt.state.model import ServiceState, Snapshot
from kproxy_ipt.trace.explain_service import standing_chains

FIXED_CHAIN_MEANINGS = {
    fixed.KUBE_SERVICES: "the addresses of all Services: one rule for each leads to the chain of its service port",
    fixed.KUBE_NODEPORTS: "nat: the node ports of all Services; filter: their health check node ports",
    fixed.KUBE_POSTROUTING: "masquerades the packets that KUBE-MARK-MASQ marked, and takes the mark off",
    fixed.KUBE_MARK_MASQ: "marks packets whose source must become an address of the node",
    fixed.KUBE_EXTERNAL_SERVICES: "refuses or drops traffic from outside to Services without (local) endpoints",
    fixed.KUBE_FORWARD: "lets marked and answering packets pass, drops those that connection tracking finds invalid",
    fixed.KUBE_PROXY_FIREWALL: "drops what loadBalancerSourceRanges did not let pass",
    fixed.KUBE_FIREWALL: "drops packets to 127.0.0.0/8 that do not come from the node itself; shared with the kubelet",
    fixed.KUBE_PROXY_CANARY: "kube-proxy's sign that nobody flushed the tables; not ours",
}
"""Chains that know no service."""

_MEANINGS = {
    "cluster": "balances over all endpoints (policy Cluster)",
    "local": "balances over endpoints of this node (policy Local)",
    "external": "traffic that entered by node port, external IP or load balancer address",
    "firewall": "lets in what loadBalancerSourceRanges allow, to load balancer addresses",
}


class ChainOwner(msgspec.Struct, frozen=True, kw_only=True):
    """
    A service port that a chain belongs to.

    Attributes:
        chain: Its name.
        meaning: What the chain does, for people.
        service_port: `namespace/name:port_name`.
        endpoint: `ip:port` for a chain of one endpoint, else "".
        stands: Whether the rules for the present objects hold the chain.
    """

    chain: str
    meaning: str
    service_port: str
    protocol: str
    family: Family
    endpoint: str = ""
    stands: bool


def chain_owners(
    name: str, snapshots: Mapping[Family, Snapshot], shape: ShapeConfig | None = None
) -> tuple[ChainOwner, ...]:
    """
    The service ports whose chain is called *name*.

    Args:
        name: Of a chain.
        snapshots: Where to look.
        shape: Decides which groups of endpoints stand; default the default one.

    Returns:
        One for each family that knows it; chains are found whether they stand or not, as long as the object exists.
    """
    kind = name.split("-")[1] if name.count("-") >= 2 else ""
    return tuple(
        owner
        for snapshot in snapshots.values()
        for state in snapshot.services.values()
        for owner in (_endpoint_chains(state, snapshot) if kind == "SEP" else _others(state, snapshot, shape))
        if owner.chain == name
    )


def _others(state: ServiceState, snapshot: Snapshot, shape: ShapeConfig | None) -> Iterator[ChainOwner]:
    yield from _service_chains(state, snapshot)
    yield from _group_chains(state, snapshot, shape or ShapeConfig())


def _group_chains(state: ServiceState, snapshot: Snapshot, shape: ShapeConfig) -> Iterator[ChainOwner]:
    """Groups of the present endpoints, whether the shape asks for groups or not."""
    port = state.service_port
    usable = usable_endpoints(port, state.endpoints, snapshot.node)
    names = chain_names(port)
    scheduler = scheduler_of(port, shape.scheduler)
    for parent, endpoints in ((names.cluster, usable.cluster), (names.local, usable.local)):
        groups = groups_of([(endpoint, endpoint.text) for endpoint in endpoints])
        for chain, count in group_chain_names(parent, port.text, port.protocol, groups):
            yield ChainOwner(
                chain=chain,
                meaning=f"balances over a group of {count} of {len(endpoints)} endpoints, below {parent}",
                service_port=port.text,
                protocol=port.protocol,
                family=port.family,
                stands=is_grouped(scheduler, len(endpoints), shape.balance),
            )


def _service_chains(state: ServiceState, snapshot: Snapshot) -> Iterator[ChainOwner]:
    port = state.service_port
    names = chain_names(port)
    usable = usable_endpoints(port, state.endpoints, snapshot.node)
    standing = set(standing_chains(port, usable, names))
    for attribute, meaning in _MEANINGS.items():
        chain = getattr(names, attribute)
        yield ChainOwner(
            chain=chain,
            meaning=meaning,
            service_port=port.text,
            protocol=port.protocol,
            family=port.family,
            stands=chain in standing,
        )


def _endpoint_chains(state: ServiceState, snapshot: Snapshot) -> Iterator[ChainOwner]:
    port = state.service_port
    reachable = usable_endpoints(port, state.endpoints, snapshot.node).reachable
    standing = {endpoint.text for endpoint in reachable}
    for endpoint in state.endpoints:
        yield ChainOwner(
            chain=endpoint_chain_name(port.text, port.protocol, endpoint.text),
            meaning="rewrites the destination to one endpoint",
            service_port=port.text,
            protocol=port.protocol,
            family=port.family,
            endpoint=endpoint.text,
            stands=endpoint.text in standing,
        )
