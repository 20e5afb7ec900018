"""What `sync --once` keeps for the case that something is refused."""

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.isolate import PackedStates
from kproxy_ipt.objects.model import Objects
from kproxy_ipt.state.model import NodeFacts
from kproxy_ipt.state.snapshot import take_snapshot
from kproxy_ipt.testing.objects import endpoint_slice, service, service_port


def test_packed_states_are_those_that_were_given() -> None:
    """Every field, ports of one Service together."""
    web = service("web", ports=[service_port(80, name="http"), service_port(53, name="dns", protocol="UDP")])
    lb = service("lb", cluster_ip="10.96.0.30", external_ips=["192.0.2.1"])
    objects = Objects(services=(lb, web), endpoint_slices=(endpoint_slice(lb), endpoint_slice(web)))
    states = [*take_snapshot(objects, Family.IPV4, NodeFacts(name="node1")).services.values()]
    packed = PackedStates(states).by_service()

    assert [state for of_service in packed.values() for state in of_service] == states
    assert {name: len(of_service) for name, of_service in packed.items()} == {
        ("default", "lb"): 1,
        ("default", "web"): 2,
    }
