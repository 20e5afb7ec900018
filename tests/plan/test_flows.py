"""Former entries, learnt from the rules that a plan removes."""

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config, ExternalIPs, IptablesConfig
from kproxy_ipt.objects.model import EndpointSlice, Objects, Service
from kproxy_ipt.plan.flows import entry_options, former_entries, leaving_lines
from kproxy_ipt.plan.plan import Plan, plan_sync
from kproxy_ipt.rules.build import Desired, build_ruleset
from kproxy_ipt.rules.options import rule_options
from kproxy_ipt.ruleset.edits import DeleteChain, Edit, EditChain, Transaction, WriteChain
from kproxy_ipt.ruleset.scan import scan_save
from kproxy_ipt.state.flows import Entry, EntryOptions
from kproxy_ipt.state.model import MachineFacts, NodeFacts
from kproxy_ipt.state.snapshot import take_snapshot
from kproxy_ipt.testing.fake_kernel import FakeKernel
from kproxy_ipt.testing.lab_objects import balancer_ip, cluster_ip, endpoints, open_service

NODE = NodeFacts(name="n1")
INTERFACES = ("127.0.0.1", "::1", "192.0.2.10", "2001:db8::10")


def _desired(family: Family, *objects: Service | EndpointSlice) -> Desired:
    found = Objects(
        services=tuple(each for each in objects if isinstance(each, Service)),
        endpoint_slices=tuple(each for each in objects if isinstance(each, EndpointSlice)),
    )
    return build_ruleset(take_snapshot(found, family, NODE), Config(), MachineFacts())


@pytest.fixture(params=list(Family), ids=str)
def family(request: pytest.FixtureRequest) -> Family:
    """The address family under test."""
    return Family(request.param)


@pytest.fixture
def web(family: Family) -> tuple[Service, EndpointSlice]:
    """A UDP Service with an endpoint and every kind of entry."""
    made = open_service(family, protocol="UDP", source_ranges=("198.18.0.0/16", "2001:db8:18::/64"))
    return made, endpoints(made, family, "10.244.2.21" if family is Family.IPV4 else "fd00:10:244:2::21")


def _former(family: Family, kernel: FakeKernel, desired: Desired) -> frozenset[Entry]:
    plan = plan_sync(desired, kernel.saved(), staged=True)
    return former_entries(leaving_lines(plan, kernel.saved()), family)


def test_rules_of_a_deleted_service_tell_all_its_entries(family: Family, web: tuple[Service, EndpointSlice]) -> None:
    """Cluster IP, external IP, load balancer IP and node port are read from the lines that go."""
    kernel = FakeKernel()
    kernel.apply(plan_sync(_desired(family, *web), kernel.saved(), staged=True))

    addresses = (cluster_ip(family), balancer_ip(family), balancer_ip(family, 28))
    expected = {*(Entry(address, 80, "udp") for address in addresses), Entry("", 30080, "udp")}
    assert expected == _former(family, kernel, _desired(family))


def test_a_plan_that_changes_nothing_removes_no_line(family: Family, web: tuple[Service, EndpointSlice]) -> None:
    """After a restart with the same objects nothing is former."""
    kernel = FakeKernel()
    kernel.apply(plan_sync(_desired(family, *web), kernel.saved(), staged=True))

    assert frozenset() == _former(family, kernel, _desired(family, *web))


@pytest.mark.parametrize(
    "line",
    [
        "-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS",
        "-A KUBE-SVC-AAAAAAAAAAAAAAAA ! -s 10.244.0.0/16 -d 10.96.0.10/32 -p udp -m udp --dport 53 -j KUBE-MARK-MASQ",
        "-A KUBE-SERVICES -d 10.96.0.10/32 -p udp -m udp --dport 53:54 -j KUBE-SVC-AAAAAAAAAAAAAAAA",
        "-A KUBE-SERVICES -d 10.96.0.0/16 -p udp -m udp --dport 53 -j KUBE-SVC-AAAAAAAAAAAAAAAA",
        "-A KUBE-SERVICES ! -d 10.96.0.10/32 -p udp -m udp --dport 53 -j KUBE-SVC-AAAAAAAAAAAAAAAA",
        "-A KUBE-SERVICES -p udp -m udp --dport 53 -j KUBE-SVC-AAAAAAAAAAAAAAAA",
        "-A PREROUTING -d 192.0.2.10/32 -p udp -m udp --dport 53 -j DNAT --to-destination 10.0.0.1:53",
        "-A KUBE-SERVICES --dport -j KUBE-SVC-AAAAAAAAAAAAAAAA",
        "-A KUBE-SERVICES -d 10.96.0.10/32 -p udp -m udp ! --dport 53 -j KUBE-SVC-AAAAAAAAAAAAAAAA",
        "-A KUBE-SERVICES -d 10.96.0.10/32 -p udp -m udp --sport 53 -j KUBE-SVC-AAAAAAAAAAAAAAAA",
        "-A KUBE-SERVICES -d 10.96.0.10/32 -p udp -m udp --dport 53",
        "-A KUBE-SERVICES -d 127.0.0.0/8 -p udp -m udp --dport 53 -j KUBE-SVC-AAAAAAAAAAAAAAAA",
        "-A KUBE-NODEPORTS -d 10.96.0.10/32 -p udp -m udp --dport 53 -j KUBE-SVC-AAAAAAAAAAAAAAAA",
    ],
)
def test_lines_that_lead_no_single_address_to_a_service_tell_nothing(line: str) -> None:
    """Marking, ranges, prefixes, negations, foreign rules and garbage are no entries."""
    assert frozenset() == former_entries([line], Family.IPV4)


