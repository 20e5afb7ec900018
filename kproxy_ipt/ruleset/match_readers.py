"""
Options of a match -> its value: one small function for each class of `matches.py`.

A reader gets the options that `KNOWN_MATCHES` lists for its name, and answers with the value as `iptables-save` would
print it back, or with None: then the match stays an `OpaqueMatch` with its text.
"""

from collections.abc import Callable, Mapping, Sequence

from kproxy_ipt.addresses import Family
from kproxy_ipt.ruleset.matches import (
    PROBABILITY_ONE,
    AddressType,
    Comment,
    Conntrack,
    Mark,
    Match,
    Nfacct,
    PortMatch,
    Recent,
    StatisticNth,
    StatisticRandom,
)
from kproxy_ipt.ruleset.words import Known, Option, Options, known_options

ALL_ONES = 0xFFFFFFFF

_STATES = ("INVALID", "NEW", "RELATED", "ESTABLISHED", "UNTRACKED", "SNAT", "DNAT")
_ADDRESS_TYPES = (
    "UNSPEC",
    "UNICAST",
    "LOCAL",
    "BROADCAST",
    "ANYCAST",
    "MULTICAST",
    "BLACKHOLE",
    "UNREACHABLE",
    "PROHIBIT",
    "THROW",
    "NAT",
    "XRESOLVE",
)

Reader = Callable[[Options, Family], Match | None]


def number(text: str) -> int | None:
    """An unsigned 32-bit number as C's strtoul reads it: decimal, `0x` hexadecimal or `0` octal; None otherwise."""
    base = 16 if text[:2].lower() == "0x" else 8 if len(text) > 1 and text[0] == "0" else 10
    if not text.isascii() or not text.isalnum():
        return None
    try:
        value = int(text, base)
    except ValueError:
        return None
    return value if value <= ALL_ONES else None


def value_and_mask(text: str) -> tuple[int, int] | None:
    """`VALUE[/MASK]` as numbers; the mask is all ones where it is left out."""
    value_text, slash, mask_text = text.partition("/")
    value, mask = number(value_text), number(mask_text) if slash else ALL_ONES
    return None if value is None or mask is None else (value, mask)


def _any_negated(options: Options, *names: str) -> bool:
    return any(option.negated for name, option in options.items() if name not in names)


def _listed(text: str, order: Sequence[str]) -> tuple[str, ...] | None:
    """The members of a comma list in the order in which they are printed; None where one is unknown."""
    members = {member.upper() for member in text.split(",")}
    return tuple(member for member in order if member in members) if members <= set(order) else None


def _comment(options: Options, _family: Family) -> Match | None:
    if set(options) != {"--comment"} or _any_negated(options):
        return None
    return Comment(options["--comment"].argument)


def _conntrack(options: Options, _family: Family) -> Match | None:
    if set(options) != {"--ctstate"}:
        return None
    states = _listed(options["--ctstate"].argument, _STATES)
    return None if states is None else Conntrack(states, options["--ctstate"].negated)


def _mark(options: Options, _family: Family) -> Match | None:
    found = value_and_mask(options["--mark"].argument) if "--mark" in options else None
    return None if found is None else Mark(*found, options["--mark"].negated)


def _address_types(option: Option | None) -> str | None:
    if option is None:
        return ""
    types = _listed(option.argument, _ADDRESS_TYPES)
    return None if types is None else ",".join(types)


def _address_type(options: Options, _family: Family) -> Match | None:
    source = _address_types(options.get("--src-type"))
    destination = _address_types(options.get("--dst-type"))
    if source is None or destination is None or not options:
        return None
    return AddressType(
        source,
        destination,
        options.get("--src-type", Option()).negated,
        options.get("--dst-type", Option()).negated,
    )


def _port(text: str, default: int) -> int | None:
    if not text:
        return default
    port = number(text)
    return port if port is not None and port <= 65535 else None


def _ports(text: str) -> tuple[int, int] | None:
    """`PORT`, `FIRST:LAST`, `:LAST` or `FIRST:` as a pair; None for names of services and for what is no port."""
    first_text, colon, last_text = text.partition(":")
    first = _port(first_text, 0) if text else None
    last = _port(last_text, 65535) if colon else first
    return None if first is None or last is None or first > last else (first, last)


def _port_match(protocol: str) -> Reader:
    def read(options: Options, _family: Family) -> Match | None:
        ports: dict[str, tuple[int, int] | None] = {}
        for name, option in options.items():
            found = _ports(option.argument)
            if found is None:
                return None
            # A range of all ports asks for nothing, and is not printed.
            ports[name] = None if found == (0, 65535) and not option.negated else found
        return PortMatch(
            protocol,
            ports.get("--dport"),
            ports.get("--sport"),
            options.get("--dport", Option()).negated,
            options.get("--sport", Option()).negated,
        )

    return read


