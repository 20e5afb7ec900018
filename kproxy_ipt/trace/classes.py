"""
Cutting the packet space: one value for each part of a range that no prefix or port range tells apart.

Prefixes are nested or apart, never overlapping, so the addresses that the same prefixes hold are those of the innermost
one without its inner ones. One address stands for all of them, exactly.
"""

import ipaddress
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import pairwise

from kproxy_ipt.addresses import Family

LAST_PORT = 65535
ELSEWHERE = {
    Family.IPV4: ("198.51.100.77", "203.0.113.77", "192.0.2.77", "8.8.8.8"),
    Family.IPV6: ("2001:db8::77", "2001:db8:ffff::77", "2606:4700::77"),
}
"""Addresses that stand for all those that no rule names, the first that really is one."""

_STAND_INS = {Family.IPV4: ("198.51.100.1", "203.0.113.1", "192.0.2.1"), Family.IPV6: ("2001:db8::1", "2001:db8:1::1")}


@lru_cache(maxsize=65536)
def address_number(address: str) -> int:
    """A canonical address as a number."""
    return int(ipaddress.ip_address(address))


@lru_cache(maxsize=65536)
def address_text(number: int, family: Family) -> str:
    """The canonical address of *number*."""
    return str(ipaddress.IPv4Address(number)) if family is Family.IPV4 else ipaddress.IPv6Address(number).compressed


@lru_cache(maxsize=65536)
def network_and_mask(prefix: str) -> tuple[int, int]:
    """Network and mask, as numbers, of `ADDRESS/LENGTH` or `ADDRESS/MASK`."""
    address, _, mask_text = prefix.partition("/")
    number = ipaddress.ip_address(address)
    bits = number.max_prefixlen
    mask = ((1 << int(mask_text)) - 1) << (bits - int(mask_text)) if mask_text.isdigit() else address_number(mask_text)
    return int(number) & mask, mask


def is_prefix(network_mask: int, family: Family) -> bool:
    """Whether a mask has no gaps."""
    inverse = ~network_mask & ((1 << family.bits) - 1)
    return inverse & (inverse + 1) == 0


def _interval(prefix: str, family: Family) -> tuple[int, int]:
    network, mask = network_and_mask(prefix)
    return network, network | (~mask & ((1 << family.bits) - 1))


def address_classes(prefixes: Iterable[str], family: Family) -> tuple[int, ...]:
    """
    One address for each set of addresses that exactly the same *prefixes* hold.

    Args:
        prefixes: As rules write them; a mask with gaps is treated as the one address that it names.
        family: Of all of them.

    Returns:
        Numbers, the address that no prefix holds first (if there is one), then in order.
    """
    intervals = {_interval(prefix, family) for prefix in prefixes if is_prefix(network_and_mask(prefix)[1], family)}
    exact = [address_number(text) for text in ELSEWHERE[family]]
    outside = next((one for one in exact if not any(first <= one <= last for first, last in intervals)), None)
    return tuple(_representatives(sorted(intervals, key=lambda one: (one[0], -one[1])), outside, family))


def _representatives(intervals: list[tuple[int, int]], outside: int | None, family: Family) -> Iterator[int]:
    """Walk over all points where a prefix begins or ends, keeping the prefixes that are open there."""
    if outside is not None:
        yield outside
    end = 1 << family.bits
    points = sorted({0, end, *(first for first, _ in intervals), *(last + 1 for _, last in intervals)})
    opened: list[tuple[int, int]] = []
    seen: set[tuple[int, int] | None] = set() if outside is None else {None}
    position = 0
    for point, following in pairwise(points):
        while opened and opened[-1][1] < point:
            opened.pop()
        while position < len(intervals) and intervals[position][0] == point:
            opened.append(intervals[position])
            position += 1
        innermost = opened[-1] if opened else None
        if innermost not in seen:
            seen.add(innermost)
            yield point + 1 if following - point > 2 else point


def unnamed_address(prefixes: Iterable[str], family: Family) -> str | None:
    """An address that stands for one of the node where none is known: no prefix holds it, if there is one such."""
    intervals = [_interval(prefix, family) for prefix in prefixes]
    return next(
        (
            text
            for text in _STAND_INS[family]
            if not any(first <= address_number(text) <= last for first, last in intervals)
        ),
        None,
    )


def port_classes(ranges: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    """
    One port for each part of 0 to 65535 that *ranges* tell apart, and one for all ports that none holds.

    Parts of overlapping ranges may be told apart more than necessary.
    """
    wanted = set(ranges)
    points = sorted({1, LAST_PORT + 1, *(first for first, _ in wanted), *(last + 1 for _, last in wanted)})
    changes: dict[int, int] = dict.fromkeys(points, 0)
    for first, last in wanted:
        changes[first] += 1
        changes[last + 1] -= 1
    found: list[int] = []
    outside: int | None = None
    depth = 0
    for point, following in pairwise(points):
        depth += changes[point]
        if depth:
            found.append(point)
        elif outside is None or following - point > 1000:
            outside = point
    return tuple(found) if outside is None else (*found, outside)
