"""
Matches of a rule (`-m ...`), one frozen class each.

A match that has no class of its own is an `OpaqueMatch`: its text is kept to the letter. So is a match of a known
kind with options that its class does not hold (`-m tcp --tcp-flags ...`).
"""

from typing import TypeAlias

import msgspec

PROBABILITY_ONE = 1 << 31
"""Fixed-point one of the statistic match: the kernel compares 31 random bits (`xt_statistic`)."""


class Comment(msgspec.Struct, frozen=True, gc=False):
    """`-m comment --comment TEXT`; the kernel keeps 255 bytes."""

    text: str


class Conntrack(msgspec.Struct, frozen=True, gc=False):
    """`-m conntrack [!] --ctstate STATES`, states in the order of `iptables-save`."""

    states: tuple[str, ...]
    negated: bool = False


class Mark(msgspec.Struct, frozen=True, gc=False):
    """`-m mark [!] --mark VALUE/MASK`: the packet's mark, and-ed with mask, equals value."""

    value: int
    mask: int = 0xFFFFFFFF
    negated: bool = False


class AddressType(msgspec.Struct, frozen=True, gc=False):
    """`-m addrtype [!] --src-type T [!] --dst-type T`; "" means that the side is not asked for."""

    source: str = ""
    destination: str = ""
    source_negated: bool = False
    destination_negated: bool = False


class PortMatch(msgspec.Struct, frozen=True, gc=False):
    """
    `-m tcp|udp|sctp [!] --sport FIRST[:LAST] [!] --dport FIRST[:LAST]`.

    Ranges are inclusive pairs; None means that the side is not asked for. Both None is the bare `-m tcp`.
    """

    protocol: str
    destination: tuple[int, int] | None = None
    source: tuple[int, int] | None = None
    destination_negated: bool = False
    source_negated: bool = False


class StatisticRandom(msgspec.Struct, frozen=True, gc=False):
    """`-m statistic --mode random --probability P`, P in units of 2**-31 as the kernel stores it."""

    probability: int
    negated: bool = False


class StatisticNth(msgspec.Struct, frozen=True, gc=False):
    """`-m statistic --mode nth --every N --packet P`: one packet in every N, counting from P."""

    every: int
    packet: int = 0
    negated: bool = False


class Recent(msgspec.Struct, frozen=True, gc=False):
    """
    `-m recent`: a list of recent addresses named *name*.

    *action* is `set`, `rcheck`, `update` or `remove`; *seconds* and *hitcount* 0 mean absent; *side* is `rsource` or
    `rdest`; *mask* is an address text, `255.255.255.255` for IPv4 and all ones for IPv6.
    """

    name: str
    action: str
    mask: str
    seconds: int = 0
    reap: bool = False
    hitcount: int = 0
    rttl: bool = False
    side: str = "rsource"
    negated: bool = False


class Nfacct(msgspec.Struct, frozen=True, gc=False):
    """`-m nfacct --nfacct-name NAME`: counts into a named accounting object, always true."""

    name: str


class OpaqueMatch(msgspec.Struct, frozen=True, gc=False):
    """Any other match: `-m NAME ARGUMENTS`, *arguments* kept to the letter ("" if there are none)."""

    name: str
    arguments: str = ""


Match: TypeAlias = (
    Comment
    | Conntrack
    | Mark
    | AddressType
    | PortMatch
    | StatisticRandom
    | StatisticNth
    | Recent
    | Nfacct
    | OpaqueMatch
)
