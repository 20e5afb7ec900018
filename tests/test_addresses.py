"""What Kubernetes reads as an address, and the text that rules carry for it."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproxy_ipt.addresses import (
    Family,
    canonical_address,
    canonical_prefix,
    family_of,
    is_loopback,
    is_zero_prefix,
    prefix_contains,
)

ADDRESSES = [
    ("172.30.0.041", "172.30.0.41"),
    ("10.180.00.001", "10.180.0.1"),
    ("010.0.0.1", "10.0.0.1"),
    ("000.000.000.000", "0.0.0.0"),
    ("0000000000001.2.3.4", "1.2.3.4"),
    ("::ffff:1.2.3.4", "1.2.3.4"),
    ("::ffff:102:304", "1.2.3.4"),
    ("::FFFF:001.2.3.04", "1.2.3.4"),
    ("::1.2.3.4", "::102:304"),
    ("64:ff9b::192.0.2.1", "64:ff9b::c000:201"),
    ("FD00::00A", "fd00::a"),
    ("fd00:0:0:0:0:0:0:1", "fd00::1"),
    ("::", "::"),
]
NO_ADDRESSES = [
    "",
    "fe80::1%eth0",
    "1.2.3",
    "1.2.3.4.5",
    "1.2.3.256",
    "256.1.1.1",
    " 1.2.3.4",
    "1.2.3.4 ",
    "1.2.3.4\n",
    "1.2.3.-4",
    "0x1.2.3.4",
    "١.2.3.4",
    "1.2.3.4/32",
    "[::1]",
    "fd00:::1",
    "12345",
    "web.example.com",
    "1" * 5000 + ".2.3.4",
]
PREFIXES = [
    ("203.0.113.000/025", "203.0.113.0/25"),
    ("10.0.0.5/8", "10.0.0.0/8"),
    ("1.2.3.4/0", "0.0.0.0/0"),
    ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
    ("FD00::00A/64", "fd00::/64"),
    ("fd00::1/128", "fd00::1/128"),
    ("::1.2.3.4/120", "::102:300/120"),
]
NO_PREFIXES = [
    "",
    "10.0.0.0",
    "10.0.0.0/33",
    " 10.0.0.0/8",
    "10.0.0.0/",
    "10.0.0.0/-1",
    "10.0.0.0/+8",
    "10.0.0.0/8/8",
    "fd00::/129",
    "fe80::1%eth0/64",
    "10.0.0.0/255.0.0.0",
    "x/8",
    "10.0.0.0/٨",
]


@pytest.mark.parametrize(("text", "canonical"), ADDRESSES)
def test_address_of_any_notation_becomes_the_text_that_the_kernel_prints(text: str, canonical: str) -> None:
    """Leading zeros are decimal padding and mapped addresses are IPv4."""
    assert canonical == canonical_address(text)


@pytest.mark.parametrize("text", NO_ADDRESSES)
def test_text_that_is_no_address_is_none(text: str) -> None:
    """What Kubernetes would not take as an address is None, never a guess."""
    assert canonical_address(text) is None


@pytest.mark.parametrize(("text", "canonical"), PREFIXES)
def test_prefix_of_any_notation_becomes_a_network(text: str, canonical: str) -> None:
    """Host bits are masked, and a mapped prefix becomes one of IPv4 that is 96 bits shorter."""
    assert canonical == canonical_prefix(text)


@pytest.mark.parametrize("text", NO_PREFIXES)
def test_text_that_is_no_prefix_is_none(text: str) -> None:
    """An address without a length, or with one that does not fit, is no prefix."""
    assert canonical_prefix(text) is None


@given(st.ip_addresses())
def test_canonical_text_of_an_address_is_its_own_canonical_text(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    """Reading what was printed changes nothing."""
    printed = canonical_address(address.exploded)

    assert printed is not None
    assert printed == canonical_address(printed)


@given(st.ip_addresses())
def test_ordinary_addresses_read_as_the_standard_library_reads_them(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    """For text without padding or mapping there is no difference to `ipaddress`."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    printed = canonical_address(str(address))

    assert printed is not None
    assert (mapped or address) == ipaddress.ip_address(printed)


@given(st.ip_addresses(v=4), st.lists(st.integers(0, 3), min_size=4, max_size=4))
def test_padding_with_zeros_never_changes_an_address(address: ipaddress.IPv4Address, zeros: list[int]) -> None:
    """Zeros in front of a part are no octal notation."""
    padded = ".".join("0" * count + part for count, part in zip(zeros, str(address).split("."), strict=True))

    assert str(address) == canonical_address(padded)


@given(st.ip_addresses(), st.integers(0, 128))
def test_canonical_prefix_holds_the_address_it_was_made_of(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address, length: int
) -> None:
    """A prefix keeps its address, and is its own canonical text."""
    own = canonical_address(str(address)) or ""
    prefix = canonical_prefix(f"{own}/{min(length, family_of(own).bits)}")

    assert prefix is not None
    assert prefix_contains(prefix, own)
    assert prefix == canonical_prefix(prefix)


@given(st.text(alphabet="0123456789abcdef.:/% -", max_size=24))
def test_arbitrary_text_is_canonical_or_none(text: str) -> None:
    """No text makes the reader fail, and what it accepts is stable."""
    for read in (canonical_address, canonical_prefix):
        found = read(text)

        assert found is None or found == read(found)


@pytest.mark.parametrize(
    ("prefix", "is_zero"),
    [("0.0.0.0/0", True), ("::/0", True), ("::/128", False), ("172.10.0.0/16", False), ("10.0.0.0/10", False)],
)
def test_zero_prefix_is_the_one_that_covers_its_family(prefix: str, *, is_zero: bool) -> None:
    """Only the length 0 counts."""
    assert is_zero is is_zero_prefix(prefix)


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.255.0.9", True),
        ("::1", True),
        ("128.0.0.1", False),
        ("::2", False),
        ("12.7.0.1", False),
    ],
)
def test_loopback_is_127_and_one(address: str, *, loopback: bool) -> None:
    """All of 127.0.0.0/8 and ::1 are loopback addresses."""
    assert loopback is is_loopback(address)


def test_prefix_of_one_family_holds_no_address_of_the_other() -> None:
    """Even a prefix that covers everything covers only its family."""
    assert not prefix_contains("0.0.0.0/0", "::1")
    assert not prefix_contains("::/0", "127.0.0.1")


def test_family_knows_its_name_in_the_api_and_its_length() -> None:
    """The words of the API and the bits of an address belong to the family."""
    assert (Family.IPV4.api_name, Family.IPV4.bits) == ("IPv4", 32)
    assert (Family.IPV6.api_name, Family.IPV6.bits) == ("IPv6", 128)
