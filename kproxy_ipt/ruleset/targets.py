"""Targets of a rule (`-j ...`), one frozen class each; what has none of its own is an `OpaqueTarget`."""

from typing import TypeAlias

import msgspec


class Jump(msgspec.Struct, frozen=True, gc=False):
    """`-j CHAIN`, or `-g CHAIN` where *goto* is set (no way back)."""

    chain: str
    goto: bool = False


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """`-j ACCEPT`, `DROP` or `RETURN`."""

    name: str


class Reject(msgspec.Struct, frozen=True, gc=False):
    """`-j REJECT --reject-with KIND`."""

    reject_with: str


class SetMark(msgspec.Struct, frozen=True, gc=False):
    """`-j MARK --set-xmark VALUE/MASK`: the bits of mask are cleared, then value is xor-ed in."""

    value: int
    mask: int


class Dnat(msgspec.Struct, frozen=True, gc=False):
    """`-j DNAT --to-destination TO [--random] [--persistent]`."""

    to_destination: str
    random: bool = False
    persistent: bool = False


class Snat(msgspec.Struct, frozen=True, gc=False):
    """`-j SNAT --to-source TO [--random] [--random-fully] [--persistent]`."""

    to_source: str
    random: bool = False
    random_fully: bool = False
    persistent: bool = False


class Masquerade(msgspec.Struct, frozen=True, gc=False):
    """`-j MASQUERADE [--to-ports PORTS] [--random] [--random-fully]`."""

    to_ports: str = ""
    random: bool = False
    random_fully: bool = False


class OpaqueTarget(msgspec.Struct, frozen=True, gc=False):
    """Any other target: `-j NAME ARGUMENTS`, *arguments* kept to the letter ("" if there are none)."""

    name: str
    arguments: str = ""


Target: TypeAlias = Jump | Verdict | Reject | SetMark | Dnat | Snat | Masquerade | OpaqueTarget
