"""
Counting tracked connections by entry and endpoint, for tables of hundreds of thousands of records.

As in `conntrack_netlink.py` a dump is read datagram by datagram through one `struct` layout. The state of a record
stands behind the part of fixed layout, in an attribute whose place depends on the kernel; it is searched for by its
header. Only records of zone 0 are counted, and only those that were sent to an entry and rewritten.
"""

import socket
import struct
from collections import Counter
from collections.abc import Collection, Iterator

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.kernel.conntrack import until_undisturbed
from kproxy_ipt.kernel.conntrack_netlink import CT_NEW, DUMP_INTERRUPTED, Channel, dump_end
from kproxy_ipt.kernel.conntrack_records import (
    PROTOCOL_NUMBERS,
    PackedEndpoint,
    PackedEntry,
    pack_address,
    pack_port,
    record_layout,
)
from kproxy_ipt.kernel.nfnetlink import NESTED
from kproxy_ipt.state.flows import Entry
from kproxy_ipt.stats.virtual_servers import Connections, Tally

_STATE_HEADERS = {
    PROTOCOL_NUMBERS["tcp"]: struct.pack("=HHH", 1 | NESTED, 5, 1),  # CTA_PROTOINFO_TCP, CTA_PROTOINFO_TCP_STATE
    PROTOCOL_NUMBERS["sctp"]: struct.pack("=HHH", 3 | NESTED, 5, 1),
}
_ESTABLISHED = {PROTOCOL_NUMBERS["tcp"]: 3, PROTOCOL_NUMBERS["sctp"]: 4}
_STATUS_HEADER = struct.pack("=HH", 8, 3)  # CTA_STATUS
_ASSURED = 1 << 2
_LOOPBACK_OCTET = 127

_Found = Counter[tuple[PackedEntry, PackedEndpoint, bool]]


class ConnectionCount(msgspec.Struct, frozen=True, kw_only=True):
    """
    What connection tracking holds.

    Attributes:
        tally: By entry and endpoint.
        listed: Records that the kernel sent.
        problem: Why the tally is empty, one line, or "".
    """

    tally: Tally = msgspec.field(default_factory=dict)
    listed: int = 0
    problem: str = ""


def count_connections(
    family: Family, entries: Collection[Entry], node_addresses: Collection[str] = ()
) -> ConnectionCount:
    """
    Count the connections of *entries* in the network namespace of the calling thread.

    Args:
        family: Of the entries; of other families nothing is counted.
        entries: Where connections were sent to.
        node_addresses: Those that node ports (entries without an address) are answered at; 127.0.0.0/8 is one as well.

    Returns:
        Counts; no privilege or no connection tracking is a problem told, not an exception.
    """
    scan = _Scan(family, entries, node_addresses)
    problem = until_undisturbed(scan.run) if entries else ""
    if problem:
        return ConnectionCount(problem=problem)
    return ConnectionCount(tally=scan.tally(), listed=scan.listed)


class _Scan:
    """Dumps of one family, until one is complete."""

    def __init__(self, family: Family, entries: Collection[Entry], node_addresses: Collection[str]) -> None:
        self.listed = 0
        self._family = family
        self._layout, self._head = record_layout(family)
        self._addressed = {
            (pack_address(entry.address), PROTOCOL_NUMBERS[entry.protocol], pack_port(entry.port)): entry
            for entry in entries
            if entry.address
        }
        self._node_ports = {
            (PROTOCOL_NUMBERS[entry.protocol], pack_port(entry.port)): entry for entry in entries if not entry.address
        }
        self._node_addresses = frozenset(pack_address(address) for address in node_addresses)
        self._found: _Found = Counter()

    def run(self) -> bool:
        """One dump; whether it was undisturbed."""
        self.listed, self._found = 0, Counter()
        is_interrupted = False
        with Channel(self._family) as channel:
            for datagram in channel.dump(None):
                offset, is_marked = self._scan(datagram)
                is_end, is_marked_later = dump_end(datagram, offset)
                is_interrupted |= is_marked or is_marked_later
                if is_end:
                    return not is_interrupted
        return False

    def _scan(self, datagram: bytes) -> tuple[int, bool]:
        """Count the records of a datagram; where they end, and whether some say that others may be missing."""
        unpack, head, size = self._layout.unpack_from, self._head, self._layout.size
        addressed, node_ports, found = self._addressed, self._node_ports, self._found
        offset, last_start, marks = 0, len(datagram) - size, 0
        while offset <= last_start:
            length, kind, flags, start, address, protocol, port, source, source_port = unpack(datagram, offset)
            if kind != CT_NEW:
                break
            self.listed += 1
            marks |= flags
            entry, endpoint = (address, protocol, port), (source, source_port)
            if start == head and (entry in addressed or (protocol, port) in node_ports) and endpoint != (address, port):
                found[entry, endpoint, _is_active(datagram, offset + size, offset + length, protocol)] += 1
            offset += (length + 3) & ~3
        return offset, bool(marks & DUMP_INTERRUPTED)

    def tally(self) -> Tally:
        """What was found, as values; packets to node ports of addresses that are not the node's are left out."""
        tally: dict[Entry, dict[str, Connections]] = {}
        for (entry, endpoint, is_active), count in self._found.items():
            for one in self._entries_at(entry):
                by_endpoint = tally.setdefault(one, {})
                text = _endpoint_text(endpoint)
                known = by_endpoint.get(text, Connections())
                by_endpoint[text] = Connections(
                    known.active + count * is_active, known.inactive + count * (not is_active)
                )
        return tally

    def _entries_at(self, packed: PackedEntry) -> Iterator[Entry]:
        address, protocol, port = packed
        at_address = self._addressed.get(packed)
        if at_address is not None:
            yield at_address
            return
        is_loopback = len(address) == 4 and address[0] == _LOOPBACK_OCTET
        if is_loopback or address in self._node_addresses:
            yield self._node_ports[protocol, port]


def _is_active(datagram: bytes, start: int, end: int, protocol: int) -> bool:
    """Whether the record whose attributes of variable place are between *start* and *end* is in use both ways."""
    header = _STATE_HEADERS.get(protocol)
    if header is not None:
        found = datagram.find(header, start, end)
        return found >= 0 and datagram[found + len(header)] == _ESTABLISHED[protocol]
    found = datagram.find(_STATUS_HEADER, start, end)
    return found >= 0 and bool(datagram[found + 7] & _ASSURED)


def _endpoint_text(endpoint: PackedEndpoint) -> str:
    address, port = endpoint
    number = int.from_bytes(port, "big")
    if len(address) == 4:
        return f"{socket.inet_ntop(socket.AF_INET, address)}:{number}"
    return f"[{socket.inet_ntop(socket.AF_INET6, address)}]:{number}"
