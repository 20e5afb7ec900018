"""
What walks, where, and what becomes of it: the values of this package.

Shares are exact fractions; nothing is sampled. Where a rule asks for something that a model cannot know (a rate limit,
an unknown match), the walk takes the likelier way and says so in `assumptions`.
"""

from collections.abc import Mapping
from enum import StrEnum
from fractions import Fraction

import msgspec

from kproxy_ipt.addresses import Family


class Origin(StrEnum):
    """Where a packet enters the netfilter hooks."""

    REMOTE = "remote"
    NODE = "node"


class Packet(msgspec.Struct, frozen=True, kw_only=True):
    """
    The first packet of a flow, or a later one if *state* says so.

    Attributes:
        source: Canonical address.
        destination: Canonical address.
        protocol: As rules name it: `tcp`, `udp`, `sctp`, `icmp`, `ipv6-icmp`, or a number as text.
        source_port: 0 where the protocol has none, or where nobody cares.
        destination_port: Likewise.
        in_interface: "" for packets of the node itself.
        out_interface: "" where routing is not modelled: then a match on it may match.
        mark: As it arrives.
        state: `NEW`, `ESTABLISHED`, `RELATED`, `INVALID` or `UNTRACKED`; NAT is decided for NEW only.
        origin: Whether the node itself sends it.
        icmp_type: Of an ICMP packet; None stands for an echo request.
    """

    family: Family
    source: str
    destination: str
    protocol: str = "tcp"
    source_port: int = 0
    destination_port: int = 0
    in_interface: str = ""
    out_interface: str = ""
    mark: int = 0
    state: str = "NEW"
    origin: Origin = Origin.REMOTE
    icmp_type: int | None = None


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """
    The machine that a Ruleset is for.

    Attributes:
        addresses: Canonical addresses of its interfaces; 127.0.0.0/8 and ::1 are local in any case.
        sets: Members of the sets that rules ask for, `PREFIX` or `PREFIX,PROTOCOL:PORT`, by name of the set.
    """

    addresses: frozenset[str] = frozenset()
    sets: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)


class End(StrEnum):
    """What finally becomes of a packet."""

    ACCEPTED = "accepted"
    DROPPED = "dropped"
    REJECTED = "rejected"


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """
    One rule that a packet met and that matched, or the policy of a chain.

    Attributes:
        hook: `PREROUTING`, `INPUT`, `FORWARD`, `OUTPUT` or `POSTROUTING`.
        position: Of the rule in its chain, from 1; 0 for the policy.
        depth: How many jumps led here.
        line: The rule as `iptables-save` prints it, or `policy ACCEPT`.
        mark: Of the packet after this step.
        share: Part of the packets that take this step, 0 to 1, of those that reach the rule.
        assumption: What had to be assumed for the rule to match, "" where the model knows.
    """

    hook: str
    table: str
    chain: str
    position: int
    depth: int
    line: str
    mark: int
    share: Fraction = Fraction(1)
    assumption: str = ""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """
    One of the things that can become of a packet.

    Attributes:
        end: What.
        share: How often; the shares of all outcomes of one packet add up to 1.
        destination: Where the packet goes in the end, canonical.
        destination_port: Likewise.
        translated: Whether the destination was rewritten.
        source: Source address in the end; "" where it is that of the outgoing interface (masqueraded).
        masqueraded: Whether the source was rewritten.
        delivered_locally: Whether it ends at the node itself (INPUT) rather than leaving it.
        reject_with: Kind of the refusal, "" otherwise.
        mark: In the end.
        assumptions: What had to be assumed on the way, each once, in order.
        path: Every step that mattered, in order.
    """

    end: End
    share: Fraction
    destination: str
    destination_port: int
    translated: bool = False
    source: str = ""
    masqueraded: bool = False
    delivered_locally: bool = False
    reject_with: str = ""
    mark: int = 0
    assumptions: tuple[str, ...] = ()
    path: tuple[Step, ...] = ()
