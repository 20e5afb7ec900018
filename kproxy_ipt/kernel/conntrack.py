"""
Connection tracking is brought to what the state says: stale records are deleted, all others are left alone.

Which flow is stale is decided in `state/flows.py`; here are the listing and the deleting. Records are read as a stream
and deleted in batches, so memory does not depend on the size of the table. A table with few entries makes the kernel
search (one question for each), a larger one has all records of its protocols listed.

Only records of zone 0 are looked at: other zones belong to who assigned them (Open vSwitch, VRFs), and an address in
there need not be the one that our rules translate.

Nothing here decides *whether* to look: who calls knows whether a service port of these protocols changed, and an empty
table lists nothing. Everything blocks, and happens in the network namespace of the calling thread.
"""

import errno
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import TypeVar

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.kernel.conntrack_netlink import Channel, Scan, is_filtered
from kproxy_ipt.kernel.conntrack_records import (
    PROTOCOL_NUMBERS,
    PackedEndpoint,
    PackedEntry,
    Question,
    Record,
    pack_address,
    pack_port,
    read_record,
)
from kproxy_ipt.state.flows import EndpointAddress, Entry, FlowTable, is_stale

Clock = Callable[[], float]
_T = TypeVar("_T")

MAX_QUESTIONS = 6
"""Up to this many questions the kernel searches by itself: its way through the table takes an eighth of ours."""
MAX_ENTRIES = 64
"""With more entries than this nobody looks how many questions they make."""
_BATCH = 256
_MAX_PASSES = 5
_PASSING = frozenset({errno.EINTR, errno.EAGAIN, errno.EBUSY, errno.ENOBUFS})


class ConntrackOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a clean-up did.

    Attributes:
        listed: Records that the kernel sent.
        deleted: Stale ones that are gone.
        seconds: Of the whole clean-up.
        problem: Why stale records may remain, one line; "" if there are none.
    """

    listed: int = 0
    deleted: int = 0
    seconds: float = 0.0
    problem: str = ""


class Count(msgspec.Struct, frozen=True):
    """A number of records, or why it is not known."""

    records: int
    problem: str = ""


def reconcile(
    family: Family, table: FlowTable, *, protocols: Iterable[str] = ("udp",), clock: Clock = time.perf_counter
) -> ConntrackOutcome:
    """
    Delete the records of all flows that are stale by *table*.

    To be called after a sync that succeeded: before, flows would be tracked anew by the old rules. It may be repeated
    at any time and deletes nothing then. A record is deleted by reply tuple and id, so a flow that was
    tracked anew meanwhile, to another endpoint, is never hit.

    Args:
        family: Of the table.
        table: What flows may do; an empty one lists nothing.
        protocols: `udp`, `sctp` or both; TCP sessions end by themselves and are refused here.
        clock: For the duration.

    Returns:
        What was done. No privilege, no connection tracking or a failing kernel is a problem told, not an exception.

    Raises:
        ValueError: A protocol is not `udp` or `sctp`.
    """
    wanted = frozenset(protocols) & table.protocols
    if not frozenset(protocols) <= {"udp", "sctp"}:
        raise ValueError(f"records of these protocols are not cleaned: {', '.join(sorted(protocols))}")
    if not wanted:
        return ConntrackOutcome()
    began_s = clock()
    cleaner = _Cleaner(family, table, wanted)
    problem = until_undisturbed(cleaner.run) or cleaner.problem
    return ConntrackOutcome(listed=cleaner.listed, deleted=cleaner.deleted, seconds=clock() - began_s, problem=problem)


def count(family: Family, protocol: str = "") -> Count:
    """Count the records of *family*, all or those of one protocol (`tcp`, `udp`, `sctp`)."""
    question = Question(PROTOCOL_NUMBERS[protocol]) if protocol else None
    found = 0

    def look() -> bool:
        nonlocal found
        scan = Scan(family, {}, {}, frozenset(), localhost=False)
        with Channel(family) as channel:
            for _ in scan.suspects(channel.dump(question)):
                pass
        found = scan.listed
        return not scan.is_interrupted

    problem = until_undisturbed(look)
    return Count(0 if problem else found, problem)


class _Cleaner:
    """One clean-up, in as many passes as it takes; the counts are those of all passes."""

    def __init__(self, family: Family, table: FlowTable, protocols: frozenset[str]) -> None:
        self.deleted = 0
        self.problem = ""
        self._family = family
        self._table = table
        self._scan = _scan_for(family, table, protocols)
        self._questions = _questions(family, table, protocols)

    @property
    def listed(self) -> int:
        return self._scan.listed

    def run(self) -> bool:
        """One pass through the table; whether it was undisturbed."""
        self._scan.is_interrupted = False
        with Channel(self._family) as listing, Channel(self._family) as deleting:
            for question in self._questions:
                answer = _Answer(listing.dump(question), question)
                self._delete_stale(answer, deleting)
                if not answer.is_filtered:
                    self._delete_stale(listing.dump(None), deleting)
                    break
        return not self._scan.is_interrupted

    def _delete_stale(self, datagrams: Iterable[bytes], channel: Channel) -> None:
        stale = (record for record in _records(self._scan.suspects(datagrams)) if self._is_stale(record))
        for batch in _batches(stale):
            self._delete(channel, batch)

    def _is_stale(self, record: Record) -> bool:
        return record.zone == 0 and is_stale(record.flow, self._table)

    def _delete(self, channel: Channel, batch: Sequence[Record]) -> None:
        failures = channel.delete([record.key for record in batch])
        self.deleted += len(batch) - len(failures)
        refused = [code for code in failures if code != errno.ENOENT]
        if refused:
            self.problem = _explain(refused[0])


class _Answer:
    """
    The datagrams of an answer, with a look at the first one: does this kernel search by itself?

    If it does not, the whole table is listed once, since further questions would only bring the same again.
    """

    def __init__(self, datagrams: Iterator[bytes], question: Question) -> None:
        self.is_filtered = True
        self._datagrams = datagrams
        self._question = question

    def __iter__(self) -> Iterator[bytes]:
        for number, datagram in enumerate(self._datagrams):
            if number == 0:
                self.is_filtered = is_filtered(datagram, self._question)
            yield datagram


def until_undisturbed(look: Callable[[], bool]) -> str:
    """Call *look* until it says that nothing disturbed it, a few times at most; a problem, one line, or ""."""
    reason = "the table changed too fast"
    for _ in range(_MAX_PASSES):
        try:
            if look():
                return ""
        except TimeoutError:
            return "connection tracking: the kernel does not answer"
        except OSError as error:
            reason = _explain(error.errno or 0)
            if error.errno not in _PASSING:
                return reason
    return f"connection tracking could not be listed completely in {_MAX_PASSES} attempts: {reason}"


def _explain(code: int) -> str:
    if code in (errno.EPERM, errno.EACCES):
        return "connection tracking may not be read or changed: CAP_NET_ADMIN is needed"
    if code in (errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT, errno.EINVAL, errno.EOPNOTSUPP):
        return "the kernel does not let connection tracking be listed (CONFIG_NF_CT_NETLINK)"
    return f"connection tracking: the kernel says {errno.errorcode.get(code, str(code))}"


def _records(bodies: Iterable[list[bytes]]) -> Iterator[Record]:
    for body in chain.from_iterable(bodies):
        record = read_record(body)
        if record is not None:
            yield record


def _batches(values: Iterable[_T]) -> Iterator[list[_T]]:
    batch: list[_T] = []
    for value in values:
        batch.append(value)
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _questions(family: Family, table: FlowTable, protocols: frozenset[str]) -> list[Question]:
    """
    One for each entry if they are few, else one for each protocol.

    IPv6 addresses are not asked for: kernels compare them the wrong way round (seen up to 6.18) and send all records
    but the ones wanted. The port alone narrows the answer enough.
    """
    entries = [entry for entry in (*table.allowed, *table.former) if entry.protocol in protocols]
    narrow = {
        Question(
            PROTOCOL_NUMBERS[entry.protocol],
            pack_address(entry.address) if entry.address and family is Family.IPV4 else b"",
            pack_port(entry.port),
        ): None
        for entry in islice(entries, MAX_ENTRIES)
    }
    if len(entries) > MAX_ENTRIES or len(narrow) > MAX_QUESTIONS:
        return [Question(PROTOCOL_NUMBERS[protocol]) for protocol in sorted(protocols)]
    return list(narrow)


def _scan_for(family: Family, table: FlowTable, protocols: frozenset[str]) -> Scan:
    allowed: dict[PackedEntry, frozenset[PackedEndpoint]] = {}
    node_ports: dict[tuple[int, bytes], frozenset[PackedEndpoint]] = {}
    nobody = ((entry, frozenset[EndpointAddress]()) for entry in table.former)
    for entry, endpoints in (*nobody, *table.allowed.items()):
        if entry.protocol in protocols:
            packed = frozenset((pack_address(address), pack_port(port)) for address, port in endpoints)
            if entry.address:
                allowed[_packed(entry)] = packed
            else:
                node_ports[PROTOCOL_NUMBERS[entry.protocol], pack_port(entry.port)] = packed
    addresses = frozenset(pack_address(address) for address in table.options.node_addresses)
    return Scan(family, allowed, node_ports, addresses, localhost=table.options.localhost)


def _packed(entry: Entry) -> PackedEntry:
    return pack_address(entry.address), PROTOCOL_NUMBERS[entry.protocol], pack_port(entry.port)
