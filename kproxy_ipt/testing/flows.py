"""
Flows and what is expected of them: endpoints that they reach and how often, or that they are refused or left alone.

What comes in is the outcomes of a walk (`kproxy_ipt.trace`); what goes out is a `Fate` and, against an `Expectation`,
sentences about what is wrong. Shares are fractions. Rules hold probabilities of ten digits, so shares count as equal
within one millionth.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from fractions import Fraction

import msgspec

from kproxy_ipt.addresses import canonical_address
from kproxy_ipt.trace.packet import End, Outcome

TOLERANCE = Fraction(1, 1_000_000)
"""How far a share may be off."""

_LARGEST_DENOMINATOR = 1000
_ROUNDING = Fraction(1, 10**8)
_MOST_PORT = 65535


class NoDelivery(StrEnum):
    """What becomes of a flow that reaches no endpoint."""

    REJECTED = "rejected"
    DROPPED = "dropped"
    UNTOUCHED = "untouched"


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """
    A new connection, as a person names it.

    Attributes:
        source: `pod`, `node`, `outside` or an address.
        to: An address.
        port: 1 to 65535.
        protocol: `tcp`, `udp` or `sctp`.
        interface: Where the packet comes in; "" means what fits *source*.
    """

    source: str
    to: str
    port: int
    protocol: str = "tcp"
    interface: str = ""

    def __str__(self) -> str:
        """`pod -> 10.96.0.10:80/tcp`."""
        return f"{self.source} -> {endpoint_text(self.to, self.port)}/{self.protocol}"


class Expectation(msgspec.Struct, frozen=True, kw_only=True):
    """
    What should become of a flow.

    Attributes:
        shares: Endpoint (`10.244.1.5:8080`, `[fd00::5]:8080`) or a word of `NoDelivery` -> share, adding up to 1.
            Empty means that nothing is said about it.
        masqueraded: Whether the source is rewritten, or exactly for which endpoints; None means that either is right.
    """

    shares: Mapping[str, Fraction] = msgspec.field(default_factory=dict)
    masqueraded: bool | frozenset[str] | None = None


class Fate(msgspec.Struct, frozen=True, kw_only=True):
    """
    What becomes of a flow.

    Attributes:
        shares: As in `Expectation`, in the order of the walk.
        masqueraded: Keys of *shares* whose packets (all or some of them) get another source.
        unmasqueraded: Keys of *shares* whose packets (all or some of them) keep their source.
        outcomes: What it was computed from, with the rules that the packets met.
    """

    shares: Mapping[str, Fraction]
    masqueraded: frozenset[str] = frozenset()
    unmasqueraded: frozenset[str] = frozenset()
    outcomes: tuple[Outcome, ...] = ()

    def __str__(self) -> str:
        """`10.244.1.5:8080 1/2 masqueraded, 10.244.2.7:8080 1/2`, or `rejected`."""
        return ", ".join(
            _part(key, share, masqueraded=key in self.masqueraded, mixed=key in self.unmasqueraded)
            for key, share in self.shares.items()
        )


def _part(key: str, share: Fraction, *, masqueraded: bool, mixed: bool) -> str:
    words = [key, *([] if share == 1 else [share_text(share)])]
    if masqueraded:
        words.append("partly masqueraded" if mixed else "masqueraded")
    return " ".join(words)


def endpoint_text(address: str, port: int) -> str:
    """`10.244.1.5:8080` or `[fd00::5]:8080`."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def canonical_endpoint(text: str) -> str | None:
    """Read `ADDRESS:PORT` (IPv6 addresses in brackets), or None where *text* is no endpoint."""
    address_text, _, port_text = text.rpartition(":")
    bracketed = address_text.startswith("[") and address_text.endswith("]")
    address = canonical_address(address_text[1:-1] if bracketed else address_text)
    if address is None or bracketed is not (":" in address) or not port_text.isdecimal():
        return None
    return endpoint_text(address, int(port_text)) if 0 < int(port_text) <= _MOST_PORT else None


def share_text(share: Fraction) -> str:
    """The simple fraction that *share* stands for, or a decimal number where there is none."""
    simple = share.limit_denominator(_LARGEST_DENOMINATOR)
    return str(simple) if abs(simple - share) <= _ROUNDING else f"{float(share):.6f}"


def fate_of(outcomes: Iterable[Outcome]) -> Fate:
    """Add up outcomes of one packet by what a client or a pod would notice."""
    known = tuple(outcomes)
    shares: dict[str, Fraction] = {}
    for outcome in known:
        shares[_key(outcome)] = shares.get(_key(outcome), Fraction()) + outcome.share
    return Fate(
        shares=shares,
        masqueraded=frozenset(_key(outcome) for outcome in known if outcome.masqueraded),
        unmasqueraded=frozenset(_key(outcome) for outcome in known if not outcome.masqueraded),
        outcomes=known,
    )


def _key(outcome: Outcome) -> str:
    if outcome.end is End.REJECTED:
        return NoDelivery.REJECTED
    if outcome.end is End.DROPPED:
        return NoDelivery.DROPPED
    if not outcome.translated:
        return NoDelivery.UNTOUCHED
    return endpoint_text(outcome.destination, outcome.destination_port)


def expected_text(expectation: Expectation) -> str:
    """An expectation in the words of `Fate`."""
    masqueraded = expectation.masqueraded
    named = expectation.shares if isinstance(masqueraded, bool) or masqueraded is None else masqueraded
    shown = frozenset(named) if masqueraded else frozenset()
    text = str(Fate(shares=expectation.shares, masqueraded=shown))
    return f"{text}, not masqueraded" if masqueraded is False else text


def problems_of(expectation: Expectation, fate: Fate) -> tuple[str, ...]:
    """What of *fate* is not as expected, a sentence each; () if all is."""
    return (*_share_problems(expectation.shares, fate.shares), *_masquerade_problems(expectation, fate))


def _share_problems(expected: Mapping[str, Fraction], actual: Mapping[str, Fraction]) -> Iterable[str]:
    for key in (*expected, *(key for key in actual if key not in expected)) if expected else ():
        wanted, found = expected.get(key, Fraction()), actual.get(key, Fraction())
        if abs(wanted - found) > TOLERANCE:
            yield f"{key}: expected a share of {share_text(wanted)}, found {share_text(found)}"


def _masquerade_problems(expectation: Expectation, fate: Fate) -> Iterable[str]:
    wanted = expectation.masqueraded
    if wanted is None:
        return
    for key in fate.shares:
        expected = wanted if isinstance(wanted, bool) else key in wanted
        wrong = fate.unmasqueraded if expected else fate.masqueraded
        if key in wrong:
            yield f"{key}: expected {'a masqueraded' if expected else 'the original'} source, found the other"
