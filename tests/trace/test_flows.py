"""
What becomes of packets under our rules: who gets them and what source is seen, situation by situation.

Pods are 10.0.0.0/8; the node has 192.168.0.2 (and 192.168.1.2), the client is 203.0.113.2. In the tables `masq` stands
for a rewritten source, `-` for a packet that is let through untouched.
"""

from collections.abc import Sequence

import msgspec
import pytest

from kproxy_ipt.addresses import Family, family_of
from kproxy_ipt.config.model import Config, IptablesConfig
from kproxy_ipt.objects.model import EndpointSlice, Service, SliceEndpoint
from kproxy_ipt.rules.build import with_base_chains
from kproxy_ipt.ruleset.model import Ruleset
from kproxy_ipt.state.model import MachineFacts
from kproxy_ipt.testing.desired import desired_for
from kproxy_ipt.testing.objects import endpoint_slice, node, service, service_port, slice_endpoint
from kproxy_ipt.trace.distribution import distribution
from kproxy_ipt.trace.packet import End, Host, Origin, Outcome, Packet
from kproxy_ipt.trace.walk import walk

_CONFIG = Config(cluster_cidrs=("10.0.0.0/8", "fd00:10::/64"))
_ADDRESSES = ("192.168.0.2", "192.168.1.2", "2001:db8::1", "2001:db8:1::2")
_POD, _NODE, _CLIENT, _LOCALHOST, _SECOND = "10.0.0.2", "192.168.0.2", "203.0.113.2", "127.0.0.1", "192.168.1.2"
_BLOCKED = "203.0.113.130"
_HERE, _ELSEWHERE = "node1", "node2"


def _rules(*api_objects: Service | EndpointSlice, config: Config = _CONFIG, family: Family = Family.IPV4) -> Ruleset:
    own = node(addresses=("192.168.0.2", "2001:db8::1"))
    machine = MachineFacts(interface_addresses=_ADDRESSES)
    return with_base_chains(desired_for(own, *api_objects, config=config, machine=machine, family=family))


def _walk(rules: Ruleset, source: str, destination: str, port: int = 80, protocol: str = "tcp") -> tuple[Outcome, ...]:
    own = source in _ADDRESSES or source in (_LOCALHOST, "::1")
    packet = Packet(
        family=family_of(source),
        source=source,
        destination=destination,
        protocol=protocol,
        source_port=40000,
        destination_port=port,
        in_interface="" if own else "eth0",
        out_interface="eth0",
        origin=Origin.NODE if own else Origin.REMOTE,
    )
    outcomes = distribution(walk(rules, packet, Host(addresses=frozenset(_ADDRESSES))))
    assert sum(outcome.share for outcome in outcomes) == 1
    return outcomes


def _fate(outcomes: Sequence[Outcome]) -> str:
    """`A,B masq`, `A`, `REJECT`, `DROP` or `-`, with endpoints sorted."""
    ends = {outcome.end for outcome in outcomes}
    if ends != {End.ACCEPTED}:
        return ",".join(sorted({End.DROPPED: "DROP", End.REJECTED: "REJECT"}[end] for end in ends))
    if not any(outcome.translated for outcome in outcomes):
        return "-"
    names = ",".join(sorted(outcome.destination for outcome in outcomes))
    (masquerade,) = {outcome.masqueraded for outcome in outcomes}
    return f"{names} masq" if masquerade else names


def _slice(of: Service, *entries: SliceEndpoint | str) -> EndpointSlice:
    return endpoint_slice(of, list(entries), address_type="IPv4")


def _three_services() -> list[Service | EndpointSlice]:
    """All Cluster; externalTrafficPolicy Local; internalTrafficPolicy Local: a local and a remote endpoint each."""
    found: list[Service | EndpointSlice] = []
    policies: list[tuple[str | None, str | None]] = [(None, None), ("Local", None), (None, "Local")]
    for number, (external, internal) in enumerate(policies, start=1):
        each = service(
            f"s{number}",
            cluster_ip=f"10.96.0.{number}",
            service_type="LoadBalancer",
            ports=[service_port(80, node_port=3000 + number)],
            ingress=[f"1.2.3.{number}"],
            external_policy=external,
            internal_policy=internal,
        )
        ends = [
            slice_endpoint(f"10.180.0.{number}", node_name=_HERE),
            slice_endpoint(f"10.180.1.{number}", node_name=_ELSEWHERE),
        ]
        found += [each, _slice(each, *ends)]
    return found


_EVERYWHERE = {"clusterIP": "10.96.0.{}", "nodePort": _NODE, "VIP": "1.2.3.{}", "localhost": _LOCALHOST}

