"""The desired rules as a whole: consistent, the same on every run, and right at the edges."""

import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Balance, Config, Dispatch, ShapeConfig
from kproxy_ipt.plan.wanted import table_lines
from kproxy_ipt.rules.build import Desired, build_ruleset, with_base_chains
from kproxy_ipt.rules.names import FIXED_CHAINS
from kproxy_ipt.rules.shared_chains import PLACES, ROW_BELOW, branched_places
from kproxy_ipt.ruleset.check import MAX_COMMENT_BYTES, check_lines
from kproxy_ipt.ruleset.matches import Comment
from kproxy_ipt.ruleset.render import render_save
from kproxy_ipt.ruleset.scan import scan_save
from kproxy_ipt.state.model import MachineFacts
from kproxy_ipt.testing.desired import ApiObject, desired_for, rule_lines, snapshot_of
from kproxy_ipt.testing.objects import endpoint_slice, node, service, service_port, slice_endpoint, slice_port
from kproxy_ipt.testing.recorded import recorded_case

CASES = sorted(path.parent for path in (Path(__file__).parents[1] / "golden").glob("*/case.yaml"))
MAY_BE_EMPTY = (
    "KUBE-SERVICES",
    "KUBE-NODEPORTS",
    "KUBE-EXTERNAL-SERVICES",
    "KUBE-PROXY-FIREWALL",
    "KUBE-FIREWALL",
)


def _comments(desired: Desired) -> Iterator[str]:
    for table in desired.ruleset.tables.values():
        for chain in table.chains.values():
            for rule in chain.rules:
                yield from (match.text for match in rule.matches if isinstance(match, Comment))


@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_every_jump_leads_to_a_chain_with_rules(folder: Path) -> None:
    """Whatever the objects, in both families, no chain is missing; nobody else has to make one."""
    case = recorded_case(folder)

    for family in Family:
        check_lines(table_lines(with_base_chains(case.desired(family))), may_be_empty=MAY_BE_EMPTY)


@pytest.mark.parametrize("internal", ["Cluster", "Local"])
@pytest.mark.parametrize("external", ["Cluster", "Local"])
@pytest.mark.parametrize("place", ["none", "node1", "node2", "draining"])
def test_no_mix_of_policies_and_endpoints_leads_into_a_missing_chain(internal: str, external: str, place: str) -> None:
    """Each policy with local, remote, draining and without endpoints."""
    of = service(
        service_type="LoadBalancer",
        ports=(service_port(80, node_port=30080),),
        ingress=("192.0.2.1",),
        source_ranges=("203.0.113.0/24",),
        internal_policy=internal,
        external_policy=external,
    )
    draining = slice_endpoint("10.0.0.1", node_name="node1", ready=False, serving=True, terminating=True)
    entries = {"none": (), "draining": (draining,)}.get(place, (slice_endpoint("10.0.0.1", node_name=place),))
    desired = desired_for(of, endpoint_slice(of, entries), config=Config(cluster_cidrs=("10.0.0.0/8",)))

    check_lines(table_lines(with_base_chains(desired)), may_be_empty=MAY_BE_EMPTY)


def _conflicting_objects() -> list[ApiObject]:
    """Services that claim each other's addresses and node ports, and plain ones."""
    first = service("x", namespace="a", service_type="NodePort", ports=(service_port(80, node_port=30100),))
    second = service(
        "y",
        namespace="b",
        cluster_ip="10.96.0.11",
        service_type="LoadBalancer",
        ports=(service_port(80, node_port=30100), service_port(81, name="u", protocol="UDP", node_port=30100)),
        external_ips=("192.0.2.1", "10.96.0.10"),
        ingress=("192.0.2.2",),
    )
    third = service("z", namespace="c", cluster_ip="10.96.0.12", external_ips=("192.0.2.1", "192.0.2.2"))
    services = [first, second, third, *(service(f"s{n}", cluster_ip=f"10.96.1.{n}") for n in range(5))]
    slices = [endpoint_slice(of, (f"10.0.{n}.1", f"10.0.{n}.2")) for n, of in enumerate(services)]
    return [*services, *slices, endpoint_slice("x", ("10.0.0.2", "10.0.0.3"), namespace="a", name="more"), node()]


def test_order_of_objects_leaves_no_trace_in_the_rules() -> None:
    """Twenty shuffled orders give the same bytes, conflicts included."""
    objects = _conflicting_objects()
    texts = set()
    for seed in range(20):
        random.Random(seed).shuffle(objects)
        texts.add(render_save(with_base_chains(desired_for(*objects))))

    assert len(texts) == 1


