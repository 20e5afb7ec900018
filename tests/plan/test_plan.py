"""The way from any tables to the desired ones."""

import re
from collections.abc import Callable, Sequence

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config, IptablesConfig
from kproxy_ipt.plan.plan import Plan, plan_sync
from kproxy_ipt.plan.stages import MAX_LINES
from kproxy_ipt.rules.build import Desired
from kproxy_ipt.ruleset.edits import DeleteChain, EditChain, InsertRule, WriteChain
from kproxy_ipt.ruleset.render import render_chain
from kproxy_ipt.testing.desired import ApiObject, desired_for
from kproxy_ipt.testing.fake_kernel import FakeKernel
from kproxy_ipt.testing.objects import endpoint_slice, service, service_port, slice_endpoint

Sync = Callable[..., Plan]

FOREIGN = """*filter
:INPUT DROP [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:MINE - [0:0]
[7:420] -A INPUT -i lo -j ACCEPT
[1:60] -A MINE -j RETURN
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:KUBE-CUSTOM-x - [0:0]
:KUBE-SVC-MYOWN - [0:0]
[5:300] -A PREROUTING -p tcp -m tcp --dport 8080 -j KUBE-SVC-MYOWN
[3:180] -A KUBE-SVC-MYOWN -j RETURN
COMMIT
"""


def _services(count: int, *, endpoints: int = 2) -> list[ApiObject]:
    found: list[ApiObject] = []
    for number in range(count):
        of = service(f"s{number:03}", cluster_ip=f"10.96.{number // 250}.{number % 250 + 1}")
        found += [of, endpoint_slice(of, [f"10.{number // 250}.{number % 250}.{n + 1}" for n in range(endpoints)])]
    return found


def _holds(kernel: FakeKernel, desired: Desired) -> bool:
    saved = kernel.saved()
    return all(
        (found := saved.chain(table.name, chain.name)) is not None and found.lines == render_chain(chain)
        for table in desired.ruleset.tables.values()
        for chain in table.chains.values()
    )


def _written(plan: Plan) -> set[tuple[str, str]]:
    return {
        (transaction.table, edit.name)
        for transaction in plan.transactions
        for edit in transaction.edits
        if isinstance(edit, WriteChain | EditChain)
    }


def _deleted(plan: Plan) -> list[str]:
    return [e.name for transaction in plan.transactions for e in transaction.edits if isinstance(e, DeleteChain)]


def _prefixes(names: Sequence[str]) -> list[str]:
    return sorted(re.sub(r"-[A-Z2-7]{16}$", "", name) for name in names)


@pytest.mark.parametrize("staged", [True, False])
@pytest.mark.parametrize("family", list(Family))
def test_first_sync_of_an_empty_kernel_ends_in_the_desired_rules(sync: Sync, family: Family, *, staged: bool) -> None:
    """Every chain has its rules, and a second plan is empty."""
    kernel = FakeKernel()
    of = service(cluster_ips=("10.96.0.10", "fd00::10"))
    desired = desired_for(of, endpoint_slice(of), endpoint_slice(of, ("fd00:1::1",)), family=family)
    sync(kernel, desired, staged=staged)

    assert _holds(kernel, desired)
    assert kernel.saved().chain("filter", "KUBE-FIREWALL") is not None


def test_foreign_chains_rules_and_counters_are_untouched(sync: Sync) -> None:
    """What was there before is there afterwards, letter by letter, with its counters."""
    kernel = FakeKernel(FOREIGN)
    sync(kernel, desired_for(*_services(3)))
    sync(kernel, desired_for(*_services(1)))
    saved = kernel.save(counters=True).splitlines()

    assert [line for line in FOREIGN.splitlines() if line.startswith("[")] == [
        line for line in saved if line.startswith("[") and not line.startswith("[0:0]")
    ]
    assert ":INPUT DROP [0:0]" in saved
    assert {":MINE - [0:0]", ":KUBE-CUSTOM-x - [0:0]", ":KUBE-SVC-MYOWN - [0:0]"} <= set(saved)


