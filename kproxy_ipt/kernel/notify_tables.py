"""
Telling when another process changes nf_tables, so that lost rules come back at once.

Every transaction of nf_tables is told as its single changes (NEWRULE, DELCHAIN, ...), closed by NEWGEN, which names the
new generation and the process. Transactions never interleave, refused ones tell nothing, and all of it stands in our
receive buffer before the process that did it goes on.

Whose change it is. Our own restores are programs of which we know the process id, so what must be told apart is
process ids; generation numbers cannot do it, since a foreign transaction may come between two of ours. NEWGEN has the
id as the first pid namespace counts (`NFTA_GEN_PROC_PID`); in the header stands the port of the socket, which the
kernel makes from the id as the pid namespace *of the process* counts. So the former is compared where we live in the
first pid namespace, the latter elsewhere (a container without `hostPID`). If that port was taken, the kernel invents
one: our change then looks foreign, which costs one verification.

While our programs run (`own_changes`) nothing is told: what arrives is kept and judged at the end, when all ids are
known. Nothing is lost by that, as nobody could write before the end anyway.

Decided against: guessing by process name (others run `iptables-nft-restore` as well), and pyroute2 (it decodes every
expression of every rule: seconds for what needs two names).
"""

import os
import struct
from collections.abc import Callable, Container, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from pathlib import Path

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.kernel.nfnetlink import NETFILTER, NFPROTO_IPV4, NFPROTO_IPV6, read_attributes
from kproxy_ipt.kernel.nft_counters import ended_rule
from kproxy_ipt.kernel.notify import Listener, Message, Received, messages_of
from kproxy_ipt.stats.ended_rule import EndedRule

MAX_TOUCHED = 1_000
"""Chains of one change that are named."""
_MAX_READ_MESSAGES = 20_000
"""Messages of one transaction whose names are read; a restore of everything has more."""
_MAX_HELD = 1_000
"""Changes kept while our own programs run."""
_DATAGRAMS_AT_ONCE = 512
_GROUP_NFTABLES = 7
_SUBSYSTEM = 10
_NEW_GENERATION = 15
_CHAIN_MESSAGES = frozenset({3, 5})
_RULE_DELETED = 8
_RULE_MESSAGES = frozenset({6, _RULE_DELETED})
_TABLE, _RULE_CHAIN, _CHAIN_NAME = 1, 2, 3
_GENERATION_ID, _PROCESS_ID, _PROCESS_NAME = 1, 2, 3
_NFGENMSG_SIZE = 4
_FAMILIES = {NFPROTO_IPV4: Family.IPV4, NFPROTO_IPV6: Family.IPV6}
_FIRST_PID_NAMESPACE = "pid:[4026531836]"


class Touched(msgspec.Struct, frozen=True):
    """A chain with other rules than before, a new or a removed one; *chain* is "" for the table itself and its sets."""

    family: Family
    table: str
    chain: str


class TableChange(msgspec.Struct, frozen=True):
    """
    What one process changed in tables of `ip` and `ip6`.

    Attributes:
        process_id: As the first pid namespace counts; 0 if several processes did it, or if it is not known.
        process_name: Its first 15 characters, "" if not known.
        generation: Number of the ruleset afterwards.
        touched: At most 1,000 chains.
        many: There are more than *touched* names.
        lost: Messages did not fit into the receive buffer: anything may have changed.
    """

    process_id: int = 0
    process_name: str = ""
    generation: int = 0
    touched: AbstractSet[Touched] = frozenset()
    many: bool = False
    lost: bool = False

    def concerns(self, family: Family, table: str, chains: Container[str]) -> bool:
        """Whether one of *chains* of that table may have changed, or the table as such."""
        return (
            self.many
            or self.lost
            or any(
                touched.family is family and touched.table == table and (not touched.chain or touched.chain in chains)
                for touched in self.touched
            )
        )


class _Window:
    """A time in which programs of ours run."""

    def __init__(self) -> None:
        self.process_ids: set[int] = set()


class _Held(msgspec.Struct):
    """A change that is not judged yet: *own_id* is what process ids of ours are compared with."""

    change: TableChange
    own_id: int
    windows: tuple[_Window, ...]


