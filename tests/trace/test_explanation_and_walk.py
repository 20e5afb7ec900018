"""What `explain` says is what happens to packets: each entry of each golden case, walked through the rules."""

from fractions import Fraction
from ipaddress import ip_network
from pathlib import Path

import msgspec
import pytest

from kproxy_ipt.addresses import Family, canonical_address, family_of
from kproxy_ipt.rules.build import with_base_chains
from kproxy_ipt.state.snapshot import node_facts, take_snapshot
from kproxy_ipt.testing.recorded import INTERFACE_ADDRESSES, RecordedCase, recorded_case
from kproxy_ipt.trace.distribution import distribution, nominal
from kproxy_ipt.trace.explain_entries import EVERY_ADDRESS
from kproxy_ipt.trace.explain_service import explain_service
from kproxy_ipt.trace.explanation import Entry, Fate, PortExplanation
from kproxy_ipt.trace.packet import End, Host, Outcome, Packet
from kproxy_ipt.trace.walk import walk

_CASES = sorted(path.parent for path in (Path(__file__).parents[1] / "golden").glob("*/case.yaml"))
_CLIENTS = {Family.IPV4: "203.0.113.77", Family.IPV6: "2001:db8:ffff::77"}
_NODE = {Family.IPV4: "172.31.0.2", Family.IPV6: "fd00:31::2"}
_ENDS = {Fate.REFUSED: End.REJECTED, Fate.DROPPED: End.DROPPED}

Answer = dict[tuple[End, str], Fraction]
"""How often which end, at which endpoint; "" where the destination was not rewritten."""


def _explained(case: RecordedCase, family: Family) -> list[PortExplanation]:
    node = node_facts(case.objects.nodes, case.node_name)
    snapshots = {family: take_snapshot(case.objects, family, node)}
    return [
        port
        for service in case.objects.services
        for port in explain_service(service, case.objects, snapshots, case.config, case.machine).ports
    ]


def _walkable(entry: Entry, family: Family) -> bool:
    """A host name or an address of the other family is none that a packet can have; rivals are another test's."""
    address = canonical_address(entry.address)
    is_known = entry.address == EVERY_ADDRESS or (address is not None and family_of(address) is family)
    return is_known and not any("NOT REACHED" in line for line in entry.notes)


def _expected(port: PortExplanation, entry: Entry) -> Answer:
    if entry.fate is Fate.NO_RULES:
        return {(End.ACCEPTED, ""): Fraction(1)}
    if entry.fate in _ENDS:
        return {(_ENDS[entry.fate], ""): Fraction(1)}
    shares = [(row.text, row.local_share if entry.policy == "Local" else row.cluster_share) for row in port.endpoints]
    return {(End.ACCEPTED, text): Fraction(share).limit_denominator(1000) for text, share in shares if share}


def _source(port: PortExplanation, entry: Entry) -> str:
    """A client outside of the cluster, in a source range where they are enforced."""
    ranges = port.source_ranges
    if ranges and ranges.enforced and entry.kind == "load balancer":
        return str(ip_network(ranges.ranges[0])[1])
    return _CLIENTS[port.family]


def _answer(outcomes: tuple[Outcome, ...]) -> Answer:
    found: Answer = {}
    for one in distribution(outcomes):
        is_ipv6 = ":" in one.destination
        endpoint = f"[{one.destination}]" if is_ipv6 else one.destination
        text = f"{endpoint}:{one.destination_port}" if one.translated else ""
        found[one.end, text] = found.get((one.end, text), Fraction(0)) + nominal(one.share)
    return found


@pytest.mark.parametrize("family", list(Family))
@pytest.mark.parametrize("folder", _CASES, ids=lambda folder: folder.name)
def test_packets_fare_as_explained(folder: Path, family: Family) -> None:
    """Fate, endpoints and shares of every entry, for a client outside of the cluster."""
    case = recorded_case(folder)
    ruleset = with_base_chains(case.desired(family))
    host = Host(addresses=frozenset(INTERFACE_ADDRESSES))
    for port in _explained(case, family):
        for entry in (one for one in port.entries if _walkable(one, family)):
            packet = Packet(
                family=family,
                source=_source(port, entry),
                destination=_NODE[family] if entry.address == EVERY_ADDRESS else entry.address,
                protocol=port.protocol,
                source_port=40000,
                destination_port=entry.port,
                in_interface="eth0",
            )

            assert _expected(port, entry) == _answer(walk(ruleset, packet, host)), msgspec.json.encode(entry)


def test_golden_cases_hold_every_fate() -> None:
    """A comparison of nothing would agree as well."""
    cases = [recorded_case(folder) for folder in _CASES]
    fates = [entry.fate for case in cases for port in _explained(case, Family.IPV4) for entry in port.entries]

    assert set(fates) == set(Fate)
    assert len(fates) >= 100


def test_chains_of_golden_cases_are_those_of_the_rules() -> None:
    """Over all cases and families, the chains that are named and those that are written are the same."""
    for case in (recorded_case(folder) for folder in _CASES):
        for family in Family:
            named = {
                chain
                for port in _explained(case, family)
                for chain in (*port.chains, *(row.chain for row in port.endpoints))
                if chain
            }

            assert named == set(case.desired(family).owners), case.name
