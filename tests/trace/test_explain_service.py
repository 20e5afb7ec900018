"""What `explain` says of a Service: each reason for an endpoint, each fate of an address."""

from collections.abc import Iterable

import msgspec
import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Balance, Config, IptablesConfig, Scheduler, ShapeConfig
from kproxy_ipt.objects.model import (
    HEADLESS_LABEL,
    SCHEDULER_ANNOTATION,
    SERVICE_NAME_LABEL,
    SERVICE_PROXY_NAME_LABEL,
    EndpointSlice,
    LoadBalancerIngress,
    ObjectMeta,
    Service,
    SliceEndpoint,
)
from kproxy_ipt.selection.reasons import Reason
from kproxy_ipt.state.model import MachineFacts
from kproxy_ipt.testing.desired import ApiObject, desired_for, objects_of, snapshot_of
from kproxy_ipt.testing.objects import endpoint_slice, node, service, service_port, slice_endpoint, slice_port
from kproxy_ipt.trace.explain_service import explain_service
from kproxy_ipt.trace.explanation import EndpointRow, Entry, PortExplanation, ServiceExplanation

_A = "10.244.1.2"
_READY = slice_endpoint("10.244.9.9", node_name="node2")
_CONFIG = Config(cluster_cidrs=("10.244.0.0/16",))


def _explain(
    *others: ApiObject,
    of: Service | None = None,
    families: Iterable[Family] = (Family.IPV4,),
    config: Config = _CONFIG,
    machine: MachineFacts | None = None,
    zone: str = "a",
) -> ServiceExplanation:
    wanted = of or service()
    found = (wanted, *others, node(zone=zone))
    snapshots = {family: snapshot_of(*found, family=family) for family in families}
    return explain_service(wanted, objects_of(found), snapshots, config, machine or MachineFacts())


def _port(*others: ApiObject, of: Service | None = None, config: Config = _CONFIG) -> PortExplanation:
    return _explain(*others, of=of, config=config).ports[0]


def _row(entry: SliceEndpoint | str, *others: SliceEndpoint | str, of: Service | None = None) -> EndpointRow:
    """The row of an entry with the address _A among *others*, which stand in the same slice."""
    rows = _port(endpoint_slice("web", (entry, *others), address_type="IPv4"), of=of).endpoints
    return next(row for row in rows if row.text.startswith(_A) or row.text == "")


def _entry(explained: PortExplanation, kind: str, address: str = "") -> Entry:
    return next(one for one in explained.entries if one.kind == kind and one.address in (address or one.address,))


_LOCAL = service(internal_policy="Local")
_DRAINING = slice_endpoint(_A, ready=False, serving=True, terminating=True)


@pytest.mark.parametrize(
    ("entry", "others", "expected"),
    [
        (slice_endpoint(_A), (), Reason.READY),
        (_DRAINING, (), Reason.DRAINING_FALLBACK),
        (slice_endpoint(_A, ready=False), (_READY,), Reason.NOT_READY),
        (slice_endpoint(_A, ready=False, serving=False, terminating=True), (_READY,), Reason.NOT_SERVING),
        (_DRAINING, (_READY,), Reason.TERMINATING_READY_EXIST),
        (slice_endpoint(_A, zone_hints=["b"]), (slice_endpoint("10.1.1.1", zone_hints=["a"]),), Reason.OTHER_ZONE),
        (
            slice_endpoint(_A, node_hints=["x"]),
            (slice_endpoint("10.1.1.1", node_hints=["node1"]),),
            Reason.OTHER_NODE_HINT,
        ),
        (SliceEndpoint(addresses=()), (), Reason.NO_ADDRESS),
        (slice_endpoint(f"{_A}.3"), (), Reason.BAD_ADDRESS),
        (slice_endpoint("10.1.1.1", _A), (), Reason.SECOND_ADDRESS),
    ],
)
def test_reason_of_an_entry(entry: SliceEndpoint, others: tuple[SliceEndpoint, ...], expected: Reason) -> None:
    """Conditions, hints and addresses of the entry itself decide."""
    row = _row(entry, *others)

    assert (row.cluster, row.local) == (expected, None)
    assert bool(row.chain) is bool(row.cluster_share) is expected.is_in


