"""Rules of a service port in the chains that all service ports share."""

from typing import Any

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config
from kproxy_ipt.objects.model import LoadBalancerIngress, Service
from kproxy_ipt.rules.build import Desired
from kproxy_ipt.state.model import MachineFacts
from kproxy_ipt.testing.desired import desired_for, rule_lines
from kproxy_ipt.testing.objects import endpoint_slice, service, service_port, slice_endpoint


def _load_balancer(internal: str | None = None, external: str | None = None, **options: Any) -> Service:
    return service(
        service_type="LoadBalancer",
        ports=(service_port(80, node_port=30080),),
        external_ips=("192.0.2.1",),
        ingress=("198.51.100.1",),
        internal_policy=internal,
        external_policy=external,
        **options,
    )


def _dispatch(desired: Desired, table: str, chain: str) -> list[str]:
    """The rules of services in *chain* as `destination comment -> target`, without the hashes of names."""
    found = []
    for line in rule_lines(desired, table, chain):
        if "NOTE: this must be the last" not in line:
            destination = line.partition(" -d ")[2].partition(" ")[0] or "-"
            target = line.partition(" -j ")[2].split(" --")[0].rpartition("-")
            found.append(f"{destination} {line.split(chr(34))[1]} -> {target[0] or target[2]}")
    return found


LOCAL = (slice_endpoint("10.0.0.1", node_name="node1"),)
REMOTE = (slice_endpoint("10.0.0.1", node_name="node2"),)


def test_addresses_lead_to_the_chain_of_their_kind_of_traffic() -> None:
    """Cluster IP, then external IPs, then balancer addresses, in this order."""
    web = _load_balancer()

    assert _dispatch(desired_for(web, endpoint_slice(web)), "nat", "KUBE-SERVICES") == [
        "10.96.0.10/32 default/web cluster IP -> KUBE-SVC",
        "192.0.2.1/32 default/web external IP -> KUBE-EXT",
        "198.51.100.1/32 default/web loadbalancer IP -> KUBE-EXT",
    ]


def test_source_ranges_put_the_firewall_before_balancer_addresses_only() -> None:
    """External IPs and node ports are not restricted; what the firewall does not pass is dropped in filter."""
    web = _load_balancer(source_ranges=("203.0.113.0/24",))
    desired = desired_for(web, endpoint_slice(web))

    assert [line.rpartition(" ")[2] for line in _dispatch(desired, "nat", "KUBE-SERVICES")] == [
        "KUBE-SVC",
        "KUBE-EXT",
        "KUBE-FW",
    ]
    (dropped,) = rule_lines(desired, "filter", "KUBE-PROXY-FIREWALL")
    assert "-d 198.51.100.1/32 -p tcp" in dropped
    assert "traffic not accepted by KUBE-FW-" in dropped


@pytest.mark.parametrize(
    "ingress",
    [(), (LoadBalancerIngress(hostname="x"),), (LoadBalancerIngress(ip="198.51.100.1", ip_mode="Proxy"),)],
)
def test_ranges_without_a_balancer_address_make_no_firewall(ingress: tuple[LoadBalancerIngress, ...]) -> None:
    """The node filters only for concrete addresses of mode VIP; no rule mentions any other."""
    web = service(service_type="LoadBalancer", ingress=ingress, source_ranges=("203.0.113.0/24",))
    desired = desired_for(web, endpoint_slice(web))

    assert () == rule_lines(desired, "filter", "KUBE-PROXY-FIREWALL")
    assert not [name for name in desired.ruleset.tables["nat"].chains if name.startswith("KUBE-FW-")]
    assert "198.51.100.1" not in repr(desired.ruleset)


def test_firewall_passes_only_balancer_addresses_of_mode_vip() -> None:
    """An address of mode Proxy next to one of mode VIP appears nowhere."""
    entries = (LoadBalancerIngress(ip="192.0.2.201", ip_mode="Proxy"), LoadBalancerIngress(ip="192.0.2.202"))
    web = service(service_type="LoadBalancer", ingress=entries, source_ranges=("203.0.113.0/24",))
    desired = desired_for(web, endpoint_slice(web))

    assert "192.0.2.201" not in repr(desired.ruleset)
    assert "192.0.2.202/32" in rule_lines(desired, "filter", "KUBE-PROXY-FIREWALL")[0]


def test_service_without_endpoints_is_refused_at_every_address() -> None:
    """No nat rule at all; the node port is refused at local addresses."""
    desired = desired_for(_load_balancer(source_ranges=("203.0.113.0/24",)))

    assert _dispatch(desired, "nat", "KUBE-SERVICES") == []
    assert _dispatch(desired, "filter", "KUBE-SERVICES") == ["10.96.0.10/32 default/web has no endpoints -> REJECT"]
    assert _dispatch(desired, "filter", "KUBE-EXTERNAL-SERVICES") == [
        "192.0.2.1/32 default/web has no endpoints -> REJECT",
        "198.51.100.1/32 default/web has no endpoints -> REJECT",
        "- default/web has no endpoints -> REJECT",
    ]
    assert rule_lines(desired, "filter", "KUBE-PROXY-FIREWALL") == ()


@pytest.mark.parametrize(
    ("family", "kind"), [(Family.IPV4, "icmp-port-unreachable"), (Family.IPV6, "icmp6-port-unreachable")]
)
def test_refusal_speaks_the_language_of_the_family(family: Family, kind: str) -> None:
    """The kernel's default answer is spelled out, as `iptables-save` does."""
    web = service(cluster_ips=("10.96.0.10", "fd00::10"))
    desired = desired_for(web, family=family)

    assert rule_lines(desired, "filter", "KUBE-SERVICES")[0].endswith(f"-j REJECT --reject-with {kind}")