@pytest.mark.parametrize(
    ("line", "entry"),
    [
        (
            "-A KUBE-NODEPORTS -d 127.0.0.0/8 -p udp -m udp --dport 30053 -m nfacct --nfacct-name n -j KUBE-EXT-"
            + "A" * 16,
            Entry("", 30053, "udp"),
        ),
        (
            "-A KUBE-SVC-BBBBBBBBBBBBBBBB -d 10.96.0.10/32 -p sctp -m sctp --dport 53 -j KUBE-SVL-AAAAAAAAAAAAAAAA",
            Entry("10.96.0.10", 53, "sctp"),
        ),
    ],
    ids=["localhost", "branched dispatch"],
)
def test_dispatch_is_read_wherever_it_stands(line: str, entry: Entry) -> None:
    """The counting rule for localhost and a rule in a branch of a dispatch tree tell an entry."""
    assert frozenset({entry}) == former_entries([line], Family.IPV4)


@pytest.mark.parametrize(
    ("prefixes", "localhost", "expected"),
    [
        ((), True, {"127.0.0.1", "192.0.2.10"}),
        ((), False, {"192.0.2.10"}),
        (("192.0.2.0/24",), True, {"192.0.2.10"}),
        (("198.51.100.0/24",), True, set()),
    ],
    ids=["all", "all but localhost", "by prefix", "none"],
)
def test_addresses_that_answer_node_ports_follow_the_options(
    prefixes: tuple[str, ...], expected: set[str], *, localhost: bool
) -> None:
    """Without prefixes it is every address of the family; loopback only where it may answer."""
    iptables = IptablesConfig(localhost_node_ports=localhost)
    config = Config(node_port_addresses=prefixes, iptables=iptables)
    machine = MachineFacts(interface_addresses=INTERFACES)
    options = entry_options(rule_options(config, NODE, machine, Family.IPV4, endpoint_count=0), INTERFACES)

    assert frozenset(expected) == options.node_addresses


def test_ranges_of_one_family_are_no_hosts_of_the_other() -> None:
    """A prefix of 32 bits is a single address of IPv4 and a large network of IPv6; ::1 is IPv6's loopback."""
    line = "-A {} -d {} -p udp -m udp --dport 53 -j KUBE-SVC-AAAAAAAAAAAAAAAA"

    assert former_entries([line.format("KUBE-SERVICES", "2001:db8::/32")], Family.IPV6) == frozenset()
    assert former_entries([line.format("KUBE-SERVICES", "2001:db8::1/128")], Family.IPV6) == {
        Entry("2001:db8::1", 53, "udp")
    }
    assert former_entries([line.format("KUBE-NODEPORTS", "::1/128")], Family.IPV6) == {Entry("", 53, "udp")}


_CHAIN, _OTHER_CHAIN = "KUBE-SVC-AAAAAAAAAAAAAAAA", "KUBE-SVC-BBBBBBBBBBBBBBBB"
_LISTED = scan_save(
    f"*nat\n:{_CHAIN} - [0:0]\n:{_OTHER_CHAIN} - [0:0]\n"
    f"-A {_CHAIN} -j ONE\n-A {_CHAIN} -j TWO\n-A {_CHAIN} -j THREE\n-A {_OTHER_CHAIN} -j FOUR\nCOMMIT\n"
    f"*filter\n:{_CHAIN} - [0:0]\n-A {_CHAIN} -j DROP\nCOMMIT\n"
)


@pytest.mark.parametrize(
    ("edits", "leaving"),
    [
        ([WriteChain(_CHAIN, (f"-A {_CHAIN} -j TWO", f"-A {_CHAIN} -j NEW"))], ["ONE", "THREE"]),
        ([WriteChain(_CHAIN, ())], ["ONE", "TWO", "THREE"]),
        ([WriteChain("KUBE-SVC-CCCCCCCCCCCCCCCC", ())], []),
        ([EditChain(_CHAIN, (f"-A {_CHAIN} -j TWO",), ((1, f"-A {_CHAIN} -j NEW"),))], ["TWO"]),
        ([DeleteChain(_OTHER_CHAIN), WriteChain(_CHAIN, (f"-A {_CHAIN} -j ONE",))], ["FOUR", "TWO", "THREE"]),
    ],
    ids=["written anew", "emptied", "new", "edited", "deleted"],
)
def test_leaving_lines_are_those_that_the_edits_take_out(edits: list[Edit], leaving: list[str]) -> None:
    """Of chains that are written, edited or deleted, in the order of the plan; what is written again stays."""
    plan = Plan(transactions=(Transaction("nat", tuple(edits)),))

    assert [line.rpartition(" ")[2] for line in leaving_lines(plan, _LISTED)] == leaving


def test_lines_of_the_table_filter_lead_no_flow() -> None:
    """A plan for filter takes out nothing, though nat has a chain of the same name."""
    assert leaving_lines(Plan(transactions=(Transaction("filter", (DeleteChain(_CHAIN),)),)), _LISTED) == ()


@pytest.mark.parametrize("localhost", [True, False])
def test_entry_options_are_those_of_the_rules(*, localhost: bool) -> None:
    """Whether loopback answers, which external IPs are translated, and only addresses of the family."""
    permitted = ExternalIPs(ranges=("198.51.100.0/24",))
    config = Config(external_ip_ranges=permitted.ranges, iptables=IptablesConfig(localhost_node_ports=localhost))
    options = [
        entry_options(rule_options(config, NODE, MachineFacts(), family, endpoint_count=0), INTERFACES)
        for family in Family
    ]

    addresses = frozenset({"192.0.2.10", *(["127.0.0.1"] if localhost else [])})
    assert options == [
        EntryOptions(node_addresses=addresses, localhost=localhost, external_ips=permitted),
        EntryOptions(node_addresses=frozenset({"2001:db8::10"}), localhost=False, external_ips=permitted),
    ]
