"""
The packets of one class that rules tell apart: one for each combination of sources, interfaces, marks and states.

Only what the rules of the class still ask for is varied, and what `nat` alone asks for only for new connections. Of
marks, all combinations of the bits that rules look at are tried, up to six bits; of lists of `recent`, a client that no
list knows, one that a single list knows, at each age that rules tell apart, and one that two or all of them know.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, combinations, product

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.ruleset.matches import AddressType, Conntrack, Mark, OpaqueMatch, PortMatch, Recent, StatisticNth
from kproxy_ipt.ruleset.targets import OpaqueTarget
from kproxy_ipt.trace.classes import address_classes, address_text, is_prefix, network_and_mask, port_classes
from kproxy_ipt.trace.hooks import NAT
from kproxy_ipt.trace.indexed import Asked, Condition
from kproxy_ipt.trace.normal_form import Block, Blocks, Choice
from kproxy_ipt.trace.packet import Host, Origin, Packet

MOST_PACKETS = 4096
"""Packets of one class that are tried; a class with more is not decided if these are treated alike."""

_STATES = ("NEW", "ESTABLISHED", "RELATED", "INVALID", "UNTRACKED")
_MOST_BITS = 6
_WHOLE = 0xFFFFFFFF
_MOST_PAIRED = 12
_OTHER_INTERFACE = "other0"
_CLIENT_PORT = 40000
_WITH_PORTS = frozenset({"tcp", "udp", "sctp", "udplite", "dccp"})


class Clients(msgspec.Struct, frozen=True):
    """Lists of `recent` that know the source of a packet, and since when; none for a new client."""

    ages_s: tuple[tuple[str, int], ...] = ()


class Candidate(msgspec.Struct, frozen=True):
    """A packet, and what is remembered about its source."""

    packet: Packet
    clients: Clients


def conditions_of(blocks: Iterable[Block]) -> Iterator[Condition | OpaqueTarget]:
    """Every condition in *blocks*, those of inner blocks included, and targets that are not understood."""
    for block in blocks:
        for clause in block.clauses:
            yield from clause.conditions
            if isinstance(clause.action, Block):
                yield from conditions_of((clause.action,))
            elif isinstance(clause.action, Choice):
                yield from conditions_of(way for _, way in clause.action.ways)
            elif isinstance(clause.action, OpaqueTarget):
                yield clause.action


def undecided(conditions: Iterable[Condition | OpaqueTarget], family: Family) -> tuple[str, ...]:
    """What among *conditions* one packet cannot stand for, in words, each once."""
    known = tuple(conditions)
    words = [word for one in known if (word := _undecided(one, family))]
    if len(_single_bits(known)) > _MOST_BITS:
        words.append(f"a mark of more than {_MOST_BITS} bits")
    return tuple(dict.fromkeys(words))


def _undecided(one: Condition | OpaqueTarget, family: Family) -> str:
    if isinstance(one, OpaqueMatch):
        return f"match '{one.name}'"
    if isinstance(one, OpaqueTarget):
        return f"target '{one.name}'"
    if isinstance(one, StatisticNth):
        return "match 'statistic --mode nth'"
    if isinstance(one, Recent) and (one.hitcount or one.rttl or one.side != "rsource"):
        return "match 'recent' with more than a list and seconds"
    if isinstance(one, AddressType) and {one.source, one.destination} - {"", "LOCAL"}:
        return "match 'addrtype' with types other than LOCAL"
    if isinstance(one, Asked) and one.field in ("source", "destination"):
        return "" if is_prefix(network_and_mask(one.value)[1], family) else "a mask with gaps"
    return "fragments" if isinstance(one, Asked) and one.field == "fragment" else ""


class Values(msgspec.Struct, frozen=True, kw_only=True):
    """One value for each part of a dimension that the conditions tell apart, the most ordinary first."""

    sources: tuple[str, ...]
    source_ports: tuple[int, ...]
    in_interfaces: tuple[str, ...]
    out_interfaces: tuple[str, ...]
    marks: tuple[int, ...]
    states: tuple[str, ...]
    clients: tuple[Clients, ...]

    @property
    def packets(self) -> int:
        """How many combinations there are, origins not counted."""
        count = 1
        for name in self.__struct_fields__:
            count *= len(getattr(self, name))
        return count


def values_of(conditions: Sequence[Condition | OpaqueTarget], family: Family, host: Host, *, marked: bool) -> Values:
    """The values that *conditions* tell apart; without *marked* packets arrive with the mark 0."""
    return Values(
        sources=_sources(conditions, family, host),
        source_ports=_source_ports(conditions),
        in_interfaces=_interfaces(conditions, "in"),
        out_interfaces=_interfaces(conditions, "out"),
        marks=_marks(conditions) if marked else (0,),
        states=_states(conditions),
        clients=_clients(conditions),
    )


def _sources(conditions: Iterable[Condition | OpaqueTarget], family: Family, host: Host) -> tuple[str, ...]:
    prefixes: set[str] = set()
    for one in conditions:
        if isinstance(one, Asked) and one.field == "source":
            prefixes.add(one.value)
        elif isinstance(one, AddressType) and one.source:
            prefixes |= local_prefixes(family, host)
    return tuple(address_text(number, family) for number in address_classes(sorted(prefixes), family))


def local_prefixes(family: Family, host: Host) -> set[str]:
    """Prefixes that tell apart what is of the node and what is not."""
    own = {f"{address}/{family.bits}" for address in host.addresses if (":" in address) is (family is Family.IPV6)}
    return own | {"127.0.0.0/8" if family is Family.IPV4 else "::1/128"}


def _source_ports(conditions: Iterable[Condition | OpaqueTarget]) -> tuple[int, ...]:
    ranges = [one.source for one in conditions if isinstance(one, PortMatch) and one.source]
    return port_classes(ranges) if ranges else (_CLIENT_PORT,)


def _interfaces(conditions: Iterable[Condition | OpaqueTarget], field: str) -> tuple[str, ...]:
    patterns = sorted({one.value for one in conditions if isinstance(one, Asked) and one.field == field})
    if not patterns:
        return ("",)
    names = (f"{pattern[:-1]}0" if pattern.endswith("+") else pattern for pattern in patterns)
    return tuple(dict.fromkeys((_OTHER_INTERFACE, *names)))


def _marks(conditions: Iterable[Condition | OpaqueTarget]) -> tuple[int, ...]:
    """All combinations of the bits that are asked for, by themselves and on top of each whole mark that is."""
    bits = _single_bits(conditions)
    whole = {one.value for one in conditions if isinstance(one, Mark) and one.mask == _WHOLE}
    if len(bits) <= _MOST_BITS:
        chosen = [sum(some) for some in product(*((0, bit) for bit in bits))]
    else:
        chosen = [0, *bits, sum(bits)]
    return tuple(dict.fromkeys((*chosen, *(value ^ some for value in sorted(whole) for some in chosen))))


def _single_bits(conditions: Iterable[Condition | OpaqueTarget]) -> tuple[int, ...]:
    """The bits in masks of mark matches, but for those that ask for a whole mark."""
    masks = [one.mask for one in conditions if isinstance(one, Mark) and one.mask != _WHOLE]
    return tuple(1 << position for position in range(32) if any(mask >> position & 1 for mask in masks))


def _states(conditions: Iterable[Condition | OpaqueTarget]) -> tuple[str, ...]:
    asked = [frozenset(one.states) for one in conditions if isinstance(one, Conntrack)]
    if any(isinstance(one, OpaqueMatch) and one.name == "state" for one in conditions):
        return _STATES
    found = {tuple(state in states for states in dict.fromkeys(asked)): state for state in reversed(_STATES[1:])}
    return ("NEW", *reversed(found.values()))


def _clients(conditions: Iterable[Condition | OpaqueTarget]) -> tuple[Clients, ...]:
    seconds: dict[str, set[int]] = {}
    for one in conditions:
        if isinstance(one, Recent) and one.action != "set":
            seconds.setdefault(one.name, set()).add(one.seconds)
    if not seconds:
        return (Clients(),)
    single = [Clients(((name, age),)) for name, limits in sorted(seconds.items()) for age in _ages(limits)]
    paired = combinations(sorted(seconds), 2) if len(seconds) <= _MOST_PAIRED else ()
    several = dict.fromkeys((*paired, tuple(sorted(seconds))))
    return (Clients(), *single, *(Clients(tuple((name, 0) for name in names)) for names in several))


def _ages(limits: set[int]) -> Iterator[int]:
    """An age just under each limit, and one beyond all."""
    yield from (limit - 1 for limit in sorted(limits) if limit)
    yield max(limits) + 1


def candidates(
    pattern: Packet, blocks: Sequence[Blocks], host: Host, *, marked: bool
) -> tuple[Iterator[Candidate], bool]:
    """
    The packets of one class, and whether those that are given are all.

    Args:
        pattern: Gives family, destination, protocol and port.
        blocks: What each Ruleset does with the class.
        host: Decides what is local.
        marked: Whether packets may arrive with a mark.
    """
    everything = [one for some in blocks for one in conditions_of(some.values())]
    without_nat = [
        one for some in blocks for one in conditions_of(block for (table, _), block in some.items() if table != NAT)
    ]
    new = msgspec.structs.replace(values_of(everything, pattern.family, host, marked=marked), states=("NEW",))
    later = values_of(without_nat, pattern.family, host, marked=marked)
    later = msgspec.structs.replace(later, states=later.states[1:])
    whole = chain(_combined(pattern, new), _combined(pattern, later))
    return whole, 2 * (new.packets + later.packets) <= MOST_PACKETS


def _combined(pattern: Packet, values: Values) -> Iterator[Candidate]:
    source_ports = values.source_ports if pattern.protocol in _WITH_PORTS else (0,)
    for state, mark, clients, port, out, origin in product(
        values.states, values.marks, values.clients, source_ports, values.out_interfaces, Origin
    ):
        arriving = values.in_interfaces if origin is Origin.REMOTE else ("",)
        for interface, source in product(arriving, values.sources):
            packet = msgspec.structs.replace(
                pattern,
                source=source,
                source_port=port,
                in_interface=interface,
                out_interface=out,
                mark=mark,
                state=state,
                origin=origin,
            )
            yield Candidate(packet, clients)
