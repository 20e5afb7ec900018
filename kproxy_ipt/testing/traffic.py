"""
Real connections, many at a time, and what became of each.

A question is sent from a namespace to an address and port where one of `servers.py` may answer. Every exchange uses a
socket of its own, with a source port that no other one of the call has, hence a new decision of the balancing. One
event loop in the calling thread drives them all: 3,000 exchanges take about a second.
"""

import errno
import os
import selectors
import socket
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from enum import StrEnum
from itertools import cycle, islice
from typing import Self

import msgspec

from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.testing.sockets import CHUNK, QUESTION, Protocol, connection_error, make_client, sent_again


class Outcome(StrEnum):
    """What became of one exchange."""

    ANSWERED = "answered"
    REFUSED = "refused"
    """A TCP reset instead of a connection, or ICMP "port unreachable": a closed port, or a REJECT rule."""
    RESET = "reset"
    """A connection that was made, then broken."""
    UNREACHABLE = "unreachable"
    """No route, or another ICMP error."""
    TIMEOUT = "timeout"
    """Nothing came back: a DROP rule, or a lost way back."""


_OUTCOMES = {
    errno.ECONNREFUSED: Outcome.REFUSED,
    errno.ECONNRESET: Outcome.RESET,
    errno.EPIPE: Outcome.RESET,
    errno.ETIMEDOUT: Outcome.TIMEOUT,
    errno.EHOSTUNREACH: Outcome.UNREACHABLE,
    errno.ENETUNREACH: Outcome.UNREACHABLE,
    errno.EACCES: Outcome.UNREACHABLE,
}
_MOST_TRIES = 1000
"""Ports that the kernel may propose in vain; where one of ten is left, that is once in 10^46 calls."""


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """
    One question and its answer.

    Attributes:
        outcome: `name` and the two that the server saw are filled only if it is `ANSWERED`.
        name: Who answered.
        seen_address: The source address that the server saw.
        seen_port: The source port that the server saw.
        source: Source address of the client, "" where it never got one.
        source_port: Source port of the client.
        took_s: From the first packet to the outcome; on a busy machine that says little about the packets.
        sent_again: TCP segments that the client had to send more than once, its SYN included: what rules made of the
            first one was no answer.
    """

    outcome: Outcome
    name: str = ""
    seen_address: str = ""
    seen_port: int = 0
    source: str = ""
    source_port: int = 0
    took_s: float
    sent_again: int = 0


class Traffic(msgspec.Struct, frozen=True):
    """All exchanges of one call, in the order in which they began."""

    exchanges: tuple[Exchange, ...]

    @property
    def outcomes(self) -> Counter[Outcome]:
        """How often each outcome happened."""
        return Counter(each.outcome for each in self.exchanges)

    @property
    def names(self) -> Counter[str]:
        """How often each name answered."""
        return Counter(each.name for each in self._answered())

    @property
    def seen_addresses(self) -> Counter[str]:
        """How often servers saw each source address."""
        return Counter(each.seen_address for each in self._answered())

    @property
    def took_s(self) -> float:
        """The longest exchange, 0 if there was none."""
        return max((each.took_s for each in self.exchanges), default=0.0)

    @property
    def sent_again(self) -> int:
        """TCP segments that had to be sent more than once."""
        return sum(each.sent_again for each in self.exchanges)

    def _answered(self) -> Iterator[Exchange]:
        return (each for each in self.exchanges if each.outcome is Outcome.ANSWERED)


