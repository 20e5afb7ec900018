"""
Does a rule match a packet? Yes, no, in a share of cases, or: not to be known, so something is assumed and said.

What is exact and what is assumed:

- Header, ports, marks, conntrack state, address types LOCAL, UNICAST and MULTICAST, sets whose members are given, and
  the opaque matches that `opaque.py` can read, are exact.
- `statistic` random has the share that the kernel stores, P / 2**31; nth has 1/N (a packet somewhere in the rotation).
- `recent` rcheck and update do not match: the client is not known yet.
- An interface that the packet does not name is one that no rule names.
- A rate limit is not exceeded; any other match that is not understood does not match.

An assumption is made only where everything else about the rule matches.
"""

import ipaddress
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from kproxy_ipt.addresses import Family, is_loopback
from kproxy_ipt.ruleset.matches import (
    PROBABILITY_ONE,
    AddressType,
    Comment,
    Conntrack,
    Mark,
    Match,
    Nfacct,
    OpaqueMatch,
    PortMatch,
    Recent,
    StatisticNth,
    StatisticRandom,
)
from kproxy_ipt.ruleset.model import Rule
from kproxy_ipt.trace.moving import Moving
from kproxy_ipt.trace.opaque import read_opaque
from kproxy_ipt.trace.packet import Host, Origin


class Answer(NamedTuple):
    """
    Whether something matches.

    *share* is 0 for no, 1 for yes, between them for a game of chance; *assumption* is "" where it is known.
    """

    share: Fraction
    assumption: str = ""


NO = Answer(Fraction(0))
YES = Answer(Fraction(1))

_EPHEMERAL = (32768, 60999)
"""Ports that clients choose by themselves: `ip_local_port_range`."""


def _known(*, matches: bool) -> Answer:
    return YES if matches else NO


def _turned(answer: Answer, *, negated: bool) -> Answer:
    return Answer(1 - answer.share, answer.assumption) if negated else answer


def is_local(address: str, host: Host) -> bool:
    """Whether an address is one of the node: of its interfaces, or of loopback."""
    return address in host.addresses or is_loopback(address)


@lru_cache(maxsize=65536)
def _number(address: str) -> int:
    return int(ipaddress.ip_address(address))


@lru_cache(maxsize=65536)
def _prefix(text: str) -> tuple[int, int]:
    """Network and mask of `ADDRESS/LENGTH` or `ADDRESS/MASK`, whose mask may have gaps."""
    address_text, _, mask_text = text.partition("/")
    address = ipaddress.ip_address(address_text)
    bits = address.max_prefixlen
    if not mask_text:
        mask = (1 << bits) - 1
    elif mask_text.isdigit():
        mask = ((1 << int(mask_text)) - 1) << (bits - int(mask_text))
    else:
        mask = int(ipaddress.ip_address(mask_text))
    return int(address) & mask, mask


def in_prefix(address: str, prefix: str) -> bool:
    """Whether a prefix as rules write it holds an address; False for an address that is not known ("")."""
    if not address or (":" in address) is not (":" in prefix):
        return False
    if not prefix.endswith(("/32", "/128")) and "/" in prefix:
        network, mask = _prefix(prefix)
        return _number(address) & mask == network
    plain = prefix.partition("/")[0]
    return plain == address or (":" in plain and _number(plain) == _number(address))


def _interface(pattern: str, name: str, *, unknown: bool, side: str) -> Answer:
    if unknown:
        return Answer(Fraction(0), f"the {side} interface is not given: taken as none that a rule names")
    matches = name.startswith(pattern[:-1]) if pattern.endswith("+") else name == pattern
    return _known(matches=matches)


def _header(rule: Rule, moving: Moving) -> bool:
    """Whether the exact parts of the header match."""
    if rule.destination and in_prefix(moving.destination, rule.destination) is rule.destination_negated:
        return False
    if rule.protocol and (rule.protocol == moving.packet.protocol) is rule.protocol_negated:
        return False
    if rule.source and in_prefix(moving.source, rule.source) is rule.source_negated:
        return False
    return rule.fragment != "-f"


def _interfaces(rule: Rule, moving: Moving) -> list[Answer]:
    answers: list[Answer] = []
    if rule.in_interface:
        unknown = not moving.in_interface and moving.packet.origin is Origin.REMOTE
        answer = _interface(rule.in_interface, moving.in_interface, unknown=unknown, side="incoming")
        answers.append(_turned(answer, negated=rule.in_interface_negated))
    if rule.out_interface:
        unknown = not moving.out_interface and moving.hook not in ("PREROUTING", "INPUT")
        answer = _interface(rule.out_interface, moving.out_interface, unknown=unknown, side="outgoing")
        answers.append(_turned(answer, negated=rule.out_interface_negated))
    return answers


