"""Which addresses of the node answer node ports."""

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.selection.node_ports import NodePortEntry, node_port_entry

V4, V6 = Family.IPV4, Family.IPV6
ALL = NodePortEntry(all_addresses=True, localhost=False)


def _entry(prefixes: str, addresses: str = "", family: Family = V4, *, localhost_wanted: bool = False) -> NodePortEntry:
    return node_port_entry(prefixes.split(), addresses.split(), family, localhost_wanted=localhost_wanted)


@pytest.mark.parametrize(
    ("prefixes", "covers"),
    [
        ("", True),
        ("10.0.0.0/8 0.0.0.0/0", True),
        ("127.0.0.0/8", True),
        ("127.0.2.0/28", True),
        ("10.0.0.0/8 127.0.2.0/28", True),
        ("64.0.0.0/2", True),
        ("10.0.0.0/8 ::/0", False),
        ("10.0.0.0/8 ::1/128", False),
        ("128.0.2.0/28", False),
        ("224.0.0.0/24", False),
        ("192.168.0.0/16", False),
    ],
)
def test_localhost_answers_if_the_prefixes_reach_loopback(prefixes: str, *, covers: bool) -> None:
    """Any overlap with 127.0.0.0/8 is enough; other families do not count."""
    assert covers is _entry(prefixes, localhost_wanted=True).localhost
    assert not _entry(prefixes, localhost_wanted=False).localhost
    assert not _entry(prefixes, family=V6, localhost_wanted=True).localhost


HOST = "10.20.30.51 100.200.201.1 127.0.0.1 2001:db8::1 ::1"


@pytest.mark.parametrize(
    ("prefixes", "addresses", "v4", "v6"),
    [
        ("10.20.30.0/24", HOST, "10.20.30.51", None),
        ("0.0.0.0/0", HOST, None, None),
        ("2001:db8::/64 ::1/128", HOST, None, "2001:db8::1"),
        ("::/0", HOST, None, None),
        ("127.0.0.0/8", "127.0.1.1 2001:db8::1", "127.0.1.1", None),
        ("10.20.30.0/24 100.200.201.0/24", "192.0.2.1 2001:db8::1", "", None),
        ("", HOST, None, None),
        ("1.2.3.0/24 0.0.0.0/0", HOST, None, None),
        ("0.0.0.0/0 1.2.3.0/24 2001:db8::1/128", HOST, None, "2001:db8::1"),
        ("::/0 1.2.3.0/24 2001:db8::1/128", "1.2.3.4 2001:db8::1", "1.2.3.4", None),
    ],
)
def test_prefixes_select_addresses_of_the_node(prefixes: str, addresses: str, v4: str | None, v6: str | None) -> None:
    """A family without a prefix of its own, or with one that covers it, answers on every address (None here)."""
    for family, expected in ((V4, v4), (V6, v6)):
        entry = _entry(prefixes, addresses, family, localhost_wanted=True)
        if expected is None:
            assert entry.all_addresses
            assert entry.addresses == ()
        else:
            assert not entry.all_addresses
            assert tuple(expected.split()) == entry.addresses


@pytest.mark.parametrize(
    ("prefixes", "family", "localhost_wanted", "skipped"),
    [
        ("127.0.0.0/8", V4, False, ("127.0.0.1",)),
        ("127.0.0.0/8", V4, True, ()),
        ("::1/128", V6, True, ("::1",)),
        ("::1/128", V6, False, ("::1",)),
    ],
)
def test_loopback_addresses_that_cannot_answer_are_named(
    prefixes: str, family: Family, skipped: tuple[str, ...], *, localhost_wanted: bool
) -> None:
    """Selected by a prefix, but IPv6 or switched off: no rule, and a caller can say so."""
    assert skipped == _entry(prefixes, HOST, family, localhost_wanted=localhost_wanted).skipped_loopback


def test_addresses_are_sorted_and_taken_once() -> None:
    """Overlapping prefixes and the order of interfaces leave no trace."""
    entry = _entry("10.0.0.0/8 10.0.0.0/16", "10.0.9.9 10.0.0.1 10.0.9.9 172.16.0.1")

    assert entry == NodePortEntry(all_addresses=False, addresses=("10.0.0.1", "10.0.9.9"), localhost=False)


def test_node_without_prefixes_answers_everywhere() -> None:
    """The default is every local address."""
    assert _entry("") == ALL