class _Attempt:
    """A socket on its way: first it waits until it may ask, then for the answer."""

    def __init__(self, number: int, client: socket.socket, protocol: Protocol) -> None:
        self.number = number
        self.client = client
        self.protocol: Protocol = protocol
        self.asked = False
        self.began_s = time.monotonic()

    def begin(self, target: tuple[str, int]) -> Exchange | None:
        """Send the first packet, or the first step of it; an exchange if it is over already."""
        with suppress(BlockingIOError):
            try:
                self.client.connect(target)
            except OSError as error:
                if error.errno != errno.EINPROGRESS:
                    return self.failed(error.errno)
        return None

    def step(self) -> Exchange | None:
        """Go on after the selector said so; an exchange if it is over."""
        try:
            if self.asked:
                return self.answered(self.client.recv(CHUNK))
            if code := connection_error(self.client, self.protocol):
                return self.failed(code)
            _ask(self.client)
            self.asked = True
        except BlockingIOError:
            return None
        except OSError as error:
            return self.failed(error.errno)
        return None

    def answered(self, line: bytes) -> Exchange:
        """The exchange that ends with this answer; an empty one is a closed connection."""
        if not line:
            return self.over(Outcome.RESET)
        name, address, port = line.decode().split()
        return self.over(Outcome.ANSWERED, name, address, int(port))

    def failed(self, code: int | None) -> Exchange:
        """The exchange that ends with an error of the system; errors of our own making are raised."""
        if code not in _OUTCOMES:
            raise OSError(code, f"unexpected error of a client: {errno.errorcode.get(code or 0, code)}")
        return self.over(_OUTCOMES[code])

    def over(self, outcome: Outcome, name: str = "", seen_address: str = "", seen_port: int = 0) -> Exchange:
        """The exchange that ends now."""
        took_s = time.monotonic() - self.began_s
        source, source_port = self.client.getsockname()[:2]
        return Exchange(
            outcome=outcome,
            name=name,
            seen_address=seen_address,
            seen_port=seen_port,
            source=source,
            source_port=source_port,
            took_s=took_s,
            sent_again=sent_again(self.client, self.protocol),
        )


def _ask(client: socket.socket) -> None:
    """Send the question; one that the own namespace filters is lost like one that is filtered further on."""
    try:
        client.send(QUESTION)
    except PermissionError as error:
        # A rule of the chain OUTPUT took a datagram. What a REJECT says about it is read next.
        if error.errno != errno.EPERM:
            raise


class _Clients:
    """
    Sockets for new flows to one target.

    The kernel gives the port of a closed UDP socket to the next one as readily as any other, while connection tracking
    still knows its flow. Of 3,000 sockets 160 would ask nothing new. A TCP client remembers its ports by itself.
    """

    def __init__(self, netns: str, target: tuple[str, int], protocol: Protocol, source_port: int) -> None:
        self.netns = netns
        self.target = target
        self.protocol: Protocol = protocol
        self.source_port = source_port
        self.used: set[tuple[str, int]] = set()

    def new(self, source: str) -> socket.socket:
        """
        A socket whose flow is new.

        Raises:
            OSError: As `send`, or no source port is left.
        """
        for _ in range(_MOST_TRIES):
            with inside(self.netns):
                client = make_client(self.target[0], self.protocol, source, self.source_port)
            if self.protocol != "udp" or self.source_port:
                return client
            try:
                client.connect(self.target)  # sends nothing, and chooses the port
            except OSError:  # the same happens to whoever uses it
                return client
            place = client.getsockname()[:2]
            if place not in self.used:
                self.used.add(place)
                return client
            client.close()
        raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))


class _Crowd:
    """Attempts in flight, at most *parallel*, and the exchanges that they became."""

    def __init__(self, target: tuple[str, int], timeout_s: float) -> None:
        self.target = target
        self.timeout_s = timeout_s
        self.exchanges: dict[int, Exchange] = {}
        self.waiting: dict[int, _Attempt] = {}
        self.selector = selectors.DefaultSelector()

    def close(self) -> None:
        """Close what is still open; only after an error is there any."""
        for attempt in self.waiting.values():
            attempt.client.close()
        self.selector.close()

    def add(self, attempt: _Attempt) -> None:
        self.waiting[attempt.number] = attempt
        self.selector.register(attempt.client, selectors.EVENT_WRITE, attempt)
        self._note(attempt, attempt.begin(self.target))

    def turn(self) -> None:
        """Wait for something to happen, then give up the attempts that are too old."""
        for key, _ in self.selector.select(self._patience_s()):
            attempt: _Attempt = key.data
            before = attempt.asked
            exchange = attempt.step()
            if exchange is None and attempt.asked is not before:
                self.selector.modify(attempt.client, selectors.EVENT_READ, attempt)
            self._note(attempt, exchange)
        # Judged after the reading, so that a busy machine does not make a timeout of an answer that lies there.
        expired = time.monotonic() - self.timeout_s
        for attempt in [each for each in self._oldest_first() if each.began_s < expired]:
            self._note(attempt, attempt.step() or attempt.over(Outcome.TIMEOUT))

    def _oldest_first(self) -> Iterator[_Attempt]:
        return iter(self.waiting.values())

    def _patience_s(self) -> float:
        oldest = next(self._oldest_first()).began_s
        return max(0.0, oldest + self.timeout_s - time.monotonic()) + 0.001

    def _note(self, attempt: _Attempt, exchange: Exchange | None) -> None:
        if exchange is not None:
            self.exchanges[attempt.number] = exchange
            self.selector.unregister(attempt.client)
            attempt.client.close()
            del self.waiting[attempt.number]


