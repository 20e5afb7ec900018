"""`sync --once` where something is refused: what it keeps for that case, and how far it gets."""

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config
from kproxy_ipt.daemon.isolate import PackedStates, write_without_refused
from kproxy_ipt.daemon.log import SilentLog
from kproxy_ipt.daemon.write import MOST_RUNS_ONCE
from kproxy_ipt.objects.model import Objects
from kproxy_ipt.rules.options import rule_options
from kproxy_ipt.state.model import MachineFacts, NodeFacts
from kproxy_ipt.state.snapshot import take_snapshot
from kproxy_ipt.testing.desired import ApiObject, objects_of
from kproxy_ipt.testing.fake_machine import FakeMachine
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


def test_twenty_services_without_a_word_are_found_in_one_go() -> None:
    """No other sync follows, so this one has more runs; the others are written."""
    machine, objects = FakeMachine(), list[ApiObject]()
    machine.names_rules = False
    for number in range(200):
        one = service(f"s{number:04}", cluster_ip=f"10.96.{number // 250}.{number % 250}")
        objects += [one, endpoint_slice(one, [f"10.9.{number // 250}.{number % 250}"])]
    machine.refused = {f"--to-destination 10.9.{number // 250}.{number % 250}:80" for number in range(7, 200, 10)}
    states = take_snapshot(objects_of(objects), Family.IPV4, NodeFacts(name="node1")).services.values()
    options = rule_options(Config(), NodeFacts(name="node1"), MachineFacts(), Family.IPV4, endpoint_count=0)
    written = write_without_refused(machine.opened(), Family.IPV4, PackedStates(states), options, SilentLog())

    assert [one.service for one in written.set_aside] == [f"default/s{number:04}" for number in range(7, 200, 10)]
    assert machine.kernels[Family.IPV4].save().count("--to-destination") == 180
    assert len(machine.inputs) <= MOST_RUNS_ONCE
