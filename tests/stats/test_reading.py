"""Rules with counters read as traffic of service ports."""

from collections.abc import Mapping

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Balance, Config, Dispatch, ShapeConfig
from kproxy_ipt.objects.model import Service
from kproxy_ipt.ruleset.counted import scan_counters
from kproxy_ipt.ruleset.model import Ruleset
from kproxy_ipt.ruleset.parse import parse_save
from kproxy_ipt.stats.model import ServiceTraffic, Skew
from kproxy_ipt.stats.reading import invalid_dropped, read_traffic
from kproxy_ipt.testing.counted_rules import counted_text
from kproxy_ipt.testing.desired import ApiObject, desired_for
from kproxy_ipt.testing.objects import endpoint_slice, service

_PODS = ("10.244.1.11", "10.244.1.12", "10.244.1.13")
_BRANCHED = Config(shape=ShapeConfig(dispatch=Dispatch.TREE, balance=Balance.GROUPED))


def _text(counts: Mapping[str, int], *objects: ApiObject, config: Config | None = None) -> str:
    """A rule has counted what the first of *counts* says whose text its line holds."""
    desired = desired_for(*objects, config=config)
    return counted_text(
        desired.ruleset, lambda line: next((count for part, count in counts.items() if part in line), 0)
    )


def _ruleset(counts: Mapping[str, int], *objects: ApiObject, config: Config | None = None) -> Ruleset:
    return parse_save(_text(counts, *objects, config=config), Family.IPV4)


def _one(counts: Mapping[str, int], web: Service, config: Config | None = None) -> ServiceTraffic:
    (found,) = read_traffic(_ruleset(counts, web, endpoint_slice(web, _PODS), config=config))
    return found


def test_rule_that_rewrites_counts_connections() -> None:
    """All of them, while those since the last change come from the chain that chooses."""
    counts = {"--to-destination 10.244.1.11:80": 130, "--to-destination 10.244.1.12:80": 70, "-> 10.244.1.11:80": 30}
    found = _one(counts, service())
    first, second, third = found.endpoints

    assert ("default/web", "tcp", 200) == (found.service_port, found.protocol, found.connections)
    assert ("10.244.1.11:80", 130, 30, 1.0) == (first.endpoint, first.connections, first.recent, first.observed)
    assert (70, 0, 0) == (second.connections, second.recent, third.connections)
    assert [one.share for one in found.endpoints] == pytest.approx([1 / 3] * 3)


def test_counts_that_fit_are_told_from_those_that_do_not() -> None:
    """A fair choice, one that was never that of three equal shares, and one too small to be judged."""
    fair = {f"-> {pod}:80": count for pod, count in zip(_PODS, (103, 95, 102), strict=True)}
    odd = {f"-> {pod}:80": count for pod, count in zip(_PODS, (203, 45, 52), strict=True)}

    assert Skew.FITS is _one(fair, service()).skew
    assert Skew.UNEXPLAINED is _one(odd, service()).skew
    assert Skew.TOO_FEW is _one({"-> 10.244.1.11:80": 9}, service()).skew


def test_affinity_is_the_reason_for_a_skew() -> None:
    """Known clients are sent back by other rules of the same chain, which count as well."""
    found = _one({"-> 10.244.1.11:80": 45}, service(affinity_timeout_s=10800))

    assert (Skew.AFFINITY, 10800, 90) == (found.skew, found.affinity_s, found.endpoints[0].recent)


def test_refusals_are_counted_by_what_becomes_of_packets() -> None:
    """No endpoint anywhere rejects; none here, or a source that may not, drops."""
    empty = service("empty", cluster_ip="10.96.0.11", external_ips=["192.0.2.7"])
    closed = service(
        "closed",
        service_type="LoadBalancer",
        cluster_ip="10.96.0.12",
        ingress=["192.0.2.8"],
        source_ranges=["10.0.0.0/8"],
    )
    counts = {"has no endpoints": 3, "traffic not accepted by": 4, "--ctstate INVALID": 5}
    ruleset = _ruleset(counts, empty, closed, endpoint_slice(closed, _PODS))
    found = {one.service_port: (one.rejected, one.dropped) for one in read_traffic(ruleset)}

    assert {"default/closed": (0, 4), "default/empty": (6, 0)} == found
    assert 5 == invalid_dropped(ruleset)


def test_trees_and_groups_are_read_as_what_they_do() -> None:
    """A hundred endpoints in groups, behind a tree: shares are equal, and each group is a choice of its own."""
    pods = [f"10.244.2.{number}" for number in range(1, 101)]
    web = service()
    text = _text({"-j DNAT": 7, "-> 10.244.2.": 10}, web, endpoint_slice(web, pods), config=_BRANCHED)
    (found,) = read_traffic(parse_save(text, Family.IPV4))

    assert (700, 100) == (found.connections, len(found.endpoints))
    assert {10} == {one.recent for one in found.endpoints}
    assert [one.share for one in found.endpoints] == pytest.approx([0.01] * 100)
    assert Skew.FITS is found.skew


@pytest.mark.parametrize("config", [Config(), _BRANCHED], ids=["rows", "branched"])
def test_quick_scan_finds_what_reading_finds(config: Config) -> None:
    """The two ways to read counters agree about every number."""
    web = service(affinity_timeout_s=60)
    empty = service("empty", cluster_ip="10.96.0.11")
    counts = {"has no endpoints": 3, "--rcheck": 2, "12:80": 30, "-j DNAT": 11, "INVALID": 8, "13:80": 4}
    text = _text(counts, web, endpoint_slice(web, _PODS), empty, config=config)
    ruleset, seen = parse_save(text, Family.IPV4), scan_counters(text)
    (_, read) = read_traffic(ruleset)

    assert sorted(seen.endpoints.values()) == sorted(one.connections for one in read.endpoints)
    ways = [way for row in seen.choices.values() for way in row if way.place.startswith("KUBE-SEP-")]
    assert sum(way.packets for way in ways) == sum(one.recent for one in read.endpoints)
    assert ({"default/empty has no endpoints": 3}, 8) == (seen.refusals, seen.invalid)
