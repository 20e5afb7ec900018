"""
Counters of a few chains of a legacy table, read without decoding rules.

The kernel hands out a table as one piece; a chain is found in it by the entry that holds its name, and its rules follow
one after the other. So the cost is the copy of the table, some milliseconds for 10,000 rules, whatever is asked for.

Source: `struct ipt_entry`, `struct xt_error_target` of `linux/netfilter/x_tables.h`.
"""

import struct
from collections.abc import Iterable, Mapping

from kproxy_ipt.addresses import Family
from kproxy_ipt.kernel.notify_legacy import legacy_fingerprint, read_entries

_ENTRY_SIZE = {Family.IPV4: 112, Family.IPV6: 168}
_OFFSETS = struct.Struct("=HH")
_OFFSETS_AT = {Family.IPV4: 88, Family.IPV6: 140}
_PACKETS = struct.Struct("=Q")
_PACKETS_AT = {Family.IPV4: 96, Family.IPV6: 152}
_TARGET_SIZE = 32
_TARGET_NAME_AT = 2
_ERROR = b"ERROR\0"


def chain_counters(family: Family, table: str, chains: Iterable[str]) -> Mapping[str, tuple[int, ...]]:
    """
    The packets that each rule of some chains has counted.

    Args:
        family: Of the table.
        table: `nat`, `filter`; it is not created.
        chains: Names of chains that are not built in; those that do not exist are left out.

    Returns:
        By chain, in the order of the rules, all of them and one more for the end of the chain.

    Raises:
        MissingPrivilegeError: CAP_NET_ADMIN and CAP_NET_RAW are needed.
        KernelError: The kernel does not answer, or the table changed in the middle.
    """
    entries = read_entries(family, table)
    found = {chain: _start_of(entries, family, chain) for chain in chains}
    return {chain: _packets_from(entries, family, start) for chain, start in found.items() if start is not None}


def table_octets(family: Family, table: str) -> int:
    """
    The size of a table, asked for without reading it; 0 if there is none.

    Raises:
        As `chain_counters`.
    """
    return sum(shape.octets for shape in legacy_fingerprint(family, (table,)))


def _start_of(entries: bytes, family: Family, chain: str) -> int | None:
    """Where the first rule of a chain is: behind the entry whose target ERROR has the name of the chain."""
    name, size = chain.encode() + b"\0", _ENTRY_SIZE[family]
    position = entries.find(name)
    while position >= 0:
        start = position - _TARGET_SIZE - size
        if start >= 0 and _is_error(entries, family, start):
            return start + _next_offset(entries, family, start)
        position = entries.find(name, position + 1)
    return None


def _packets_from(entries: bytes, family: Family, start: int) -> tuple[int, ...]:
    found: list[int] = []
    while start < len(entries) and not _is_error(entries, family, start):
        found.append(_PACKETS.unpack_from(entries, start + _PACKETS_AT[family])[0])
        start += _next_offset(entries, family, start)
    return tuple(found)


def _is_error(entries: bytes, family: Family, start: int) -> bool:
    target_offset, _ = _OFFSETS.unpack_from(entries, start + _OFFSETS_AT[family])
    return entries.startswith(_ERROR, start + target_offset + _TARGET_NAME_AT)


def _next_offset(entries: bytes, family: Family, start: int) -> int:
    _, next_offset = _OFFSETS.unpack_from(entries, start + _OFFSETS_AT[family])
    return max(int(next_offset), _ENTRY_SIZE[family])
