"""
What kube-proxy's iptables mode is known to do badly, point by point, and what becomes of it here.

`docs/compared-with-kube-proxy.md` lists the same points with their tests. Where a weakness is shared, the test states
the fact, so that nobody takes it for an oversight. What needs a real kernel stands in `test_in_the_kernel.py`.
"""

import asyncio
import threading
from pathlib import Path

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.family import EVERYTHING
from kproxy_ipt.daemon.health import ProxyHealth
from kproxy_ipt.daemon.kernel_thread import KernelThread
from kproxy_ipt.daemon.schedule import SyncSchedule
from kproxy_ipt.errors import KernelError
from kproxy_ipt.kernel.command import SubprocessRunner
from kproxy_ipt.objects.events import Kind
from kproxy_ipt.state.flow_memory import FlowMemory
from kproxy_ipt.state.flows import Entry
from kproxy_ipt.testing.clock import ManualClock
from kproxy_ipt.testing.desired import ApiObject
from kproxy_ipt.testing.objects import endpoint_slice, node, service, service_port
from kproxy_ipt.testing.synced_family import FamilyInMemory

V4 = Family.IPV4
DNS = service("dns", cluster_ip="10.96.0.53", ports=[service_port(53, protocol="UDP")])
DNS_POD = endpoint_slice(DNS, ["10.244.1.53"])


class OneNode(FamilyInMemory):
    """A node with its objects, its rules and a kernel in memory; the first sync is done."""

    def __init__(self, *objects: ApiObject) -> None:
        super().__init__(*objects)
        self.sync()
        self.forget_flows()

    @property
    def flows(self) -> FlowMemory:
        """The entries of connection tracking that follow the rules."""
        return self.sync_of_family.flows

    def forget_flows(self) -> None:
        """A clean-up of connection tracking succeeded."""
        self.flows.reconciled(self.flows.pending())

    def chain(self, name: str) -> list[str]:
        """The lines of one nat chain."""
        return [line for line in self.text.partition("*nat")[2].splitlines() if line.startswith(f"-A {name} ")]


def _cluster(services: int, endpoints: int = 1) -> list[ApiObject]:
    objects: list[ApiObject] = []
    for number in range(services):
        name, block = f"s{number:04}", f"{number // 250}.{number % 250}"
        addresses = [f"10.{100 + one}.{block}" for one in range(endpoints)]
        objects += [service(name, cluster_ip=f"10.96.{block}"), endpoint_slice(name, addresses)]
    return objects


def test_bytes_for_one_changed_pod_do_not_grow_with_the_cluster() -> None:
    """Weakness: each partial run rewrites dispatch and filter chains of all Services for one changed pod."""
    inputs = []
    for services in (2, 200):
        one = OneNode(*_cluster(services))
        one.put(endpoint_slice("s0001", ["10.200.0.1"]))
        one.sync()
        inputs.append(one.machine.inputs[-1])

    assert len(inputs[0]) == len(inputs[1]) < 1000
    assert "KUBE-SERVICES" not in inputs[1]


def test_dispatch_is_linear_and_in_the_same_order_everywhere() -> None:
    """Weakness, shared up to a thousand Services: a new connection walks all rules, which are kube-proxy's."""
    lines = OneNode(*_cluster(5)).chain("KUBE-SERVICES")

    assert [line.split()[3] for line in lines[:-1]] == [f"10.96.0.{number}/32" for number in range(5)]


def test_refused_rule_costs_its_service_and_no_other() -> None:
    """Weakness: one rejected line fails the run for all Services of the family, and leaves half of it applied."""
    one = OneNode(*_cluster(3))
    one.machine.refused = {"10.244.66.6"}
    one.put(endpoint_slice("s0000", ["10.244.66.6"]), endpoint_slice("s0001", ["10.200.0.1"]))
    outcome = one.sync()

    assert (outcome.error, [*outcome.set_aside]) == (None, [("default", "s0000")])
    assert "10.200.0.1:80" in one.text
    assert one.sync(EVERYTHING).error is None


def test_failed_run_forgets_nothing() -> None:
    """Weakness: a failed run loses changed Services, trigger times, the conntrack flag and health port updates."""
    one = OneNode(DNS, DNS_POD, service("web"), endpoint_slice("web"))
    one.put(endpoint_slice("web", ["10.200.0.1"]))
    one.remove(Kind.SERVICES, "dns")
    before = one.tracker.pending()
    one.machine.broken = KernelError("busy")
    one.sync()
    kept = (one.tracker.pending() == before, one.flows.pending().is_empty)
    one.machine.broken = None
    one.sync()

    assert kept == (True, True)
    assert "10.200.0.1:80" in one.text
    assert one.flows.pending().former == {Entry("10.96.0.53", 53, "udp")}


