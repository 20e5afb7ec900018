"""
IP addresses and prefixes as Kubernetes reads them, and as rules write them.

What comes in is API text of any age: `172.30.0.041`, `FD00::00A`, `::ffff:1.2.3.4`. What goes out is the canonical
text that the kernel prints. Decided against: `ipaddress` alone, which rejects leading zeros (Kubernetes reads them as
decimal) and keeps IPv4-mapped addresses as IPv6 (Kubernetes takes them as IPv4).
"""

import ipaddress
import re
from enum import StrEnum
from functools import lru_cache


class Family(StrEnum):
    """An IP family; the value is the word used in options and output."""

    IPV4 = "ipv4"
    IPV6 = "ipv6"

    @property
    def api_name(self) -> str:
        """The family as the Kubernetes API writes it: `IPv4`, `IPv6`."""
        return "IPv4" if self is Family.IPV4 else "IPv6"

    @property
    def bits(self) -> int:
        """Length of an address: 32 or 128."""
        return 32 if self is Family.IPV4 else 128


_OCTET = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_CANONICAL_IPV4 = re.compile(rf"{_OCTET}(?:\.{_OCTET}){{3}}", re.ASCII)
_PADDED_IPV4 = re.compile(r"\d+(?:\.\d+){3}", re.ASCII)
_PREFIX_LENGTH = re.compile(r"\d{1,9}", re.ASCII)


def _without_padding(text: str) -> str:
    """Read each decimal part of a dotted quad without its leading zeros."""
    return ".".join(part.lstrip("0") or "0" for part in text.split("."))


def _parse(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    if "%" in text or len(text) > 64:
        return None
    if _PADDED_IPV4.fullmatch(text):
        text = _without_padding(text)
    elif ":" in text and "." in text:
        head, _, tail = text.rpartition(":")
        text = f"{head}:{_without_padding(tail)}" if _PADDED_IPV4.fullmatch(tail) else text
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        return address.ipv4_mapped or address
    return address


def _print_ipv6(address: ipaddress.IPv6Address) -> str:
    """The text of RFC 5952 without the mixed notation: the kernel's programs read it all the same."""
    return ipaddress.IPv6Address(int(address)).compressed


@lru_cache(maxsize=65536)
def canonical_address(text: str) -> str | None:
    """
    Read an address leniently and print it canonically.

    Args:
        text: API text without surrounding white space; leading zeros are decimal padding.

    Returns:
        The canonical text, or None where *text* is no address (zones such as `%eth0` included).

    Source: `ParseIPSloppy` of Kubernetes; RFC 5952.
    """
    if _CANONICAL_IPV4.fullmatch(text):
        return text
    address = _parse(text)
    if address is None:
        return None
    return str(address) if isinstance(address, ipaddress.IPv4Address) else _print_ipv6(address)


def family_of(canonical: str) -> Family:
    """The family of a canonical address or prefix."""
    return Family.IPV6 if ":" in canonical else Family.IPV4


@lru_cache(maxsize=4096)
def canonical_prefix(text: str) -> str | None:
    """
    Read a prefix (`10.0.0.5/8`) leniently and print it canonically (`10.0.0.0/8`).

    Host bits are masked; an IPv4-mapped prefix of length 96 or more becomes an IPv4 one.

    Returns:
        The canonical text, always with a length, or None where *text* is no prefix.

    Source: `ParseCIDRSloppy` of Kubernetes.
    """
    address_text, slash, length_text = text.partition("/")
    if not slash or not _PREFIX_LENGTH.fullmatch(length_text):
        return None
    address = _parse(address_text)
    if address is None:
        return None
    length = int(length_text)
    if address.version == 4 and ":" in address_text:
        length -= 96
    if not 0 <= length <= address.max_prefixlen:
        return None
    return (
        str(ipaddress.ip_network((int(address), length), strict=False))
        if address.version == 4
        else _network6(int(address), length)
    )


def _network6(address: int, length: int) -> str:
    return ipaddress.IPv6Network((address, length), strict=False).compressed


def is_zero_prefix(canonical: str) -> bool:
    """Whether a canonical prefix covers its whole family."""
    return canonical.endswith("/0")


def prefix_contains(prefix: str, address: str) -> bool:
    """Whether a canonical prefix holds a canonical address; False across families."""
    if family_of(prefix) is not family_of(address):
        return False
    return ipaddress.ip_address(address) in ipaddress.ip_network(prefix)


def special_class(canonical: str) -> str:
    """What an address is that belongs to no single host, as in `a loopback address`; "" for any other."""
    address = ipaddress.ip_address(canonical)
    classes = {
        "the unspecified address": address.is_unspecified,
        "a loopback address": address.is_loopback,
        "a link-local address": address.is_link_local,
        "a multicast address": address.is_multicast,
        "the broadcast address": canonical == "255.255.255.255",
    }
    return next((name for name, is_one in classes.items() if is_one), "")


def is_loopback(canonical: str) -> bool:
    """Whether a canonical address is one of 127.0.0.0/8 or ::1."""
    return canonical == "::1" or canonical.startswith("127.")
