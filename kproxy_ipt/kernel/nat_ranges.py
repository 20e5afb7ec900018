"""
The kernel's records of DNAT, SNAT, MASQUERADE and REDIRECT as `iptables-save` prints them.

The libiptc reader decodes these itself. Their library registers for the family that is read first in a process and for
no other, and registering it again ends the process (`target "DNAT" already registered`).

Source: `struct nf_nat_ipv4_multi_range_compat`, `nf_nat_range`, `nf_nat_range2` of `linux/netfilter/nf_nat.h`; the
order of options is that of `libxt_NAT.c` 1.8.9.
"""

import ipaddress
import struct

import msgspec

from kproxy_ipt.addresses import Family

_MAP_ADDRESSES, _MAP_PORTS, _RANDOM, _PERSISTENT, _RANDOM_FULLY, _OFFSET = 1, 2, 4, 8, 16, 32
_COMPAT = struct.Struct("=II4s4s2s2s")
_RANGE = struct.Struct("=I16s16s2s2s")
_RANGE2 = struct.Struct("=I16s16s2s2s2s")
_OPTION = {"DNAT": "--to-destination", "SNAT": "--to-source", "MASQUERADE": "--to-ports", "REDIRECT": "--to-ports"}
_FLAGS = {
    "DNAT": ((_RANDOM, "--random"), (_PERSISTENT, "--persistent")),
    "SNAT": ((_RANDOM, "--random"), (_RANDOM_FULLY, "--random-fully"), (_PERSISTENT, "--persistent")),
    "MASQUERADE": ((_RANDOM, "--random"), (_RANDOM_FULLY, "--random-fully")),
    "REDIRECT": ((_RANDOM, "--random"),),
}


class _Range(msgspec.Struct, frozen=True):
    """Flags, first and last address (packed), first, last and base port."""

    flags: int
    addresses: tuple[bytes, bytes]
    ports: tuple[int, int]
    base_port: int = 0


def nat_arguments(family: Family, name: str, revision: int, record: bytes) -> str | None:
    """
    The options of a translation target.

    Args:
        family: Of the table.
        name: `DNAT`, `SNAT`, `MASQUERADE` or `REDIRECT`; any other gives None.
        revision: Of the target in the rule: 0, 1 or 2.
        record: What follows the header of the target.

    Returns:
        `--to-destination 10.0.0.1:80 --random`, "" if there are no options, or None for a record of unknown shape.
    """
    if name not in _OPTION:
        return None
    mapped = _read(family, name, revision, record)
    if mapped is None:
        return None
    to_addresses = name in ("DNAT", "SNAT")
    value = _text(family, mapped) if to_addresses else _ports(mapped)
    words = [f"{_OPTION[name]} {value}"] if value or to_addresses else []
    words += [word for bit, word in _FLAGS[name] if mapped.flags & bit]
    return " ".join(words)


def _read(family: Family, name: str, revision: int, record: bytes) -> _Range | None:
    if revision == 0 and family is Family.IPV4:
        if len(record) < _COMPAT.size:
            return None
        _, flags, first, last, low, high = _COMPAT.unpack_from(record)
        return _Range(flags, (first, last), (_port(low), _port(high)))
    has_base = revision == 2
    if revision > 2 or (revision == 0 and name in ("DNAT", "SNAT")):
        return None
    layout = _RANGE2 if has_base else _RANGE
    if len(record) < layout.size:
        return None
    flags, first, last, low, high, *base = layout.unpack_from(record)
    width = family.bits // 8
    return _Range(flags, (first[:width], last[:width]), (_port(low), _port(high)), _port(base[0]) if base else 0)


def _port(packed: bytes) -> int:
    return int.from_bytes(packed, "big")


def _text(family: Family, mapped: _Range) -> str:
    ports = _ports(mapped)
    if not mapped.flags & _MAP_ADDRESSES:
        return f":{ports}" if ports else ""
    first, last = (ipaddress.ip_address(packed).compressed for packed in mapped.addresses)
    addresses = first if first == last else f"{first}-{last}"
    if not ports:
        return addresses
    return f"[{addresses}]:{ports}" if family is Family.IPV6 else f"{addresses}:{ports}"


def _ports(mapped: _Range) -> str:
    if not mapped.flags & _MAP_PORTS:
        return ""
    low, high = mapped.ports
    ports = str(low) if low == high else f"{low}-{high}"
    return f"{ports}/{mapped.base_port}" if mapped.flags & _OFFSET else ports
