"""What becomes of a packet, in the few words of a table."""

from kproxy_ipt.trace.naming import reason_of, service_of
from kproxy_ipt.trace.packet import End, Origin, Outcome, Packet


def endpoint_text(address: str, port: int) -> str:
    """`10.0.0.1:80`, `[fd00::1]:80`."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def packet_words(packet: Packet, origin: str) -> str:
    """The packet, and by the rules of which *origin* it goes, on one line."""
    where = "the node itself" if packet.origin is Origin.NODE else packet.in_interface or "outside"
    target = endpoint_text(packet.destination, packet.destination_port)
    return f"{packet.protocol} {packet.source} -> {target}, {packet.state}, from {where}; rules: {origin}"


def what_words(outcome: Outcome) -> str:
    """What becomes of the packet."""
    if outcome.end is End.DROPPED:
        return "dropped"
    if outcome.end is End.REJECTED:
        return f"refused ({outcome.reject_with})"
    if outcome.delivered_locally:
        return "accepted by the node"
    return "to endpoint" if outcome.translated else "leaves unchanged"


def source_words(outcome: Outcome) -> str:
    """Which source address whoever gets the packet sees."""
    if not outcome.masqueraded:
        return f"{outcome.source} (kept)"
    return f"{outcome.source} (rewritten)" if outcome.source else "node (masqueraded)"


def why_words(outcome: Outcome) -> str:
    """The service port that it is about, or the rule that ended it."""
    if outcome.end is End.ACCEPTED:
        return service_of(outcome) or "-"
    return reason_of(outcome)
