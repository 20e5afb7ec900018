"""
A packet on its way: what it looks like between two rules, and what has been met so far.

Frozen: where the ways part, each goes on with its own value.
"""

from fractions import Fraction

import msgspec

from kproxy_ipt.trace.packet import Packet, Step


class Moving(msgspec.Struct, frozen=True, kw_only=True):
    """
    A packet between two rules.

    Attributes:
        packet: As it arrived; what no rule can change is read from here.
        hook: Where it is.
        destination: As rewritten so far; likewise *source*, the ports and *mark*.
        source: "" once it is masqueraded: the address of the interface that it leaves by.
        connection_mark: That of its conntrack record, 0 for a new one.
        state: Of conntrack; `UNTRACKED` once a rule said so.
        in_interface: "" where none is known, or there is none.
        out_interface: Likewise.
        destination_translated: Whether a rule of this walk rewrote the destination.
        source_translated: Whether a rule of this walk rewrote the source.
        has_looped: Whether the loopback interface has brought it back in: NAT is settled by then.
        share: Part of all packets that come this way.
        assumptions: Each once, in order.
        path: Steps so far.
    """

    packet: Packet
    destination: str
    destination_port: int
    source: str
    source_port: int
    mark: int
    state: str
    in_interface: str
    out_interface: str
    hook: str = ""
    connection_mark: int = 0
    destination_translated: bool = False
    source_translated: bool = False
    has_looped: bool = False
    share: Fraction = Fraction(1)
    assumptions: tuple[str, ...] = ()
    path: tuple[Step, ...] = ()


def start(packet: Packet) -> Moving:
    """*packet* before its first hook."""
    return Moving(
        packet=packet,
        destination=packet.destination,
        destination_port=packet.destination_port,
        source=packet.source,
        source_port=packet.source_port,
        mark=packet.mark,
        state=packet.state,
        in_interface=packet.in_interface,
        out_interface=packet.out_interface,
    )


def assuming(moving: Moving, assumption: str) -> Moving:
    """*moving*, with one more thing assumed; "" and what is known already change nothing."""
    if not assumption or assumption in moving.assumptions:
        return moving
    return msgspec.structs.replace(moving, assumptions=(*moving.assumptions, assumption))
