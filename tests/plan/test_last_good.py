"""Rules that a Service has in the kernel: read back from what a real kube-proxy wrote, and from our own."""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config, Dispatch
from kproxy_ipt.plan.contribution import NOTHING, Contribution, contribution_of
from kproxy_ipt.plan.dispatch_lines import SharedLine
from kproxy_ipt.plan.family_rules import FamilyRules
from kproxy_ipt.plan.last_good import standing_rules, stands, still_serving
from kproxy_ipt.rules.options import RuleOptions, rule_options
from kproxy_ipt.rules.shared_chains import PLACES
from kproxy_ipt.ruleset.canonical import UNORDERED
from kproxy_ipt.ruleset.edits import WriteChain
from kproxy_ipt.ruleset.scan import jumps_to, scan_save
from kproxy_ipt.state.model import MachineFacts, NodeFacts, ServiceState, Snapshot
from kproxy_ipt.state.tracker import ServiceName
from kproxy_ipt.testing.desired import ApiObject, snapshot_of
from kproxy_ipt.testing.fake_kernel import FakeKernel
from kproxy_ipt.testing.objects import endpoint_slice, service, service_port, slice_port
from kproxy_ipt.testing.recorded import recorded_case

Key = TypeVar("Key")
Value = TypeVar("Value")

V4 = Family.IPV4
CASES = sorted(path.parent for path in (Path(__file__).parents[1] / "golden").glob("*/case.yaml"))
OPTIONS = rule_options(Config(), NodeFacts(name="node1"), MachineFacts(), V4, endpoint_count=0)
WEB = service("web", ports=[service_port(80, name="http"), service_port(81, name="admin")])


def _states(snapshot: Snapshot) -> dict[tuple[str, str], tuple[ServiceState, ...]]:
    found: dict[tuple[str, str], tuple[ServiceState, ...]] = {}
    for state in snapshot.services.values():
        name = (state.service_port.namespace, state.service_port.name)
        found[name] = (*found.get(name, ()), state)
    return found


def _wanted(*objects: ApiObject, options: RuleOptions = OPTIONS) -> Contribution:
    [states] = _states(snapshot_of(*objects, family=options.family)).values()
    return contribution_of(states, options)


@pytest.mark.parametrize("dispatch", [Dispatch.LINEAR, Dispatch.TREE])
@pytest.mark.parametrize("family", list(Family))
@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_services_that_are_held_lose_nothing_of_what_stands(folder: Path, family: Family, dispatch: Dispatch) -> None:
    """Whoever wrote it: at most chains whose order was left to chance are written, and nothing is deleted."""
    case = recorded_case(folder)
    objects: tuple[ApiObject, ...] = (*case.objects.services, *case.objects.endpoint_slices, *case.objects.nodes)
    snapshot = snapshot_of(*objects, family=family, node_name=case.node_name)
    options = rule_options(case.config, snapshot.node, case.machine, family, endpoint_count=0)
    rules, kernel, states = FamilyRules(), FakeKernel(case.canonical[family]), _states(snapshot)
    rules.set_options(msgspec.structs.replace(options, dispatch=dispatch))
    rules.update(states)
    if dispatch is Dispatch.TREE:
        kernel.apply(rules.plan_full(kernel.saved(), staged=True))
    suspects = rules.suspects(kernel.saved())
    rules.hold(states, kernel.saved())
    plan = rules.plan_full(kernel.saved(), staged=True)

    edits = [(transaction.table, edit) for transaction in plan.transactions for edit in transaction.edits]
    assert [edit for _, edit in edits if not isinstance(edit, WriteChain)] == []
    assert all(edit.name in UNORDERED[table] for table, edit in edits if isinstance(edit, WriteChain))
    assert suspects == ()


def test_chains_that_nothing_leads_to_do_not_stand() -> None:
    """The kernel took them, but it did not look at what becomes of packets there."""
    rules, kernel = FamilyRules(), FakeKernel()
    rules.set_options(OPTIONS)
    rules.update(_states(snapshot_of(WEB, endpoint_slice(WEB))))
    kernel.apply(rules.plan_full(kernel.saved(), staged=True))
    name, wanted = ("default", "web"), _wanted(WEB, endpoint_slice(WEB))
    before = standing_rules(kernel.saved(), [name], V4)[name]
    kernel.restore("*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-NODEPORTS - [0:0]\nCOMMIT\n")

    assert stands(wanted, before, V4)
    assert standing_rules(kernel.saved(), [name], V4) == {}
    assert rules.suspects(kernel.saved()) == (name,)


