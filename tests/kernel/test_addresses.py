"""Interface addresses as the kernel tells them."""

from collections.abc import Iterator

import pytest

from kproxy_ipt.kernel.addresses import interface_addresses
from kproxy_ipt.kernel.command import SubprocessRunner
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.testing.namespaces import temporary_namespace

pytestmark = pytest.mark.kernel


@pytest.fixture(autouse=True)
def namespace() -> Iterator[str]:
    """Each test has interfaces of its own."""
    with temporary_namespace("addr") as name, inside(name):
        yield name


def _ip(*arguments: str) -> None:
    completed = SubprocessRunner().run(["ip", *arguments])
    assert completed.exit_status == 0, completed.stderr


def test_loopback_has_both_families() -> None:
    """A fresh namespace with its loopback up has two addresses, IPv4 first."""
    assert interface_addresses() == ("127.0.0.1", "::1")


def test_addresses_are_canonical_and_named_once() -> None:
    """The same address on two interfaces counts once; IPv6 is in its short form."""
    _ip("link", "add", "d0", "type", "veth", "peer", "d1")
    for device in ("d0", "d1"):
        _ip("address", "add", "10.1.2.3/24", "dev", device)
    _ip("address", "add", "fd00:0:0:0:0:0:0:1/64", "dev", "d0", "nodad")

    assert set(interface_addresses()) == {"127.0.0.1", "::1", "10.1.2.3", "fd00::1"}


def test_near_end_of_a_point_to_point_link_counts() -> None:
    """The peer's address is not ours."""
    _ip("link", "add", "d0", "type", "veth", "peer", "d1")
    _ip("address", "add", "10.9.0.1", "peer", "10.9.0.2/32", "dev", "d0")

    assert "10.9.0.1" in interface_addresses()
    assert "10.9.0.2" not in interface_addresses()


def test_many_addresses_come_in_several_answers() -> None:
    """A thousand addresses do not fit into one datagram."""
    lines = [f"address add 10.2.{n // 250}.{n % 250 + 1}/16 dev lo" for n in range(1000)]
    completed = SubprocessRunner().run(["ip", "-batch", "-"], stdin="\n".join(lines) + "\n")
    assert completed.exit_status == 0, completed.stderr

    assert len(interface_addresses()) == 1002
