"""
Sums that only grow, made from counters that come, go and begin anew.

A counter of the kernel lives as long as its rule: it is gone with an endpoint, and begins at 0 when its chain is
written anew. The ledger keeps, for each counter, the sum of all its lives. It is told what a look at the kernel found,
and, by who hears of it, with how many a counter ended.

A key may stand for several counters (rules for each address of a Service that has no endpoints). When one of them
ends, what the others counted is not known, nor how much of the last look was its own. It need not be: what the look
after that finds, and what ended, together are what was counted, so the end is taken off from what was seen last.

What is lost if nobody tells: what was counted between the last look and the end of a counter. A new life that counted
more than was last seen of the old one passes for the old one.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum

import msgspec


class Kind(StrEnum):
    """What a counter counts."""

    CONNECTIONS = "connections"
    REJECTED = "rejected"
    DROPPED = "dropped"


class CounterKey(msgspec.Struct, frozen=True, order=True):
    """
    One thing that is counted.

    Attributes:
        service_port: `namespace/name:port_name`.
        protocol: `tcp`, `udp` or `sctp`.
        kind: Of events.
        endpoint: `ip:port`, "" unless connections are counted.
    """

    service_port: str
    protocol: str
    kind: Kind
    endpoint: str = ""


Counts = Mapping[CounterKey, int]


class Look:
    """A reading of the kernel that is under way; what ends meanwhile may be in it or not, and is left out."""

    def __init__(self) -> None:
        self.ended: set[CounterKey] = set()


class Ledger:
    """
    All sums of one family; not safe from several threads at once.

    Before `start` nothing is counted.
    """

    def __init__(self) -> None:
        self._sums: dict[CounterKey, int] = {}
        self._last: dict[CounterKey, int] = {}
        self._lost: dict[CounterKey, int] = {}
        self._looks: list[Look] = []
        self._has_started = False

    @property
    def has_started(self) -> bool:
        """Whether anything is counted yet."""
        return self._has_started

    @property
    def sums(self) -> Counts:
        """What was counted since the start."""
        return self._sums

    def start(self, counts: Counts) -> None:
        """Count from now on: what *counts*, a look at everything, holds is where each counter begins."""
        self._has_started = True
        self._last = dict(counts)
        for key in counts:
            self._sums.setdefault(key, 0)

    @contextmanager
    def look(self) -> Iterator[Look]:
        """Around a reading of the kernel and the `observe` that follows."""
        look = Look()
        self._looks.append(look)
        try:
            yield look
        finally:
            self._looks.remove(look)

    def observe(self, counts: Counts, look: Look) -> None:
        """
        Take in a look at all counters: one that was not found has ended.

        Args:
            counts: What was found.
            look: During which it was found.
        """
        if not self._has_started:
            return
        self._lost = {}
        for key in {**self._last, **counts}:
            if key not in look.ended:
                self._see(key, counts.get(key, 0))

    def _see(self, key: CounterKey, count: int) -> None:
        last = self._last.get(key, 0)
        if count < last:
            # Nobody told of the end of a counter. Of several under one key it is not known which ones began anew.
            self._lost[key] = last
            last = 0 if key.kind is Kind.CONNECTIONS else count
        self._sums[key] = self._sums.get(key, 0) + count - last
        self._last[key] = count

    def ended(self, key: CounterKey, count: int) -> None:
        """
        A counter of *key*, which may have several, has just gone at *count*; its next life begins at 0.

        A look that saw its absence, or its next life, may have been taken in already.
        """
        if not self._has_started:
            return
        if key in self._lost:
            self._sums[key] += max(0, count - self._lost.pop(key))
            return
        rest = self._last.get(key, 0) - count
        self._sums[key] = self._sums.get(key, 0) + max(0, -rest)
        self._last[key] = max(0, rest)
        for look in self._looks:
            look.ended.add(key)

    def forget(self, keys: Iterable[CounterKey]) -> None:
        """Drop sums that nobody will ask for any more."""
        for key in keys:
            for numbers in (self._sums, self._last, self._lost):
                numbers.pop(key, None)

    def fold(self, key: CounterKey, into: CounterKey) -> None:
        """Let a counter that has ended be part of another sum."""
        self._sums[into] = self._sums.get(into, 0) + self._sums.get(key, 0)
        self.forget((key,))
