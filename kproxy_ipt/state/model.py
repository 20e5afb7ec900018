"""
The meaning of objects, for one IP family: the values that selection and rules are computed from.

Texts of addresses are canonical. Sequences keep the order of the object they come from, except endpoints, which are
sorted by the bytes of `ip:port`.
"""

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Scheduler
from kproxy_ipt.errors import Finding


class ServicePort(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """
    One port of one Service, for one family.

    Attributes:
        text: `namespace/name:port_name`, or `namespace/name` where the port has no name: the name used in comments.
        protocol: `tcp`, `udp` or `sctp`.
        node_port: 0 means none.
        external_ips: Those of this family, written whatever the type of the Service.
        load_balancer_ips: Ingress addresses of mode VIP, of this family.
        source_ranges: Canonical prefixes of this family; empty means that every source is allowed.
        affinity_timeout_s: 0 means no session affinity.
        health_check_node_port: 0 means none.
        scheduler: None means the configured one.
    """

    namespace: str
    name: str
    port_name: str
    text: str
    protocol: str
    family: Family
    cluster_ip: str
    port: int
    node_port: int = 0
    external_ips: tuple[str, ...] = ()
    load_balancer_ips: tuple[str, ...] = ()
    source_ranges: tuple[str, ...] = ()
    affinity_timeout_s: int = 0
    internal_local: bool = False
    external_local: bool = False
    health_check_node_port: int = 0
    scheduler: Scheduler | None = None

    @property
    def externally_accessible(self) -> bool:
        """Whether traffic can enter by another address than the cluster IP."""
        return bool(self.node_port or self.load_balancer_ips or self.external_ips)

    @property
    def uses_cluster_endpoints(self) -> bool:
        """Whether any traffic may go to endpoints of all nodes; the short cut of local traffic needs them too."""
        return not self.internal_local or self.externally_accessible

    @property
    def uses_local_endpoints(self) -> bool:
        """Whether any traffic is limited to endpoints of this node."""
        return self.internal_local or (self.external_local and self.externally_accessible)


class Endpoint(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One address and port behind a service port; `text` is `ip:port` or `[ip]:port`."""

    address: str
    port: int
    text: str
    ready: bool = True
    serving: bool = True
    terminating: bool = False
    is_local: bool = False
    zone_hints: tuple[str, ...] = ()
    node_hints: tuple[str, ...] = ()


class ServiceState(msgspec.Struct, frozen=True, gc=False):
    """A service port and all its known endpoints, usable or not, sorted by the bytes of their text, no duplicates."""

    service_port: ServicePort
    endpoints: tuple[Endpoint, ...] = ()


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """
    The node that rules are for, as the API knows it.

    Attributes:
        name: Lower case; "" where nobody told: then no endpoint is local.
        known: Whether the Node object was seen.
        zone: Label `topology.kubernetes.io/zone`, "" if absent.
        addresses: All InternalIP, then all ExternalIP entries that parse, canonical.
        pod_cidrs: `spec.podCIDRs`, canonical.
    """

    name: str = ""
    known: bool = False
    zone: str = ""
    addresses: tuple[str, ...] = ()
    pod_cidrs: tuple[str, ...] = ()


class OptionalPart(StrEnum):
    """A part of kernel and programs that rules can do without, each in its own way; named as iptables names it."""

    NFACCT = "nfacct"
    RANDOM_FULLY = "random-fully"
    RECENT = "recent"
    ADDRTYPE = "addrtype"
    SCTP = "sctp"
    STATISTIC = "statistic"


class MachineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """
    What the machine adds to the objects.

    Attributes:
        interface_addresses: Canonical addresses of both families on the interfaces of the node's namespace.
        tcp_be_liberal: Whether `nf_conntrack_tcp_be_liberal` is on.
        nfacct_counters: Names of the accounting objects that exist in the kernel.
        lacking: Optional parts that were tried and are missing, each with the family that lacks it.
    """

    interface_addresses: tuple[str, ...] = ()
    tcp_be_liberal: bool = False
    nfacct_counters: frozenset[str] = frozenset({"ct_state_invalid_dropped_pkts", "localhost_nps_accepted_pkts"})
    lacking: frozenset[tuple[Family, OptionalPart]] = frozenset()

    def lacking_in(self, family: Family) -> frozenset[OptionalPart]:
        """What rules of *family* have to do without."""
        return frozenset(part for one, part in self.lacking if one is family)


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """
    All state of one family at one moment.

    Attributes:
        services: By `(text, protocol)`, in the order of namespace, name, port name and protocol: the order of rules
            where several services claim one address, the same on every node and in every run.
        findings: What was odd in the objects for this family.
    """

    family: Family
    services: Mapping[tuple[str, str], ServiceState]
    node: NodeFacts
    findings: tuple[Finding, ...] = ()
