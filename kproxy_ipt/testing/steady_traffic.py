"""
Clients that never rest: they connect anew all the time, or keep asking on open sockets, until they are told to stop.

What a change of rules must not do to traffic is seen by sending it meanwhile. One thread for each client; sockets are
those of `traffic.py`.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Sequence
from typing import Self

from kproxy_ipt.testing.lab import Place
from kproxy_ipt.testing.sockets import Protocol
from kproxy_ipt.testing.traffic import Exchange, Outcome, Session, send

_AT_ONCE = 4
_PAUSE_S = 0.01
_MINUTE_S, _MOST_BATCHES, _CROWDED_S = 61.0, 3_400, 0.5
"""
A closed connection keeps one of 28,000 ports for a minute, and once half of them are kept each new one looks through
all of these. So with 13,600 connections in a minute it goes on slowly.
"""
_JOIN_S = 20.0
_ANSWER_S = 5.0
"""For a datagram, which nobody sends again: what is lost is lost, and what is late for want of a processor comes."""


class _Rounds(ABC):
    """One round after the other in a thread of its own, until the body of the `with` has ended."""

    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Finish the round that is under way; raises what went wrong in the thread."""
        self._stop.set()
        self._thread.join(_JOIN_S)
        if self._error is not None:
            raise self._error

    @abstractmethod
    def _round(self) -> None: ...

    def _pause(self) -> float:
        return self._pause_s

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._pause()):
                self._round()
        except BaseException as error:  # noqa: BLE001 - told to whoever waits for the thread
            self._error = error


class SteadyConnections(_Rounds):
    """
    New connections from one place to one address; a context manager, the results are there after it.

    Attributes:
        exchanges: All of them, in order.
    """

    def __init__(
        self,
        place: Place,
        address: str,
        port: int,
        *,
        protocol: Protocol = "tcp",
        timeout_s: float = 2.0,
        pause_s: float = _PAUSE_S,
    ) -> None:
        """
        See `traffic.send`; a lost SYN is sent again after a second, so it shows in `sent_again`, not in `failures`.

        Four at once, then *pause_s*, or half a second where a minute's connections would hardly find ports.
        """
        self.exchanges: list[Exchange] = []
        self._place = place
        self._target = (address, port)
        self._protocol: Protocol = protocol
        self._timeout_s = timeout_s
        super().__init__(pause_s)
        self._began_s: deque[float] = deque(maxlen=_MOST_BATCHES)

    @property
    def failures(self) -> Counter[Outcome]:
        """How often something else than an answer came."""
        return Counter(each.outcome for each in self.exchanges if each.outcome is not Outcome.ANSWERED)

    @property
    def sent_again(self) -> int:
        """TCP segments that had to be sent more than once, SYNs included."""
        return sum(each.sent_again for each in self.exchanges)

    def _round(self) -> None:
        address, port = self._target
        self._began_s.append(time.monotonic())
        self.exchanges += send(
            self._place.netns,
            address,
            port,
            protocol=self._protocol,
            count=_AT_ONCE,
            parallel=_AT_ONCE,
            timeout_s=self._timeout_s,
        ).exchanges

    def _pause(self) -> float:
        crowded = len(self._began_s) == _MOST_BATCHES and time.monotonic() - self._began_s[0] < _MINUTE_S
        return max(self._pause_s, _CROWDED_S) if crowded else self._pause_s


class SteadyStreams(_Rounds):
    """
    Open sockets that ask again and again; a context manager, the results are there after it.

    Attributes:
        names: Who answered each of *sessions*.
        unanswered: How many questions got no answer.
        asked: How many questions there were.
    """

    def __init__(self, sessions: Sequence[Session]) -> None:
        """Use *sessions*, which stay open afterwards."""
        self.names: list[set[str]] = [set() for _ in sessions]
        self.unanswered = 0
        self.asked = 0
        self._sessions = sessions
        super().__init__(_PAUSE_S)

    def _round(self) -> None:
        for session, names in zip(self._sessions, self.names, strict=True):
            exchange = session.ask(_ANSWER_S)
            self.asked += 1
            if exchange.outcome is Outcome.ANSWERED:
                names.add(exchange.name)
            else:
                self.unanswered += 1