def _probability(text: str) -> int | None:
    """
    A probability in units of 2**-31.

    Source: `lround(0x80000000 * prob)` of libxt_statistic 1.8.9.
    """
    try:
        probability = float(text)
    except ValueError:
        return None
    return int(probability * PROBABILITY_ONE + 0.5) if 0 <= probability <= 1 else None


def _statistic_random(options: Options) -> Match | None:
    if set(options) != {"--mode", "--probability"} or _any_negated(options, "--probability"):
        return None
    probability = _probability(options["--probability"].argument)
    return None if probability is None else StatisticRandom(probability, options["--probability"].negated)


def _statistic_nth(options: Options) -> Match | None:
    if not {"--mode", "--every"} <= set(options) <= {"--mode", "--every", "--packet"}:
        return None
    every = number(options["--every"].argument)
    packet = number(options.get("--packet", Option(argument="0")).argument)
    if not every or packet is None or _any_negated(options, "--every"):
        return None
    return StatisticNth(every, packet, options["--every"].negated)


def _statistic(options: Options, _family: Family) -> Match | None:
    mode = options.get("--mode", Option()).argument
    if mode == "random":
        return _statistic_random(options)
    return _statistic_nth(options) if mode == "nth" else None


_RECENT_ACTIONS = ("--set", "--rcheck", "--update", "--remove")


def _all_ones_address(family: Family) -> str:
    return "255.255.255.255" if family is Family.IPV4 else "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"


def _recent(options: Options, family: Family) -> Match | None:
    actions = [name for name in _RECENT_ACTIONS if name in options]
    seconds = number(options.get("--seconds", Option(argument="0")).argument)
    hitcount = number(options.get("--hitcount", Option(argument="0")).argument)
    if len(actions) != 1 or seconds is None or hitcount is None or _any_negated(options, actions[0]):
        return None
    return Recent(
        name=options.get("--name", Option(argument="DEFAULT")).argument,
        action=actions[0].removeprefix("--"),
        mask=options.get("--mask", Option(argument=_all_ones_address(family))).argument,
        seconds=seconds,
        reap="--reap" in options,
        hitcount=hitcount,
        rttl="--rttl" in options,
        side="rdest" if "--rdest" in options else "rsource",
        negated=options[actions[0]].negated,
    )


def _nfacct(options: Options, _family: Family) -> Match | None:
    if set(options) != {"--nfacct-name"} or _any_negated(options):
        return None
    return Nfacct(options["--nfacct-name"].argument)


_PORTS = known_options(words="--sport --dport", aliases={"--source-port": "--sport", "--destination-port": "--dport"})
_RECENT = known_options(
    "--set --rcheck --update --remove --reap --rttl --rsource --rdest", words="--seconds --hitcount --name --mask"
)

KNOWN_MATCHES: Mapping[str, tuple[Known, Reader]] = {
    "comment": (known_options(words="--comment"), _comment),
    "conntrack": (known_options(words="--ctstate"), _conntrack),
    "mark": (known_options(words="--mark"), _mark),
    "addrtype": (known_options(words="--src-type --dst-type"), _address_type),
    "tcp": (_PORTS, _port_match("tcp")),
    "udp": (_PORTS, _port_match("udp")),
    "sctp": (_PORTS, _port_match("sctp")),
    "statistic": (known_options(words="--mode --probability --every --packet"), _statistic),
    "recent": (_RECENT, _recent),
    "nfacct": (known_options(words="--nfacct-name"), _nfacct),
}
"""Name of a match -> the options that its class holds, and their reader."""

PORT_OPTIONS = frozenset({"--sport", "--dport", "--source-port", "--destination-port"})

IMPLIED_MATCHES: Mapping[str, tuple[str, frozenset[str]]] = {
    "tcp": ("tcp", PORT_OPTIONS | {"--tcp-flags", "--syn", "--tcp-option"}),
    "udp": ("udp", PORT_OPTIONS),
    "udplite": ("udplite", PORT_OPTIONS),
    "sctp": ("sctp", PORT_OPTIONS | {"--chunk-types"}),
    "dccp": ("dccp", PORT_OPTIONS | {"--dccp-types", "--dccp-option"}),
    "icmp": ("icmp", frozenset({"--icmp-type"})),
    "ipv6-icmp": ("icmp6", frozenset({"--icmpv6-type"})),
    "esp": ("esp", frozenset({"--espspi"})),
    "ah": ("ah", frozenset({"--ahspi"})),
}
"""Protocol -> the match that `-p` alone makes available, and the options that call for it."""
