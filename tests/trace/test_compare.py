"""Two rule sets compared by meaning, and services read back from rules."""

from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.decode import decode_config
from kproxy_ipt.config.model import Config
from kproxy_ipt.objects.model import EndpointSlice, Service
from kproxy_ipt.rules.build import with_base_chains
from kproxy_ipt.ruleset.model import Ruleset
from kproxy_ipt.ruleset.parse import parse_save
from kproxy_ipt.ruleset.render import render_save
from kproxy_ipt.selection.usable import usable_endpoints
from kproxy_ipt.testing.desired import desired_for, snapshot_of
from kproxy_ipt.testing.objects import endpoint_slice, service, service_port, slice_endpoint
from kproxy_ipt.trace.compare import ChangeKind, EntryKind, compare, read_services
from kproxy_ipt.trace.conditions import plain_share
from kproxy_ipt.trace.service_reading import read_ruleset

NAME = "default/web/tcp"
LOCAL_PODS = decode_config(
    b"apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nclusterCIDR: 10.244.0.0/16\n", "c"
).config
GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("*/ip*tables.txt"))


def _rules(*objects: Service | EndpointSlice, config: Config | None = None) -> Ruleset:
    return with_base_chains(desired_for(*objects, config=config or LOCAL_PODS))


def _web(count: int = 1, /, **spec: object) -> Ruleset:
    one = service("web", **spec)  # type: ignore[arg-type] # each test gives the fields of the builder
    return _rules(one, endpoint_slice(one, [f"10.244.1.{number}" for number in range(1, count + 1)]))


def _words(before: Ruleset, after: Ruleset) -> tuple[str, ...]:
    comparison = compare(before, after)
    assert comparison.fixed == comparison.foreign == ()
    return tuple(word for change in comparison.services for word in change.words)


def _edited(ruleset: Ruleset, old: str, new: str) -> Ruleset:
    text = render_save(ruleset)
    assert old in text
    return parse_save(text.replace(old, new, 1), ruleset.family)


@st.composite
def _services(draw: st.DrawFn) -> tuple[Service, EndpointSlice]:
    one = service(
        draw(st.sampled_from(["web", "a-b"])),
        ports=[service_port(80, name=draw(st.sampled_from(["", "http"])), node_port=draw(st.sampled_from([0, 30080])))],
        service_type="LoadBalancer",
        external_ips=draw(st.sampled_from([(), ("192.0.2.80",)])),
        ingress=draw(st.sampled_from([(), ("198.51.100.1",), ("198.51.100.1", "198.51.100.2")])),
        source_ranges=draw(st.sampled_from([(), ("203.0.113.0/24",), ("203.0.113.0/24", "192.0.2.0/25")])),
        affinity_timeout_s=draw(st.sampled_from([None, 1, 10800])),
        external_policy=draw(st.sampled_from(["Cluster", "Local"])),
        internal_policy=draw(st.sampled_from(["Cluster", "Local"])),
        health_check_node_port=draw(st.sampled_from([None, 32000])),
    )
    numbers = sorted(draw(st.sets(st.integers(1, 40), max_size=25)))
    nodes = [draw(st.sampled_from(["node1", "node2"])) for _ in numbers]
    entries = [slice_endpoint(f"10.244.0.{n}", node_name=node) for n, node in zip(numbers, nodes, strict=True)]
    return one, endpoint_slice(one, entries, address_type="IPv4")


@given(_services())
@settings(max_examples=150, deadline=None)
def test_services_are_read_back_as_they_were_meant(objects: tuple[Service, EndpointSlice]) -> None:
    """Endpoints, exact shares, affinity, ranges and addresses of any service are those of its objects."""
    snapshot = snapshot_of(*objects)
    ((text, protocol), state) = next(iter(snapshot.services.items()))
    port, usable = state.service_port, usable_endpoints(state.service_port, state.endpoints, snapshot.node)
    views = read_services(_rules(*objects))
    view = views[f"{text}/{protocol}"]

    expected = {one.text: Fraction(1, len(usable.cluster)) for one in usable.cluster}
    assert expected == {one.destination: plain_share(one.share) for one in view.endpoints}
    expected = {one.text: Fraction(1, len(usable.local)) for one in usable.local}
    assert expected == {one.destination: plain_share(one.share) for one in view.local_endpoints}
    assert view.affinity_s == (port.affinity_timeout_s if usable.reachable else 0)
    has_ranges = bool(port.source_ranges and port.load_balancer_ips and usable.any_usable)
    assert view.source_ranges == (port.source_ranges if has_ranges else None)
    assert {port.cluster_ip, *port.external_ips, *port.load_balancer_ips} == {
        entry.address for entry in view.entries if entry.kind not in (EntryKind.NODE_PORT, EntryKind.HEALTH_CHECK)
    } - {""}
    assert (view.unread, len(views)) == ((), 1)