class TableMonitor:
    """Calls back with each transaction that another process made in tables of `ip` or `ip6`."""

    def __init__(
        self,
        on_foreign_change: Callable[[TableChange], None],
        *,
        netns: str | None = None,
        on_ended_rule: Callable[[EndedRule], None] | None = None,
    ) -> None:
        """
        Listen from now on; a loop must be running.

        Args:
            on_foreign_change: Called on the loop, in the order of the transactions.
            netns: See `netns.inside`.
            on_ended_rule: Called on the loop for each deleted rule whose counter matters, whoever deleted it.

        Raises:
            KernelError: See `Listener`.
        """
        self._on_foreign_change = on_foreign_change
        self._on_ended_rule = on_ended_rule
        self._collected = _Collected()
        self._open: list[_Window] = []
        self._held: list[_Held] = []
        self._counts_globally = _in_first_pid_namespace()
        self._listener = Listener(NETFILTER, (_GROUP_NFTABLES,), netns)
        self._listener.start(self._read)

    def close(self) -> None:
        """Stop listening; may be called twice. What is still held is forgotten."""
        self._listener.close()
        self._held.clear()

    @contextmanager
    def own_changes(self) -> Iterator[set[int]]:
        """
        Around programs of ours that write; entered and left on the loop, with `await` inside.

        Gives the set that takes their process ids: added by any thread, at the latest before the body ends. Programs
        must have ended by then. Several such bodies may overlap.
        """
        window = _Window()
        self._open.append(window)
        try:
            yield window.process_ids
        finally:
            self.take_waiting()
            self._open.remove(window)
            self._judge()

    def _read(self) -> None:
        self._take(self._listener.receive(_DATAGRAMS_AT_ONCE))

    def take_waiting(self) -> None:
        """
        Take in everything that has arrived.

        All that a program did has arrived when it has ended; it must be here before anything is judged by it.
        """
        while not self._take(self._listener.receive(_DATAGRAMS_AT_ONCE)):
            pass

    def _take(self, received: Received) -> bool:
        """Take in what arrived, and tell whether nothing is left."""
        if received.lost:
            self._collected = _Collected()
            self._note(TableChange(lost=True), own_id=0)
        for datagram in received.datagrams:
            for message in messages_of(datagram):
                if message.kind >> 8 == _SUBSYSTEM:
                    self._take_message(message)
        return received.is_empty

    def _take_message(self, message: Message) -> None:
        kind = message.kind & 0xFF
        if kind != _NEW_GENERATION:
            if kind == _RULE_DELETED and self._on_ended_rule is not None and (ended := ended_rule(message.body)):
                self._on_ended_rule(ended)
            self._collected.add(message)
            return
        collected, self._collected = self._collected, _Collected()
        if not collected.touched and not collected.many:
            return
        attributes = read_attributes(message.body, _NFGENMSG_SIZE)
        process_id = _number(attributes.get(_PROCESS_ID, b""))
        change = TableChange(
            process_id=process_id,
            process_name=_text(attributes.get(_PROCESS_NAME, b"")),
            generation=_number(attributes.get(_GENERATION_ID, b"")),
            touched=frozenset(collected.touched),
            many=collected.many,
        )
        self._note(change, own_id=process_id if self._counts_globally else message.port_id)

    def _note(self, change: TableChange, *, own_id: int) -> None:
        """Tell a change, or keep it while programs of ours run."""
        if not self._open:
            self._on_foreign_change(change)
            return
        last = self._held[-1] if self._held else None
        windows = tuple(self._open)
        if last and last.own_id == own_id and last.windows == windows:
            last.change = _merged(last.change, change)
        elif last and len(self._held) >= _MAX_HELD:
            last.change, last.own_id, last.windows = TableChange(many=True), 0, windows
        else:
            self._held.append(_Held(change, own_id, windows))

    def _judge(self) -> None:
        """Forget what is ours, tell what is not, keep what may still turn out to be ours."""
        held, self._held = self._held, []
        for entry in held:
            if any(entry.own_id in window.process_ids for window in entry.windows):
                continue
            if any(window in self._open for window in entry.windows):
                self._held.append(entry)
            else:
                self._on_foreign_change(entry.change)


class _Collected:
    """What the messages of one transaction said, up to its NEWGEN."""

    def __init__(self) -> None:
        self.touched: set[Touched] = set()
        self.many = False
        self._read_messages = 0

    def add(self, message: Message) -> None:
        """Note what the message names; nothing more once there is too much."""
        if self.many or not message.body or (family := _FAMILIES.get(message.body[0])) is None:
            return
        self._read_messages += 1
        if self._read_messages > _MAX_READ_MESSAGES:
            self.many = True
            return
        attributes = read_attributes(message.body, _NFGENMSG_SIZE)
        kind = message.kind & 0xFF
        chain = b""
        if kind in _RULE_MESSAGES:
            chain = attributes.get(_RULE_CHAIN, b"")
        elif kind in _CHAIN_MESSAGES:
            chain = attributes.get(_CHAIN_NAME, b"")
        touched = Touched(family, _text(attributes.get(_TABLE, b"")), _text(chain))
        if len(self.touched) >= MAX_TOUCHED and touched not in self.touched:
            self.many = True
            return
        self.touched.add(touched)


def _merged(first: TableChange, second: TableChange) -> TableChange:
    """Two changes of one process as one."""
    touched = first.touched | second.touched
    many = first.many or second.many or len(touched) > MAX_TOUCHED
    return msgspec.structs.replace(
        second, touched=first.touched if many else touched, many=many, lost=first.lost or second.lost
    )


def _in_first_pid_namespace() -> bool:
    """Whether process ids as we see them are those of `NFTA_GEN_PROC_PID`."""
    try:
        return str(Path("/proc/self/ns/pid").readlink()) == _FIRST_PID_NAMESPACE
    except OSError:
        return False


def _number(packed: bytes) -> int:
    return int(struct.unpack("!I", packed)[0]) if len(packed) == struct.calcsize("!I") else 0


def _text(packed: bytes) -> str:
    return os.fsdecode(packed.rstrip(b"\0"))