def send(
    netns: str,
    address: str,
    port: int,
    *,
    protocol: Protocol = "tcp",
    count: int = 1,
    sources: Sequence[str] = (),
    source_port: int = 0,
    timeout_s: float = 1.0,
    parallel: int = 64,
) -> Traffic:
    """
    Ask *count* times from a namespace, each time with a new socket.

    Args:
        netns: Name of the network namespace of the client.
        address: Where to ask, of either family.
        port: Where to ask.
        protocol: `tcp`, `udp` or `sctp`.
        count: Number of exchanges.
        sources: Source addresses, used in turn; without any the kernel chooses.
        source_port: 0 lets the kernel choose; a fixed one allows one exchange at a time for each source.
        timeout_s: How long one exchange may take; below 1 a lost TCP SYN is not sent again.
        parallel: How many exchanges are in flight at once.

    Raises:
        NamespaceError: The namespace cannot be entered.
        OSError: A source address or port cannot be used, or the kernel lacks the protocol.
    """
    choices = islice(cycle(sources or ("",)), count)
    if source_port:
        parallel = 1
    clients = _Clients(netns, (address, port), protocol, source_port)
    with closing(_Crowd((address, port), timeout_s)) as crowd:
        for number, source in enumerate(choices):
            crowd.add(_Attempt(number, clients.new(source), protocol))
            while len(crowd.waiting) >= parallel:
                crowd.turn()
        while crowd.waiting:
            crowd.turn()
        return Traffic(tuple(crowd.exchanges[number] for number in range(count)))


class Session:
    """
    One socket that stays open, so that it can be asked before and after a change of rules; a context manager.

    For UDP that is a client with a fixed source port, for TCP an established connection.
    """

    def __init__(self, client: socket.socket, protocol: Protocol) -> None:
        self._client = client
        self._protocol: Protocol = protocol

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the socket."""
        self._client.close()

    def ask(self, timeout_s: float = 1.0) -> Exchange:
        """
        Ask once more on the open socket.

        Returns:
            The exchange; after another outcome than an answer a TCP session is of no more use.
        """
        attempt = _Attempt(0, self._client, self._protocol)
        self._client.settimeout(timeout_s)
        try:
            _ask(self._client)
            return attempt.answered(self._client.recv(CHUNK))
        except TimeoutError:
            return attempt.over(Outcome.TIMEOUT)
        except OSError as error:
            return attempt.failed(error.errno)


def open_session(
    netns: str,
    address: str,
    port: int,
    *,
    protocol: Protocol = "tcp",
    source: str = "",
    source_port: int = 0,
    timeout_s: float = 1.0,
) -> Session:
    """
    Open a session from a namespace; see `send` for the arguments.

    Raises:
        NamespaceError: The namespace cannot be entered.
        OSError: The connection was not made: `ConnectionRefusedError`, `TimeoutError` and the like.
    """
    with inside(netns):
        client = make_client(address, protocol, source, source_port)
    try:
        _connect(client, (address, port), protocol, timeout_s)
    except BaseException:
        client.close()
        raise
    return Session(client, protocol)


def _connect(client: socket.socket, target: tuple[str, int], protocol: Protocol, timeout_s: float) -> None:
    with suppress(BlockingIOError):
        client.connect(target)
    with selectors.DefaultSelector() as selector:
        selector.register(client, selectors.EVENT_WRITE)
        if not selector.select(timeout_s):
            raise TimeoutError(f"no answer from {target[0]} port {target[1]} within {timeout_s} s")
    if code := connection_error(client, protocol):
        raise OSError(code, f"{os.strerror(code)}: {target[0]} port {target[1]}")
