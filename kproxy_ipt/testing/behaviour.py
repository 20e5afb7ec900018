"""Whether two rulesets treat every packet alike, in the words of flows."""

import msgspec

from kproxy_ipt.ruleset.model import Ruleset
from kproxy_ipt.testing.flows import endpoint_text, fate_of
from kproxy_ipt.trace.equivalence import BehaviourDifference, compare_behaviour
from kproxy_ipt.trace.packet import Host


class Behaviour(msgspec.Struct, frozen=True):
    """
    What a comparison found.

    Attributes:
        packets: One packet of each kind that is treated differently, described; some of them, if there are many.
        unknown: Why differences may be hidden, "" if none can be.
    """

    packets: tuple[str, ...] = ()
    unknown: str = ""


def behaviour_changes(expected: Ruleset, built: Ruleset, host: Host) -> Behaviour:
    """What *built* does in another way than *expected*; both of one family, on the machine *host*."""
    report = compare_behaviour(expected, built, host)
    return Behaviour(tuple(map(_described, report.differences)), "; ".join(report.undecided))


def _described(difference: BehaviourDifference) -> str:
    """`default/web:http: tcp from node1 to ...: expected ..., built ...`."""
    packet = difference.packet
    old, new = fate_of(difference.outcomes_a), fate_of(difference.outcomes_b)
    where = endpoint_text(packet.destination, packet.destination_port)
    to = where if packet.destination_port else packet.destination
    came = ", ".join(
        text
        for text in (
            f"mark {packet.mark:#x}" if packet.mark else "",
            f"in {packet.in_interface}" if packet.in_interface else "",
            f"out {packet.out_interface}" if packet.out_interface else "",
            "" if packet.state == "NEW" else packet.state,
            difference.client,
        )
        if text
    )
    what = f"{packet.protocol} from {packet.source} ({packet.origin}{f', {came}' if came else ''}) to {to}"
    result = (
        f"expected {old}, built {new}" if str(old) != str(new) else f"{old} both times, with another mark or source"
    )
    return f"{difference.service}: {what}: {result}" if difference.service else f"{what}: {result}"
