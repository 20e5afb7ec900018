"""Kernel settings: read, written only if different, failures as values."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.kernel.sysctls import enable_route_localnet, read_sysctl, tcp_be_liberal, write_sysctl
from kproxy_ipt.testing.namespaces import temporary_namespace

pytestmark = pytest.mark.kernel


@pytest.fixture(autouse=True)
def namespace() -> Iterator[str]:
    """Each test has settings of its own."""
    with temporary_namespace("sysctl") as name, inside(name):
        yield name


def test_setting_is_read_with_dots_and_with_slashes() -> None:
    """Both ways of writing a name lead to the same setting."""
    assert read_sysctl("net.ipv4.ip_forward") == read_sysctl("net/ipv4/ip_forward") == "0"


def test_unknown_setting_is_none() -> None:
    """What does not exist is not an error."""
    assert read_sysctl("net/ipv4/no_such_thing") is None


def test_route_localnet_is_set_once() -> None:
    """The first call changes it, the second finds it right."""
    first, second = enable_route_localnet(), enable_route_localnet()

    assert (first.changed, first.problem) == (True, "")
    assert (second.changed, second.problem) == (False, "")
    assert read_sysctl("net/ipv4/conf/all/route_localnet") == "1"


def test_setting_that_does_not_exist_is_a_problem_in_words() -> None:
    """The outcome names the setting, the value and the reason."""
    outcome = write_sysctl("net/ipv4/no_such_thing", "1")

    assert not outcome.changed
    assert outcome.problem == "cannot set net.ipv4.no_such_thing to 1: No such file or directory; it does not exist"


def test_refused_value_is_a_problem_in_words() -> None:
    """The kernel's refusal is told together with the value that stays."""
    outcome = write_sysctl("net/ipv4/ip_forward", "many")

    assert outcome.problem == "cannot set net.ipv4.ip_forward to many: Invalid argument; it stays 0"


def test_white_space_does_not_count_as_a_difference() -> None:
    """Settings of several numbers are printed with tabs."""
    present = read_sysctl("net/ipv4/ip_local_port_range")
    assert present is not None

    assert write_sysctl("net/ipv4/ip_local_port_range", " ".join(present.split())).changed is False


@pytest.mark.skipif(
    not Path("/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal").exists(), reason="conntrack is not loaded"
)
def test_liberal_is_any_value_but_zero() -> None:
    """Whoever set it: any other value than 0 counts."""
    assert tcp_be_liberal() is False

    write_sysctl("net/netfilter/nf_conntrack_tcp_be_liberal", "1")

    assert tcp_be_liberal() is True