@given(_services())
@settings(max_examples=60, deadline=None)
def test_shares_of_a_service_add_up_to_one_exactly(objects: tuple[Service, EndpointSlice]) -> None:
    """Rounded probabilities are composed as fractions: nothing is lost, the last endpoint takes the rest."""
    view = next(iter(read_services(_rules(*objects)).values()))

    assert sum(one.share for one in view.endpoints) in ({1} if view.endpoints else {0})
    assert sum(one.share for one in view.local_endpoints) in ({1} if view.local_endpoints else {0})


@given(_services(), _services())
@settings(max_examples=100, deadline=None)
def test_services_of_other_meaning_differ(
    first: tuple[Service, EndpointSlice], second: tuple[Service, EndpointSlice]
) -> None:
    """The comparison finds a difference exactly where the texts of the rules differ."""
    before, after = _rules(*first), _rules(*second)
    comparison = compare(before, after)

    assert comparison.differs(foreign=True) == (render_save(before) != render_save(after))
    assert all(change.words for change in comparison.services)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_recorded_rules_are_read_completely(path: Path) -> None:
    """Every rule of kube-proxy in shared chains and chains of services is understood."""
    reading = read_ruleset(parse_save(path.read_text(), Family.IPV6 if "ip6" in path.name else Family.IPV4))

    assert {name: view.unread for name, view in reading.services.items() if view.unread} == {}
    assert reading.orphans == ()
    assert {chain for (_, chain), rules in reading.leftovers.items() if rules} <= {"KUBE-SERVICES"}


def test_added_endpoint_is_told_with_the_new_shares() -> None:
    """Two endpoints become three."""
    expected = (
        "endpoint 10.244.1.3:80 added, share 1/3",
        "share of endpoint 10.244.1.1:80: 1/2 -> 1/3",
        "share of endpoint 10.244.1.2:80: 1/2 -> 1/3",
    )

    assert expected == _words(_web(2), _web(3))


def test_many_equal_changes_of_shares_are_one_line() -> None:
    """Ten endpoints become eleven: the ten are counted, not listed."""
    expected = ("endpoint 10.244.1.11:80 added, share 1/11", "share of each of 10 endpoints: 1/10 -> 1/11")

    assert expected == _words(_web(10), _web(11))


def test_removed_endpoint_is_told() -> None:
    """Two endpoints become one, which takes all."""
    assert _words(_web(2), _web(1)) == (
        "endpoint 10.244.1.2:80 removed",
        "share of endpoint 10.244.1.1:80: 1/2 -> 1",
    )


def test_affinity_is_told_once() -> None:
    """Affinity changes many rules, and is one fact."""
    assert _words(_web(3), _web(3, affinity_timeout_s=60)) == ("affinity on (60 s)",)
    assert _words(_web(3, affinity_timeout_s=60), _web(3)) == ("affinity off (was 60 s)",)
    assert _words(_web(3, affinity_timeout_s=60), _web(3, affinity_timeout_s=90)) == ("affinity 60 s -> 90 s",)


def test_policy_and_entries_are_told() -> None:
    """A changed policy, a new address."""
    external: dict[str, object] = {"service_type": "LoadBalancer", "ingress": ("198.51.100.1",)}
    entry = "entry loadbalancer IP 198.51.100.1:80 added: external policy"

    assert entry in _words(_web(), _web(**external))
    assert "policy of traffic from outside: Cluster -> Local" in _words(
        _web(**external), _web(external_policy="Local", **external)
    )


def test_source_ranges_are_told() -> None:
    """A range is added to others; the first one closes the door for all others."""
    external: dict[str, object] = {"service_type": "LoadBalancer", "ingress": ("198.51.100.1",)}
    one, two = (
        _web(source_ranges=ranges, **external) for ranges in (["192.0.2.0/24"], ["192.0.2.0/24", "10.1.0.0/16"])
    )

    assert _words(one, two) == ("source range 10.1.0.0/16 added",)
    assert "source ranges: every source -> 192.0.2.0/24" in _words(_web(**external), one)
    assert "entry load balancer firewall 198.51.100.1:80 added: dropped" in _words(_web(**external), one)


