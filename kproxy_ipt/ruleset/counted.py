"""
Save text with counters -> the few numbers that connections are counted by, without parsing rules.

Whoever asks again and again, for tables of 100,000 rules, cannot read every rule each time. What is needed stands in
lines of two forms whose spelling is fixed by `iptables-save`; all others are passed over. `parse.py` reads everything.
"""

import re
from collections.abc import Mapping

import msgspec

_CHAIN = r"KUBE-(?:SVC|SVL|SEP)-[A-Z2-7]{16}"
_COUNTED = re.compile(
    r"^\[(\d+):\d+\] -A (?:"
    rf"({_CHAIN}) (?:[^\n]* )?(?:--to-destination \S+|-j (KUBE-SEP-[A-Z2-7]{{16}}))$"
    r'|\S+ [^\n]*--comment "(\S+ (?:has no (?:local )?endpoints|traffic not accepted by [^"\n]*))" [^\n]*$'
    r"|(KUBE-FORWARD) [^\n]*--ctstate INVALID [^\n]*-j DROP$)",
    re.ASCII | re.MULTILINE,
)
REFUSAL = re.compile(r"(\S+) (?:(has no endpoints)|has no local endpoints|traffic not accepted by .*)")
"""The comment of a rule that refuses: the service port, and whether it rejects; otherwise it drops."""

REFUSAL_MARKS = (" has no endpoints", " has no local endpoints", " traffic not accepted by ")
"""What one of the lines with such a comment holds."""


class CountedTables(msgspec.Struct, frozen=True, kw_only=True):
    """
    Packets that rules counted.

    Attributes:
        endpoints: By chain of an endpoint: of the rule that rewrites the destination.
        choices: By chain that chooses and chain that is chosen, sums over all rules from the one to the other.
        refusals: By comment of a rule that refuses packets to a service port, sums over all rules with it.
        invalid: Dropped because connection tracking found them invalid.
    """

    endpoints: Mapping[str, int] = msgspec.field(default_factory=dict)
    choices: Mapping[str, Mapping[str, int]] = msgspec.field(default_factory=dict)
    refusals: Mapping[str, int] = msgspec.field(default_factory=dict)
    invalid: int = 0


def scan_counters(text: str) -> CountedTables:
    """
    Read the tables nat and filter of `iptables-save --counters`.

    Rules in another spelling than that of the program are passed over: this is no check of anything.
    """
    endpoints: dict[str, int] = {}
    choices: dict[str, dict[str, int]] = {}
    refusals: dict[str, int] = {}
    invalid = 0
    for packets, chain, chosen, comment, forward in _COUNTED.findall(text):
        count = int(packets)
        if chosen:
            row = choices.setdefault(chain, {})
            row[chosen] = row.get(chosen, 0) + count
        elif chain:
            endpoints[chain] = count
        elif comment:
            refusals[comment] = refusals.get(comment, 0) + count
        elif forward:
            invalid += count
    return CountedTables(endpoints=endpoints, choices=choices, refusals=refusals, invalid=invalid)
