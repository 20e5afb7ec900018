"""KUBE-SVC, KUBE-SVL, KUBE-EXT, KUBE-FW and KUBE-SEP of one service port."""

from typing import Any

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config, DetectLocalMode, IptablesConfig
from kproxy_ipt.objects.model import Service, SliceEndpoint
from kproxy_ipt.testing.desired import desired_for, rule_lines
from kproxy_ipt.testing.objects import endpoint_slice, node, service, service_port, slice_endpoint

DETECTING = Config(cluster_cidrs=("10.0.0.0/8", "fd00::/8"))
LOCAL, REMOTE = slice_endpoint("10.0.0.1", node_name="node1"), slice_endpoint("10.0.0.2", node_name="node2")


def _chain(kind: str, of: Service, *endpoints: SliceEndpoint, config: Config = DETECTING, **options: Any) -> list[str]:
    """What each rule of the first chain of *kind* says after the chain name, or [] without such a chain."""
    desired = desired_for(of, endpoint_slice(of, endpoints or (REMOTE,)), node(), config=config, **options)
    names = [name for name in desired.ruleset.tables["nat"].chains if name.startswith(f"KUBE-{kind}-")]
    return [line.split(" ", 2)[2] for name in names[:1] for line in rule_lines(desired, "nat", name)]


def _exposed(**options: Any) -> Service:
    return service(service_type="NodePort", ports=(service_port(80, node_port=30080),), **options)


def test_traffic_from_elsewhere_to_the_cluster_ip_is_masqueraded() -> None:
    """Everything that is not from a local pod gets the node's address, or the answer would not come back."""
    first = _chain("SVC", service())[0]

    assert first == (
        "! -s 10.0.0.0/8 -d 10.96.0.10/32 -p tcp -m comment --comment "
        '"default/web cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ'
    )


def test_without_a_range_of_pods_no_rule_asks_for_it() -> None:
    """The rule is left out rather than written with an empty option."""
    lines = _chain("SVC", service(), config=Config())

    assert len(lines) == 1
    assert "KUBE-MARK-MASQ" not in lines[0]


def test_masquerade_all_asks_for_no_source() -> None:
    """Then pods are masqueraded as well, with or without a range."""
    for config in (DETECTING, Config()):
        masquerading = Config(cluster_cidrs=config.cluster_cidrs, iptables=IptablesConfig(masquerade_all=True))

        assert _chain("SVC", service(), config=masquerading)[0].startswith("-d 10.96.0.10/32 -p tcp ")


@pytest.mark.parametrize(
    ("mode", "head"),
    [(DetectLocalMode.BRIDGE_INTERFACE, "! -i cbr0 "), (DetectLocalMode.INTERFACE_NAME_PREFIX, "! -i veth+ ")],
)
def test_local_traffic_can_be_told_by_interface(mode: DetectLocalMode, head: str) -> None:
    """The negation stands before the interface; the destination is still asked for."""
    config = Config(detect_local_mode=mode, bridge_interface="cbr0", interface_name_prefix="veth")
    first = _chain("SVC", service(), config=config)[0]

    assert f"-d 10.96.0.10/32 {head}-p tcp" in first


def test_cluster_ip_is_masqueraded_only_in_the_chain_that_it_leads_to() -> None:
    """With an internal policy Local that is KUBE-SVL."""
    of = _exposed(internal_policy="Local")

    assert "KUBE-MARK-MASQ" in _chain("SVL", of, LOCAL, REMOTE)[0]
    assert "KUBE-MARK-MASQ" not in " ".join(_chain("SVC", of, LOCAL, REMOTE))


def test_external_traffic_of_policy_cluster_is_masqueraded_and_balanced() -> None:
    """Two rules: the mark for everybody, and the jump."""
    lines = _chain("EXT", _exposed())

    assert lines[0].endswith("-j KUBE-MARK-MASQ")
    assert lines[1].startswith("-j KUBE-SVC-")
    assert len(lines) == 2


@pytest.mark.parametrize(
    ("config", "endpoints", "conditions"),
    [
        (DETECTING, (LOCAL, REMOTE), ["-s 10.0.0.0/8", "LOCAL", "LOCAL", ""]),
        (DETECTING, (REMOTE,), ["-s 10.0.0.0/8", "LOCAL", "LOCAL"]),
        (Config(), (LOCAL, REMOTE), ["LOCAL", "LOCAL", ""]),
    ],
)
def test_external_policy_local_keeps_the_client_address(
    config: Config, endpoints: tuple[SliceEndpoint, ...], conditions: list[str]
) -> None:
    """Pods and the node take the short cut to all endpoints; the rest goes to local ones if there are any."""
    lines = _chain("EXT", _exposed(external_policy="Local"), *endpoints, config=config)
    found = [
        "LOCAL" if "--src-type LOCAL" in line else "-s 10.0.0.0/8" if line.startswith("-s 10.0.0.0/8 ") else ""
        for line in lines
    ]

    assert conditions == found
    assert sum("KUBE-MARK-MASQ" in line for line in lines) == 1
    assert ("-j KUBE-SVL-" in lines[-1]) is (LOCAL in endpoints)


