"""
What a target does to a packet: it goes on, changed or not, or leaves the chain, or its fate is sealed.

Jumps are the walk's affair.
"""

import re
import shlex
from collections.abc import Callable, Mapping
from enum import Enum, auto
from itertools import pairwise
from typing import NamedTuple

import msgspec

from kproxy_ipt.addresses import canonical_address
from kproxy_ipt.ruleset.targets import (
    Dnat,
    Jump,
    Masquerade,
    OpaqueTarget,
    Reject,
    SetMark,
    Snat,
    Target,
    Verdict,
)
from kproxy_ipt.trace.hooks import OUTPUT
from kproxy_ipt.trace.moving import Moving, assuming


class Fate(Enum):
    """What comes after a rule: its next rule, the caller of its chain, the next table, or nothing more."""

    GO_ON = auto()
    RETURN = auto()
    ACCEPT = auto()
    DROP = auto()
    REJECT = auto()


class Acted(NamedTuple):
    """A packet after a target."""

    fate: Fate
    moving: Moving


_TO = re.compile(r"(?:\[(?P<v6>[^]]+)\]|(?P<plain>[^:]*|[^:]*:[^:]*:.*?))(?::(?P<ports>[0-9/-]+))?")
"""`10.0.0.1:80`, `10.0.0.1-10.0.0.9`, `:80`, `fd00::1`, `[fd00::1]:80`."""

_VERDICTS = {"ACCEPT": Fate.ACCEPT, "DROP": Fate.DROP, "RETURN": Fate.RETURN}


class _To(NamedTuple):
    address: str
    port: int
    is_range: bool


def _read_to(text: str) -> _To:
    """Where a NAT target leads; of a range the first one."""
    if text.count(":") > 1 and "[" not in text:
        addresses, ports = text, ""
    else:
        found = _TO.fullmatch(text)
        addresses, ports = (found["v6"] or found["plain"], found["ports"] or "") if found else (text, "")
    first, _, last = addresses.partition("-")
    first_port, _, last_port = ports.partition("/")[0].partition("-")
    is_range = last not in ("", first) or last_port not in ("", first_port)
    return _To(canonical_address(first) or first, int(first_port or 0), is_range)


def _dnat(target: Dnat, moving: Moving) -> Acted:
    to = _read_to(target.to_destination)
    if to.is_range:
        moving = assuming(moving, f"of the range {target.to_destination} the first is taken")
    return Acted(Fate.ACCEPT, _translated(moving, to.address, to.port))


def _translated(moving: Moving, address: str, port: int) -> Moving:
    return msgspec.structs.replace(
        moving,
        destination=address or moving.destination,
        destination_port=port or moving.destination_port,
        destination_translated=True,
    )


def _snat(target: Snat, moving: Moving) -> Acted:
    to = _read_to(target.to_source)
    if to.is_range:
        moving = assuming(moving, f"of the range {target.to_source} the first is taken")
    source = to.address or moving.source
    return Acted(Fate.ACCEPT, msgspec.structs.replace(moving, source=source, source_translated=True))


def _masquerade(_target: Masquerade, moving: Moving) -> Acted:
    return Acted(Fate.ACCEPT, msgspec.structs.replace(moving, source="", source_translated=True))


def _set_mark(target: SetMark, moving: Moving) -> Acted:
    mark = (moving.mark & ~target.mask & 0xFFFFFFFF) ^ target.value
    return Acted(Fate.GO_ON, msgspec.structs.replace(moving, mark=mark))


def _verdict(target: Verdict, moving: Moving) -> Acted:
    return Acted(_VERDICTS[target.name], moving)


def _reject(_target: Reject, moving: Moving) -> Acted:
    return Acted(Fate.REJECT, moving)


def _redirect(target: OpaqueTarget, moving: Moving) -> Acted:
    """To the node itself: 127.0.0.1 for its own packets, else the address of the interface that they came in by."""
    ports = re.search(r"--to-ports (\d+)", target.arguments)
    loopback = "::1" if ":" in moving.packet.destination else "127.0.0.1"
    if moving.hook != OUTPUT:
        moving = assuming(moving, "REDIRECT goes to the address of the incoming interface, shown as loopback")
    return Acted(Fate.ACCEPT, _translated(moving, loopback, int(ports[1]) if ports else 0))