@pytest.mark.parametrize(
    ("labels", "ports", "address_type", "expected"),
    [
        ({HEADLESS_LABEL: ""}, [80], "IPv4", Reason.HEADLESS_SLICE),
        ({SERVICE_NAME_LABEL: ""}, [80], "IPv4", Reason.NO_SERVICE_LABEL),
        ({}, [80], "IPv6", Reason.OTHER_FAMILY),
        ({}, [80], "FQDN", Reason.FQDN),
        ({}, [], "IPv4", Reason.NO_PORTS),
        ({}, [slice_port(80, name="X")], "IPv4", Reason.PORT_NAME_MISMATCH),
        ({}, [slice_port(None)], "IPv4", Reason.PORT_WITHOUT_NUMBER),
        ({}, [slice_port(80, name=None)], "IPv4", Reason.PORT_WITHOUT_NAME),
        ({}, [slice_port(80, protocol="UDP")], "IPv4", Reason.PROTOCOL_MISMATCH),
    ],
)
def test_reason_of_a_whole_slice(labels: dict[str, str], ports: list[int], address_type: str, expected: Reason) -> None:
    """Labels, family and ports of the slice decide about all its entries; a slice that fits counts beside it."""
    odd = endpoint_slice("web", [_A], name="web-odd", labels=labels, ports=ports, address_type=address_type)
    rows = _port(odd, endpoint_slice("web", ["10.244.1.3"], name="web-right")).endpoints

    assert [(row.text, row.cluster) for row in rows] == [("10.244.1.3:80", Reason.READY), (_A, expected)]


def test_port_name_mismatch_tells_both_names() -> None:
    """Names join slices and Services; the number of the port plays no part."""
    wanted = service(ports=[service_port(80, name="http")])
    (row,) = _port(endpoint_slice("web", [_A], ports=[slice_port(80, name="web")]), of=wanted).endpoints

    assert row.cluster is Reason.PORT_NAME_MISMATCH
    assert row.detail == 'slice has port name "web", service wants "http"'


def test_protocol_mismatch_tells_both_protocols() -> None:
    """A slice for UDP is not one for TCP, though the name fits."""
    (row,) = _port(endpoint_slice("web", [_A], ports=[slice_port(80, protocol="UDP")])).endpoints

    assert row.detail == "slice has protocol UDP, service wants TCP"


def test_endpoint_of_another_node_is_not_local() -> None:
    """Policy Local takes endpoints of this node only; policy Cluster is not spoken of where it is never used."""
    row = _row(slice_endpoint(_A, node_name="node2"), of=_LOCAL)

    assert (row.cluster, row.local, row.node) == (None, Reason.NOT_LOCAL, "node2")


def test_endpoint_without_node_name_is_local_nowhere() -> None:
    """Hand-made slices often lack `nodeName`, and policy Local then finds nothing on any node."""
    row = _row(slice_endpoint(_A), of=_LOCAL)

    assert (row.local, row.detail) == (Reason.NOT_LOCAL, "the slice gives no nodeName")


def test_second_slice_with_the_same_address_is_a_duplicate() -> None:
    """The slice that sorts first counts, and the other row names it."""
    slices = [endpoint_slice("web", [_A], name=name) for name in ("web-a", "web-b")]
    first, second = _port(*slices).endpoints

    assert (first.slice, first.cluster, first.cluster_share) == ("web-a", Reason.READY, 1.0)
    assert (second.slice, second.cluster, second.cluster_share) == ("web-b", Reason.DUPLICATE, 0.0)
    assert second.detail == "another entry of slice web-a counts"


@pytest.mark.parametrize("order", [1, -1])
def test_stuck_terminating_pod_loses_its_address_to_a_new_one(order: int) -> None:
    """Whatever the order in the slice, the entry that is not terminating counts."""
    stuck = slice_endpoint(_A, ready=False, serving=False, terminating=True, node_name="node2")
    entries = [stuck, slice_endpoint(_A, node_name="node1")][::order]
    kept, lost = _port(endpoint_slice("web", entries)).endpoints

    assert (kept.node, kept.cluster) == ("node1", Reason.READY)
    assert (lost.node, lost.cluster) == ("node2", Reason.TERMINATING_DUPLICATE)


