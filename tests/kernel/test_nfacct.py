"""Accounting objects: created where missing, read, never deleted."""

from collections.abc import Iterator

import pytest

from kproxy_ipt.kernel.command import SubprocessRunner
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.kernel.nfacct import CT_STATE_INVALID_DROPPED, ensure_counters, read_counters
from kproxy_ipt.ruleset.model import Counters
from kproxy_ipt.testing.namespaces import temporary_namespace

pytestmark = pytest.mark.kernel


@pytest.fixture(autouse=True)
def namespace() -> Iterator[str]:
    """Each test has objects of its own."""
    with temporary_namespace("acct") as name, inside(name):
        yield name


def test_missing_counters_are_created() -> None:
    """Before there is none, afterwards all count from zero."""
    assert read_counters(["one", "two"]) == {}

    assert ensure_counters(["one", "two"]) == {"one", "two"}
    assert read_counters(["one", "two", "three"]) == {"one": Counters(0, 0), "two": Counters(0, 0)}


def test_existing_counters_keep_their_counts() -> None:
    """A packet that was counted is still counted after the next sync made sure that the object exists."""
    ensure_counters([CT_STATE_INVALID_DROPPED])
    rules = f"*filter\n-A OUTPUT -p udp -m nfacct --nfacct-name {CT_STATE_INVALID_DROPPED}\nCOMMIT\n"
    runner = SubprocessRunner()
    assert runner.run(["iptables-nft-restore", "--noflush"], stdin=rules).exit_status == 0
    runner.run(["bash", "-c", "echo -n abc > /dev/udp/127.0.0.1/9"])
    counted = read_counters([CT_STATE_INVALID_DROPPED])[CT_STATE_INVALID_DROPPED]

    assert counted == Counters(1, 31)
    assert ensure_counters([CT_STATE_INVALID_DROPPED]) == {CT_STATE_INVALID_DROPPED}
    assert read_counters([CT_STATE_INVALID_DROPPED]) == {CT_STATE_INVALID_DROPPED: counted}


@pytest.mark.parametrize("name", ["", "n" * 32])
def test_impossible_names_are_left_out(name: str) -> None:
    """A name has 1 to 31 bytes; others are not created, and the rest is."""
    assert ensure_counters([name, "n" * 31]) == {"n" * 31}