_MATRIX = [
    (_POD, "clusterIP", "both", "both", "local"),
    (_POD, "nodePort", "both masq", "both", "both masq"),
    (_POD, "VIP", "both masq", "both", "both masq"),
    (_NODE, "clusterIP", "both masq", "both masq", "local masq"),
    (_NODE, "nodePort", "both masq", "both masq", "both masq"),
    (_LOCALHOST, "localhost", "both masq", "both masq", "both masq"),
    (_NODE, "VIP", "both masq", "both masq", "both masq"),
    (_CLIENT, "clusterIP", "both masq", "both masq", "local masq"),
    (_CLIENT, "nodePort", "both masq", "local", "both masq"),
    (_CLIENT, "VIP", "both masq", "local", "both masq"),
]


def _spelled(cell: str, number: int) -> str:
    both = f"10.180.0.{number},10.180.1.{number}"
    return cell.replace("both", both).replace("local", f"10.180.0.{number}")


def _row(rules: Ruleset, source: str, to: str) -> list[str]:
    ports = [3000 + number if to in ("nodePort", "localhost") else 80 for number in (1, 2, 3)]
    return [
        _fate(_walk(rules, source, _EVERYWHERE[to].format(number), port)) for number, port in enumerate(ports, start=1)
    ]


@pytest.mark.parametrize("row", _MATRIX, ids=lambda row: f"{row[0]}-{row[1]}")
def test_policies_and_masquerading(row: tuple[str, ...]) -> None:
    """The matrix of sources, ways in, and traffic policies."""
    source, to, *cells = row

    assert _row(_rules(*_three_services()), source, to) == [
        _spelled(cell, number) for number, cell in enumerate(cells, start=1)
    ]


@pytest.mark.parametrize("row", _MATRIX, ids=lambda row: f"{row[0]}-{row[1]}")
def test_without_a_local_detector_nobody_is_known_to_be_a_pod(row: tuple[str, ...]) -> None:
    """Cluster IPs keep every source, and pods have no short cut past externalTrafficPolicy Local."""
    source, to, *cells = row
    if to == "clusterIP":
        cells = [cell.removesuffix(" masq") for cell in cells]
    elif source == _POD:
        cells[1] = "local"

    assert _row(_rules(*_three_services(), config=Config()), source, to) == [
        _spelled(cell, number) for number, cell in enumerate(cells, start=1)
    ]


def test_masquerade_all_rewrites_pods_too() -> None:
    """With a detector, masqueradeAll changes what pods are on cluster IPs, and nothing else."""
    config = msgspec.structs.replace(_CONFIG, iptables=IptablesConfig(masquerade_all=True))
    rules = _rules(*_three_services(), config=config)

    for source, to, *cells in _MATRIX:
        wanted = [f"{cell.removesuffix(' masq')} masq" for cell in cells] if to == "clusterIP" else cells
        assert _row(rules, source, to) == [_spelled(cell, number) for number, cell in enumerate(wanted, start=1)]


@pytest.mark.parametrize(
    ("policy", "pod_outside", "client"),
    [("Cluster", "10.180.0.1,10.180.2.1 masq", "10.180.0.1,10.180.2.1 masq"), ("Local", "both", "10.180.2.1")],
)
def test_external_ips_are_like_load_balancer_ips(policy: str, pod_outside: str, client: str) -> None:
    """External IP, VIP and node port behave alike under externalTrafficPolicy; an endpoint without node is remote."""
    both = "10.180.0.1,10.180.2.1"
    web = service(
        cluster_ip="172.30.0.41",
        service_type="LoadBalancer",
        ports=[service_port(80, node_port=3001)],
        external_ips=["192.168.99.11"],
        ingress=["1.2.3.4"],
        external_policy=policy,
    )
    rules = _rules(web, _slice(web, slice_endpoint("10.180.0.1"), slice_endpoint("10.180.2.1", node_name=_HERE)))

    assert _fate(_walk(rules, _POD, "172.30.0.41")) == both
    for address, port in (("192.168.99.11", 80), ("1.2.3.4", 80), (_NODE, 3001)):
        assert _fate(_walk(rules, _POD, address, port)) == pod_outside.replace("both", both)
        assert _fate(_walk(rules, _CLIENT, address, port)) == client


