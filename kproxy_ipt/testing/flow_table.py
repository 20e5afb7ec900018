"""
`flows.yaml`: flows of a case and what is expected of them, read strictly.

::

    addresses: {pod: 10.244.1.200, outside: [203.0.113.9, "2001:db8::9"], node: 192.0.2.10}   # optional
    interfaces: {pod: veth0, outside: eth0}                                                    # optional
    flows:
    - from: pod                   # pod, node, outside or an address; or a list of them
      to: 10.96.0.10              # an address, or a list
      port: 80
      protocol: tcp               # udp, sctp
      interface: eth1             # where it comes in
      title: halves               # for reports
      reaches: {10.244.1.5:8080: 1/2, 10.244.2.7:8080: 1/2}      # a list means equal shares
      masqueraded: true           # false; or the endpoints for which it is
    - {from: outside, to: 203.0.113.20, port: 80, is: dropped}   # rejected, untouched

Nothing is guessed: unknown and repeated fields, addresses that are none and shares that do not add up to 1 are errors,
all of them at once, each with its place.
"""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Literal, TypeVar

import msgspec

from kproxy_ipt.addresses import canonical_address
from kproxy_ipt.config.document_text import plain_document
from kproxy_ipt.errors import ConfigError, SourceError
from kproxy_ipt.testing.flows import TOLERANCE, Expectation, Flow, canonical_endpoint

NAMED_SOURCES = ("pod", "node", "outside")

_MOST_PORT = 65535

T = TypeVar("T", bound=msgspec.Struct)


class CaseError(SourceError):
    """A case, or a file of it, that cannot be used; `problems` holds every one, each with its place."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems

    def __reduce__(self) -> tuple[type["CaseError"], tuple[tuple[str, ...]]]:
        """So that it travels between processes."""
        return (CaseError, (self.problems,))


class ExpectedFlow(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table, or one combination of its lists; *index* counts the lines of the file from 0."""

    index: int
    flow: Flow
    expectation: Expectation
    title: str = ""

    @property
    def name(self) -> str:
        """`flows[3] pod -> 10.96.0.10:80/tcp`, the title behind it."""
        return f"flows[{self.index}] {self.flow}{f' ({self.title})' if self.title else ''}"


class FlowTable(msgspec.Struct, frozen=True, kw_only=True):
    """
    A decoded table.

    Attributes:
        addresses: Those of named sources, canonical; only what the file says.
        interfaces: Where packets of `pod` and `outside` come in; only what the file says.
        flows: In the order of the file, lists taken apart.
    """

    addresses: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    interfaces: Mapping[str, str] = msgspec.field(default_factory=dict)
    flows: tuple[ExpectedFlow, ...] = ()


class _Line(msgspec.Struct, forbid_unknown_fields=True, rename={"source": "from", "end": "is"}, kw_only=True):
    source: str | list[str]
    to: str | list[str]
    port: int
    protocol: Literal["tcp", "udp", "sctp"] = "tcp"
    interface: str = ""
    title: str = ""
    reaches: dict[str, str | int | float] | list[str] | None = None
    end: Literal["rejected", "dropped", "untouched"] | None = None
    masqueraded: bool | list[str] | None = None


class _Named(msgspec.Struct, forbid_unknown_fields=True):
    pod: str | list[str] = []
    node: str | list[str] = []
    outside: str | list[str] = []


class _Interfaces(msgspec.Struct, forbid_unknown_fields=True):
    pod: str = ""
    outside: str = ""