def test_first_service_by_name_wins_a_disputed_node_port() -> None:
    """The winner comes first in the chain; the loser keeps its cluster IP, other protocols are no dispute."""
    desired = desired_for(*_conflicting_objects())
    lines = [line for line in rule_lines(desired, "nat", "KUBE-NODEPORTS") if "127.0.0.0/8" not in line]

    assert [line.split('"')[1] for line in lines] == ["a/x", "b/y", "b/y:u"]
    assert any("-d 10.96.0.11/32" in line for line in rule_lines(desired, "nat", "KUBE-SERVICES"))


def test_first_service_by_name_wins_a_disputed_address() -> None:
    """Every node makes the same choice for the same external IP and port."""
    desired = desired_for(*_conflicting_objects())
    lines = [line for line in rule_lines(desired, "nat", "KUBE-SERVICES") if "-d 192.0.2.1/32" in line]

    assert [("b/y external IP" in line, "c/z external IP" in line) for line in lines if "--dport 80 " in line] == [
        (True, False),
        (False, True),
    ]


def _long_named(last: str) -> list[ApiObject]:
    of = service(
        "s" * 62 + last,
        namespace="n" * 63,
        cluster_ips=("fd00::10",),
        service_type="LoadBalancer",
        ports=tuple(service_port(80 + n, name=f"{'p' * 62}{n}", node_port=30000 + n) for n in range(3)),
        ingress=("2001:db8::1",),
        source_ranges=("2001:db8::/32",),
        external_policy="Local",
        health_check_node_port=32000,
        affinity_timeout_s=60,
    )
    ports = tuple(slice_port(65535, name=port.name) for port in of.spec.ports or ())
    entries = tuple(
        slice_endpoint(f"2001:db8:1111:2222:3333:4444:5555:{n:x}", node_name="node1") for n in (0x6666, 0x7777)
    )
    return [of, endpoint_slice(of, entries, ports=ports)]


def test_longest_names_fit_into_comments_and_chains() -> None:
    """Names at the limit of Kubernetes stay below the limits of the kernel, with and without endpoints."""
    objects = _long_named("a")

    for some in (objects, objects[:1]):
        desired = desired_for(*some, family=Family.IPV6)
        assert max(len(comment.encode()) for comment in _comments(desired)) <= MAX_COMMENT_BYTES
        check_lines(table_lines(with_base_chains(desired)), may_be_empty=MAY_BE_EMPTY)


def test_long_names_that_differ_at_the_end_have_chains_of_their_own() -> None:
    """The whole text is hashed."""
    first = desired_for(*_long_named("a"), family=Family.IPV6).owners
    second = desired_for(*_long_named("b"), family=Family.IPV6).owners

    assert len(first) == len(second) > 0
    assert not set(first) & set(second)


@pytest.mark.parametrize(("endpoints", "with_comments"), [(1000, True), (1001, False)])
def test_large_clusters_drop_the_comments_of_endpoint_rules(endpoints: int, *, with_comments: bool) -> None:
    """More than 1,000 endpoints of all service ports together; other comments stay."""
    many = service("many")
    one = service("one", cluster_ip="10.96.0.11")
    addresses = [f"10.1.{n // 250}.{n % 250}" for n in range(endpoints - 1)]
    unready = slice_endpoint("10.2.0.1", ready=False)
    desired = desired_for(many, one, endpoint_slice(many, addresses), endpoint_slice(one, (unready,)))
    comments = list(_comments(desired))

    assert endpoints == desired.endpoint_count
    assert with_comments is any(" -> " in comment for comment in comments)
    assert with_comments is ("default/many" in comments)
    assert "default/many cluster IP" in comments
    assert "default/one has no endpoints" in comments


def test_desired_rules_tell_what_they_were_made_of() -> None:
    """Numbers of services, ports and endpoints, and the owner of each chain."""
    dns = service("dns", ports=(service_port(53, name="a"), service_port(53, name="b", protocol="UDP")))
    desired = desired_for(dns, service("empty", cluster_ip="10.96.0.11"), endpoint_slice(dns, ("10.0.0.1", "10.0.0.2")))

    assert (2, 3, 4) == (desired.service_count, desired.service_port_count, desired.endpoint_count)
    assert {"default/dns:a", "default/dns:b"} == set(desired.owners.values())
    assert set(desired.owners) <= set(desired.ruleset.tables["nat"].chains)