def test_slice_without_label_counts_as_meant_for_the_service_that_fits_best() -> None:
    """By its name: `web-api-x` is one of Service web-api, if there is one, not of web."""
    orphan = EndpointSlice(
        metadata=ObjectMeta(name="web-api-x", namespace="default"),
        address_type="IPv4",
        endpoints=(slice_endpoint(_A),),
    )

    assert [row.cluster for row in _port(orphan).endpoints] == [Reason.NO_SERVICE_LABEL]
    assert _port(orphan, service("web-api", cluster_ip="10.96.0.11")).endpoints == ()
    stranger = msgspec.structs.replace(orphan, metadata=ObjectMeta(name="other-x", namespace="default"))
    assert _port(stranger).endpoints == ()


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (service(cluster_ip="None"), Reason.HEADLESS),
        (service(service_type="ExternalName", cluster_ip=""), Reason.EXTERNAL_NAME),
        (service(labels={SERVICE_PROXY_NAME_LABEL: "x"}), Reason.OTHER_PROXY),
        (service(cluster_ip=""), Reason.NO_CLUSTER_IP),
        (service(ports=[]), Reason.NO_SERVICE_PORTS),
    ],
)
def test_service_without_rules_says_why(wanted: Service, expected: Reason) -> None:
    """One reason and its sentence, no ports."""
    explained = _explain(endpoint_slice("web"), of=wanted)

    assert (explained.reason, explained.sentence, explained.ports) == (expected, expected.sentence, ())


def test_family_without_cluster_ip_is_named() -> None:
    """An IPv4 Service has IPv4 rules, and a line about IPv6."""
    explained = _explain(endpoint_slice("web"), families=Family)

    assert [port.family for port in explained.ports] == [Family.IPV4]
    assert [(out.family, out.reason) for out in explained.families_out] == [
        (Family.IPV6, Reason.NO_CLUSTER_IP_OF_FAMILY)
    ]


def test_shares_are_those_of_all_connections() -> None:
    """Five endpoints get 20 % each, though the rules throw dice of 0.2, 0.25, 0.33 and 0.5."""
    explained = _port(endpoint_slice("web", [f"10.244.1.{number}" for number in range(1, 6)]))

    assert [row.cluster_share for row in explained.endpoints] == [0.2] * 5
    assert _entry(explained, "cluster IP").sentence == "balanced over 5 endpoints, 20 % each"


def test_policy_is_told_for_each_address() -> None:
    """Policy Local of `externalTrafficPolicy` restricts the node port, not the cluster IP."""
    wanted = service(service_type="NodePort", ports=[service_port(node_port=30080)], external_policy="Local")
    entries = [slice_endpoint(_A, node_name="node1"), _READY, slice_endpoint("10.244.9.8", node_name="node2")]
    explained = _port(endpoint_slice("web", entries), of=wanted)
    cluster_ip, node_port = explained.entries

    assert (cluster_ip.policy, cluster_ip.endpoints) == ("Cluster", 3)
    assert (node_port.policy, node_port.endpoints, node_port.policy_field) == ("Local", 1, "spec.externalTrafficPolicy")
    assert node_port.chain.startswith("KUBE-EXT-")
    assert "from pods of this node and the node itself: over 3 endpoints, 33.3 % each" in node_port.notes[1]


def test_no_local_endpoint_is_dropped_and_no_endpoint_refused() -> None:
    """A client waits for its timeout in the first case, and fails at once in the second."""
    dropped = _port(endpoint_slice("web", [_READY]), of=_LOCAL).entries[0]
    refused = _port(endpoint_slice("web", []), of=_LOCAL).entries[0]

    assert (dropped.fate, refused.fate) == ("dropped", "refused")
    assert "no local endpoints" in dropped.sentence
    assert (dropped.chain, refused.chain) == ("", "")