class _Table(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    flows: list[object]
    addresses: _Named = msgspec.field(default_factory=_Named)
    interfaces: _Interfaces = msgspec.field(default_factory=_Interfaces)


class _Place:
    """Collects problems of one file."""

    def __init__(self, origin: str) -> None:
        self.origin = origin
        self.problems: list[str] = []

    def add(self, path: str, text: str) -> None:
        self.problems.append(f"{self.origin}: {path}: {text}" if path else f"{self.origin}: {text}")

    def address(self, path: str, text: str) -> str:
        address = canonical_address(text)
        if address is None:
            self.add(path, f"found {text!r}, expected an IP address")
        return address or ""

    def endpoint(self, path: str, text: str) -> str:
        endpoint = canonical_endpoint(text)
        if endpoint is None:
            self.add(path, f"found {text!r}, expected ADDRESS:PORT")
        return endpoint or text


def decode_flows(text: bytes, origin: str) -> FlowTable:
    """
    Read a table.

    Args:
        text: YAML or JSON, at most 1 MiB.
        origin: Name of the file, for messages.

    Raises:
        CaseError: What is wrong, each with file, index and field.
    """
    plain = plain_fields(text, origin)
    place = _Place(origin)
    table = converted(plain, _Table, place.origin, "")
    addresses = {
        name: tuple(place.address(f"addresses.{name}", one) for one in _listed(getattr(table.addresses, name)))
        for name in NAMED_SOURCES
        if getattr(table.addresses, name)
    }
    flows = tuple(found for index, line in enumerate(table.flows) for found in _line_flows(line, index, place))
    if not table.flows:
        place.add("flows", "expected at least one flow")
    if place.problems:
        raise CaseError(tuple(place.problems))
    interfaces = {
        name: value for name, value in (("pod", table.interfaces.pod), ("outside", table.interfaces.outside)) if value
    }
    return FlowTable(addresses=addresses, interfaces=interfaces, flows=flows)


def plain_fields(text: bytes, origin: str) -> object:
    """
    The plain values of a YAML or JSON text, without repeated fields.

    Raises:
        CaseError: Neither YAML nor JSON, or something is there twice.
    """
    try:
        plain = plain_document(text)
    except ConfigError as error:
        raise CaseError(tuple(f"{origin}: {problem}" for problem in error.problems)) from error
    if plain.notes:
        raise CaseError(tuple(f"{origin}: {note}" for note in plain.notes))
    return plain.value


def converted(value: object, wanted: type[T], origin: str, path: str) -> T:
    """
    *value* as a *wanted* struct.

    Raises:
        CaseError: It does not fit; file, place and reason.
    """
    try:
        return msgspec.convert(value, wanted)
    except msgspec.ValidationError as error:
        reason, _, inner = str(error).replace("`", "").partition(" - at ")
        where = f"{path}{inner.removeprefix('$') if path else inner.removeprefix('$.').removeprefix('$')}"
        found = f"{where}: " if where else ""
        raise CaseError((f"{origin}: {found}{reason[:1].lower()}{reason[1:]}",)) from error


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def _line_flows(value: object, index: int, place: _Place) -> Iterator[ExpectedFlow]:
    path = f"flows[{index}]"
    try:
        line = converted(value, _Line, place.origin, path)
    except CaseError as error:
        place.problems += error.problems
        return
    if not 0 < line.port <= _MOST_PORT:
        place.add(f"{path}.port", f"found {line.port}, expected 1 to {_MOST_PORT}")
    expectation = _expectation(line, path, place)
    for source in _listed(line.source):
        known = source if source in NAMED_SOURCES else place.address(f"{path}.from", source)
        for to in _listed(line.to):
            flow = Flow(
                source=known,
                to=place.address(f"{path}.to", to),
                port=line.port,
                protocol=line.protocol,
                interface=line.interface,
            )
            yield ExpectedFlow(index=index, flow=flow, expectation=expectation, title=line.title)


def _expectation(line: _Line, path: str, place: _Place) -> Expectation:
    if (line.reaches is None) is (line.end is None):
        place.add(path, "expected either reaches or is")
        return Expectation()
    if line.end is not None:
        if line.masqueraded is not None and not (line.end == "untouched" and isinstance(line.masqueraded, bool)):
            place.add(f"{path}.masqueraded", f"does not go with is: {line.end}")
        masqueraded = line.masqueraded if isinstance(line.masqueraded, bool) else None
        return Expectation(shares={line.end: Fraction(1)}, masqueraded=masqueraded)
    shares = _shares(line.reaches or {}, f"{path}.reaches", place)
    if isinstance(line.masqueraded, list):
        named = frozenset(place.endpoint(f"{path}.masqueraded", text) for text in line.masqueraded)
        for text in sorted(named - shares.keys()):
            place.add(f"{path}.masqueraded", f"{text} is not among the endpoints that are reached")
        return Expectation(shares=shares, masqueraded=named)
    return Expectation(shares=shares, masqueraded=line.masqueraded)


def _shares(reaches: Mapping[str, str | int | float] | list[str], path: str, place: _Place) -> dict[str, Fraction]:
    if not reaches:
        place.add(path, "expected at least one endpoint; say `is: rejected` where none is reached")
        return {}
    given = dict.fromkeys(reaches, str(Fraction(1, len(reaches)))) if isinstance(reaches, list) else reaches
    shares: dict[str, Fraction] = {}
    for text, share in given.items():
        endpoint = place.endpoint(path, text)
        try:
            shares[endpoint] = Fraction(str(share))
        except (ValueError, ZeroDivisionError):
            place.add(f"{path}.{text}", f"found {share!r}, expected a share such as 1/2")
            return {}
    total = sum(shares.values(), Fraction())
    if abs(total - 1) > TOLERANCE:
        place.add(path, f"the shares add up to {total}, expected 1")
    return shares
