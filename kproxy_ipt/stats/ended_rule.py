"""A rule that has gone, as far as its counter matters: what whoever hears of it tells the sums."""

import msgspec

from kproxy_ipt.addresses import Family


class EndedRule(msgspec.Struct, frozen=True):
    """
    One rule with its last count.

    Attributes:
        family: Of its table.
        chain: Its chain in the table nat if it rewrote the destination there, else "".
        comment: Its comment, "" for none.
        packets: What it had counted.
    """

    family: Family
    chain: str
    comment: str
    packets: int