def test_tree_of_the_kernel_stays_one_between_the_bounds() -> None:
    """Each shared chain by itself: with no rule there is nothing to keep."""
    snapshot = snapshot_of(*(service(f"s{n}", cluster_ip=f"10.96.{n // 250}.{n % 250 + 1}") for n in range(ROW_BELOW)))
    places = frozenset({PLACES["filter_services"], PLACES["nat_services"]})
    row, tree = (build_ruleset(snapshot, Config(), MachineFacts(), branched) for branched in (frozenset(), places))

    assert row.keeping == tree.keeping == {PLACES["filter_services"]}
    assert len(rule_lines(row, "filter", "KUBE-SERVICES")) == ROW_BELOW
    assert len(rule_lines(tree, "filter", "KUBE-SERVICES")) < 16
    assert branched_places(scan_save(render_save(row.ruleset))) == frozenset()
    assert branched_places(scan_save(render_save(tree.ruleset))) == {PLACES["filter_services"]}


def test_last_rule_of_all_services_is_in_the_first_chain_of_a_tree_alone() -> None:
    """After the branches, as it is after the rules of a row."""
    services = [service(f"s{n}", cluster_ip=f"10.96.0.{n}") for n in range(1, 60)]
    behind = [endpoint_slice(one, [f"10.0.0.{n}"]) for n, one in enumerate(services, start=1)]
    desired = desired_for(*services, *behind, config=Config(shape=ShapeConfig(dispatch=Dispatch.TREE)))
    chains = desired.ruleset.tables["nat"].chains
    ends = {name: [line.endswith("-j KUBE-NODEPORTS") for line in rule_lines(desired, "nat", name)] for name in chains}

    assert [name for name, found in ends.items() if any(found)] == ["KUBE-SERVICES"]
    assert ends["KUBE-SERVICES"] == [*[False] * (len(ends["KUBE-SERVICES"]) - 1), True]


def test_node_ports_are_parted_by_port_in_a_tree() -> None:
    """Their rules have no address to part them by."""
    services = [
        service(
            f"s{n}", cluster_ip=f"10.96.0.{n}", service_type="NodePort", ports=(service_port(80, node_port=30000 + n),)
        )
        for n in range(1, 60)
    ]
    desired = desired_for(*services, config=Config(shape=ShapeConfig(dispatch=Dispatch.TREE)))
    first = rule_lines(desired, "filter", "KUBE-EXTERNAL-SERVICES")

    assert [line.split('"')[1] for line in first] == ["services at tcp 29952-30207"]


def test_chains_stand_after_those_that_they_jump_to() -> None:
    """Writing them in this order never makes a rule that leads to nowhere."""
    desired = desired_for(*_conflicting_objects())
    seen: set[str] = {"KUBE-MARK-MASQ"}
    for name in desired.owners:
        targets = {line.rpartition(" -j ")[2].split()[0] for line in rule_lines(desired, "nat", name)}
        assert {target for target in targets if target.startswith("KUBE-")} <= seen
        seen.add(name)


@pytest.mark.parametrize("family", list(Family))
def test_every_chain_has_a_name_that_kube_proxy_sweeps_up(family: Family) -> None:
    """In every shape: one of kube-proxy's own chains, or a prefix of those that it removes when nothing needs them."""
    start, pods = {Family.IPV4: ("10.96.0.", "10.244.1."), Family.IPV6: ("fd00:96::", "fd00:244::")}[family]
    services = [
        service(
            f"s{number}",
            service_type="LoadBalancer",
            cluster_ip=f"{start}{number}",
            ports=(service_port(80, node_port=30000 + number),),
            ingress=(f"{start}{100 + number}",),
            source_ranges=(f"{start}0/{family.bits // 2}",),
            external_policy="Local",
        )
        for number in range(1, 41)
    ]
    behind = endpoint_slice(services[0], [f"{pods}{number}" for number in range(1, 90)], address_type=family.api_name)
    config = Config(shape=ShapeConfig(dispatch=Dispatch.TREE, balance=Balance.GROUPED))
    desired = desired_for(*services, behind, family=family, config=config)
    swept = re.compile(r"KUBE-(?:SVC|SVL|SEP|FW|EXT)-[A-Z2-7]{16}")
    names = {
        table.name: {name for name in table.chains if name not in (*FIXED_CHAINS[table.name], "KUBE-FIREWALL")}
        for table in desired.ruleset.tables.values()
    }

    assert {name[:8] for name in names["filter"]} == {"KUBE-SVC"}
    assert {name.split("-")[1] for name in names["nat"]} == {"SVC", "SEP", "FW", "EXT"}
    assert all(swept.fullmatch(name) and len(name) <= 28 for found in names.values() for name in found)
