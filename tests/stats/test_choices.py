"""Shares and counts: whoever reads them, and however rules are shaped, they are the same."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from zlib import crc32

import msgspec
import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Balance, Config, Dispatch, Scheduler, ShapeConfig
from kproxy_ipt.ruleset.counted import CountedTables, Way, scan_counters, scan_destinations
from kproxy_ipt.ruleset.matches import PROBABILITY_ONE, StatisticRandom
from kproxy_ipt.ruleset.parse import parse_save
from kproxy_ipt.state.model import ServiceState
from kproxy_ipt.state.snapshot import node_facts, take_snapshot
from kproxy_ipt.stats.choices import Choices, choices_of, read_choices
from kproxy_ipt.stats.family_traffic import FamilyTraffic
from kproxy_ipt.stats.model import ServiceTraffic, Skew
from kproxy_ipt.stats.observed import port_traffic, unlike_shares
from kproxy_ipt.stats.reading import read_traffic
from kproxy_ipt.testing.counted_rules import counted_text
from kproxy_ipt.testing.desired import desired_for
from kproxy_ipt.testing.objects import endpoint_slice, service
from kproxy_ipt.testing.recorded import RecordedCase, recorded_case
from kproxy_ipt.trace.explain_service import explain_service
from kproxy_ipt.trace.explanation import PortExplanation

_CASES = sorted(path.parent for path in (Path(__file__).parents[1] / "golden").glob("*/case.yaml"))
_SHAPES = {
    "rows": ShapeConfig(),
    "branched": ShapeConfig(dispatch=Dispatch.TREE, balance=Balance.GROUPED),
    "rr": ShapeConfig(scheduler=Scheduler.RR),
}
_HALF = (StatisticRandom(PROBABILITY_ONE // 2),)


def _explained(case: RecordedCase, family: Family) -> tuple[list[PortExplanation], FamilyTraffic]:
    """All service ports of a case, and a count of connections that knows them."""
    snapshot = take_snapshot(case.objects, family, node_facts(case.objects.nodes, case.node_name))
    traffic = FamilyTraffic(family)
    states: dict[tuple[str, str], tuple[ServiceState, ...]] = {}
    for state in snapshot.services.values():
        name = (state.service_port.namespace, state.service_port.name)
        states[name] = (*states.get(name, ()), state)
    traffic.expect(states)
    traffic.settle(states)
    traffic.start(CountedTables())
    services = case.objects.services
    ports = [
        port
        for one in services
        for port in explain_service(one, case.objects, {family: snapshot}, case.config, case.machine).ports
    ]
    return ports, traffic


def _by_port(found: Iterator[ServiceTraffic | None] | tuple[ServiceTraffic, ...]) -> Mapping[str, ServiceTraffic]:
    return {f"{one.service_port} {one.protocol}": one for one in found if one is not None}


@pytest.mark.parametrize("family", Family)
@pytest.mark.parametrize("shape", _SHAPES)
@pytest.mark.parametrize("folder", _CASES, ids=lambda folder: folder.name)
def test_all_who_read_counters_say_the_same(folder: Path, shape: str, family: Family) -> None:
    """Parsed rules for `stats`, scanned text for `explain` and for the daemon; and rules give what was decided."""
    case = recorded_case(folder)
    case = msgspec.structs.replace(case, config=msgspec.structs.replace(case.config, shape=_SHAPES[shape]))
    text = counted_text(case.desired(family).ruleset, lambda line: crc32(line.encode()) % 60)
    ports, daemon = _explained(case, family)
    seen, destinations = scan_counters(text), scan_destinations(text)
    with daemon.ledger.look() as look:
        daemon.observe(seen, look)
    read = _by_port(read_traffic(parse_save(text, family)))
    scanned = _by_port(port_traffic(port, seen, destinations) for port in ports)
    watched = _by_port(daemon.services())

    assert read == scanned
    assert read == {name: watched[name] for name in read}
    assert [] == [
        unlike
        for port in ports
        if (one := scanned.get(f"{port.text} {port.protocol}"))
        for unlike in unlike_shares(port, one)
    ]


def _grouped(counts: Mapping[str, int]) -> ServiceTraffic:
    """A hundred endpoints in groups; a rule has counted what the first of *counts* says whose text it holds."""
    web = service()
    slices = endpoint_slice(web, [f"10.244.2.{number}" for number in range(1, 101)])
    config = Config(shape=_SHAPES["branched"])
    text = counted_text(
        desired_for(web, slices, config=config).ruleset,
        lambda line: next((count for part, count in counts.items() if part in line), 0),
    )
    (found,) = read_traffic(parse_save(text, Family.IPV4))
    return found


def test_groups_that_do_not_fit_are_noticed() -> None:
    """Each choice within a group is fair, the choice among them is not: the first one gets as much as all others."""
    assert Skew.FITS is _grouped({"-> 10.244.2.": 50}).skew
    assert Skew.UNEXPLAINED is _grouped({"-> 10.244.2.": 50, "-> 4 endpoints": 900}).skew


def test_parts_are_multiplied_where_groups_count_since_different_moments() -> None:
    """A group that begins anew has few connections, and its endpoints still get their part of all."""
    rows = {
        "KUBE-SVC-TOP": (Way("KUBE-SVC-OLD", 100, _HALF), Way("KUBE-SVC-NEW", 300, ())),
        "KUBE-SVC-OLD": (Way("KUBE-SEP-A", 4000, _HALF), Way("KUBE-SEP-B", 4000, ())),
        "KUBE-SVC-NEW": (Way("KUBE-SEP-C", 10, ()),),
    }
    found = read_choices(rows, ("KUBE-SVC-TOP",), ())

    assert [0.125, 0.125, 0.75] == [found.cluster.observed[f"KUBE-SEP-{name}"] for name in "ABC"]
    assert [0.25, 0.25, 0.5] == [float(found.cluster.shares[f"KUBE-SEP-{name}"]) for name in "ABC"]
    assert 400 == found.cluster.total


def _two_policies(cluster: tuple[int, int], local: int) -> Choices:
    """One of two endpoints is on this node."""
    rows = {
        "KUBE-SVC-A": (Way("KUBE-SEP-HERE", cluster[0], _HALF), Way("KUBE-SEP-THERE", cluster[1], ())),
        "KUBE-SVL-A": (Way("KUBE-SEP-HERE", local, ()),),
    }
    return read_choices(rows, ("KUBE-SVC-A",), ("KUBE-SVL-A",))


def test_expected_part_is_that_of_both_policies() -> None:
    """As many connections by each as there were: a local endpoint that gets three quarters may be just right."""
    choices = _two_policies((48, 52), 100)
    here, there = choices.endpoint("KUBE-SEP-HERE", "here", 0), choices.endpoint("KUBE-SEP-THERE", "there", 0)

    assert (0.5, 1.0, 0.75, 0.74) == (here.share, here.local_share, here.expected, here.observed)
    assert (0.5, None, 0.25, 0.26) == (there.share, there.local_share, there.expected, there.observed)
    assert Skew.FITS is choices.judge(0)[0]


def test_nothing_is_observed_where_nobody_came() -> None:
    """No number is better than a nought."""
    one = _two_policies((0, 0), 0).endpoint("KUBE-SEP-HERE", "here", 0)

    assert (None, None, 0.5) == (one.expected, one.observed, one.share)


def test_rules_in_a_circle_are_read_once() -> None:
    """Whoever wrote them."""
    name = next(iter(scan_counters(_CIRCLE).choices))
    choices = choices_of({name: scan_counters(_CIRCLE).choices[name]}, "demo/web:http", "tcp")

    assert {"KUBE-SEP-AAAAAAAAAAAAAAAA": 3} == choices.cluster.counts


_CIRCLE = """\
[9:0] -A KUBE-SVC-XRY76EGRC3BSCIIJ -j KUBE-SVC-XRY76EGRC3BSCIIJ
[3:0] -A KUBE-SVC-XRY76EGRC3BSCIIJ -s 10.0.0.1/32 -j KUBE-SEP-AAAAAAAAAAAAAAAA
"""


@pytest.mark.parametrize(
    ("rule", "chances"),
    [
        ('-m comment --comment "a/b -> c" -m statistic --mode random --probability 0.50000000000', _HALF),
        ("-m statistic --mode random --probability 0.50000000000", _HALF),
        ("-m comment --comment word", ()),
        ("-m statistic --mode random --probability 0.50000000000 -m recent --rcheck --name X", None),
        ("-m statistic --mode wrong", None),
        ("-s 10.0.0.1/32", None),
    ],
)
def test_only_rules_that_leave_it_to_chance_have_a_share(rule: str, chances: tuple[object, ...] | None) -> None:
    """Those that ask for a known client or a source count, and take no share."""
    text = f"[3:0] -A KUBE-SVC-XRY76EGRC3BSCIIJ {rule} -j KUBE-SEP-AAAAAAAAAAAAAAAA\n"
    ((way,),) = scan_counters(text).choices.values()

    assert (3, chances) == (way.packets, way.chances)
