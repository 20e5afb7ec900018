"""Which tracked flows are stale: every row of kube-proxy's behaviour, with our outcome."""

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import ExternalIPs
from kproxy_ipt.objects.model import EndpointSlice, Objects, Service, SliceEndpoint
from kproxy_ipt.state.flows import (
    Entry,
    EntryOptions,
    Flow,
    FlowTable,
    entries_of,
    flow_table,
    is_stale,
)
from kproxy_ipt.state.model import NodeFacts, ServiceState
from kproxy_ipt.state.snapshot import take_snapshot
from kproxy_ipt.testing.objects import endpoint_slice, service, service_port, slice_endpoint, slice_port

NODE = "192.0.2.10"
OPTIONS = EntryOptions(node_addresses=frozenset({NODE}), localhost=True)
LIVE, NOT_SERVING, DELETED = ("10.240.0.4", 9090), ("10.240.1.5", 9090), ("10.240.2.6", 9090)
PROTOCOLS = ("tcp", "udp", "sctp")
_ADDRESSES = ["10.96.0.10", "192.0.2.200", "192.0.2.201"]


def _states(*objects: Service | EndpointSlice, node_name: str = "n1") -> tuple[ServiceState, ...]:
    found = Objects(
        services=tuple(each for each in objects if isinstance(each, Service)),
        endpoint_slices=tuple(each for each in objects if isinstance(each, EndpointSlice)),
    )
    return tuple(take_snapshot(found, Family.IPV4, NodeFacts(name=node_name)).services.values())


def _everything() -> tuple[ServiceState, ...]:
    """A Service with three protocols on port 8000 and every kind of entry; one endpoint serves, one does not."""
    ports = [service_port(8000, name=name, protocol=name.upper(), node_port=32000) for name in PROTOCOLS]
    web = service(service_type="LoadBalancer", ports=ports, external_ips=["192.0.2.200"], ingress=["192.0.2.201"])
    addresses = [slice_endpoint("10.240.0.4"), slice_endpoint("10.240.1.5", ready=False, serving=False)]
    slice_ports = [slice_port(9090, name=name, protocol=name.upper()) for name in PROTOCOLS]
    return _states(web, endpoint_slice(web, addresses, ports=slice_ports))


def _flow(destination: str, port: int, endpoint: tuple[str, int] | None, protocol: str = "udp") -> Flow:
    return Flow(protocol, "10.244.1.11", 40000, destination, port, *(endpoint or (destination, port)))


def _local_service(*, policy: str) -> tuple[ServiceState, ...]:
    ports = [service_port(53, protocol="UDP", node_port=30053)]
    dns = service("dns", service_type="NodePort", ports=ports, internal_policy=policy, external_policy="Local")
    addresses = [slice_endpoint("10.244.1.2", node_name="n1"), slice_endpoint("10.244.2.2", node_name="n2")]
    return _states(dns, endpoint_slice(dns, addresses, ports=[slice_port(53, protocol="UDP")]))


@pytest.mark.parametrize("address", _ADDRESSES)
@pytest.mark.parametrize(
    ("port", "endpoint", "stale"),
    [
        (8000, LIVE, False),
        (8000, ("10.240.0.4", 8080), True),
        (8000, NOT_SERVING, True),
        (8000, DELETED, True),
        (8000, None, True),
        (3000, None, False),
        (3000, DELETED, False),
    ],
    ids=["live", "old port", "not serving", "deleted", "not translated", "no service port", "foreign translation"],
)
def test_service_addresses_of_all_kinds_are_alike(
    address: str, port: int, endpoint: tuple[str, int] | None, *, stale: bool
) -> None:
    """Cluster IP, external IP and load balancer IP keep flows to serving endpoints and no others."""
    table = flow_table(_everything(), OPTIONS)

    assert stale is is_stale(_flow(address, port, endpoint), table)


@pytest.mark.parametrize("address", [NODE, "127.0.0.1", "127.8.9.10"])
@pytest.mark.parametrize(("endpoint", "stale"), [(LIVE, False), (NOT_SERVING, True), (DELETED, True), (None, True)])
def test_node_ports_are_judged_at_addresses_of_the_node(
    address: str, endpoint: tuple[str, int] | None, *, stale: bool
) -> None:
    """A flow to a node port must end at a serving endpoint, whichever address of the node it came to."""
    table = flow_table(_everything(), OPTIONS)

    assert stale is is_stale(_flow(address, 32000, endpoint), table)