def test_load_balancer_addresses_without_rules_say_why() -> None:
    """Mode Proxy, host names and the other family have no rules here."""
    ingress: list[str | LoadBalancerIngress] = [
        LoadBalancerIngress(ip="192.0.2.201", ip_mode="Proxy"),
        LoadBalancerIngress(hostname="lb.example"),
        "2001:db8::1",
        "192.0.2.202",
    ]
    explained = _port(endpoint_slice("web"), of=service(service_type="LoadBalancer", ingress=ingress))
    found = {one.address: one.sentence for one in explained.entries if one.kind == "load balancer"}

    assert list(found) == ["192.0.2.201", "lb.example", "2001:db8::1", "192.0.2.202"]
    assert found["192.0.2.201"].startswith("no rules: ipMode Proxy")
    assert found["lb.example"].startswith("no rules: only a host name")
    assert found["2001:db8::1"].startswith("no rules: it is of the other family")
    assert found["192.0.2.202"].startswith("balanced over 1 endpoint")


@pytest.mark.parametrize(
    ("ingress", "ranges", "expected"),
    [
        ([], ["192.0.2.0/24"], "ranges not enforced here: the load balancer has no address yet"),
        ([LoadBalancerIngress(hostname="x")], ["192.0.2.0/24"], "ranges not enforced here: the load balancer has only"),
        ([LoadBalancerIngress(ip="1.2.3.4", ip_mode="Proxy")], ["192.0.2.0/24"], "ranges not enforced here: ipMode"),
        (["2001:db8::1"], ["192.0.2.0/24"], "ranges not enforced here: the load balancer has no IPv4 address"),
        (["1.2.3.4"], ["4700::/32"], "ranges not enforced here: none of them is a range of IPv4"),
        (["1.2.3.4"], ["192.0.2.0/24", "0.0.0.0/0"], "ranges not enforced here: 0.0.0.0/0 is among them"),
        (["1.2.3.4"], ["192.0.2.0/24"], "enforced here for 1.2.3.4: only 192.0.2.0/24 may enter"),
    ],
)
def test_source_ranges_say_whether_and_why(ingress: list[str], ranges: list[str], expected: str) -> None:
    """The node filters for load balancer addresses that it has rules for, and nothing else."""
    wanted = service(service_type="LoadBalancer", ingress=ingress, source_ranges=ranges)
    ranges_found = _port(endpoint_slice("web"), of=wanted).source_ranges

    assert ranges_found is not None
    assert ranges_found.sentence.startswith(expected)
    assert ranges_found.enforced is expected.startswith("enforced")


def test_affinity_tells_scope_timeout_and_limit() -> None:
    """Each port is sticky by itself, and the kernel remembers 100 clients of each endpoint."""
    ports = [service_port(80, name="http"), service_port(81, name="ws")]
    affinity = _port(of=service(ports=ports, affinity_timeout_s=600)).affinity

    assert affinity is not None
    assert (affinity.timeout_s, affinity.remembered_clients) == (600, 100)
    for words in ("600 s", "for this service port alone", "another port", "last 100 client addresses"):
        assert words in affinity.sentence


@pytest.mark.parametrize(
    ("prefixes", "addresses", "found"),
    [
        ((), (), [("*", "balanced", "on every address of the node, also on 127.0.0.0/8")]),
        (("192.0.2.0/24",), ("192.0.2.10", "203.0.113.1"), [("192.0.2.10", "balanced", "")]),
        (("198.51.100.0/24",), ("192.0.2.10",), [("*", "no rules", "")]),
    ],
)
def test_node_port_names_the_addresses_that_answer(
    prefixes: tuple[str, ...], addresses: tuple[str, ...], found: list[tuple[str, str, str]]
) -> None:
    """By `nodePortAddresses` and the addresses of the machine."""
    wanted = service(service_type="NodePort", ports=[service_port(node_port=30080)])
    config, machine = Config(node_port_addresses=prefixes), MachineFacts(interface_addresses=addresses)
    (port,) = _explain(endpoint_slice("web"), of=wanted, config=config, machine=machine).ports

    entries = [one for one in port.entries if one.kind == "node port"]
    assert found == [(one.address, one.fate, "".join(one.notes)) for one in entries]


def test_node_port_on_loopback_says_why_it_does_not_answer() -> None:
    """An address that is asked for by `nodePortAddresses`, and that `localhostNodePorts: false` rules out."""
    wanted = service(service_type="NodePort", ports=[service_port(node_port=30080)])
    config = Config(node_port_addresses=("127.0.0.0/8",), iptables=IptablesConfig(localhost_node_ports=False))
    machine = MachineFacts(interface_addresses=("127.0.0.1",))
    (port,) = _explain(endpoint_slice("web"), of=wanted, config=config, machine=machine).ports

    entry = _entry(port, "node port")
    assert (entry.address, entry.sentence) == ("127.0.0.1", "no rules: node ports do not answer on loopback here")