def test_rules_serve_while_one_endpoint_is_still_one() -> None:
    """All of them stay then; none does when no endpoint is left."""
    standing = _wanted(WEB, endpoint_slice(WEB, ["10.244.1.2", "10.244.1.3"]))

    assert still_serving(standing, _wanted(WEB, endpoint_slice(WEB, ["10.244.1.3", "10.244.1.4"]))) == standing
    assert still_serving(standing, _wanted(WEB, endpoint_slice(WEB, ["10.244.1.4"]))) is NOTHING


def test_lines_for_ports_that_were_given_up_do_not_serve() -> None:
    """Of two ports one is left, with all its chains."""
    standing = _wanted(WEB, endpoint_slice(WEB, ["10.244.1.2"]))
    half = service("web", ports=[service_port(80, name="http")])
    kept = still_serving(standing, _wanted(half, endpoint_slice(WEB, ["10.244.1.2"])))

    lines = [line.text for shared in kept.shared.values() for line in shared]
    assert [("default/web:http" in line, "default/web:admin" in line) for line in lines] == [(True, False)]


def test_service_that_moved_to_another_address_has_nothing_that_serves() -> None:
    """The old address may be another Service's."""
    standing = _wanted(WEB, endpoint_slice(WEB))
    moved = service("web", cluster_ip="10.96.0.99")

    assert still_serving(standing, _wanted(moved, endpoint_slice(moved))) is NOTHING


def _options(family: Family, dispatch: Dispatch = Dispatch.LINEAR) -> RuleOptions:
    options = rule_options(Config(), NodeFacts(name="node1"), MachineFacts(), family, endpoint_count=0)
    return msgspec.structs.replace(options, dispatch=dispatch)


def _full(number: int, family: Family) -> list[ApiObject]:
    """A Service with every kind of entry; one port has endpoints, the other one is refused."""
    ips = [f"10.96.0.{number}", f"fd00::{number}"]
    ports = [service_port(80, name="http", node_port=30000 + number), service_port(81, name="admin")]
    one = service(
        f"s{number:02}",
        cluster_ips=ips,
        service_type="LoadBalancer",
        ports=ports,
        ingress=(f"192.0.2.{number}", f"2001:db8::{number}"),
        source_ranges=("203.0.113.0/24", "2001:db8:1::/64"),
        external_policy="Local",
        affinity_timeout_s=60,
    )
    addresses = [f"10.244.1.{number}", "10.244.2.1"] if family is V4 else [f"fd00:1::{number}", "fd00:2::1"]
    return [one, endpoint_slice(one, addresses, ports=[slice_port(8080, name="http")])]


def _sorted(found: Mapping[ServiceName, Contribution]) -> dict[ServiceName, Contribution]:
    """With lines in the order of their texts: a tree has them in the order of its keys."""
    return {
        name: Contribution(
            one.chains,
            one.owners,
            {place: tuple(sorted(lines, key=lambda line: line.text)) for place, lines in one.shared.items()},
        )
        for name, one in found.items()
    }


@pytest.mark.parametrize("dispatch", [Dispatch.LINEAR, Dispatch.TREE])
@pytest.mark.parametrize("family", list(Family))
def test_what_is_read_back_is_what_was_written(family: Family, dispatch: Dispatch) -> None:
    """Of each Service all chains, each after those that it jumps to, owners, and lines with their keys; no more."""
    options = _options(family, dispatch)
    services = [_full(number, family) for number in range(1, 21)]
    written = {("default", f"s{number:02}"): _wanted(*services[number - 1], options=options) for number in range(1, 21)}
    rules, kernel = FamilyRules(), FakeKernel()
    rules.set_options(options)
    rules.update(_states(snapshot_of(*(one for pair in services for one in pair), family=family)))
    kernel.apply(rules.plan_full(kernel.saved(), staged=True))
    asked = [("default", f"s{number:02}") for number in range(1, 20)]
    found = dict(standing_rules(kernel.saved(), [*asked, ("default", "unknown")], family))

    if dispatch is Dispatch.TREE:
        found, written = _sorted(found), _sorted(written)
    assert found == {name: written[name] for name in asked}
    for one in found.values():
        order = list(one.chains)
        jumps = [(name, target) for name, lines in one.chains.items() for line in lines if (target := jumps_to(line))]
        assert all(order.index(name) > order.index(target) for name, target in jumps if target in order)


def _respelled(contribution: Contribution, ours: str, theirs: str) -> Contribution:
    return Contribution(
        {name: tuple(line.replace(ours, theirs) for line in lines) for name, lines in contribution.chains.items()},
        contribution.owners,
        {
            place: tuple(SharedLine(line.key, line.text.replace(ours, theirs)) for line in lines)
            for place, lines in contribution.shared.items()
        },
    )


