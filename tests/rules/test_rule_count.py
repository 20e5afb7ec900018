"""How many rules a cluster of some size costs: pinned, so that a change is seen."""

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config
from kproxy_ipt.objects.model import EndpointSlice, Service
from kproxy_ipt.rules.build import Desired
from kproxy_ipt.testing.desired import desired_for
from kproxy_ipt.testing.objects import endpoint_slice, service, service_port

CONFIG = Config(cluster_cidrs=("10.0.0.0/8",))


def _cluster(services: int, endpoints: int, *, with_load_balancer: bool) -> list[Service | EndpointSlice]:
    found: list[Service | EndpointSlice] = []
    for number in range(services):
        plain = service(f"s{number}", cluster_ip=f"172.30.0.{number + 1}")
        balanced = service(
            f"s{number}",
            cluster_ip=f"172.30.0.{number + 1}",
            service_type="LoadBalancer",
            ports=(service_port(80, node_port=30000 + number),),
            external_ips=(f"192.0.2.{number + 1}",),
            ingress=(f"198.51.100.{number + 1}",),
            source_ranges=("203.0.113.0/24",),
        )
        own = balanced if with_load_balancer else plain
        found += [own, endpoint_slice(own, [f"10.0.{number}.{entry + 1}" for entry in range(endpoints)])]
    return found


def _count(desired: Desired, table: str) -> int:
    return sum(len(chain.rules) for chain in desired.ruleset.tables[table].chains.values())


@pytest.mark.parametrize(
    ("services", "endpoints", "with_load_balancer", "filter_rules", "nat_rules"),
    [
        (0, 0, False, 4, 5),
        (1, 0, False, 5, 5),
        (1, 1, False, 4, 10),
        (1, 10, False, 4, 37),
        (10, 10, False, 4, 325),
        (1, 0, True, 8, 5),
        (1, 1, True, 5, 18),
        (1, 10, True, 5, 45),
        (10, 10, True, 14, 405),
    ],
)
def test_number_of_rules(
    services: int, endpoints: int, filter_rules: int, nat_rules: int, *, with_load_balancer: bool
) -> None:
    """As many as kube-proxy writes, with a test for local traffic and with nfacct."""
    objects = _cluster(services, endpoints, with_load_balancer=with_load_balancer)
    desired = desired_for(*objects, config=CONFIG)

    assert (filter_rules, nat_rules) == (_count(desired, "filter"), _count(desired, "nat"))


def test_family_without_services_has_only_fixed_rules() -> None:
    """IPv6 lacks the guard of loopback."""
    desired = desired_for(*_cluster(3, 3, with_load_balancer=True), family=Family.IPV6, config=CONFIG)

    assert (3, 5) == (_count(desired, "filter"), _count(desired, "nat"))