def test_failed_first_run_is_due_again_without_any_event() -> None:
    """Weakness: a first run or a reload that fails is not tried again before something changes, for up to an hour."""
    schedule = SyncSchedule(min_gap_s=1.0, retry_cap_s=30.0)
    schedule.request()
    schedule.started()
    schedule.ended(100.0, succeeded=False)

    assert schedule.due_s() == 101.0


@pytest.mark.parametrize("zone", ["", "zone1"])
def test_node_without_rules_is_not_healthy_whatever_its_labels(zone: str) -> None:
    """Weakness: after a failed first run /healthz says 200, or 503 only if the node happens to have a zone label."""
    clock = ManualClock()
    health = ProxyHealth([V4], sync_period_s=30.0, clock=clock, wall_clock_ns=clock.wall_ns)
    health.node_seen(node(zone=zone))
    health.sync_began(V4)
    health.failed(V4, "refused")
    clock.advance(61.0)

    assert not health.is_healthy()


def test_chains_of_a_lost_pod_go_without_a_listing() -> None:
    """Weakness: every run lists the whole nat table to find stale chains, or leaves them for a whole period."""
    one = OneNode(*_cluster(3, endpoints=2))
    one.put(endpoint_slice("s0001", ["10.100.0.1"]))
    outcome = one.sync()

    assert (outcome.full, outcome.chains_deleted, one.machine.saves) == (False, 1, 1)
    assert "10.101.0.1:80" not in one.text


def test_comparison_repairs_an_emptied_endpoint_chain() -> None:
    """Weakness: drift in chains of Services and in jumps stays until a full run; others are repaired by luck."""
    one = OneNode(*_cluster(2))
    chain = next(line.split()[0][1:] for line in one.text.splitlines() if line.startswith(":KUBE-SEP-"))
    jump = next(line for line in one.text.splitlines() if line.startswith("-A PREROUTING"))
    before = sorted(one.text.splitlines())
    one.machine.kernels[V4].restore(f"*nat\n:{chain} - [0:0]\n{jump.replace('-A', '-D', 1)}\nCOMMIT\n")
    outcome = one.sync("somebody else")

    assert set(outcome.repaired) == {("nat", chain), ("nat", "PREROUTING")}
    assert sorted(one.text.splitlines()) == before


def test_large_clusters_are_compared_by_schedule_too() -> None:
    """Weakness: with more than a thousand endpoints the hourly repair does not take place at all."""
    one = OneNode(service("big"), endpoint_slice("big", [f"10.1.{n // 250}.{n % 250}" for n in range(1100)]))
    one.machine.kernels[V4].restore("*nat\n:KUBE-SERVICES - [0:0]\nCOMMIT\n")
    one.sync(EVERYTHING)

    assert len(one.chain("KUBE-SERVICES")) == 2


def test_program_that_hangs_is_ended_and_the_run_is_a_failure(tmp_path: Path) -> None:
    """Weakness: iptables-restore has no time limit; one that hangs blocks the family until somebody looks."""
    hanging = tmp_path / "restore"
    hanging.write_text("#!/bin/sh\nexec sleep 600\n")
    hanging.chmod(0o755)

    with pytest.raises(KernelError, match=r"no end after 0\.2 s, killed"):
        SubprocessRunner().run([str(hanging), "--noflush"], timeout_s=0.2)


@pytest.mark.parametrize(
    ("changed", "former", "allowed"),
    [
        ("service deleted", {"10.96.0.53"}, {}),
        ("last endpoint gone", set(), {"10.96.0.53": 0}),
        ("address changed", {"10.96.0.53"}, {"10.96.0.54": 1}),
        ("external address gone", {"192.0.2.53"}, {}),
    ],
)
def test_every_way_to_lose_an_endpoint_ends_its_udp_flows(
    changed: str, former: set[str], allowed: dict[str, int]
) -> None:
    """Weakness: UDP clean-up misses deleted Services, the last endpoint, and addresses that changed."""
    address = "10.96.0.54" if changed == "address changed" else "10.96.0.53"
    port = service_port(53, protocol="UDP")
    one = OneNode(service("dns", ports=[port], cluster_ip="10.96.0.53", external_ips=["192.0.2.53"]), DNS_POD)
    if changed == "service deleted":
        one.remove(Kind.SERVICES, "dns")
    elif changed == "last endpoint gone":
        one.remove(Kind.ENDPOINT_SLICES, "dns-ipv4")
    else:
        kept = () if changed == "external address gone" else ("192.0.2.53",)
        one.put(service("dns", ports=[port], external_ips=kept, cluster_ip=address))
    one.sync()
    table = one.flows.pending()

    assert former <= {entry.address for entry in table.former}
    assert allowed.items() <= {entry.address: len(ends) for entry, ends in table.allowed.items()}.items()


