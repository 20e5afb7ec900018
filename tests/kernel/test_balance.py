"""Real packets through every scheduler, and through groups of endpoints."""

from collections.abc import Callable, Iterator
from itertools import pairwise

import msgspec
import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Balance, Config, Scheduler, ShapeConfig
from kproxy_ipt.daemon.report import RunReport
from kproxy_ipt.errors import NamespaceError
from kproxy_ipt.objects.model import SCHEDULER_ANNOTATION, EndpointSlice, Service
from kproxy_ipt.rules.service_chains import chain_names
from kproxy_ipt.ruleset.model import Ruleset
from kproxy_ipt.ruleset.parse import parse_save
from kproxy_ipt.state.services import service_ports
from kproxy_ipt.testing.lab import Lab
from kproxy_ipt.testing.lab_objects import (
    TARGET_PORT,
    cluster_ip,
    endpoints,
    open_service,
    remote_pod,
    stranger,
)
from kproxy_ipt.testing.objects import endpoint_slice, service, service_port, slice_port
from kproxy_ipt.testing.shares import assert_shares
from kproxy_ipt.testing.topology import CLUSTER_CIDRS
from kproxy_ipt.trace.service_reading import read_ruleset

pytestmark = pytest.mark.kernel

Sync = Callable[..., RunReport]


def _config(**shape: object) -> Config:
    plain = Config(cluster_cidrs=tuple(CLUSTER_CIDRS.values()))
    return msgspec.structs.replace(plain, shape=msgspec.structs.replace(ShapeConfig(), **shape))


def _five(
    lab: Lab, family: Family, *, protocol: str = "TCP", scheduler: str = "", affinity_timeout_s: int | None = None
) -> tuple[Service, EndpointSlice]:
    web = service(
        cluster_ip=cluster_ip(family),
        ports=[service_port(80, protocol=protocol)],
        annotations={SCHEDULER_ANNOTATION: scheduler} if scheduler else None,
        affinity_timeout_s=affinity_timeout_s,
    )
    return web, endpoints(web, family, *lab.pods)


def _windows(names: list[str], size: int) -> Iterator[list[str]]:
    return (names[start : start + size] for start in range(len(names) - size + 1))


def test_rotation_reaches_every_endpoint_once_in_any_row_of_flows(lab: Lab, sync: Sync, family: Family) -> None:
    """Of any five new flows in a row each of five endpoints gets one."""
    sync(*_five(lab, family), config=_config(scheduler=Scheduler.RR))
    traffic = lab.client.send(cluster_ip(family), 80, count=43, parallel=1)
    windows = list(_windows([exchange.name for exchange in traffic.exchanges], 5))

    assert len(windows) == 39
    assert {tuple(sorted(window)) for window in windows} == {("podA", "podB", "podC", "podD", "podE")}


def test_other_services_end_the_turn_on_the_legacy_backend_alone(
    fresh: Lab, sync: Sync, family: Family, backend: str
) -> None:
    """There a change of the table writes every rule anew, and with it what the kernel has counted."""
    rotating = _five(fresh, family, scheduler="rr")
    sync(*rotating, into=fresh)
    first = [one.name for one in fresh.client.send(cluster_ip(family), 80, count=2, parallel=1).exchanges]
    other = service("other", cluster_ip=cluster_ip(family, 11))
    sync(*rotating, other, endpoints(other, family, fresh.pods[0]), into=fresh)
    then = [one.name for one in fresh.client.send(cluster_ip(family), 80, count=2, parallel=1).exchanges]

    assert [*first, *then] == ["podA", "podB", *(["podC", "podD"] if backend == "nft" else ["podA", "podB"])]


def test_annotation_of_a_service_counts_before_the_configuration(lab: Lab, sync: Sync, family: Family) -> None:
    """One Service rotates where all others are balanced at random, and the node's own flows do too."""
    sync(*_five(lab, family, scheduler="rr"))
    traffic = lab.node.send(cluster_ip(family), 80, count=25, parallel=1)

    assert set(traffic.names.values()) == {5}


def _saved(lab: Lab, iptables: Callable[..., str], family: Family) -> Ruleset:
    return parse_save(iptables(lab, "-t", "nat", suffix="-save"), family)


def _clients_of_first_part(lab: Lab, iptables: Callable[..., str], family: Family) -> float:
    """The share of 200 clients of one network that the match `cluster` puts into the first of two parts."""
    hashed = "-p udp -m cluster --cluster-total-nodes 2 --cluster-local-node 1 --cluster-hash-seed 7 -j ACCEPT"
    iptables(lab, "-t", "nat", "-I", "PREROUTING", *hashed.split())
    sources = [stranger(family, number) for number in range(1, 201)]
    lab.client.send(lab.pods[0].address(family), TARGET_PORT, count=200, sources=sources, protocol="udp")
    saved = iptables(lab, "-t", "nat", "-c", suffix="-save")
    (line,) = (line for line in saved.splitlines() if "-m cluster" in line)
    return int(line[1:].partition(":")[0]) / 200


