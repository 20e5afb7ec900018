"""Records of connection tracking, crafted one by one: which are deleted, which are not, and at what cost."""

import errno
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.kernel import conntrack_netlink
from kproxy_ipt.kernel.conntrack import (
    ConntrackOutcome,
    count,
    reconcile,
    until_undisturbed,
)
from kproxy_ipt.kernel.conntrack_netlink import Channel, Scan, is_filtered
from kproxy_ipt.kernel.conntrack_records import Question, pack_address, read_record
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.state.flows import Entry, EntryOptions, FlowTable
from kproxy_ipt.testing.namespaces import temporary_namespace

pytestmark = pytest.mark.kernel

SERVICE_IP = {Family.IPV4: "10.96.0.10", Family.IPV6: "fd00:10:96::a"}
POD = {Family.IPV4: "10.244.1.", Family.IPV6: "fd00:10:244:1::"}
CLIENT = {Family.IPV4: "192.0.2.50", Family.IPV6: "2001:db8::50"}
NODE = {Family.IPV4: "192.0.2.10", Family.IPV6: "2001:db8::10"}


def _with_filler(table: FlowTable) -> FlowTable:
    """The same table with so many entries that the kernel does not search for each."""
    filler = {Entry("203.0.113.1", 1000 + number, "udp"): frozenset[tuple[str, int]]() for number in range(80)}
    return FlowTable(allowed={**table.allowed, **filler}, former=table.former, options=table.options)


@pytest.fixture
def netns() -> Iterator[str]:
    """A namespace of one test, entered."""
    with temporary_namespace("conntrack") as name, inside(name):
        yield name


def _craft(
    family: Family,
    destination: str,
    port: int,
    endpoint_text: str = "",
    *,
    protocol: str = "udp",
    source_port: int = 1000,
    zone: int = 0,
) -> None:
    """Make a record of a flow from the client; without an endpoint it is not translated."""
    reply = ["--reply-src", endpoint_text, "--reply-dst", CLIENT[family]] if endpoint_text else []
    ports = ["--reply-port-src", "53", "--reply-port-dst", str(source_port)] if endpoint_text else []
    states = {"tcp": ["--state", "ESTABLISHED"], "sctp": ["--state", "ESTABLISHED"]}
    tags = ["--orig-vtag", "1", "--reply-vtag", "2"] if protocol == "sctp" else []
    zones = ["--zone", str(zone)] if zone else []
    flow = ["-s", CLIENT[family], "-d", destination, "--sport", str(source_port), "--dport", str(port)]
    command = ["conntrack", "-I", "-p", protocol, *flow, *reply, *ports, "-t", "600"]
    subprocess.run([*command, *states.get(protocol, []), *tags, *zones], check=True, capture_output=True)


def _crafted_table(family: Family, **changes: frozenset[Entry]) -> FlowTable:
    """Port 53 of a Service address, and node port 30053, with one endpoint each protocol."""
    live = frozenset({(f"{POD[family]}12", 53)})
    allowed = {
        entry: live
        for protocol in ("tcp", "udp", "sctp")
        for entry in (Entry(SERVICE_IP[family], 53, protocol), Entry("", 30053, protocol))
    }
    return FlowTable(allowed=allowed, options=EntryOptions(node_addresses=frozenset({NODE[family]})), **changes)


@pytest.mark.parametrize("way", ["few entries", "many entries"])
def test_exactly_the_stale_records_go(netns: str, family: Family, way: str) -> None:
    """Every kind of UDP record once; the same whether the kernel searches or everything is listed."""
    del netns
    live, gone = f"{POD[family]}12", f"{POD[family]}13"
    stale = [(SERVICE_IP[family], 53, gone), (SERVICE_IP[family], 53, ""), (NODE[family], 30053, gone)]
    kept = [
        (SERVICE_IP[family], 53, live),
        (SERVICE_IP[family], 54, gone),
        (NODE[family], 30053, live),
        (NODE[family], 53, ""),
        (NODE[family], 8472, ""),
        (f"{POD[family]}99", 30053, ""),
    ]
    for number, (destination, port, endpoint_text) in enumerate([*stale, *kept]):
        _craft(family, destination, port, endpoint_text, source_port=1000 + number)
    table = _crafted_table(family)
    outcome = reconcile(family, _with_filler(table) if way == "many entries" else table)

    assert (len(stale), "") == (outcome.deleted, outcome.problem)
    assert len(kept) == count(family).records
    assert 0 == reconcile(family, table).deleted