def test_connection_tracking_is_listed_only_for_udp_services_that_changed() -> None:
    """Weakness: the whole table is listed and searched within the run, whatever changed."""
    one = OneNode(DNS, DNS_POD, service("web"), endpoint_slice("web"))
    one.put(endpoint_slice("web", ["10.200.0.1"]))
    one.sync()
    quiet = one.flows.pending().is_empty
    one.put(endpoint_slice(DNS, ["10.244.1.54"]))
    one.sync()

    assert (quiet, one.flows.pending().is_empty) == (True, False)


def test_tcp_connections_stay_with_an_endpoint_that_leaves() -> None:
    """Weakness, shared: a tracked TCP connection is not ended, so that an endpoint which drains can finish its work."""
    one = OneNode(service("web"), endpoint_slice("web"))
    one.remove(Kind.ENDPOINT_SLICES, "web-ipv4")
    one.sync()

    assert one.flows.pending().is_empty


def test_rules_have_one_order_whatever_came_first() -> None:
    """Weakness: the order of Services is random in each run, so two nodes or two dumps cannot be compared."""
    objects = _cluster(6)
    at_once, one_by_one = OneNode(*objects), OneNode()
    for one in reversed(objects):
        one_by_one.put(one)
        one_by_one.sync()

    assert at_once.machine.kernels[V4].saved() == one_by_one.machine.kernels[V4].saved()


def test_slow_family_does_not_keep_the_other() -> None:
    """Weakness: both families share a thread at the first run; a slow IPv4 delays IPv6."""
    released = threading.Event()

    async def run() -> str:
        slow, quick = KernelThread(None, "kernel-ipv4"), KernelThread(None, "kernel-ipv6")
        waiting = asyncio.create_task(slow.call(released.wait, 10.0))
        async with asyncio.timeout(5.0):
            done = await quick.call(lambda: "written")
        assert not waiting.done()
        released.set()
        await waiting
        slow.close()
        quick.close()
        return done

    assert asyncio.run(run()) == "written"


def test_clients_keep_their_endpoint_when_others_come_and_go() -> None:
    """Weakness, shared in part: affinity lives in lists of the kernel; chains that use them are at least left alone."""
    sticky = service("web", affinity_timeout_s=60)
    one = OneNode(sticky, endpoint_slice(sticky, ["10.0.0.1", "10.0.0.2"]))
    chain = next(line.split()[1] for line in one.text.splitlines() if "--to-destination 10.0.0.1:80" in line)
    for addresses in (["10.0.0.1", "10.0.0.3"], ["10.0.0.1"], ["10.0.0.1", "10.0.0.2"]):
        one.put(endpoint_slice(sticky, addresses))
        one.sync()

        assert f":{chain} " not in one.machine.inputs[-1]
        assert f"-A {chain} " not in one.machine.inputs[-1]


def test_shares_are_equal_and_late_endpoints_pay_for_it() -> None:
    """Weakness, shared: the last of n endpoints is reached after n - 1 tests; shares are exact all the same."""
    one = OneNode(service("web"), endpoint_slice("web", [f"10.0.0.{number}" for number in range(1, 6)]))
    name = next(line.split()[-1] for line in one.chain("KUBE-SERVICES") if "10.96.0.10" in line)
    lines = one.chain(name)
    odds = [float(line.split("--probability ")[1].split()[0]) if "--probability" in line else 1.0 for line in lines]
    left, shares = 1.0, []
    for chance in odds:
        shares.append(left * chance)
        left -= left * chance

    assert shares == pytest.approx([0.2] * 5, abs=1e-8)


def test_change_of_labels_runs_nothing() -> None:
    """Weakness: any change of a slice's metadata causes a full run of the pipeline."""
    one = OneNode(*_cluster(2))
    runs = (len(one.machine.inputs), one.machine.saves)
    one.put(endpoint_slice("s0000", ["10.100.0.0"], labels={"a": "b"}))

    assert one.tracker.dirty_count == 0
    assert one.sync().transactions == 0
    assert (len(one.machine.inputs), one.machine.saves) == runs
