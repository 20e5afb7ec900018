"""What rules had counted when they went: told by nf_tables, asked for on the legacy backend."""

import asyncio
import subprocess
from collections.abc import Iterator

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.legacy_departures import LegacyDepartures
from kproxy_ipt.daemon.log import SilentLog
from kproxy_ipt.kernel.legacy_counters import chain_counters, table_octets
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.kernel.notify_tables import TableMonitor
from kproxy_ipt.plan.plan import Plan
from kproxy_ipt.ruleset.counted import CountedTables, scan_counters
from kproxy_ipt.ruleset.edits import DeleteChain, EditChain, Transaction
from kproxy_ipt.stats.ended_rule import EndedRule
from kproxy_ipt.testing.namespaces import temporary_namespace

pytestmark = pytest.mark.kernel

_SEP, _OTHER = "KUBE-SEP-AAAAAAAAAAAAAAAA", "KUBE-SEP-BBBBBBBBBBBBBBBB"
_REFUSED = "shop/web has no endpoints"
_REJECT = '-A KUBE-SERVICES -p tcp -m comment --comment "shop/web has no endpoints" -m tcp --dport 80 -j REJECT'
_GONE = f"*nat\n:{_SEP} - [0:0]\n-X {_SEP}\nCOMMIT\n*filter\n:KUBE-SERVICES - [0:0]\nCOMMIT\n"


def _rules(family: Family, comment: str) -> str:
    """Two endpoints with hairpin rules, one of them remembering clients, and a refusal; all with counters."""
    pod, target = ("10.0.0.1/32", "10.0.0.1:80") if family is Family.IPV4 else ("fd00::1/128", "[fd00::1]:80")
    return (
        f"*nat\n:KUBE-MARK-MASQ - [0:0]\n:{_OTHER} - [0:0]\n:{_SEP} - [0:0]\n"
        f"[1:60] -A {_OTHER} -p tcp -m tcp -j DNAT --to-destination {target}\n"
        f"[2:60] -A {_SEP} -s {pod} {comment}-j KUBE-MARK-MASQ\n"
        f"[70000:60] -A {_SEP} -p tcp {comment}-m recent --set --name {_SEP} --rsource -m tcp "
        f"-j DNAT --to-destination {target}\n"
        f"COMMIT\n*filter\n:KUBE-SERVICES - [0:0]\n[5:60] {_REJECT}\nCOMMIT\n"
    )


def _restore(family: Family, backend: str, text: str) -> None:
    program = f"{'ip6tables' if family is Family.IPV6 else 'iptables'}-{backend}-restore"
    subprocess.run([program, "--noflush", "--counters"], input=text, text=True, check=True)


def _seen(family: Family) -> CountedTables:
    program = f"{'ip6tables' if family is Family.IPV6 else 'iptables'}-nft-save"
    saved = subprocess.run([program, "--counters"], text=True, check=True, capture_output=True).stdout
    return scan_counters(saved)


@pytest.fixture
def netns() -> Iterator[str]:
    """Tables of one test."""
    with temporary_namespace("ended") as name:
        yield name


@pytest.mark.parametrize("comment", ['-m comment --comment "shop/web:http" ', ""], ids=["comments", "none"])
def test_kernel_tells_what_deleted_rules_had_counted(netns: str, family: Family, comment: str) -> None:
    """Of those that count for a service port, whoever deletes them: not of the hairpin rule, not of jumps."""

    async def run() -> list[EndedRule]:
        ended: list[EndedRule] = []
        monitor = TableMonitor(lambda _: None, netns=netns, on_ended_rule=ended.append)
        with inside(netns):
            _restore(family, "nft", _GONE)
        monitor.take_waiting()
        monitor.close()
        return ended

    with inside(netns):
        _restore(family, "nft", _rules(family, comment))
        seen = _seen(family)
    told = {one.chain or one.comment: one for one in asyncio.run(run())}

    # ip6tables-nft-restore leaves counters at 0, so the numbers of IPv6 say little here.
    assert seen.endpoints[_SEP] == (70_000 if family is Family.IPV4 else 0)
    assert told == {
        _SEP: EndedRule(family, _SEP, "shop/web:http" if comment else "", seen.endpoints[_SEP]),
        _REFUSED: EndedRule(family, "", _REFUSED, seen.refusals[_REFUSED]),
    }


def test_legacy_counters_are_those_of_the_rules(netns: str, family: Family) -> None:
    """In order, one more for the end of the chain; a name inside of rules is no chain."""
    with inside(netns):
        assert {} == dict(chain_counters(family, "nat", [_SEP]))
        assert 0 == table_octets(family, "nat")
        _restore(family, "legacy", _rules(family, ""))
        found = chain_counters(family, "nat", [_SEP, _OTHER, "KUBE-SEP-CCCCCCCCCCCCCCCC"])

        assert {_SEP: (2, 70_000, 0), _OTHER: (1, 0)} == dict(found)
        assert 1_000 < table_octets(family, "nat") < 10_000


def _plan(line: str) -> Plan:
    return Plan(
        transactions=(
            Transaction("nat", (DeleteChain(_SEP),)),
            Transaction("filter", (EditChain("KUBE-SERVICES", deleted=(line,)),)),
        )
    )


@pytest.mark.parametrize("is_wanted", [True, False])
def test_departures_are_read_before_and_told_after_the_write(netns: str, family: Family, *, is_wanted: bool) -> None:
    """A write that fails ends nothing, and nothing is read where nobody counts."""
    told: list[EndedRule] = []
    lines = {_SEP: ("", f"-A {_SEP} -p tcp -m tcp -j DNAT --to-destination x"), "KUBE-SERVICES": (_REJECT,)}
    departures = LegacyDepartures(family, told.extend, lambda: is_wanted, SilentLog())
    with inside(netns):
        _restore(family, "legacy", _rules(family, ""))
        tell = departures(_plan(_REJECT), lambda _, chain: lines[chain])
        before = list(told)
        tell()

    ended = [EndedRule(family, _SEP, "", 70_000), EndedRule(family, "", _REFUSED, 5)]
    assert ([], ended if is_wanted else []) == (before, told)