def test_external_local_policy_without_local_endpoint_drops_external_traffic() -> None:
    """The nat rules stay for traffic that is short-cut on the node; everybody else is dropped."""
    web = _load_balancer(external="Local")
    desired = desired_for(web, endpoint_slice(web, REMOTE))

    assert len(_dispatch(desired, "nat", "KUBE-SERVICES")) == 3
    assert _dispatch(desired, "filter", "KUBE-SERVICES") == []
    assert _dispatch(desired, "filter", "KUBE-EXTERNAL-SERVICES") == [
        "192.0.2.1/32 default/web has no local endpoints -> DROP",
        "198.51.100.1/32 default/web has no local endpoints -> DROP",
        "- default/web has no local endpoints -> DROP",
    ]


def test_internal_local_policy_without_local_endpoint_drops_internal_traffic() -> None:
    """The cluster IP is dropped and not translated; external traffic goes on."""
    web = _load_balancer(internal="Local")
    desired = desired_for(web, endpoint_slice(web, REMOTE))

    assert _dispatch(desired, "filter", "KUBE-SERVICES") == ["10.96.0.10/32 default/web has no local endpoints -> DROP"]
    assert [line.split()[0] for line in _dispatch(desired, "nat", "KUBE-SERVICES")] == [
        "192.0.2.1/32",
        "198.51.100.1/32",
    ]
    assert _dispatch(desired, "filter", "KUBE-EXTERNAL-SERVICES") == []


def test_internal_local_policy_leads_to_the_local_chain() -> None:
    """With a local endpoint the cluster IP goes to KUBE-SVL, and nothing is dropped."""
    web = _load_balancer(internal="Local", external="Local")
    desired = desired_for(web, endpoint_slice(web, LOCAL))

    assert _dispatch(desired, "nat", "KUBE-SERVICES")[0] == "10.96.0.10/32 default/web cluster IP -> KUBE-SVL"
    assert _dispatch(desired, "filter", "KUBE-SERVICES") == []
    assert _dispatch(desired, "filter", "KUBE-EXTERNAL-SERVICES") == []


def test_loopback_rule_of_a_node_port_comes_before_the_general_one() -> None:
    """After the general rule the counting one would never be reached; sorted text hides this order."""
    web = _load_balancer()
    first, second = rule_lines(desired_for(web, endpoint_slice(web)), "nat", "KUBE-NODEPORTS")

    assert "-d 127.0.0.0/8" in first
    assert "--nfacct-name  localhost_nps_accepted_pkts" in first
    assert "-d " not in second


def test_loopback_is_not_counted_without_nfacct() -> None:
    """Then the general rule is enough for loopback as well."""
    web = _load_balancer()
    desired = desired_for(web, endpoint_slice(web), machine=MachineFacts(nfacct_counters=frozenset()))

    assert len(rule_lines(desired, "nat", "KUBE-NODEPORTS")) == 1


def test_node_port_entry_is_last_of_all_services() -> None:
    """Addresses of services may be addresses of the node; sorted text hides this order."""
    objects = [service(f"s{n}", cluster_ip=f"10.96.0.{n + 1}") for n in range(5)]
    desired = desired_for(*objects, *(endpoint_slice(of) for of in objects))
    targets = ["KUBE-NODEPORTS" in line for line in rule_lines(desired, "nat", "KUBE-SERVICES")]

    assert [False] * 5 + [True] == targets


def test_health_check_port_is_open_with_and_without_endpoints() -> None:
    """The answer of the port tells the balancer, so it must be reachable always."""
    web = _load_balancer(external="Local", health_check_node_port=32000)
    comment = '-m comment --comment "default/web health check node port"'
    expected = f"-A KUBE-NODEPORTS -p tcp {comment} -m tcp --dport 32000 -j ACCEPT"

    for desired in (desired_for(web), desired_for(web, endpoint_slice(web))):
        assert rule_lines(desired, "filter", "KUBE-NODEPORTS") == (expected,)


def test_external_ips_can_be_forbidden() -> None:
    """With the gate off no rule has the address, whether the service has endpoints or not."""
    web = _load_balancer()
    config = Config(feature_gates={"AllowServiceExternalIPs": False})

    for desired in (desired_for(web, config=config), desired_for(web, endpoint_slice(web), config=config)):
        assert "192.0.2.1" not in repr(desired.ruleset)


@pytest.mark.parametrize("addresses", [(), ("10.0.0.1",)])
def test_external_ips_outside_of_the_ranges_get_no_rule(addresses: tuple[str, ...]) -> None:
    """Those in a range do, next to them, with endpoints and without."""
    web = service(external_ips=("192.0.2.1", "203.0.113.1"))
    config = Config(external_ip_ranges=("192.0.2.0/24", "2001:db8::/32"))
    written = repr(desired_for(web, endpoint_slice(web, addresses), config=config).ruleset)

    assert "192.0.2.1/32" in written
    assert "203.0.113.1" not in written


def test_one_number_over_three_protocols_is_three_independent_services() -> None:
    """The protocol is part of every rule and of every name."""
    ports = [service_port(53, protocol=protocol, node_port=30053) for protocol in ("TCP", "UDP", "SCTP")]
    dns = service(service_type="NodePort", ports=ports)
    desired = desired_for(dns, endpoint_slice(dns), machine=MachineFacts(nfacct_counters=frozenset()))
    chains = [name for name in desired.ruleset.tables["nat"].chains if name.startswith("KUBE-SVC-")]
    lines = rule_lines(desired, "nat", "KUBE-NODEPORTS")

    assert len(set(chains)) == 3
    assert [f"-p {name} " in line for name, line in zip(("sctp", "tcp", "udp"), lines, strict=True)] == [True] * 3
    assert len({line.rpartition(" ")[2] for line in lines}) == 3