def _netmap(target: OpaqueTarget, moving: Moving) -> Acted:
    return Acted(Fate.ACCEPT, assuming(moving, f"NETMAP {target.arguments} is not modelled: address kept"))


_ALL_ONES = 0xFFFFFFFF


def _connmark(target: OpaqueTarget, moving: Moving) -> Acted:
    """Between packet and conntrack record; that of a known flow counts as 0 unless a rule of this walk set it."""
    words = shlex.split(target.arguments)
    masks = {name: int(value, 0) for name, value in pairwise(words) if name.endswith("mask")}
    packet_mask, record_mask = masks.get("--nfmask", _ALL_ONES), masks.get("--ctmask", _ALL_ONES)
    if "--restore-mark" in words:
        if moving.state != "NEW" and not moving.connection_mark:
            moving = assuming(moving, "the mark of the known connection is taken as 0")
        mark = (moving.mark & ~packet_mask & _ALL_ONES) ^ (moving.connection_mark & record_mask)
        return Acted(Fate.GO_ON, msgspec.structs.replace(moving, mark=mark))
    if "--save-mark" in words:
        saved = (moving.connection_mark & ~record_mask & _ALL_ONES) ^ (moving.mark & packet_mask)
        return Acted(Fate.GO_ON, msgspec.structs.replace(moving, connection_mark=saved))
    value, _, mask = words[-1].partition("/")
    kept = moving.connection_mark & ~int(mask or "0xffffffff", 0) & _ALL_ONES
    return Acted(Fate.GO_ON, msgspec.structs.replace(moving, connection_mark=kept ^ int(value, 0)))


def _conntrack(target: OpaqueTarget, moving: Moving) -> Acted:
    if target.name == "NOTRACK" or "--notrack" in target.arguments:
        moving = msgspec.structs.replace(moving, state="UNTRACKED")
    return Acted(Fate.GO_ON, moving)


def _queue(target: OpaqueTarget, moving: Moving) -> Acted:
    return Acted(Fate.ACCEPT, assuming(moving, f"the program behind {target.name} accepts"))


def _tarpit(_target: OpaqueTarget, moving: Moving) -> Acted:
    return Acted(Fate.DROP, moving)


def _go_on(_target: OpaqueTarget, moving: Moving) -> Acted:
    return Acted(Fate.GO_ON, moving)


HARMLESS = (
    *("AUDIT", "CHECKSUM", "CLASSIFY", "CONNSECMARK", "DSCP", "ECN", "HL", "HMARK", "IDLETIMER", "LED", "LOG"),
    *("NFLOG", "RATEEST", "SECMARK", "SET", "SYNPROXY", "TCPMSS", "TCPOPTSTRIP", "TEE", "TOS", "TRACE", "TTL", "ULOG"),
)
"""Targets that change nothing that a rule here asks for, and go on."""

_OPAQUE: Mapping[str, Callable[[OpaqueTarget, Moving], Acted]] = {
    **dict.fromkeys(HARMLESS, _go_on),
    "CONNMARK": _connmark,
    "CT": _conntrack,
    "NETMAP": _netmap,
    "NFQUEUE": _queue,
    "NOTRACK": _conntrack,
    "QUEUE": _queue,
    "REDIRECT": _redirect,
    "TARPIT": _tarpit,
}


def _opaque(target: OpaqueTarget, moving: Moving) -> Acted:
    known = _OPAQUE.get(target.name)
    try:
        if known:
            return known(target, moving)
    except (ValueError, IndexError):  # a form of an option that is not known here
        pass
    text = f"{target.name} {target.arguments}".strip()
    return Acted(Fate.GO_ON, assuming(moving, f"target '{text}' is not understood: taken as going on"))


def act(target: Target | None, moving: Moving) -> Acted:
    """
    What *target* does; a rule without one only counts.

    A jump goes on from here: who walks has to follow it.
    """
    match target:
        case None | Jump():
            return Acted(Fate.GO_ON, moving)
        case Verdict():
            return _verdict(target, moving)
        case Reject():
            return _reject(target, moving)
        case SetMark():
            return _set_mark(target, moving)
        case Dnat():
            return _dnat(target, moving)
        case Snat():
            return _snat(target, moving)
        case Masquerade():
            return _masquerade(target, moving)
        case OpaqueTarget():
            return _opaque(target, moving)
