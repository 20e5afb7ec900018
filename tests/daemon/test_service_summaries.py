"""Sums over all Services, kept from those that changed."""

from kproxy_ipt.daemon.service_summaries import ServiceSummaries, WithoutLocal
from kproxy_ipt.state.model import NodeFacts, ServiceState
from kproxy_ipt.testing.desired import ApiObject, snapshot_of
from kproxy_ipt.testing.objects import endpoint_slice, service, service_port, slice_endpoint

NODE = NodeFacts(name="node1")
LB = service(
    "lb",
    service_type="LoadBalancer",
    ports=[service_port(node_port=30001)],
    external_policy="Local",
    health_check_node_port=31000,
    ingress=["198.51.100.1"],
)
NAME = ("default", "lb")


def _states(*objects: ApiObject) -> tuple[ServiceState, ...]:
    return tuple(snapshot_of(*objects).services.values())


def _pods(*nodes: str) -> ApiObject:
    return endpoint_slice(LB, [slice_endpoint(f"10.0.0.{n}", node_name=at) for n, at in enumerate(nodes, 1)])


def _summaries(*nodes: str) -> ServiceSummaries:
    made = ServiceSummaries()
    made.update({NAME: _states(LB, _pods(*nodes))}, NODE)
    return made


def test_health_ports_counts_and_node_ports_follow_a_service() -> None:
    """Local and ready endpoints are counted, others are not."""
    found = _summaries("node1", "node2", "node1")

    assert (found.ports, found.counts, found.node_ports) == ({NAME: 31000}, {NAME: 2}, {30001: NAME})


def test_service_that_is_gone_leaves_nothing() -> None:
    """Every sum loses its part."""
    found = _summaries("node2")
    found.update({NAME: ()}, NODE)

    assert (found.ports, found.counts, found.node_ports, found.without_local) == ({}, {}, {}, WithoutLocal())


def test_policy_local_without_a_pod_here_is_counted_until_one_comes() -> None:
    """Endpoints elsewhere, none here: traffic to this node is dropped."""
    found = _summaries("node2")
    counts = [found.without_local]
    for nodes in (("node2", "node1"), ("node2",)):
        found.update({NAME: _states(LB, _pods(*nodes))}, NODE)
        counts.append(found.without_local)

    assert counts == [WithoutLocal(0, 1), WithoutLocal(), WithoutLocal(0, 1)]


def test_service_without_any_endpoint_is_not_counted_as_without_local() -> None:
    """It is refused everywhere alike."""
    assert _summaries().without_local == WithoutLocal()


def test_coming_counts_are_known_before_they_are_written() -> None:
    """A balancer hears of a lost pod no later than rules do; nothing is taken over yet."""
    found = _summaries("node1", "node1")
    coming = [
        found.counts_after({NAME: _states(LB, _pods("node1"))}),
        found.counts_after({NAME: ()}),
        found.counts_after({("default", "other"): ()}),
    ]

    assert coming == [{NAME: 1}, {NAME: 0}, {NAME: 2}]
    assert found.counts == {NAME: 2}


def test_services_without_such_ports_cost_nothing() -> None:
    """A plain Service is in no sum, and its pods change none."""
    found = ServiceSummaries()
    web = service("web")
    found.update({("default", "web"): _states(web, endpoint_slice(web))}, NODE)

    assert (found.ports, found.counts, found.node_ports) == ({}, {}, {})