@pytest.mark.parametrize("address", ["203.0.113.9", "192.0.2.11", "10.244.1.12"])
@pytest.mark.parametrize("endpoint", [None, DELETED, LIVE])
def test_a_foreign_flow_to_the_number_of_a_node_port_is_left_alone(
    address: str, endpoint: tuple[str, int] | None
) -> None:
    """Node ports are entered at addresses of the node alone; kube-proxy deletes such flows."""
    assert not is_stale(_flow(address, 32000, endpoint), flow_table(_everything(), OPTIONS))


def test_overlay_traffic_is_left_alone() -> None:
    """VXLAN packets between nodes on port 8472 are no service traffic."""
    assert not is_stale(_flow(NODE, 8472, None), flow_table(_everything(), OPTIONS))


def test_node_addresses_that_do_not_answer_are_left_alone() -> None:
    """Without localhost and outside of `nodePortAddresses` a flow to the number of a node port is the node's own."""
    table = flow_table(_everything(), EntryOptions(node_addresses=frozenset({"198.51.100.1"})))

    assert not is_stale(_flow("127.0.0.1", 32000, None), table)
    assert not is_stale(_flow(NODE, 32000, None), table)


@pytest.mark.parametrize("protocol", ["tcp", "sctp"])
def test_other_protocols_are_not_judged_unless_asked_for(protocol: str) -> None:
    """The table holds UDP alone by default, so a flow of another protocol on the same ports is never stale."""
    flow = _flow("10.96.0.10", 8000, DELETED, protocol)

    assert not is_stale(flow, flow_table(_everything(), OPTIONS))
    assert is_stale(flow, flow_table(_everything(), OPTIONS, protocols=(protocol,)))


def test_a_service_without_endpoints_keeps_no_flow() -> None:
    """The last endpoint is gone: flows to it end, though kube-proxy leaves them."""
    table = flow_table(_states(service(ports=[service_port(53, protocol="UDP")])), OPTIONS)

    assert is_stale(_flow("10.96.0.10", 53, ("10.244.1.2", 53)), table)
    assert is_stale(_flow("10.96.0.10", 53, None), table)


@pytest.mark.parametrize(
    ("worse", "stale"),
    [
        (slice_endpoint("10.244.1.2", zone_hints=["here"]), False),
        (slice_endpoint("10.244.1.2", ready=False, serving=True, terminating=True), False),
        (slice_endpoint("10.244.1.2", ready=True, serving=False), False),
        (slice_endpoint("10.244.1.2", ready=False, serving=False, terminating=True), True),
        (slice_endpoint("10.244.1.2", zone_hints=["elsewhere"]), False),
    ],
    ids=["ready", "draining", "published though not ready", "terminated", "of another zone"],
)
def test_an_endpoint_keeps_its_flows_while_it_is_ready_or_serving(worse: SliceEndpoint, *, stale: bool) -> None:
    """Hints and draining decide about new flows alone; there is a better endpoint for those."""
    dns = service(ports=[service_port(53, protocol="UDP")])
    entries = [worse, slice_endpoint("10.244.1.3", zone_hints=["here"])]
    table = flow_table(_states(dns, endpoint_slice(dns, entries, ports=[slice_port(53, protocol="UDP")])), OPTIONS)

    assert stale is is_stale(_flow("10.96.0.10", 53, ("10.244.1.2", 53)), table)


def test_cluster_ip_with_policy_local_keeps_flows_to_local_endpoints_alone() -> None:
    """What this node may use decides; from the node port local traffic goes anywhere, external policy Local or not."""
    table = flow_table(_local_service(policy="Local"), OPTIONS)
    local, remote = ("10.244.1.2", 53), ("10.244.2.2", 53)

    assert not is_stale(_flow("10.96.0.10", 53, local), table)
    assert is_stale(_flow("10.96.0.10", 53, remote), table)
    assert not is_stale(_flow(NODE, 30053, remote), table)


