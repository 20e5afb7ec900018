"""
Which addresses of the node answer node ports.

Source: `nodePortAddresses`, `iptables.localhostNodePorts` of KubeProxyConfiguration.
"""

import ipaddress
from collections.abc import Iterable

import msgspec

from kproxy_ipt.addresses import Family, family_of, is_loopback, is_zero_prefix, prefix_contains


class NodePortEntry(msgspec.Struct, frozen=True, kw_only=True):
    """
    How node ports are entered, for one family.

    Attributes:
        all_addresses: Every local address answers; *addresses* is empty then.
        addresses: The addresses that answer, sorted as text; loopback ones only if *localhost*.
        skipped_loopback: Loopback addresses that the prefixes select but that cannot answer.
        localhost: Whether 127.0.0.0/8 answers; always False for IPv6.
    """

    all_addresses: bool
    addresses: tuple[str, ...] = ()
    skipped_loopback: tuple[str, ...] = ()
    localhost: bool


def node_port_entry(
    prefixes: Iterable[str], interface_addresses: Iterable[str], family: Family, *, localhost_wanted: bool
) -> NodePortEntry:
    """
    Choose the addresses of *family* that answer node ports.

    Args:
        prefixes: `nodePortAddresses` with `primary` expanded, canonical, any family. With none of *family*, or with
            one that covers it, every address answers.
        interface_addresses: Canonical addresses on the node's interfaces, any family.
        family: The others are ignored.
        localhost_wanted: `iptables.localhostNodePorts`.
    """
    own = [prefix for prefix in prefixes if family_of(prefix) is family]
    matches_all = not own or any(is_zero_prefix(prefix) for prefix in own)
    covered = matches_all or any(_touches_loopback(prefix) for prefix in own)
    localhost = localhost_wanted and family is Family.IPV4 and covered
    if matches_all:
        return NodePortEntry(all_addresses=True, localhost=localhost)
    selected = sorted(
        {address for address in interface_addresses if any(prefix_contains(prefix, address) for prefix in own)}
    )
    skipped = () if localhost else tuple(address for address in selected if is_loopback(address))
    return NodePortEntry(
        all_addresses=False,
        addresses=tuple(address for address in selected if address not in skipped),
        skipped_loopback=skipped,
        localhost=localhost,
    )


def _touches_loopback(prefix: str) -> bool:
    return family_of(prefix) is Family.IPV4 and ipaddress.IPv4Network("127.0.0.0/8").overlaps(
        ipaddress.IPv4Network(prefix)
    )
