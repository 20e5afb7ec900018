"""
Prefixes, interfaces and protocols in the header of a rule, as `iptables-save` prints them back.

Source: `xtables_ipaddr_to_numeric`, `xtables_ipmask_to_numeric` of libxtables 1.8.9, `inet_ntop` of glibc.
"""

import ipaddress
from functools import lru_cache

from kproxy_ipt.errors import RulesetError

_PROTOCOLS = {
    "0": "",
    "all": "",
    "1": "icmp",
    "6": "tcp",
    "17": "udp",
    "50": "esp",
    "51": "ah",
    "58": "ipv6-icmp",
    "icmpv6": "ipv6-icmp",
    "132": "sctp",
    "136": "udplite",
}
"""Other spellings of the protocols that every iptables can name; "" is any protocol."""


def protocol_name(text: str) -> str:
    """The protocol *text* as it is printed: names in lower case, the common numbers as names, "" for `all`."""
    lower = text.lower()
    return _PROTOCOLS.get(lower, lower)


def interface_name(text: str) -> str:
    """The interface *text*; "" for `+`, which stands for all interfaces."""
    return "" if text == "+" else text


def _address_text(value: int, bits: int) -> str:
    if bits == 32:
        return str(ipaddress.IPv4Address(value))
    if value >> 32 == 0xFFFF:
        return f"::ffff:{ipaddress.IPv4Address(value & 0xFFFFFFFF)}"
    if value >> 32 == 0 and value > 0xFFFF:
        return f"::{ipaddress.IPv4Address(value)}"
    return ipaddress.IPv6Address(value).compressed


def _mask_value(text: str, bits: int) -> int:
    """A mask as a number, from a length or an address."""
    if text.isascii() and text.isdigit():
        length = int(text)
        if length > bits:
            raise ValueError(text)
        return ((1 << length) - 1) << (bits - length)
    mask = ipaddress.ip_address(text)
    if mask.max_prefixlen != bits:
        raise ValueError(text)
    return int(mask)


def _length(mask: int, bits: int) -> int | None:
    """The prefix length that *mask* stands for, or None where it has gaps."""
    length = mask.bit_count()
    return length if mask == ((1 << length) - 1) << (bits - length) else None


@lru_cache(maxsize=65536)
def printed_prefix(text: str, *, negated: bool = False) -> str:
    """
    The source or destination *text* as it is printed: host bits masked, `/LENGTH` always there.

    Returns:
        `ADDRESS/LENGTH`, `ADDRESS/MASK` where the mask has gaps, "" for all addresses (unless *negated*: then the rule
        never matches, and the kernel keeps it).

    Raises:
        RulesetError: *text* is no address or prefix. Names of hosts and lists are not: one rule has one prefix.
    """
    address_text, slash, mask_text = text.partition("/")
    try:
        address = ipaddress.ip_address(address_text)
        bits = address.max_prefixlen
        mask = _mask_value(mask_text, bits) if slash else (1 << bits) - 1
    except ValueError as error:
        raise RulesetError(f"found {text!r}, expected an address or a prefix") from error
    if not mask and not negated:
        return ""
    length = _length(mask, bits)
    mask_printed = str(length) if length is not None else _address_text(mask, bits)
    return f"{_address_text(int(address) & mask, bits)}/{mask_printed}"