def test_masquerading_is_told() -> None:
    """Another range of pods changes which traffic to the cluster IP is masqueraded."""
    one = service("web")
    objects = (one, endpoint_slice(one, ["10.244.1.1"]))
    words = _words(_rules(*objects, config=Config()), _rules(*objects))

    assert words == ("masquerade traffic to the cluster IP: never -> not from 10.244.0.0/16",)


def test_whole_services_are_added_and_removed() -> None:
    """A service port that only one side has is told with its entries and endpoints."""
    (added,) = compare(_rules(), _web()).services
    (removed,) = compare(_web(), _rules()).services

    assert (ChangeKind.ADDED, ChangeKind.REMOVED) == (added.kind, removed.kind)
    assert added.service_port == NAME
    assert added.words == ("cluster IP 10.96.0.10:80: all endpoints", "endpoint 10.244.1.1:80, share 1")


def test_unusual_rule_of_a_service_is_told_as_it_is() -> None:
    """What no model holds is compared as text."""
    name = next(chain for chain in _web().tables["nat"].chains if chain.startswith("KUBE-SEP-"))
    strange = _edited(_web(), f"-A {name} -p tcp", f"-A {name} -s 10.9.9.9/32 -j DROP\n-A {name} -p tcp")

    assert _words(_web(), strange) == ("unusual rule added: -A chain of 10.244.1.1:80 -s 10.9.9.9/32 -j DROP",)


def test_rules_behind_the_last_endpoint_are_unusual() -> None:
    """Masquerading that no connection reaches is none."""
    text = render_save(_web())
    line = next(one for one in text.splitlines() if "cluster IP" in one and "KUBE-MARK-MASQ" in one)
    jump = next(one for one in text.splitlines() if one.startswith("-A KUBE-SVC-") and "KUBE-SEP-" in one)
    late = parse_save(text.replace(f"{line}\n{jump}", f"{jump}\n{line}"), Family.IPV4)
    words = _words(_web(), late)

    assert words[0] == "masquerade traffic to the cluster IP: not from 10.244.0.0/16 -> never"
    assert words[1].startswith("unusual rule added: -A KUBE-SVC ! -s 10.244.0.0/16 ")


def test_rounding_of_probabilities_is_no_difference() -> None:
    """Five decimals of an old kube-proxy mean a third as ten do."""
    old = _edited(_web(3), "--probability 0.33333333349", "--probability 0.33332999982")

    assert _words(_web(3), old) == ()


def test_fixed_chains_are_compared_as_rules() -> None:
    """The way of masquerading, and a missing jump from a built-in chain, belong to no service."""
    other = _edited(_web(), "MASQUERADE --random-fully", "MASQUERADE")
    cut = _edited(_web(), '-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES\n', "")

    assert [one.chain for one in compare(_web(), other).fixed] == ["KUBE-POSTROUTING"]
    assert [one.chain for one in compare(_web(), cut).fixed] == ["PREROUTING"]
    assert compare(_web(), other).services == ()


def test_foreign_chains_count_only_if_asked_for() -> None:
    """Rules of others differ, ours do not."""
    other = _edited(_web(), "*nat\n", "*nat\n:CNI-X - [0:0]\n-A CNI-X -j RETURN\n")
    comparison = compare(_web(), other)

    assert [one.chain for one in comparison.foreign] == ["CNI-X"]
    assert not comparison.differs(foreign=False)
    assert comparison.differs(foreign=True)


def test_chain_that_nothing_leads_to_is_told() -> None:
    """A chain of a service port that went is compared as a chain."""
    stale = "KUBE-SVC-AAAAAAAAAAAAAAAA"
    other = _edited(_web(), "*nat\n", f"*nat\n:{stale} - [0:0]\n-A {stale} -j RETURN\n")

    assert [one.chain for one in compare(_web(), other).fixed] == [stale]


def test_order_that_decides_is_told() -> None:
    """Two services with one address: the first rule wins, so their order is meaning."""
    pair = [service(name, cluster_ip="10.96.0.9") for name in ("a", "b")]
    ruleset = _rules(*pair, *(endpoint_slice(one, ["10.244.1.1"]) for one in pair))
    lines = [line for line in render_save(ruleset).splitlines() if line.startswith("-A KUBE-SERVICES -d")]
    swapped = _edited(ruleset, "\n".join(lines), "\n".join(reversed(lines)))

    assert [(one.chain, str(one.kind)) for one in compare(ruleset, swapped).fixed] == [("KUBE-SERVICES", "order")]