def _ports(match: PortMatch, moving: Moving) -> Answer:
    wanted = match.destination
    if wanted and (wanted[0] <= moving.destination_port <= wanted[1]) is match.destination_negated:
        return NO
    if match.protocol != moving.packet.protocol:
        return NO
    if match.source is None:
        return YES
    first, last = match.source
    if moving.source_port:
        return _turned(_known(matches=first <= moving.source_port <= last), negated=match.source_negated)
    inside = first <= _EPHEMERAL[0] and _EPHEMERAL[1] <= last
    answer = Answer(Fraction(int(inside)), "the source port is not given: taken as one that a client gets by itself")
    return _turned(answer, negated=match.source_negated)


def _conntrack(match: Conntrack, moving: Moving) -> Answer:
    found = moving.state in match.states
    found = found or ("DNAT" in match.states and moving.destination_translated)
    found = found or ("SNAT" in match.states and moving.source_translated)
    return _known(matches=found is not match.negated)


def _has_type(address: str, types: str, host: Host, family: Family) -> Answer:
    """Whether an address has one of *types* (`LOCAL,BROADCAST`); what depends on routes is assumed not to be so."""
    wanted = types.split(",")
    local = is_local(address, host)
    multicast = in_prefix(address, "224.0.0.0/4" if family is Family.IPV4 else "ff00::/8")
    if (local and "LOCAL" in wanted) or (multicast and "MULTICAST" in wanted):
        return YES
    if address == "255.255.255.255":
        return _known(matches="BROADCAST" in wanted)
    if "UNICAST" in wanted and not multicast and not (local and family is Family.IPV4):
        return YES
    if local or multicast or set(wanted) <= {"LOCAL", "UNICAST", "MULTICAST", "UNSPEC"}:
        return NO
    return Answer(Fraction(0), f"address type {types} of {address or 'the source'} depends on routes: taken as no")


def _address_type(match: AddressType, moving: Moving, host: Host) -> Answer:
    family = moving.packet.family
    answers = []
    if match.source:
        answer = _has_type(moving.source, match.source, host, family)
        answers.append(_turned(answer, negated=match.source_negated))
    if match.destination:
        answer = _has_type(moving.destination, match.destination, host, family)
        answers.append(_turned(answer, negated=match.destination_negated))
    return _all(answers)


def _recent(match: Recent) -> Answer:
    if match.action == "set":
        return _known(matches=not match.negated)
    answer = Answer(Fraction(0), f"the client is not known yet (recent list {match.name})")
    return _turned(answer, negated=match.negated)


def _match(match: Match, moving: Moving, host: Host) -> Answer:
    match match:
        case Comment() | Nfacct():
            return YES
        case PortMatch():
            return _ports(match, moving)
        case Conntrack():
            return _conntrack(match, moving)
        case Mark():
            return _known(matches=(moving.mark & match.mask == match.value) is not match.negated)
        case AddressType():
            return _address_type(match, moving, host)
        case StatisticRandom():
            return _turned(Answer(Fraction(match.probability, PROBABILITY_ONE)), negated=match.negated)
        case StatisticNth():
            answer = Answer(Fraction(1, max(match.every, 1)))
            return _turned(answer, negated=match.negated)
        case Recent():
            return _recent(match)
        case OpaqueMatch():
            return _opaque(match, moving, host)


def _opaque(match: OpaqueMatch, moving: Moving, host: Host) -> Answer:
    found = read_opaque(match, moving, host)
    return Answer(Fraction(int(found.matches)), found.assumption)


def _all(answers: list[Answer]) -> Answer:
    """
    The answer to all questions at once.

    A known no settles it; an assumed no is one with its own assumption alone.
    """
    share, assumptions, refusal = Fraction(1), list[str](), None
    for answer in answers:
        if answer.share == 0:
            if not answer.assumption:
                return NO
            refusal = refusal or answer
        share *= answer.share
        if answer.assumption:
            assumptions.append(answer.assumption)
    return refusal or Answer(share, "; ".join(dict.fromkeys(assumptions)))


def evaluate(rule: Rule, moving: Moving, host: Host) -> Answer:
    """
    Whether *rule* matches the packet at this moment.

    Returns:
        The share of packets that match, with what was assumed for it; `NO` itself where it surely does not.
    """
    if not _header(rule, moving):
        return NO
    answers = _interfaces(rule, moving) if rule.in_interface or rule.out_interface else []
    for match in rule.matches:
        if type(match) is Comment:
            continue
        answer = _match(match, moving, host)
        if answer is NO:
            return NO
        answers.append(answer)
    return _all(answers) if answers else YES
