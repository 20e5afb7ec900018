"""Cutting addresses and ports into parts that rules tell apart."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproxy_ipt.addresses import Family
from kproxy_ipt.trace.classes import (
    LAST_PORT,
    address_classes,
    address_number,
    address_text,
    is_prefix,
    network_and_mask,
    port_classes,
    unnamed_address,
)

_NETWORKS = st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 32)).map(
    lambda pair: str(ipaddress.ip_network(pair, strict=False))
)
_RANGES = st.tuples(st.integers(0, LAST_PORT), st.integers(0, LAST_PORT)).map(lambda pair: (min(pair), max(pair)))


def _holders(number: int, prefixes: list[str]) -> frozenset[str]:
    address = ipaddress.ip_address(number)
    return frozenset(prefix for prefix in prefixes if address in ipaddress.ip_network(prefix))


@given(prefixes=st.lists(_NETWORKS, max_size=12), number=st.integers(0, 2**32 - 1))
def test_every_address_has_one_that_stands_for_it(prefixes: list[str], number: int) -> None:
    """For any address there is a representative that the same prefixes hold, and no two for one set of prefixes."""
    held = [_holders(one, prefixes) for one in address_classes(prefixes, Family.IPV4)]

    assert _holders(number, prefixes) in held
    assert len(held) == len(set(held))


@given(ranges=st.lists(_RANGES, max_size=8), port=st.integers(1, LAST_PORT))
def test_every_port_has_one_that_stands_for_it(ranges: list[tuple[int, int]], port: int) -> None:
    """For any port there is a representative that the same ranges hold."""

    def holders(one: int) -> frozenset[tuple[int, int]]:
        return frozenset(wanted for wanted in ranges if wanted[0] <= one <= wanted[1])

    assert holders(port) in {holders(one) for one in port_classes(ranges)}


def test_address_that_nobody_names_comes_first() -> None:
    """Examples are read by people: the first packet is one from the documentation range."""
    assert address_text(address_classes(["10.0.0.0/8"], Family.IPV4)[0], Family.IPV4) == "198.51.100.77"
    assert address_text(address_classes(["fd00::/8"], Family.IPV6)[0], Family.IPV6) == "2001:db8::77"


def test_zero_prefix_leaves_nothing_outside() -> None:
    """With 0.0.0.0/0 one address stands for all."""
    assert len(address_classes(["0.0.0.0/0"], Family.IPV4)) == 1


@pytest.mark.parametrize(
    ("text", "family", "expected"),
    [
        ("10.0.0.0/255.0.255.0", Family.IPV4, False),
        ("10.0.0.0/255.0.0.0", Family.IPV4, True),
        ("fd00::/8", Family.IPV6, True),
    ],
)
def test_masks_with_gaps_are_recognised(text: str, family: Family, expected: bool) -> None:  # noqa: FBT001
    """Only masks without gaps are prefixes, which nest."""
    assert is_prefix(network_and_mask(text)[1], family) is expected


def test_made_up_address_is_in_no_prefix() -> None:
    """The stand-in for an address of the node is one that rules do not name; None where they name all."""
    assert unnamed_address(["198.51.100.0/24"], Family.IPV4) == "203.0.113.1"
    assert unnamed_address(["0.0.0.0/0"], Family.IPV4) is None
    assert address_number("::1") == 1
