"""Questions of people become packets."""

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.rules.build import with_base_chains
from kproxy_ipt.testing.desired import desired_for
from kproxy_ipt.testing.objects import endpoint_slice, service, service_port
from kproxy_ipt.trace.packet import Origin
from kproxy_ipt.trace.question import Question, QuestionError, family_of_question, packet_of

DNS = service("dns", namespace="kube-system", ports=[service_port(53, name="dns", protocol="UDP")])
RULES = with_base_chains(desired_for(DNS, endpoint_slice(DNS)))
NODE_ADDRESSES = ("127.0.0.1", "fe80::1", "192.0.2.10", "2001:db8::10")


def test_a_service_brings_its_protocol_and_port() -> None:
    """Unless others are asked for."""
    question = Question(source="endpoint/10.244.1.2", destination="svc/kube-system/dns:dns")
    packet = packet_of(question, RULES, NODE_ADDRESSES)

    assert (packet.source, packet.destination) == ("10.244.1.2", "10.96.0.10")
    assert (packet.protocol, packet.destination_port) == ("udp", 53)


def test_the_node_is_its_first_address_that_others_know() -> None:
    """Neither loopback nor one of the link."""
    question = Question(source="", destination="node", destination_port=30080, from_node=True)
    packet = packet_of(question, RULES, NODE_ADDRESSES)

    assert (packet.source, packet.destination, packet.origin) == ("192.0.2.10", "192.0.2.10", Origin.NODE)


@pytest.mark.parametrize(
    ("source", "destination", "addresses", "family"),
    [
        ("fd00::1", "node", NODE_ADDRESSES, Family.IPV6),
        ("node", "10.0.0.1", NODE_ADDRESSES, Family.IPV4),
        ("node", "svc/a/b", NODE_ADDRESSES, Family.IPV4),
        ("node", "svc/a/b", ("2001:db8::10",), Family.IPV6),
    ],
)
def test_the_family_is_that_of_the_addresses(
    source: str, destination: str, addresses: tuple[str, ...], family: Family
) -> None:
    """Where there are none, that of the node."""
    assert family_of_question(Question(source=source, destination=destination), addresses) is family


@pytest.mark.parametrize(
    ("source", "destination", "problem"),
    [
        ("somebody", "10.0.0.1", "'somebody' is neither an address"),
        ("10.0.0.1", "svc/a/b", "no rule names that service"),
        ("10.0.0.1", "nowhere", "'nowhere' is neither an address"),
    ],
)
def test_names_that_mean_nothing_are_refused(source: str, destination: str, problem: str) -> None:
    """The text is for the one who asked."""
    with pytest.raises(QuestionError, match=problem):
        packet_of(Question(source=source, destination=destination), RULES, NODE_ADDRESSES)