def test_kernel_hashes_too_little_of_a_source_for_a_scheduler(
    fresh: Lab, iptables: Callable[..., str], family: Family
) -> None:
    """Why there is no `sh`: of IPv6 only the first 32 bits count, so a whole network falls into one part."""
    share = _clients_of_first_part(fresh, iptables, family)

    assert 0.3 < share < 0.7 if family is Family.IPV4 else share in (0, 1)


def test_iptables_does_not_read_its_own_text_of_a_source_hash(fresh: Lab, iptables: Callable[..., str]) -> None:
    """The other reason: it prints parts as a mask and reads no mask above 32, so saved tables cannot be restored."""
    hashed = "-m cluster --cluster-total-nodes 7 --cluster-local-node 7 --cluster-hash-seed 7 -j ACCEPT"
    iptables(fresh, "-t", "nat", "-A", "PREROUTING", *hashed.split())
    saved = iptables(fresh, "-t", "nat", suffix="-save")

    with pytest.raises(NamespaceError, match="out of range"):
        iptables(fresh, suffix="-restore", stdin=saved)


def test_grouped_service_reaches_300_endpoints_evenly(lab: Lab, sync: Sync, family: Family) -> None:
    """150 addresses with two ports each; 6,000 flows or a multiple of that fit equal shares."""
    addresses = [remote_pod(family, number) for number in range(50, 200)]
    for address in addresses:
        for port in (9001, 9002):
            lab.remote.serve(port, protocol="udp", name=f"{address}/{port}", addresses=[address])
    web = service(cluster_ip=cluster_ip(family), ports=[service_port(80, protocol="UDP")])
    slices = [
        endpoint_slice(
            web, addresses, name=f"web-{port}", address_type=family.api_name, ports=[slice_port(port, protocol="UDP")]
        )
        for port in (9001, 9002)
    ]
    sync(web, *slices, config=_config(balance=Balance.GROUPED))
    # A source of its own for each: a port that is used again within the timeout of its flow is no new flow.
    sources = [stranger(family, number) for number in range(1, 6001)]
    names = [f"{address}/{port}" for address in addresses for port in (9001, 9002)]

    assert_shares(
        lambda: lab.client.send(cluster_ip(family), 80, count=6000, sources=sources, protocol="udp").names,
        dict.fromkeys(names, 1.0),
    )


def test_shape_and_number_change_in_place(lab: Lab, sync: Sync, iptables: Callable[..., str], family: Family) -> None:
    """Groups split, join and go while the rules are in force, and the kernel ends with what was asked for."""
    web = service(cluster_ip=cluster_ip(family))
    many = [remote_pod(family, number) for number in range(1, 201)]
    for count, balance in ((200, "grouped"), (200, "linear"), (200, "grouped"), (40, "grouped"), (90, "grouped")):
        sync(web, endpoints(web, family, *many[:count]), config=_config(balance=Balance(balance)))
        (view,) = read_ruleset(_saved(lab, iptables, family)).services.values()

        assert (len(view.endpoints), bool(view.groups), view.unread) == (count, balance == "grouped", ())
        assert max(abs(float(one.share) * count - 1) for one in view.endpoints) < 1e-6


def test_deepest_way_to_a_group_fits_the_kernel(
    fresh: Lab, sync: Sync, iptables: Callable[..., str], family: Family
) -> None:
    """Behind six levels of dispatch and source ranges two levels of groups still load: 15 chains in a row, of 16."""
    web = open_service(family, source_ranges=("198.18.0.0/16", "2001:db8:18::/64"))
    behind = [remote_pod(family, number) for number in range(1, 250)]
    slices = [
        endpoint_slice(web, behind, name=f"web-{port}", address_type=family.api_name, ports=[slice_port(port)])
        for port in (TARGET_PORT, TARGET_PORT + 1)
    ]
    sync(web, *slices, config=_config(balance=Balance.GROUPED), into=fresh)
    (port,) = service_ports(web, family)
    levels = [f"LEVEL-{number}" for number in range(6)]
    for level in levels:
        iptables(fresh, "-t", "nat", "-N", level)
    for parent, child in pairwise(["KUBE-SERVICES", *levels, chain_names(port).firewall]):
        iptables(fresh, "-t", "nat", "-A", parent, "-j", child)
    rules = _saved(fresh, iptables, family)

    assert _depth(rules, "PREROUTING") == 15


def _depth(rules: Ruleset, name: str) -> int:
    """Chains in the longest row of jumps that begins with *name*."""
    chain = rules.chain("nat", name)
    targets = {getattr(rule.target, "chain", "") for rule in (chain.rules if chain else ())} - {""}
    return 1 + max((_depth(rules, target) for target in targets), default=0)