def test_sctp_is_cleaned_if_asked_for_and_tcp_never(netns: str, family: Family) -> None:
    """An association to an endpoint that is not ready goes with option `sctp` alone; TCP is refused as an option."""
    del netns
    for protocol in ("sctp", "tcp"):
        _craft(family, SERVICE_IP[family], 53, f"{POD[family]}13", protocol=protocol)
        _craft(family, SERVICE_IP[family], 53, f"{POD[family]}12", protocol=protocol, source_port=1001)
    table = _crafted_table(family)

    assert 0 == reconcile(family, table).deleted
    assert 1 == reconcile(family, table, protocols=("udp", "sctp")).deleted
    assert (1, 2) == (count(family, "sctp").records, count(family, "tcp").records)
    with pytest.raises(ValueError, match="tcp"):
        reconcile(family, table, protocols=("tcp",))


def test_the_other_family_is_not_listed(netns: str) -> None:
    """A clean-up of IPv6 leaves IPv4 records alone."""
    del netns
    _craft(Family.IPV4, SERVICE_IP[Family.IPV4], 53)

    assert 0 == reconcile(Family.IPV6, _with_filler(_crafted_table(Family.IPV6))).listed
    assert (1, 0) == (count(Family.IPV4).records, count(Family.IPV6).records)


def test_former_entries_are_cleaned(netns: str, family: Family) -> None:
    """Records of a former address all go, of a former node port only translated ones."""
    del netns
    gone = f"{POD[family]}13"
    former = frozenset({Entry(SERVICE_IP[family], 99, "udp"), Entry("", 30099, "udp")})
    for number, (destination, port, endpoint_text) in enumerate(
        [(SERVICE_IP[family], 99, gone), (SERVICE_IP[family], 99, ""), (NODE[family], 30099, gone)]
    ):
        _craft(family, destination, port, endpoint_text, source_port=1000 + number)
    _craft(family, NODE[family], 30099)

    assert 3 == reconcile(family, _crafted_table(family, former=former)).deleted
    assert 1 == count(family).records


@pytest.mark.parametrize("way", ["few entries", "many entries"])
def test_records_of_other_zones_are_left_alone(netns: str, family: Family, way: str) -> None:
    """Who assigns a zone may mean other things by an address."""
    del netns
    _craft(family, SERVICE_IP[family], 53, zone=5)
    table = _crafted_table(family)

    assert 0 == reconcile(family, _with_filler(table) if way == "many entries" else table).deleted
    assert 1 == count(family).records


def test_an_empty_table_lists_nothing(netns: str, family: Family) -> None:
    """Without an entry of the protocols the kernel is not asked."""
    del netns
    _craft(family, SERVICE_IP[family], 53)

    assert ConntrackOutcome() == reconcile(family, FlowTable())


def test_the_successor_of_a_record_is_not_deleted(netns: str, family: Family) -> None:
    """A flow that was tracked anew to another endpoint, maybe in the same memory, is not hit by the order of before."""
    del netns
    _craft(family, SERVICE_IP[family], 53, f"{POD[family]}13")
    with Channel(family) as channel:
        record = read_record(_dumped_suspect(family))
        assert record is not None
        for _ in range(20):
            channel.delete([record.key])
            _craft(family, SERVICE_IP[family], 53, f"{POD[family]}12")

            assert [errno.ENOENT] == channel.delete([record.key])
            subprocess.run(["conntrack", "-F"], check=True, capture_output=True)


def _scan(family: Family) -> Scan:
    return Scan(
        family, {(pack_address(SERVICE_IP[family]), 17, b"\0\x35"): frozenset()}, {}, frozenset(), localhost=False
    )


def _dumped_suspect(family: Family) -> bytes:
    with Channel(family) as listing:
        return next(body for bodies in _scan(family).suspects(listing.dump(None)) for body in bodies)


def test_a_kernel_that_does_not_search_is_noticed(netns: str, family: Family) -> None:
    """An answer with records that were not asked for is a whole table; one without is an answer."""
    del netns
    _craft(family, SERVICE_IP[family], 53)
    _craft(family, SERVICE_IP[family], 54, source_port=1001)
    question = Question(17, pack_address(SERVICE_IP[family]), b"\0\x35")
    with Channel(family) as whole, Channel(family) as part:
        assert not is_filtered(next(whole.dump(None)), question)
        assert is_filtered(next(part.dump(question)), question)


