"""Matches that have no class of their own, read as far as a model can know them; the rest is assumed, and said."""

import ipaddress
import shlex
from collections.abc import Callable, Mapping

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.ruleset.matches import OpaqueMatch
from kproxy_ipt.trace.moving import Moving
from kproxy_ipt.trace.packet import Host, Origin


class Read(msgspec.Struct, frozen=True):
    """Whether a match matches, and what was assumed for it ("" where it is known)."""

    matches: bool
    assumption: str = ""


class Options(dict[str, tuple[str, bool]]):
    """Values by option (`--dports`), each with whether `!` stands before it."""


def _options(arguments: str) -> Options:
    """Options of a match; several words after one option are joined by spaces."""
    found, negated, name = Options(), False, ""
    for word in shlex.split(arguments):
        if word == "!":
            negated = True
        elif word.startswith("--"):
            name = word
            found[name] = ("", negated)
            negated = False
        elif name:
            value, turned = found[name]
            found[name] = (f"{value} {word}".strip(), turned)
    return found


def _port_in(port: int, texts: str) -> bool:
    for text in texts.split(","):
        first, _, last = text.partition(":")
        if int(first or 0) <= port <= int(last or (65535 if ":" in text else first)):
            return True
    return False


def _multiport(options: Options, moving: Moving, _host: Host) -> bool | None:
    for name, (texts, negated) in options.items():
        ports = {
            "--dports": (moving.destination_port,),
            "--sports": (moving.source_port,),
            "--ports": (moving.source_port, moving.destination_port),
        }.get(name)
        if ports is None:
            return None
        if any(_port_in(port, texts) for port in ports) is negated:
            return False
    return True


def _iprange(options: Options, moving: Moving, _host: Host) -> bool | None:
    for name, (text, negated) in options.items():
        address = {"--src-range": moving.source, "--dst-range": moving.destination}.get(name)
        first, _, last = text.partition("-")
        if not address:
            return None
        number = int(ipaddress.ip_address(address))
        bounds = int(ipaddress.ip_address(first)), int(ipaddress.ip_address(last or first))
        if (bounds[0] <= number <= bounds[1]) is negated:
            return False
    return True


_ICMP_NAMES = {
    "any": "255",
    "echo-reply": "0",
    "pong": "0",
    "destination-unreachable": "3",
    "echo-request": "8",
    "ping": "8",
    "time-exceeded": "11",
    "parameter-problem": "12",
}


def _icmp(options: Options, moving: Moving, _host: Host) -> bool | None:
    is_v4 = moving.packet.family is Family.IPV4
    if moving.packet.protocol not in (("icmp",) if is_v4 else ("ipv6-icmp", "icmpv6")):
        return False
    text, negated = options.get("--icmp-type" if is_v4 else "--icmpv6-type", ("", False))
    kind, _, code = _ICMP_NAMES.get(text, text).partition("/")
    if not kind.isdigit():
        return None
    echo = 8 if is_v4 else 128
    own = echo if moving.packet.icmp_type is None else moving.packet.icmp_type
    matches = (is_v4 and kind == "255") or (int(kind) == own and code in ("", "0"))
    return matches is not negated


def _state(options: Options, moving: Moving, _host: Host) -> bool | None:
    if set(options) != {"--state"}:
        return None
    texts, negated = options["--state"]
    return (moving.state in texts.split(",")) is not negated


def _tcp(options: Options, moving: Moving, _host: Host) -> bool | None:
    """Flags of the first packet of a flow are SYN alone; those of later packets are taken as ACK alone."""
    if moving.packet.protocol != "tcp":
        return False
    ports = Options({name: options[name] for name in ("--sport", "--dport") if name in options})
    own = {"--sport": moving.source_port, "--dport": moving.destination_port}
    if any(_port_in(own[name], text) is negated for name, (text, negated) in ports.items()):
        return False
    if set(options) - {"--sport", "--dport", "--tcp-flags", "--syn"}:
        return None
    flags, negated = options.get("--tcp-flags", ("FIN,SYN,RST,ACK SYN", options.get("--syn", ("", False))[1]))
    if "--tcp-flags" not in options and "--syn" not in options:
        return True
    mask, _, wanted = flags.partition(" ")
    present = {"SYN"} if moving.packet.state in ("NEW", "UNTRACKED") else {"ACK"}
    return (present & _flags(mask) == _flags(wanted)) is not negated