def test_cluster_ip_basics() -> None:
    """One endpoint; a hairpin is masqueraded; target port and protocol are the endpoint's own; the rest passes."""
    ports = [
        service_port(53, name="tcp", target_port=5353),
        service_port(53, name="udp", protocol="UDP"),
        service_port(443, name="tls", target_port=8443),
    ]
    dns = service(cluster_ip="172.30.0.41", ports=ports)
    rules = _rules(dns, _slice(dns, "10.180.0.1"))

    targets = {
        (port, word): _walk(rules, _POD, "172.30.0.41", port, word)[0].destination_port
        for port, word in ((53, "tcp"), (53, "udp"), (443, "tcp"))
    }

    assert targets == {(53, "tcp"): 5353, (53, "udp"): 53, (443, "tcp"): 8443}
    assert _fate(_walk(rules, _POD, "172.30.0.41", 443)) == "10.180.0.1"
    assert _fate(_walk(rules, "10.180.0.1", "172.30.0.41", 443)) == "10.180.0.1 masq"
    assert _fate(_walk(rules, _POD, "172.30.0.41", 443, "udp")) == "-"
    assert _fate(_walk(rules, _POD, "172.30.0.41", 444)) == "-"


def test_without_endpoints_every_way_in_is_refused() -> None:
    """Cluster IP, external IP, VIP and node port, from pods and clients."""
    web = service(
        cluster_ip="172.30.0.41",
        service_type="LoadBalancer",
        ports=[service_port(80, node_port=3001)],
        external_ips=["192.168.99.11"],
        ingress=["1.2.3.4"],
    )
    rules = _rules(web)
    ways = [("172.30.0.41", 80), ("192.168.99.11", 80), ("1.2.3.4", 80), (_NODE, 3001)]

    assert {_fate(_walk(rules, source, *way)) for source in (_POD, _CLIENT) for way in ways} == {"REJECT"}


@pytest.mark.parametrize(
    ("source", "destination", "port", "fate"),
    [
        (_POD, "172.30.0.41", 80, "10.180.0.1"),
        (_CLIENT, _NODE, 3001, "10.180.0.1 masq"),
        (_BLOCKED, _NODE, 3001, "10.180.0.1 masq"),
        (_CLIENT, "1.2.3.4", 80, "10.180.0.1 masq"),
        (_CLIENT, "5.6.7.8", 80, "10.180.0.1 masq"),
        (_BLOCKED, "1.2.3.4", 80, "DROP"),
        (_BLOCKED, "5.6.7.8", 80, "DROP"),
        (_POD, "1.2.3.4", 80, "DROP"),
        (_NODE, "1.2.3.4", 80, "10.180.0.1 masq"),
        ("1.2.3.4", "1.2.3.4", 80, "10.180.0.1 masq"),
        ("5.6.7.8", "5.6.7.8", 80, "10.180.0.1 masq"),
    ],
)
def test_source_ranges_guard_load_balancer_ips_alone(source: str, destination: str, port: int, fate: str) -> None:
    """Cluster IP and node port are open; the VIP answers itself since the node is in a range."""
    web = service(
        cluster_ip="172.30.0.41",
        service_type="LoadBalancer",
        ports=[service_port(80, node_port=3001)],
        ingress=["1.2.3.4", "5.6.7.8"],
        source_ranges=["192.168.0.0/24", " 203.0.113.0/25"],
    )

    assert _fate(_walk(_rules(web, _slice(web, "10.180.0.1")), source, destination, port)) == fate


@pytest.mark.parametrize(
    ("policy", "placement", "fate"),
    [
        ("Cluster", "Lrr", "10.0.1.1,10.0.1.2,10.0.1.3"),
        ("Local", "Lrr", "10.0.1.1"),
        ("Local", "LLr", "10.0.1.1,10.0.1.2"),
        ("Local", "rrr", "DROP"),
    ],
)
def test_internal_policy(policy: str, placement: str, fate: str) -> None:
    """Local keeps pods on their node, or drops."""
    web = service(cluster_ip="172.30.0.41", internal_policy=policy)
    nodes = {"L": _HERE, "r": _ELSEWHERE}
    ends = [slice_endpoint(f"10.0.1.{number}", node_name=nodes[at]) for number, at in enumerate(placement, start=1)]

    assert _fate(_walk(_rules(web, _slice(web, *ends)), _POD, "172.30.0.41")) == fate