def test_an_interrupted_dump_is_noticed(netns: str, family: Family) -> None:
    """The flag of the kernel at any record means that others may be missing."""
    del netns
    _craft(family, SERVICE_IP[family], 53)
    scan = _scan(family)
    with Channel(family) as channel:
        datagram = bytearray(next(channel.dump(None)))
    datagram[6] |= conntrack_netlink.DUMP_INTERRUPTED
    next(scan.suspects([bytes(datagram)]))

    assert (1, True) == (scan.listed, scan.is_interrupted)


@pytest.mark.parametrize(("disturbances", "problem"), [(4, False), (5, True)])
@pytest.mark.parametrize("error", [None, OSError(errno.EINTR, "interrupted")], ids=["flag", "EINTR"])
def test_a_disturbed_listing_is_repeated_a_few_times(
    error: OSError | None, disturbances: int, *, problem: bool
) -> None:
    """Five attempts are made; then a problem is told."""
    calls = []

    def look() -> bool:
        calls.append(1)
        if error and len(calls) <= disturbances:
            raise error
        return len(calls) > disturbances

    assert problem is ("5 attempts" in until_undisturbed(look))
    assert 5 == len(calls)


def test_a_process_without_privilege_gets_a_problem(netns: str) -> None:
    """It is told in one line what is missing; nothing is raised."""
    del netns
    program = """
import os
from kproxy_ipt.addresses import Family
from kproxy_ipt.kernel.conntrack import count, reconcile
from kproxy_ipt.state.flows import Entry, FlowTable
os.setuid(65534)
table = FlowTable(allowed={Entry("10.96.0.10", 53, "udp"): frozenset()})
for outcome in (reconcile(Family.IPV4, table), count(Family.IPV4)):
    print(outcome.problem)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert 2 * ["connection tracking may not be read or changed: CAP_NET_ADMIN is needed"] == done.stdout.splitlines()


def _flood(number: int) -> None:
    """Make *number* records of UDP flows to port 8472 of a foreign host."""

    def ends(kind: int, source: bytes, destination: bytes, ports: bytes) -> bytes:
        ip = struct.pack("=HHHH4sHH4s", 20, 0x8001, 8, 1, source, 8, 2, destination)
        proto = struct.pack("=HHHHBxxxHH2sxxHH2sxx", 28, 0x8002, 5, 1, 17, 6, 2, ports[:2], 6, 3, ports[2:])
        return struct.pack("=HH", 52, kind | 0x8000) + ip + proto

    host = socket.inet_aton("203.0.113.9")
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12) as channel:
        for first in range(0, number, 500):
            orders = b""
            for each in range(first, first + 500):
                source, port = struct.pack("!I", 0x0A000001 + each // 40000), struct.pack("!H", 1024 + each % 40000)
                vxlan = struct.pack("!H", 8472)
                body = ends(1, source, host, port + vxlan) + ends(2, host, source, vxlan + port)
                rest = struct.pack("=HH4sHH4s", 8, 7, struct.pack("!I", 600), 8, 3, struct.pack("!I", 0xA))
                head = struct.pack("=IHHIIBBH", 20 + len(body + rest), 0x100, 0x601, each, 0, 2, 0, 0)
                orders += head + body + rest
            channel.send(orders)


def _resident_kib() -> int:
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE") // 1024


def test_a_large_table_costs_little_time_and_no_memory(netns: str, capsys: pytest.CaptureFixture[str]) -> None:
    """100,000 unrelated records are neither kept in memory nor deleted; few entries are searched by the kernel."""
    del netns
    _flood(100_000)
    _craft(Family.IPV4, SERVICE_IP[Family.IPV4], 53)
    few = _crafted_table(Family.IPV4)
    reconcile(Family.IPV4, few)
    before, began = _resident_kib(), time.process_time()
    outcomes = [reconcile(Family.IPV4, table) for table in (few, _with_filler(few))]

    seconds, grown = time.process_time() - began, _resident_kib() - before
    with capsys.disabled():
        print(f"\n100,000 records: {[f'{each.seconds:.3f} s' for each in outcomes]}, memory +{grown} KiB")  # noqa: T201 - a measurement
    assert [0, 0] == [outcome.deleted for outcome in outcomes]
    assert [0, 100_000] == [outcome.listed for outcome in outcomes]
    assert 100_000 == count(Family.IPV4).records
    assert grown < 32 * 1024
    assert seconds < 30
