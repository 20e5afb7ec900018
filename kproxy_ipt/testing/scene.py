"""
A node with its rules, seen from outside: who sends, from which address, by which interface; and what becomes of it.

The packets that stand for a flow are the first ones of a connection: of a pod or a machine outside they enter at
PREROUTING, of the node itself (any of its addresses, loopback included) at OUTPUT.
"""

import ipaddress
from collections.abc import Mapping

import msgspec

from kproxy_ipt.addresses import Family, canonical_address, family_of, is_loopback, prefix_contains
from kproxy_ipt.config.model import Config, DetectLocalMode
from kproxy_ipt.ruleset.model import Ruleset
from kproxy_ipt.state.model import NodeFacts
from kproxy_ipt.testing.flow_table import NAMED_SOURCES, CaseError
from kproxy_ipt.testing.flows import Fate, Flow, fate_of
from kproxy_ipt.trace.packet import Host, Origin, Packet
from kproxy_ipt.trace.walk import walk

OUTSIDE = ("198.51.100.200", "2001:db8:ffff::200")
"""Addresses of `outside` unless somebody says others: of the ranges for documentation."""

_POD_NUMBER = 250
_POD_INTERFACE, _OUTSIDE_INTERFACE = "pod0", "eth0"


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """
    Rules of a node and those who use it.

    Attributes:
        rulesets: Of each family, built-in chains included.
        host: Addresses of the node.
        addresses: Of `pod`, `node` and `outside`, the first one of each family counts.
        interfaces: Where packets of `pod` and `outside` come in.
        pod_ranges: Addresses that are those of pods.
    """

    rulesets: Mapping[Family, Ruleset]
    host: Host
    addresses: Mapping[str, tuple[str, ...]]
    interfaces: Mapping[str, str]
    pod_ranges: tuple[str, ...] = ()

    def packet(self, flow: Flow) -> Packet:
        """
        The first packet of *flow*.

        Raises:
            CaseError: The destination is no address, or the source has none of its family.
        """
        destination = canonical_address(flow.to)
        if destination is None:
            raise CaseError((f"{flow}: found {flow.to!r}, expected an IP address",))
        family = family_of(destination)
        source = self._source(flow, family)
        from_node = source in self.host.addresses or is_loopback(source)
        return Packet(
            family=family,
            source=source,
            destination=destination,
            protocol=flow.protocol,
            source_port=40_000,
            destination_port=flow.port,
            in_interface=flow.interface or ("" if from_node else self._interface(flow, source)),
            origin=Origin.NODE if from_node else Origin.REMOTE,
        )

    def _source(self, flow: Flow, family: Family) -> str:
        if flow.source not in NAMED_SOURCES:
            address = canonical_address(flow.source)
            if address is None or family_of(address) is not family:
                found = f"found {flow.source!r}, expected pod, node, outside or an {family.api_name} address"
                raise CaseError((f"{flow}: {found}",))
            return address
        for address in self.addresses.get(flow.source, ()):
            if family_of(address) is family:
                return address
        raise CaseError((f"{flow}: no {family.api_name} address of `{flow.source}` is known: name one",))

    def _interface(self, flow: Flow, source: str) -> str:
        is_pod = any(prefix_contains(prefix, source) for prefix in self.pod_ranges)
        name = flow.source if flow.source in NAMED_SOURCES else "pod" if is_pod else "outside"
        return self.interfaces.get(name, "")

    def fate(self, flow: Flow) -> Fate:
        """
        What becomes of *flow*.

        Raises:
            CaseError: As `packet`.
        """
        packet = self.packet(flow)
        return fate_of(walk(self.rulesets[packet.family], packet, self.host))


def scene_of(
    rulesets: Mapping[Family, Ruleset],
    config: Config,
    node: NodeFacts,
    interface_addresses: tuple[str, ...],
    *,
    addresses: Mapping[str, tuple[str, ...]] | None = None,
    interfaces: Mapping[str, str] | None = None,
) -> Scene:
    """
    The scene of a node.

    Args:
        rulesets: Of each family.
        config: Says which addresses or interfaces are those of pods.
        node: Its addresses are those of `node`.
        interface_addresses: All that the node has on its interfaces.
        addresses: Of named sources, instead of those that follow from the others.
        interfaces: Of named sources, likewise.
    """
    named = addresses or {}
    own = tuple(address for address in (*node.addresses, *interface_addresses) if not is_loopback(address))
    pod_ranges = node.pod_cidrs if config.detect_local_mode is DetectLocalMode.NODE_CIDR else config.cluster_cidrs
    pods = tuple(_address_inside(prefix) for prefix in (*pod_ranges, *node.pod_cidrs))
    return Scene(
        rulesets=rulesets,
        host=Host(addresses=frozenset((*own, *named.get("node", ())))),
        addresses={"pod": pods, "node": own, "outside": OUTSIDE, **named},
        interfaces={"pod": _pod_interface(config), "outside": _OUTSIDE_INTERFACE, **(interfaces or {})},
        pod_ranges=(*pod_ranges, *node.pod_cidrs),
    )


def _address_inside(prefix: str) -> str:
    """An address that hardly any endpoint of a test has: the 250th of the range, if it is as large as that."""
    network = ipaddress.ip_network(prefix)
    return str(network[min(_POD_NUMBER, network.num_addresses - 1)])


def _pod_interface(config: Config) -> str:
    if config.detect_local_mode is DetectLocalMode.BRIDGE_INTERFACE:
        return config.bridge_interface
    if config.detect_local_mode is DetectLocalMode.INTERFACE_NAME_PREFIX:
        return f"{config.interface_name_prefix}0"
    return _POD_INTERFACE