_READY, _LEAVING, _GONE = (True, True, False), (False, True, True), (False, False, True)
_TERMINATING: list[tuple[dict[str, tuple[str, tuple[bool, bool, bool]]], str, str, str, str]] = [
    (
        {"1": ("L", _READY), "2": ("L", _READY), "3": ("L", _LEAVING), "4": ("L", _GONE), "5": ("R", _READY)},
        *("125", "12", "125", "125 masq"),
    ),
    ({"2": ("L", _LEAVING), "3": ("L", _LEAVING), "4": ("L", _GONE), "5": ("R", _READY)}, "5", "23", "5", "5 masq"),
    (
        {"2": ("L", _LEAVING), "3": ("L", _LEAVING), "4": ("R", _GONE), "5": ("R", _LEAVING)},
        *("235", "23", "235", "235 masq"),
    ),
    ({"5": ("R", _LEAVING)}, "5", "DROP", "5", "5 masq"),
    ({"4": ("L", _GONE), "5": ("R", _GONE)}, "REJECT", "REJECT", "REJECT", "REJECT"),
]


@pytest.mark.parametrize("row", _TERMINATING, ids=["mixed", "local-leaving", "all-leaving", "remote-leaving", "gone"])
def test_terminating_endpoints_serve_where_no_ready_one_can(
    row: tuple[dict[str, tuple[str, tuple[bool, bool, bool]]], str, str, str, str],
) -> None:
    """By policy: pods on the cluster IP and clients on the VIP, first with Local, then with Cluster."""
    ends, *cells = row
    found = []
    for policy in ("Local", "Cluster"):
        web = service(
            cluster_ip="172.30.0.41", service_type="LoadBalancer", ingress=["1.2.3.5"], external_policy=policy
        )
        entries = [
            slice_endpoint(
                f"10.0.1.{number}",
                node_name=_HERE if at == "L" else _ELSEWHERE,
                ready=ready,
                serving=serving,
                terminating=terminating,
            )
            for number, (at, (ready, serving, terminating)) in ends.items()
        ]
        rules = _rules(web, _slice(web, *entries))
        found += [_fate(_walk(rules, _POD, "172.30.0.41")), _fate(_walk(rules, _CLIENT, "1.2.3.5"))]

    assert [fate.replace("10.0.1.", "").replace(",", "") for fate in found] == cells


_BOTH = "10.180.0.1,10.180.2.1 masq"
_LISTS: dict[str, tuple[str, ...]] = {
    "none": (),
    "one": ("192.168.0.0/24", "127.0.0.1/32"),
    "two": ("192.168.0.0/24", "192.168.1.0/24", "2001:db8::/64"),
}


@pytest.mark.parametrize(
    ("localhost", "ranges", "second", "loopback"),
    [
        (True, "none", _BOTH, _BOTH),
        (False, "none", _BOTH, "-"),
        (False, "one", "-", "-"),
        (False, "two", _BOTH, "-"),
    ],
)
def test_node_port_addresses_over_ipv4(*, localhost: bool, ranges: str, second: str, loopback: str) -> None:
    """Which of the node's addresses take a node port; the first one always does, from outside and from itself."""
    config = msgspec.structs.replace(
        _CONFIG, node_port_addresses=_LISTS[ranges], iptables=IptablesConfig(localhost_node_ports=localhost)
    )
    web = service(cluster_ip="172.30.0.41", service_type="NodePort", ports=[service_port(80, node_port=3001)])
    rules = _rules(web, _slice(web, "10.180.0.1", "10.180.2.1"), config=config)

    assert _fate(_walk(rules, _POD, "172.30.0.41")) == _BOTH.removesuffix(" masq")
    assert _fate(_walk(rules, _CLIENT, _NODE, 3001)) == _fate(_walk(rules, _NODE, _NODE, 3001)) == _BOTH
    assert _fate(_walk(rules, _CLIENT, _SECOND, 3001)) == second
    assert _fate(_walk(rules, _LOCALHOST, _LOCALHOST, 3001)) == loopback


@pytest.mark.parametrize(("ranges", "second"), [("none", "fd00:10::1:1 masq"), ("two", "-")])
def test_node_port_addresses_over_ipv6(ranges: str, second: str) -> None:
    """Loopback of IPv6 never takes a node port, whatever is asked for."""
    config = msgspec.structs.replace(_CONFIG, node_port_addresses=_LISTS[ranges])
    web = service(cluster_ip="fd00:10:96::41", service_type="NodePort", ports=[service_port(80, node_port=3001)])
    rules = _rules(web, endpoint_slice(web, ["fd00:10::1:1"]), config=config, family=Family.IPV6)

    assert _fate(_walk(rules, "2001:db8:9::9", "2001:db8::1", 3001)) == "fd00:10::1:1 masq"
    assert _fate(_walk(rules, "2001:db8:9::9", "2001:db8:1::2", 3001)) == second
    assert _fate(_walk(rules, "::1", "::1", 3001)) == "-"