def test_cluster_ip_with_policy_cluster_keeps_flows_to_remote_endpoints() -> None:
    """External policy Local says nothing about the cluster IP."""
    table = flow_table(_local_service(policy="Cluster"), OPTIONS)

    assert not is_stale(_flow("10.96.0.10", 53, ("10.244.2.2", 53)), table)


def test_external_ips_that_are_not_allowed_are_no_entries() -> None:
    """With the gate off nothing translates an external IP, so its flows are somebody else's."""
    options = EntryOptions(external_ips=ExternalIPs(allowed=False))
    table = flow_table(_everything(), options)

    assert not is_stale(_flow("192.0.2.200", 8000, None), table)
    assert is_stale(_flow("192.0.2.201", 8000, None), table)


@pytest.mark.parametrize("endpoint", [LIVE, None])
@pytest.mark.parametrize("address", _ADDRESSES)
def test_flows_of_a_deleted_service_are_stale(address: str, endpoint: tuple[str, int] | None) -> None:
    """All its addresses are former entries: nothing may go on there, translated or not."""
    former = [entry for state in _everything() for entry in entries_of(state.service_port, OPTIONS)]

    assert is_stale(_flow(address, 8000, endpoint), flow_table((), OPTIONS, former=former))


def test_a_former_node_port_belongs_to_the_node_again() -> None:
    """A translated flow is left from the Service; one that is not translated belongs to a process of the node."""
    table = flow_table((), OPTIONS, former=[Entry("", 32000, "udp")])

    assert is_stale(_flow(NODE, 32000, LIVE), table)
    assert not is_stale(_flow(NODE, 32000, None), table)
    assert not is_stale(_flow("203.0.113.9", 32000, LIVE), table)


def test_a_former_entry_that_has_a_new_owner_is_not_former() -> None:
    """An external IP that moved to another Service keeps the flows to that one's endpoints."""
    table = flow_table(_everything(), OPTIONS, former=[Entry("192.0.2.200", 8000, "udp")])

    assert frozenset() == table.former
    assert not is_stale(_flow("192.0.2.200", 8000, LIVE), table)


def test_two_services_with_one_external_ip_both_keep_their_flows() -> None:
    """Which of them gets new flows depends on who has endpoints at the moment; both are owners."""
    services = [
        service(name, cluster_ip=ip, ports=[service_port(53, protocol="UDP")], external_ips=["192.0.2.200"])
        for name, ip in (("a", "10.96.0.10"), ("b", "10.96.0.11"))
    ]
    ports = [slice_port(53, protocol="UDP")]
    slices = [endpoint_slice(each, [f"10.244.1.{n}"], ports=ports) for n, each in enumerate(services, 2)]
    table = flow_table(_states(*services, *slices), OPTIONS)

    stale = [is_stale(_flow("192.0.2.200", 53, (f"10.244.1.{number}", 53)), table) for number in (2, 3, 4)]
    assert [False, False, True] == stale


def test_an_endpoint_on_the_node_itself_needs_no_translation() -> None:
    """Where destination and endpoint are the same, a flow that was not rewritten is in order."""
    dns = service(ports=[service_port(53, protocol="UDP", node_port=30053)], service_type="NodePort")
    states = _states(dns, endpoint_slice(dns, [NODE], ports=[slice_port(30053, protocol="UDP")]))

    assert not is_stale(_flow(NODE, 30053, None), flow_table(states, OPTIONS))


def test_an_empty_table_finds_nothing_stale() -> None:
    """Without entries there is nothing to list."""
    table = FlowTable()

    assert table.is_empty
    assert frozenset() == table.protocols
    assert not is_stale(_flow(NODE, 32000, LIVE), table)


def test_entries_stand_in_the_order_cluster_ip_external_balancer_node_port() -> None:
    """Every address with the service port, and the node port without an address."""
    udp = next(state.service_port for state in _everything() if state.service_port.protocol == "udp")

    expected = (*(Entry(address, 8000, "udp") for address in _ADDRESSES), Entry("", 32000, "udp"))
    assert expected == entries_of(udp, OPTIONS)
