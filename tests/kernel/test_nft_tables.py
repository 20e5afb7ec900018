"""Removing nf_tables tables that hold nothing, and asking for address translation without a trace."""

from collections.abc import Iterator

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.kernel.command import SubprocessRunner
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.kernel.nfnetlink import NLM_F_CREATE, Request, exchange_batch, nfnetlink_body, text_attribute
from kproxy_ipt.kernel.nft_tables import delete_void_table, nat_problem
from kproxy_ipt.testing.namespaces import temporary_namespace

pytestmark = pytest.mark.kernel

_PROGRAM = {Family.IPV4: "iptables-nft", Family.IPV6: "ip6tables-nft"}
_WORD = {Family.IPV4: "ip", Family.IPV6: "ip6"}


@pytest.fixture(autouse=True)
def namespace() -> Iterator[str]:
    """Each test has tables of its own."""
    with temporary_namespace("nft") as name, inside(name):
        yield name


def _run(*arguments: str) -> str:
    completed = SubprocessRunner().run(arguments)
    assert completed.exit_status == 0, completed.stderr
    return completed.stdout


@pytest.mark.parametrize("family", list(Family))
def test_void_table_vanishes(family: Family) -> None:
    """What iptables leaves behind after its last rule is gone is removed with its empty base chains."""
    _run(_PROGRAM[family], "-t", "nat", "-A", "OUTPUT", "-j", "ACCEPT")
    _run(_PROGRAM[family], "-t", "nat", "-F")
    assert _run("nft", "list", "tables").strip() == f"table {_WORD[family]} nat"

    assert delete_void_table(family, "nat") is True
    assert _run("nft", "list", "ruleset") == ""


def test_absent_table_is_not_deleted() -> None:
    """There is nothing to do where there is no table."""
    assert delete_void_table(Family.IPV4, "nat") is False


@pytest.mark.parametrize(
    "commands",
    [
        ["iptables-nft -t nat -A POSTROUTING -j ACCEPT"],
        ["iptables-nft -t nat -N FOREIGN"],
        ["iptables-nft -t nat -L", "nft add table ip nat", "nft add set ip nat foreign { type ipv4_addr; }"],
        [
            "nft add table ip nat",
            "nft add chain ip nat PREROUTING { type nat hook prerouting priority -100; policy drop; }",
        ],
        ["nft add table ip nat", "nft add chain ip nat mine { type nat hook prerouting priority -100; }"],
        ["nft add table ip nat { flags dormant; }"],
    ],
    ids=["rule", "user chain", "set", "policy drop", "foreign base chain", "dormant"],
)
def test_table_that_holds_anything_stays(commands: list[str]) -> None:
    """Rules, chains, sets, policies and flags of others are not ours to delete."""
    for command in commands:
        _run(*command.split(maxsplit=20))
    before = _run("nft", "list", "ruleset")

    assert delete_void_table(Family.IPV4, "nat") is False
    assert _run("nft", "list", "ruleset") == before


def test_tables_of_another_family_are_left_alone() -> None:
    """`inet nat` and `ip6 nat` are not `ip nat`."""
    for family in ("inet", "ip6", "ip"):
        _run("nft", "add", "table", family, "nat")

    assert delete_void_table(Family.IPV4, "nat") is True
    assert _run("nft", "list", "tables").split("\n") == ["table inet nat", "table ip6 nat", ""]


def test_batch_of_an_old_generation_is_refused() -> None:
    """If anything was changed since the ruleset was looked at, the kernel does nothing."""
    create = Request(10 << 8, NLM_F_CREATE, nfnetlink_body(2, text_attribute(1, "late")))

    assert exchange_batch(10, [create], generation=0xFFFFFF) == [85, 85]
    assert _run("nft", "list", "ruleset") == ""


@pytest.mark.parametrize("family", list(Family))
def test_asking_for_translation_leaves_no_trace(family: Family) -> None:
    """This kernel has nat for both families, and the question changes nothing."""
    assert nat_problem(family) == ""
    assert _run("nft", "list", "ruleset") == ""