def test_endpoint_change_writes_only_chains_of_its_service(sync: Sync) -> None:
    """One more endpoint: a new endpoint chain and the service chain, in one transaction, and no dispatch."""
    kernel = FakeKernel()
    objects = _services(20)
    sync(kernel, desired_for(*objects))
    changed = endpoint_slice("s007", ("10.0.7.1", "10.0.7.2", "10.0.7.3"))
    plan = sync(kernel, desired_for(*(changed if of.metadata.name == "s007-ipv4" else of for of in objects)))

    assert _prefixes([name for _, name in _written(plan)]) == ["KUBE-SEP", "KUBE-SVC"]
    assert _deleted(plan) == []
    assert len(plan.transactions) == 1


def test_replaced_endpoint_is_deleted_after_the_switch(sync: Sync) -> None:
    """The old endpoint chain goes in the same transaction that takes the new one into use."""
    kernel = FakeKernel()
    of = service()
    sync(kernel, desired_for(of, endpoint_slice(of, ("10.0.0.1",))))
    plan = sync(kernel, desired_for(of, endpoint_slice(of, ("10.0.0.2",))))

    assert _prefixes(_deleted(plan)) == ["KUBE-SEP"]
    assert (2, 1, 3) == (plan.chains_written, plan.chains_deleted, plan.rules_written)


def test_service_comes_and_goes_without_touching_others(sync: Sync) -> None:
    """KUBE-SERVICES and the chains of that service are all that changes."""
    kernel = FakeKernel()
    sync(kernel, desired_for(*_services(3)))
    before = kernel.save()
    added = sync(kernel, desired_for(*_services(4)))
    removed = sync(kernel, desired_for(*_services(3)))

    assert _prefixes([name for _, name in _written(added)]) == ["KUBE-SEP", "KUBE-SEP", "KUBE-SERVICES", "KUBE-SVC"]
    assert _written(removed) == {("nat", "KUBE-SERVICES")}
    assert _prefixes(_deleted(removed)) == ["KUBE-SEP", "KUBE-SEP", "KUBE-SVC"]
    assert before == kernel.save()


def test_first_and_last_endpoint_move_a_service_between_the_tables(sync: Sync) -> None:
    """Without endpoints refused, with endpoints translated, and never neither of both."""
    kernel = FakeKernel()
    of = service(service_type="NodePort", ports=(service_port(80, node_port=30080),))
    for addresses in ((), ("10.0.0.1",), ()):
        desired = desired_for(of, endpoint_slice(of, addresses))
        sync(kernel, desired)

        assert _holds(kernel, desired)


def test_large_change_in_stages_ends_where_one_transaction_ends(sync: Sync) -> None:
    """300 services take many transactions on nf_tables, one per table otherwise, with the same result."""
    first = desired_for(*_services(300, endpoints=6))
    second = desired_for(*_services(20), *_services(300, endpoints=3)[40:])
    staged, whole = FakeKernel(), FakeKernel()
    plans = [sync(staged, desired, staged=True) for desired in (first, second)]
    for desired in (first, second):
        sync(whole, desired, staged=False)
    nat = [sum(transaction.table == "nat" for transaction in plan.transactions) for plan in plans]

    assert min(nat) > 1
    assert _holds(staged, second)
    assert _holds(whole, second)
    assert set(staged.saved().tables["nat"]) - {"KUBE-PROXY-CANARY"} == set(whole.saved().tables["nat"])


def test_unstaged_change_takes_at_most_three_transactions(sync: Sync) -> None:
    """Filter, nat, and filter again where refusals have to go last."""
    kernel = FakeKernel()
    first = sync(kernel, desired_for(*_services(300)), staged=False)
    second = sync(kernel, desired_for(*_services(20, endpoints=0)), staged=False)

    assert [transaction.table for transaction in first.transactions] == ["filter", "nat"]
    assert len(second.transactions) <= 3


