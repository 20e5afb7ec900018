"""What is still to be cleaned, from one clean-up to the next."""

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import ExternalIPs
from kproxy_ipt.state.flow_memory import MAX_FORMER, FlowMemory
from kproxy_ipt.state.flows import Entry, EntryOptions
from kproxy_ipt.state.model import Endpoint, ServicePort, ServiceState

NAME = ("default", "dns")
CLUSTER, VIP, NODE_PORT = Entry("10.96.0.10", 53, "udp"), Entry("192.0.2.200", 53, "udp"), Entry("", 30053, "udp")


def _state(
    *addresses: str, cluster_ip: str = "10.96.0.10", vip: str = "192.0.2.200", protocol: str = "udp"
) -> ServiceState:
    port = ServicePort(
        namespace="default",
        name="dns",
        port_name="",
        text="default/dns",
        protocol=protocol,
        family=Family.IPV4,
        cluster_ip=cluster_ip,
        port=53,
        node_port=30053 if cluster_ip == "10.96.0.10" else 0,
        external_ips=(vip,) if vip else (),
    )
    return ServiceState(port, tuple(Endpoint(address=each, port=53, text=f"{each}:53") for each in addresses))


def _clean(memory: FlowMemory) -> None:
    memory.reconciled(memory.pending())


@pytest.fixture
def memory() -> FlowMemory:
    """A memory that knows one cleaned UDP Service with one endpoint."""
    made = FlowMemory()
    made.update({NAME: (_state("10.244.1.2"),)})
    _clean(made)
    return made


def test_everything_is_pending_at_the_start() -> None:
    """After a restart each entry is looked at once, with the endpoints of now."""
    memory = FlowMemory()
    memory.update({NAME: (_state("10.244.1.2"),)})

    assert dict.fromkeys([CLUSTER, VIP, NODE_PORT], frozenset({("10.244.1.2", 53)})) == memory.pending().allowed


def test_nothing_is_pending_while_no_service_of_the_protocols_changes(memory: FlowMemory) -> None:
    """Neither the same state again nor a TCP Service makes anything be listed."""
    memory.update({NAME: (_state("10.244.1.2"),), ("default", "web"): (_state("10.244.1.9", protocol="tcp"),)})

    assert memory.pending().is_empty


def test_a_new_endpoint_makes_all_entries_pending(memory: FlowMemory) -> None:
    """Cluster IP, external IP and node port are looked at, with the endpoints of now alone."""
    memory.update({NAME: (_state("10.244.1.3"),)})

    assert dict.fromkeys([CLUSTER, VIP, NODE_PORT], frozenset({("10.244.1.3", 53)})) == memory.pending().allowed


def test_a_clean_up_that_failed_loses_nothing(memory: FlowMemory) -> None:
    """Two changes without a clean-up between are both pending, the deletion of a Service as well."""
    memory.update({NAME: (_state("10.244.1.3", vip=""),)})
    memory.pending()
    memory.update({NAME: ()})

    assert frozenset({CLUSTER, VIP, NODE_PORT}) == memory.pending().former
    assert {} == memory.pending().allowed


def test_what_changed_during_a_clean_up_stays_pending(memory: FlowMemory) -> None:
    """Only what the clean-up knew is forgotten."""
    memory.update({NAME: (_state("10.244.1.3"),)})
    table = memory.pending()
    memory.update({NAME: (_state("10.244.1.4"),)})
    memory.reconciled(table)

    assert frozenset({("10.244.1.4", 53)}) == memory.pending().allowed[CLUSTER]


def test_former_entries_are_forgotten_after_a_clean_up(memory: FlowMemory) -> None:
    """A load balancer address that was given back is cleaned once."""
    memory.update({NAME: (_state("10.244.1.2", vip=""),)})
    assert frozenset({VIP}) == memory.pending().former

    _clean(memory)

    assert memory.pending().is_empty


def test_an_address_that_moves_to_another_service_is_not_former(memory: FlowMemory) -> None:
    """The new owner's endpoints are allowed, the old owner's are not, whatever the order of the two changes."""
    other = {("default", "other"): (_state("10.244.1.7", cluster_ip="10.96.0.11"),)}
    old = {NAME: (_state("10.244.1.2", vip=""),)}
    for changes in ({**other, **old}, {**old, **other}):
        memory.update(changes)

        assert frozenset() == memory.pending().former
        assert frozenset({("10.244.1.7", 53)}) == memory.pending().allowed[VIP]


def test_a_removed_rule_tells_a_former_entry_unless_it_is_owned(memory: FlowMemory) -> None:
    """What rules of an earlier life led to a Service is former only if no Service has it now."""
    stranger = Entry("192.0.2.222", 53, "udp")
    memory.remember_former([stranger, VIP, Entry("192.0.2.222", 53, "tcp")])

    assert frozenset({stranger}) == memory.pending().former


def test_new_node_addresses_make_everything_pending(memory: FlowMemory) -> None:
    """A node port is answered at an address that was the node's own before."""
    memory.set_options(EntryOptions(node_addresses=frozenset({"192.0.2.10"})))

    assert {CLUSTER, VIP, NODE_PORT} == set(memory.pending().allowed)


def test_the_same_options_change_nothing(memory: FlowMemory) -> None:
    """Setting what is set already lists nothing."""
    memory.set_options(EntryOptions())

    assert memory.pending().is_empty


def test_external_ips_that_are_forbidden_become_former(memory: FlowMemory) -> None:
    """An option can take entries away from Services that did not change."""
    memory.set_options(EntryOptions(external_ips=ExternalIPs(allowed=False)))

    assert frozenset({VIP}) == memory.pending().former


def test_all_can_be_required(memory: FlowMemory) -> None:
    """For a clean-up after doubt every entry is pending."""
    memory.require_all()

    assert {CLUSTER, VIP, NODE_PORT} == set(memory.pending().allowed)


def test_memory_of_former_entries_is_bounded() -> None:
    """Where no clean-up ever succeeds, the newest former entries are kept."""
    memory = FlowMemory()
    memory.remember_former(Entry("192.0.2.1", number, "udp") for number in range(MAX_FORMER + 5))

    former = memory.pending().former
    assert MAX_FORMER == len(former)
    assert Entry("192.0.2.1", MAX_FORMER + 4, "udp") in former