def _flags(text: str) -> set[str]:
    every = {"FIN", "SYN", "RST", "PSH", "ACK", "URG"}
    return every if text == "ALL" else set() if text == "NONE" else set(text.split(","))


def _physdev(options: Options, _moving: Moving, _host: Host) -> bool | None:
    """A packet that is not bridged has no bridge port at all."""
    return all(negated for _, negated in options.values())


def _owner(_options: Options, moving: Moving, _host: Host) -> bool | None:
    """Only packets of the node itself have an owner, and which one is not known."""
    return None if moving.packet.origin is Origin.NODE else False


def _connmark(options: Options, moving: Moving, _host: Host) -> bool | None:
    text, negated = options.get("--mark", ("", False))
    value, _, mask = text.partition("/")
    if not value or (moving.state != "NEW" and not moving.connection_mark):
        return None
    matches = moving.connection_mark & int(mask or "0xffffffff", 0) == int(value, 0)
    return matches is not negated


def _packet_type(options: Options, _moving: Moving, _host: Host) -> bool | None:
    text, negated = options.get("--pkt-type", ("", False))
    return (text in ("unicast", "host")) is not negated if text in ("unicast", "host") else negated


def _member(address: str, port: str, members: tuple[str, ...]) -> bool:
    number = ipaddress.ip_address(address)
    for member in members:
        prefix, _, wanted = member.partition(",")
        if (not wanted or wanted == port) and number in ipaddress.ip_network(prefix, strict=False):
            return True
    return False


def _set(options: Options, moving: Moving, host: Host) -> bool | None:
    """Members are `PREFIX` or `PREFIX,PROTOCOL:PORT`."""
    text, negated = options.get("--match-set", ("", False))
    name, _, sides = text.partition(" ")
    members = host.sets.get(name)
    if members is None:
        return None
    first, _, second = sides.partition(",")
    address = moving.source if first == "src" else moving.destination
    port = moving.source_port if second == "src" else moving.destination_port
    if not address:
        return None
    return _member(address, f"{moving.packet.protocol}:{port}" if second else "", members) is not negated


def _yes(_options: Options, _moving: Moving, _host: Host) -> bool | None:
    return True


_READERS: Mapping[str, Callable[[Options, Moving, Host], bool | None]] = {
    "connmark": _connmark,
    "icmp": _icmp,
    "icmp6": _icmp,
    "iprange": _iprange,
    "multiport": _multiport,
    "nfacct": _yes,
    "owner": _owner,
    "physdev": _physdev,
    "pkttype": _packet_type,
    "quota": _yes,
    "set": _set,
    "state": _state,
    "tcp": _tcp,
}
"""Readers by match; None from one means that it cannot tell."""

_RATES = {"limit": "--limit", "hashlimit": "", "connlimit": "--connlimit-above"}


def read_opaque(match: OpaqueMatch, moving: Moving, host: Host) -> Read:
    """
    Whether an opaque match matches the packet.

    A rate limit counts as not exceeded; what cannot be told counts as not matching. Both are said.
    """
    if match.name in _RATES:
        return _rate(match)
    reader = _READERS.get(match.name)
    try:
        known = reader(_options(match.arguments), moving, host) if reader else None
    except ValueError:  # a form of an option that is not known here
        known = None
    if known is None:
        return Read(matches=False, assumption=f"match '{_text(match)}' cannot be told: taken as not matching")
    return Read(matches=known)


def _rate(match: OpaqueMatch) -> Read:
    """`limit` and `hashlimit --hashlimit-upto` match below the rate, the others above it."""
    above = "-above" in match.arguments and "! --connlimit-above" not in match.arguments
    negated_upto = "! --connlimit-upto" in match.arguments
    return Read(matches=not (above or negated_upto), assumption=f"the limit '{_text(match)}' is not exceeded")


def _text(match: OpaqueMatch) -> str:
    return f"{match.name} {match.arguments}".strip()