@pytest.mark.parametrize("lost", ["nat PREROUTING", "filter FORWARD", "filter INPUT", "nat POSTROUTING"])
def test_lost_jump_is_inserted_again_once(sync: Sync, lost: str) -> None:
    """Only the missing jump is written, at the top; it is not doubled by a second look."""
    kernel = FakeKernel()
    desired = desired_for(*_services(2))
    sync(kernel, desired)
    table, chain = lost.split()
    line = kernel.saved().tables[table][chain].lines[-1]
    kernel.restore(f"*{table}\n-D {line.removeprefix('-A ')}\nCOMMIT\n")
    plan = sync(kernel, desired)

    assert [type(edit) for edit in plan.transactions[0].edits] == [InsertRule]
    assert kernel.saved().tables[table][chain].lines[0] == line
    assert kernel.saved().tables[table][chain].lines.count(line) == 1


def test_jump_that_stands_below_foreign_rules_counts(sync: Sync) -> None:
    """Its position is somebody's decision."""
    kernel = FakeKernel()
    desired = desired_for(*_services(1))
    sync(kernel, desired)
    kernel.restore("*nat\n-I PREROUTING 1 -i eth9 -j RETURN\nCOMMIT\n")

    assert plan_sync(desired, kernel.saved(), staged=True).transactions == ()


@pytest.mark.parametrize("damage", ["emptied", "extra rule", "wrong rule"])
def test_damaged_chain_alone_is_written_again(sync: Sync, damage: str) -> None:
    """What differs is repaired, and nothing else is touched."""
    kernel = FakeKernel()
    desired = desired_for(*_services(3))
    sync(kernel, desired)
    chain = next(name for name in desired.owners if name.startswith("KUBE-SEP-"))
    emptied = "" if damage == "extra rule" else f":{chain} - [0:0]\n"
    added = "" if damage == "emptied" else f"-A {chain} -j RETURN\n"
    kernel.restore(f"*nat\n{emptied}{added}COMMIT\n")

    assert _written(sync(kernel, desired)) == {("nat", chain)}
    assert _holds(kernel, desired)