@pytest.mark.parametrize(
    ("family", "ours", "theirs"),
    [
        (Family.IPV4, " --mask 255.255.255.255", ""),
        (Family.IPV6, " --mask ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", ""),
        (Family.IPV4, " --reject-with icmp-port-unreachable", ""),
        (Family.IPV6, " --reject-with icmp6-port-unreachable", ""),
        (Family.IPV4, "-d 10.96.0.1/32", "-d 10.96.0.1"),
    ],
)
def test_rules_stand_in_the_spelling_of_another_version(family: Family, ours: str, theirs: str) -> None:
    """What is left out in the text is what the family has by default."""
    wanted = _wanted(*_full(1, family), options=_options(family))
    respelled = _respelled(wanted, ours, theirs)
    other = next(one for one in Family if one is not family)

    assert respelled != wanted
    assert stands(wanted, respelled, family)
    assert theirs or not stands(wanted, respelled, other)


def test_service_stands_only_with_every_chain_and_every_line() -> None:
    """One that is missing, or that says something else, is not in force; what stands beside it does not matter."""
    wanted = _wanted(*_full(1, V4))
    lacking = [
        *(msgspec.structs.replace(wanted, chains=_without(wanted.chains, name)) for name in wanted.chains),
        *(msgspec.structs.replace(wanted, shared=_without(wanted.shared, place)) for place in wanted.shared),
        *(
            msgspec.structs.replace(wanted, shared={**wanted.shared, place: lines[1:]})
            for place, lines in wanted.shared.items()
        ),
    ]

    assert len(lacking) > 8
    assert [one for one in lacking if stands(wanted, one, V4)] == []
    for ours, theirs in (("--to-destination 10.244.1.1:8080", "--to-destination 10.9.9.9:8080"), ("2.1/32", "2.2/32")):
        assert not stands(wanted, _respelled(wanted, ours, theirs), V4)
    assert all(stands(one, wanted, V4) for one in (*lacking, NOTHING))


def _without(found: Mapping[Key, Value], gone: Key) -> dict[Key, Value]:
    return {key: value for key, value in found.items() if key != gone}


def test_suspects_are_in_the_order_of_names_and_read_in_any_spelling() -> None:
    """A listing of another version is as good; of three Services the two whose chains were emptied are suspects."""
    rules, kernel, family = FamilyRules(), FakeKernel(), Family.IPV6
    rules.set_options(_options(family))
    rules.update(_states(snapshot_of(*(one for number in (3, 1, 2) for one in _full(number, family)), family=family)))
    kernel.apply(rules.plan_full(kernel.saved(), staged=True))
    text = kernel.save()
    for left_out in (" --mask ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", " --reject-with icmp6-port-unreachable"):
        assert left_out in text
        text = text.replace(left_out, "")
    names = [name for name, owner in rules.wanted().owners.items() if owner in ("default/s01:http", "default/s03:http")]
    kernel = FakeKernel(text)
    assert rules.suspects(kernel.saved()) == ()

    kernel.restore("".join(["*nat\n", *(f":{name} - [0:0]\n" for name in names), "COMMIT\n"]))
    assert rules.suspects(kernel.saved()) == (("default", "s01"), ("default", "s03"))


def test_listing_that_leads_nowhere_ends_there() -> None:
    """A rule of a Service whose chain is not listed, and rules that nobody can read, are no obstacle."""
    line = '-A KUBE-SERVICES -d 10.96.0.10/32 -p tcp -m comment --comment "default/web:http" -m tcp --dport 80'
    chain = "KUBE-SVC-AAAAAAAAAAAAAAAA"
    listed = f"*nat\n:KUBE-SERVICES - [0:0]\n-A KUBE-SERVICES --dport foo bar\n{line} -j {chain}\nCOMMIT\n"
    [(name, found)] = standing_rules(scan_save(listed), [("default", "web")], V4).items()

    assert name == ("default", "web")
    assert (found.chains, found.owners) == ({}, {})
    assert found.shared == {PLACES["nat_services"]: (SharedLine("0a60000at0050", f"{line} -j {chain}"),)}


@pytest.mark.parametrize(
    ("rules", "name"),
    [
        ('-m comment --comment "default/web:http cluster IP"', ("default", "web")),
        ('-m comment --comment "default/web cluster IP"', ("default", "web")),
        ('-m comment --comment "default/web"', ("default", "web")),
        ('-m comment --comment "web"', None),
        ("", None),
    ],
)
def test_line_is_that_of_the_service_which_its_comment_begins_with(rules: str, name: tuple[str, str] | None) -> None:
    """Whatever the name of the port, and without one; other comments are nobody's."""
    listed = f"*filter\n:KUBE-SERVICES - [0:0]\n-A KUBE-SERVICES -d 10.96.0.10/32 {rules} -j DROP\nCOMMIT\n"
    found = standing_rules(scan_save(listed.replace("  ", " ")), [("default", "web"), ("other", "web")], V4)

    assert list(found) == ([name] if name else [])