def test_external_ip_is_without_rules_where_the_gate_is_off() -> None:
    """The gate AllowServiceExternalIPs decides for all Services."""
    config = Config(feature_gates={"AllowServiceExternalIPs": False})
    explained = _port(endpoint_slice("web"), of=service(external_ips=["192.0.2.200"]), config=config)

    assert _entry(explained, "external IP").sentence == "no rules: feature gate AllowServiceExternalIPs is off"


def test_external_ip_that_is_none_is_without_rules() -> None:
    """The API server refuses it, a file may hold it."""
    explained = _port(endpoint_slice("web"), of=service(external_ips=["here"]))

    assert _entry(explained, "external IP").sentence == "no rules: it is not an IP address"


def test_external_ip_outside_of_the_list_is_without_rules() -> None:
    """And it takes nothing from another Service."""
    config = Config(external_ip_ranges=("198.51.100.0/24",))
    explained = _port(endpoint_slice("web"), of=service(external_ips=["192.0.2.200"]), config=config)

    assert _entry(explained, "external IP").sentence == "no rules: kproxyIpt.externalIPs leaves it out"


def test_address_of_an_earlier_service_is_not_reached() -> None:
    """The rules of the Service that sorts first win, unless it has no endpoint to send to."""
    rival = service("app", cluster_ip="10.96.0.11", external_ips=["192.0.2.200"])
    wanted = service(external_ips=["192.0.2.200"])
    lost = _entry(_port(rival, endpoint_slice("app"), endpoint_slice("web"), of=wanted), "external IP")
    won = _entry(_port(rival, endpoint_slice("web"), of=wanted), "external IP")

    neither = _entry(_port(rival, of=wanted), "external IP")

    assert lost.notes[0].startswith("NOT REACHED: service port default/app has the same address")
    assert won.notes == ()
    assert neither.notes[0].startswith("NOT REACHED: service port default/app has the same address")


def test_chains_that_are_named_are_those_of_the_rules() -> None:
    """Service chains and endpoint chains of the explanation are exactly those that are written."""
    wanted = service(
        service_type="LoadBalancer",
        ports=[service_port(node_port=30080)],
        ingress=["192.0.2.201"],
        source_ranges=["192.0.2.0/24"],
        external_policy="Local",
        health_check_node_port=32000,
    )
    entries = endpoint_slice("web", [slice_endpoint(_A, node_name="node1"), _READY])
    explained = _port(entries, of=wanted)
    written = desired_for(wanted, entries, node(), config=_CONFIG).owners

    assert {*explained.chains, *(row.chain for row in explained.endpoints)} == set(written)
    assert {one.chain for one in explained.entries} <= set(explained.chains)
    assert explained.health_check == "port 32000 answers 200: 1 ready on this node"


def test_balancing_as_kube_proxy_does_it_needs_no_words() -> None:
    """One row of dices."""
    assert _port(endpoint_slice("web")).balancing == ""


def test_rotation_is_told_with_who_asked_for_it() -> None:
    """The Service, or the configuration."""
    rotating = msgspec.structs.replace(_CONFIG, shape=ShapeConfig(scheduler=Scheduler.RR))
    annotated = service(annotations={SCHEDULER_ANNOTATION: "rr"})

    assert _port(endpoint_slice("web"), of=annotated).balancing.startswith("rr by the annotation of the Service: ")
    assert _port(endpoint_slice("web"), config=rotating).balancing.startswith("rr by the configuration: ")


def test_groups_are_told() -> None:
    """With more endpoints than the chain of the service port holds."""
    grouped = msgspec.structs.replace(_CONFIG, shape=ShapeConfig(balance=Balance.GROUPED))
    texts = [
        _port(endpoint_slice("web", [f"10.244.1.{one + 1}" for one in range(count)]), config=grouped).balancing
        for count in (24, 25)
    ]

    assert texts == ["", "random, by groups of endpoints with equal shares for each endpoint"]