SPELLINGS = [
    (" --mask 255.255.255.255", "", Family.IPV4),
    (" --mask ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "", Family.IPV6),
    ("--set-xmark 0x4000/0x4000", "--or-mark 0x4000", Family.IPV4),
    ("--set-xmark 0x4000/0x0", "--xor-mark 0x4000", Family.IPV4),
    (" --reject-with icmp6-port-unreachable", "", Family.IPV6),
    (" --reject-with icmp-port-unreachable", "", Family.IPV4),
    ("--nfacct-name  ", "--nfacct-name ", Family.IPV4),
    ("--probability 0.50000000000", "--probability 0.5", Family.IPV4),
    ("-d 10.96.0.10/32", "-d 10.96.0.10", Family.IPV4),
    ("--rsource", "--rsource", Family.IPV4),
]


@pytest.mark.parametrize(("ours", "theirs", "family"), SPELLINGS)
@pytest.mark.parametrize("staged", [True, False])
def test_chain_in_the_spelling_of_another_version_is_left_alone(
    sync: Sync, ours: str, theirs: str, family: Family, *, staged: bool
) -> None:
    """The same rule in other words is no change."""
    of = service(cluster_ips=("10.96.0.10", "fd00::10"), affinity_timeout_s=60)
    slices = (endpoint_slice(of, ("10.0.0.1", "10.0.0.2")), endpoint_slice(of, ("fd00:1::1", "fd00:1::2")))
    refused = service("refused", cluster_ips=("10.96.0.11", "fd00::11"))
    desired = desired_for(of, *slices, refused, family=family)
    kernel = FakeKernel()
    sync(kernel, desired, staged=staged)

    assert ours in kernel.save()
    respelled = FakeKernel(kernel.save().replace(ours, theirs))
    assert plan_sync(desired, respelled.saved(), staged=staged).transactions == ()


def test_stale_chain_that_a_foreign_chain_leads_to_stays_with_a_note(sync: Sync) -> None:
    """It stays whole, with what it leads to; the rest of the service goes."""
    kernel = FakeKernel()
    objects = _services(2)
    sync(kernel, desired_for(*objects))
    gone = next(name for name, owner in desired_for(*objects[2:]).owners.items() if name.startswith("KUBE-SVC-"))
    kernel.restore(f"*nat\n:MINE - [0:0]\n-A MINE -j {gone}\nCOMMIT\n")
    desired = desired_for(*objects[:2])
    plan = sync(kernel, desired)

    assert _deleted(plan) == []
    assert len(plan.notes) == 3
    assert f"chain {gone} of table nat is no longer needed but stays: chain MINE jumps to it" in plan.notes
    kernel.restore("*nat\n:MINE - [0:0]\n-X MINE\nCOMMIT\n")
    assert _prefixes(_deleted(sync(kernel, desired))) == ["KUBE-SEP", "KUBE-SEP", "KUBE-SVC"]


def test_rules_of_others_in_the_shared_firewall_chain_stay(sync: Sync) -> None:
    """The kubelet may have rules in KUBE-FIREWALL: ours is added where it is missing, and theirs stay."""
    theirs = "-A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP"
    kernel = FakeKernel(f"*filter\n:KUBE-FIREWALL - [0:0]\n{theirs}\nCOMMIT\n")
    desired = desired_for()
    sync(kernel, desired)
    lines = kernel.saved().tables["filter"]["KUBE-FIREWALL"].lines

    assert lines[1:] == (theirs,)
    assert "block incoming localnet connections" in lines[0]


def test_shared_firewall_chain_is_not_emptied_without_node_ports_on_localhost(sync: Sync) -> None:
    """Then we have no rule in it, and only see to it that it exists."""
    guard = '-A KUBE-FIREWALL -m comment --comment "block incoming localnet connections" -j DROP'
    kernel = FakeKernel(f"*filter\n:KUBE-FIREWALL - [0:0]\n{guard}\nCOMMIT\n")
    sync(kernel, desired_for(config=Config(iptables=IptablesConfig(localhost_node_ports=False))))

    assert kernel.saved().tables["filter"]["KUBE-FIREWALL"].lines == (guard,)


def test_tables_that_come_into_being_with_us_are_marked_on_nf_tables_only(sync: Sync) -> None:
    """The mark lets a clean-up remove them; a table that was there is not marked."""
    fresh, used, legacy = FakeKernel(), FakeKernel("*nat\nCOMMIT\n"), FakeKernel()
    for kernel, staged in ((fresh, True), (used, True), (legacy, False)):
        sync(kernel, desired_for(), staged=staged)

    marked = [
        [table for table, chains in kernel.saved().tables.items() if "KUBE-PROXY-CANARY" in chains]
        for kernel in (fresh, used, legacy)
    ]
    assert marked == [["filter", "nat"], ["filter"], []]


def test_chains_of_one_service_change_together(sync: Sync) -> None:
    """However small the stages are, a service is never seen half changed."""
    kernel = FakeKernel()
    of = service(service_type="NodePort", ports=(service_port(80, node_port=30080),), internal_policy="Local")
    one, two = (slice_endpoint(f"10.0.0.{n}", node_name="node1") for n in (1, 2))
    sync(kernel, desired_for(of, endpoint_slice(of, (one,))))
    plan = plan_sync(desired_for(of, endpoint_slice(of, (one, two))), kernel.saved(), staged=True, max_lines=1)
    written = [
        _prefixes([edit.name for edit in transaction.edits if isinstance(edit, WriteChain)])
        for transaction in plan.transactions
    ]

    assert written == [["KUBE-SEP"], ["KUBE-SVC", "KUBE-SVL"]]


def test_stages_are_bounded_in_size(sync: Sync) -> None:
    """Many transactions of a bounded number of lines; only a step that cannot be cut may be longer."""
    plan = sync(FakeKernel(), desired_for(*_services(300, endpoints=6)))
    sizes = [
        sum(1 + len(edit.rules) if isinstance(edit, WriteChain) else 1 for edit in transaction.edits)
        for transaction in plan.transactions
    ]

    assert max(sizes) <= MAX_LINES
    assert sum(sizes) > 2 * MAX_LINES
