"""
The hooks of netfilter and the order of the tables at each, as the kernel's priorities have it.

raw -300, (conntrack -200), mangle -150, destination NAT -100, filter 0, security 50, source NAT 100; so NAT of packets
for the node itself (`nat` INPUT) comes after the filter. Source: `linux/netfilter_ipv4.h`, `iptable_nat.c`.
"""

from collections.abc import Mapping

PREROUTING, INPUT, FORWARD, OUTPUT, POSTROUTING = "PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"

NAT = "nat"
RAW = "raw"

TABLES_OF_HOOK: Mapping[str, tuple[str, ...]] = {
    PREROUTING: (RAW, "mangle", NAT),
    INPUT: ("mangle", "filter", "security", NAT),
    FORWARD: ("mangle", "filter", "security"),
    OUTPUT: (RAW, "mangle", NAT, "filter", "security"),
    POSTROUTING: ("mangle", NAT),
}
"""Tables by hook, in order; the built-in chain of each has the name of the hook."""