def test_external_ips_follow_the_external_policy() -> None:
    """They lead into KUBE-EXT like node ports, so policy Local holds for a ClusterIP Service as well."""
    of = service(external_ips=("192.0.2.1",), external_policy="Local")

    assert "masquerade LOCAL traffic" in _chain("EXT", of, LOCAL, REMOTE)[1]
    assert "-j KUBE-SVL-" in _chain("EXT", of, LOCAL, REMOTE)[-1]


@pytest.mark.parametrize(
    ("ranges", "sources"),
    [
        (("203.0.113.0/24",), ["203.0.113.0/24"]),
        (("203.0.113.0/24", "192.0.2.0/24"), ["203.0.113.0/24", "192.0.2.0/24", "1.2.3.4/32", "5.6.7.8/32"]),
        (("foo", "203.0.113.0/24", "4700::/32"), ["203.0.113.0/24"]),
    ],
)
def test_firewall_passes_ranges_and_the_own_addresses_of_the_node(ranges: tuple[str, ...], sources: list[str]) -> None:
    """Where the node is in a range, its traffic may carry the balancer address as source."""
    of = service(service_type="LoadBalancer", ingress=("1.2.3.4", "5.6.7.8"), source_ranges=ranges)
    lines = _chain("FW", of)

    assert sources == [line.split()[1] for line in lines[:-1]]
    assert "will be dropped by KUBE-PROXY-FIREWALL" in lines[-1]
    assert " -j " not in lines[-1]


@pytest.mark.parametrize("ranges", [("4700::/32",), ("0.0.0.0/0", "10.0.0.0/8"), ("foo",)])
def test_ranges_that_leave_nothing_make_no_firewall(ranges: tuple[str, ...]) -> None:
    """Ranges of the other family only, or one that covers everything, leave the address open, as kube-proxy does."""
    of = service(service_type="LoadBalancer", ingress=("1.2.3.4",), source_ranges=ranges)

    assert _chain("FW", of) == []


@pytest.mark.parametrize(
    ("family", "address", "source", "destination"),
    [
        (Family.IPV4, "10.0.0.2", "10.0.0.2/32", "10.0.0.2:80"),
        (Family.IPV6, "FD00::2", "fd00::2/128", "[fd00::2]:80"),
    ],
)
def test_endpoint_chain_masks_hairpins_and_translates(
    family: Family, address: str, source: str, destination: str
) -> None:
    """A connection from the endpoint to itself must come back by the node."""
    of = service(cluster_ips=("10.96.0.10", "fd00::10"))
    first, second = _chain("SEP", of, slice_endpoint(address), family=family)

    assert first == f'-s {source} -m comment --comment "default/web" -j KUBE-MARK-MASQ'
    assert second == f'-p tcp -m comment --comment "default/web" -m tcp -j DNAT --to-destination {destination}'


def test_endpoint_with_affinity_remembers_its_clients() -> None:
    """The list is named after the chain, without a timeout of its own."""
    second = _chain("SEP", service(affinity_timeout_s=60))[1]

    assert " -m recent --set --name KUBE-SEP-" in second
    assert "--seconds" not in second


@pytest.mark.parametrize("protocol", ["tcp", "udp", "sctp"])
def test_protocol_of_the_service_port_is_that_of_its_endpoints(protocol: str) -> None:
    """Every rule that translates names it."""
    of = service(ports=(service_port(53, protocol=protocol.upper()),))

    assert f"-p {protocol} " in _chain("SEP", of)[1]


def test_slice_port_and_not_target_port_is_translated_to() -> None:
    """The port of the slice is what the endpoint listens on."""
    of = service(ports=(service_port(443, target_port=9999),))
    desired = desired_for(of, endpoint_slice(of, (REMOTE,), ports=(8443,)))

    assert "--to-destination 10.0.0.2:8443" in repr([rule_lines(desired, "nat", name) for name in desired.owners])


def test_policies_local_build_chains_for_all_endpoints_in_use() -> None:
    """Endpoints of the short cut and local ones have one chain each, not two."""
    of = _exposed(internal_policy="Local", external_policy="Local")
    desired = desired_for(of, endpoint_slice(of, (LOCAL, REMOTE)))

    assert sum(name.startswith("KUBE-SEP-") for name in desired.owners) == 2
