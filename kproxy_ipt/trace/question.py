"""
What somebody asks about a packet, in the words of people, becomes the packet: `node`, `endpoint/IP`, `svc/shop/web`.

Names of Services are looked up in the rules themselves, so that no object is needed.
"""

from collections.abc import Sequence

import msgspec

from kproxy_ipt.addresses import Family, canonical_address, family_of
from kproxy_ipt.errors import RulesetError
from kproxy_ipt.ruleset.model import Ruleset
from kproxy_ipt.trace.naming import find_service
from kproxy_ipt.trace.packet import Origin, Packet

NODE = "node"


class QuestionError(ValueError):
    """The question names something that there is not; the text is for the one who asked."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """
    A packet that somebody asks about.

    Attributes:
        source: An address, `node` or `endpoint/IP`; "" stands for `node` if *from_node*.
        destination: The same, or `svc/NAMESPACE/NAME[:PORT]`.
        protocol: "" means that of a named Service, else tcp.
        source_port: 0 for any that clients get.
        destination_port: None means that of a named Service, else 80.
        mark: That it arrives with.
        state: Of connection tracking.
        from_node: Whether the node itself sends it.
    """

    source: str
    destination: str
    protocol: str = ""
    source_port: int = 0
    destination_port: int | None = None
    in_interface: str = ""
    out_interface: str = ""
    mark: int = 0
    state: str = "NEW"
    from_node: bool = False


def family_of_question(question: Question, node_addresses: Sequence[str]) -> Family:
    """
    The family of the addresses that are given; of a node and a Service, IPv4 unless the node has none.

    Raises:
        QuestionError: No source, or addresses of both families.
    """
    texts = (_source(question), question.destination)
    found = {family_of(address) for text in texts if (address := _plain_address(text))}
    if len(found) > 1:
        raise QuestionError(f"{texts[0]} and {texts[1]} are of different families")
    if found:
        return found.pop()
    return Family.IPV4 if any(family_of(one) is Family.IPV4 for one in node_addresses) else Family.IPV6


def packet_of(question: Question, ruleset: Ruleset, node_addresses: Sequence[str]) -> Packet:
    """
    The packet that *question* means.

    Args:
        question: What was asked.
        ruleset: Of the family of the question; knows the Services.
        node_addresses: Canonical; the first usable one of the family is what `node` stands for.

    Raises:
        QuestionError: A name means nothing.
    """
    family = ruleset.family
    destination, protocol, port = _destination(question.destination, family, node_addresses, ruleset)
    return Packet(
        family=family,
        source=_address(_source(question), family, node_addresses),
        destination=destination,
        protocol=question.protocol or protocol,
        source_port=question.source_port,
        destination_port=port if question.destination_port is None else question.destination_port,
        in_interface=question.in_interface,
        out_interface=question.out_interface,
        mark=question.mark,
        state=question.state,
        origin=Origin.NODE if question.from_node else Origin.REMOTE,
    )


def _source(question: Question) -> str:
    return question.source or (NODE if question.from_node else "")


def _plain_address(text: str) -> str | None:
    return canonical_address(text.removeprefix("endpoint/"))


def _address(text: str, family: Family, node_addresses: Sequence[str]) -> str:
    if text == NODE:
        own = [one for one in node_addresses if family_of(one) is family and not one.startswith(("127.", "fe80"))]
        own = [one for one in own if one != "::1"] or ["127.0.0.1" if family is Family.IPV4 else "::1"]
        return own[0]
    address = _plain_address(text)
    if address is None:
        raise QuestionError(f"{text!r} is neither an address, nor node, nor endpoint/IP, nor svc/NAMESPACE/NAME")
    return address


def _destination(text: str, family: Family, node_addresses: Sequence[str], ruleset: Ruleset) -> tuple[str, str, int]:
    """Address, protocol and port."""
    kind, _, name = text.partition("/")
    if kind != "svc":
        return _address(text, family, node_addresses), "tcp", 80
    service, _, port = name.partition(":")
    try:
        return find_service(ruleset, service, port)
    except RulesetError as error:
        raise QuestionError(str(error)) from error
