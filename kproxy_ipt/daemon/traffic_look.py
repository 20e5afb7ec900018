"""One look at what the kernel counted and tracks, without a daemon: for commands, in any network namespace."""

import time
from collections.abc import Callable, Mapping

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.machine import Machine
from kproxy_ipt.kernel.addresses import interface_addresses
from kproxy_ipt.kernel.conntrack_counts import count_connections
from kproxy_ipt.rules.names import TABLES
from kproxy_ipt.ruleset.counted import CountedTables, scan_counters, scan_destinations
from kproxy_ipt.ruleset.model import Ruleset
from kproxy_ipt.ruleset.parse import parse_save
from kproxy_ipt.stats.model import TrafficReport
from kproxy_ipt.stats.reading import invalid_dropped, read_traffic
from kproxy_ipt.stats.virtual_servers import VirtualServer, virtual_servers, with_connections


class ServerList(msgspec.Struct, frozen=True, kw_only=True):
    """
    The virtual servers of all families with their connections.

    Attributes:
        servers: By family, sorted as `virtual_servers` does.
        problems: By family: why connections are not known.
    """

    servers: tuple[VirtualServer, ...] = ()
    problems: Mapping[Family, str] = msgspec.field(default_factory=dict)


def read_counted(machine: Machine) -> Mapping[Family, Ruleset]:
    """
    The tables nat and filter of each family with their counters; blocks, in the namespace of the calling thread.

    Raises:
        KernelError: They cannot be read.
        RulesetError: What was read makes no sense.
    """
    saves = {family: iptables.start_save(TABLES, counters=True) for family, iptables in machine.iptables.items()}
    return {family: parse_save(save.text(), family) for family, save in saves.items()}


def look_at_traffic(machine: Machine, *, clock: Callable[[], float] = time.time) -> TrafficReport:
    """
    What was counted since the kernel made the chains.

    Raises:
        As `read_counted`.
    """
    return traffic_of(read_counted(machine), unix_time_s=clock())


def traffic_of(rulesets: Mapping[Family, Ruleset], *, unix_time_s: float) -> TrafficReport:
    """The report of rules with counters that were read at *unix_time_s*."""
    return TrafficReport(
        services=tuple(one for ruleset in rulesets.values() for one in read_traffic(ruleset)),
        invalid_dropped=sum(map(invalid_dropped, rulesets.values())),
        unix_time_s=unix_time_s,
    )


class CountedText(msgspec.Struct, frozen=True):
    """What rules of one family counted, and where the chains of endpoints lead."""

    seen: CountedTables
    destinations: Mapping[str, str]


def scan_families(machine: Machine) -> Mapping[Family, CountedText]:
    """
    The counters of all families without reading every rule, for whoever knows what to look for.

    Raises:
        KernelError: They cannot be read.
    """
    saves = {family: iptables.start_save(TABLES, counters=True) for family, iptables in machine.iptables.items()}
    texts = {family: save.text() for family, save in saves.items()}
    return {family: CountedText(scan_counters(text), scan_destinations(text)) for family, text in texts.items()}


def look_at_servers(machine: Machine) -> ServerList:
    """
    Virtual servers, real servers and their connections.

    Raises:
        As `read_counted`.
    """
    servers: list[VirtualServer] = []
    problems: dict[Family, str] = {}
    addresses = interface_addresses()
    for family, iptables in machine.iptables.items():
        found = virtual_servers(parse_save(iptables.start_save(TABLES).text(), family))
        own = [address for address in addresses if (":" in address) == (family is Family.IPV6)]
        connections = count_connections(family, frozenset(one.entry for one in found), own)
        if connections.problem:
            problems[family] = connections.problem
        servers += with_connections(found, connections.tally)
    return ServerList(servers=tuple(servers), problems=problems)
