"""Clean-up: all of ours goes, and the rest is as it was."""

from collections.abc import Callable

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.plan.cleanup import plan_cleanup
from kproxy_ipt.plan.plan import Plan
from kproxy_ipt.rules.build import Desired
from kproxy_ipt.ruleset.edits import DeleteChain, DeleteRule
from kproxy_ipt.testing.desired import ApiObject, desired_for
from kproxy_ipt.testing.fake_kernel import FakeKernel
from kproxy_ipt.testing.objects import endpoint_slice, service, service_port

Sync = Callable[..., Plan]

EMPTY = FakeKernel("*filter\nCOMMIT\n*nat\nCOMMIT\n").save()
FOREIGN = FakeKernel(
    """*filter
:INPUT DROP [0:0]
:MINE - [0:0]
-A INPUT -i lo -j ACCEPT
-A INPUT -m comment --comment "kubernetes is great" -j ACCEPT
-A FORWARD -j MINE
-A MINE -j RETURN
COMMIT
*nat
:KUBE-CUSTOM-x - [0:0]
:KUBE-SVC-MYOWN - [0:0]
-A PREROUTING -p tcp -m tcp --dport 8080 -j KUBE-SVC-MYOWN
-A KUBE-SVC-MYOWN -j KUBE-CUSTOM-x
-A KUBE-CUSTOM-x -p tcp -j DNAT --to-destination 10.9.9.9:80
COMMIT
*mangle
:OTHER - [0:0]
-A PREROUTING -j OTHER
COMMIT
"""
).save()
GUARD = (
    '-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment "block incoming localnet connections"'
    " -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP"
)
KUBELET = FakeKernel(
    f"""*mangle
:KUBE-IPTABLES-HINT - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
COMMIT
*nat
:KUBE-KUBELET-CANARY - [0:0]
COMMIT
*filter
:KUBE-FIREWALL - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
-A INPUT -j KUBE-FIREWALL
-A OUTPUT -j KUBE-FIREWALL
{GUARD}
COMMIT
"""
).save()


def _objects() -> list[ApiObject]:
    """Services of all kinds, with and without endpoints."""
    balanced = service(
        "balanced",
        cluster_ips=("10.96.0.11", "fd00::11"),
        service_type="LoadBalancer",
        ports=(service_port(80, node_port=30080),),
        ingress=("192.0.2.1", "2001:db8::1"),
        external_ips=("192.0.2.9", "2001:db8::9"),
        source_ranges=("203.0.113.0/24", "2001:db8::/32"),
        external_policy="Local",
        affinity_timeout_s=60,
    )
    slices = (endpoint_slice(balanced), endpoint_slice(balanced, ("fd00:1::1", "fd00:1::2")))
    return [service("refused"), balanced, *slices]


def _desired(family: Family = Family.IPV4) -> Desired:
    return desired_for(*_objects(), family=family)


@pytest.mark.parametrize("family", list(Family))
@pytest.mark.parametrize("staged", [True, False])
@pytest.mark.parametrize("before", ["", EMPTY, FOREIGN], ids=["no tables", "empty tables", "foreign rules"])
def test_tables_are_as_before_the_first_sync(sync: Sync, before: str, family: Family, *, staged: bool) -> None:
    """Once and twice; on nf_tables even tables that came into being with us are gone."""
    kernel = FakeKernel(before)
    sync(kernel, _desired(family), staged=staged)
    kernel.apply(plan_cleanup(kernel.saved(), staged=staged))

    assert (before if staged or before else EMPTY) == kernel.save()
    assert plan_cleanup(kernel.saved(), staged=staged) == Plan()


@pytest.mark.parametrize("staged", [True, False])
def test_what_the_kubelet_made_stays(sync: Sync, *, staged: bool) -> None:
    """Its canaries and the shared firewall chain with both jumps are as they were."""
    kernel = FakeKernel(KUBELET)
    sync(kernel, _desired(), staged=staged)
    kernel.apply(plan_cleanup(kernel.saved(), staged=staged))

    assert kernel.save() == KUBELET


def test_firewall_chain_with_rules_of_others_stays_with_its_jumps(sync: Sync) -> None:
    """A rule that is not ours makes the chain somebody else's."""
    kernel = FakeKernel()
    sync(kernel, _desired())
    kernel.restore("*filter\n-A KUBE-FIREWALL -i eth9 -j DROP\nCOMMIT\n")
    kernel.apply(plan_cleanup(kernel.saved(), staged=True))
    filters = kernel.saved().tables["filter"]

    assert len(filters["KUBE-FIREWALL"].lines) == 2
    assert filters["INPUT"].lines == ("-A INPUT -j KUBE-FIREWALL",)
    assert [name for name in filters if name.startswith("KUBE-")] == ["KUBE-FIREWALL"]


@pytest.mark.parametrize(
    "damage",
    [
        "*nat\n:KUBE-SERVICES - [0:0]\nCOMMIT\n",
        "*nat\n:KUBE-SERVICES - [0:0]\n-D PREROUTING 1\n-D OUTPUT 1\n-X KUBE-SERVICES\nCOMMIT\n",
        "*nat\n-D POSTROUTING 1\nCOMMIT\n",
        "*filter\n-D INPUT 1\n-D OUTPUT 1\n-D FORWARD 1\nCOMMIT\n",
    ],
)
def test_partly_damaged_rules_are_cleaned_up_as_well(sync: Sync, damage: str) -> None:
    """Chains and jumps that are gone already are no obstacle."""
    kernel = FakeKernel()
    sync(kernel, _desired())
    lines = []
    for line in damage.splitlines():
        command, _, rest = line.partition(" ")
        if command == "-D":
            table = "filter" if damage.startswith("*filter") else "nat"
            rest = kernel.saved().tables[table][rest.split()[0]].lines[0].removeprefix("-A ")
        lines.append(f"{command} {rest}".strip())
    kernel.restore("\n".join(lines))
    kernel.apply(plan_cleanup(kernel.saved(), staged=True))

    assert kernel.save() == ""


@pytest.mark.parametrize("staged", [True, False])
def test_chain_that_others_lead_to_stays_and_is_named(sync: Sync, *, staged: bool) -> None:
    """Host port plugins jump to KUBE-MARK-MASQ; it stays with its rule, and the note says why."""
    before = "*filter\nCOMMIT\n*nat\n:KUBE-HP-X - [0:0]\n-A KUBE-HP-X -s 10.0.0.1/32 -j RETURN\nCOMMIT\n"
    kernel = FakeKernel(before)
    sync(kernel, _desired(), staged=staged)
    kernel.restore("*nat\n-A KUBE-HP-X -s 10.0.0.1/32 -j KUBE-MARK-MASQ\nCOMMIT\n")
    plan = plan_cleanup(kernel.saved(), staged=staged)
    kernel.apply(plan)
    nat = kernel.saved().tables["nat"]

    assert plan.notes == ("chain KUBE-MARK-MASQ of table nat stays: chain KUBE-HP-X, which is not ours, jumps to it",)
    assert [name for name in nat if name.startswith("KUBE-")] == ["KUBE-HP-X", "KUBE-MARK-MASQ"]
    assert nat["KUBE-MARK-MASQ"].lines == ("-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000",)
    assert not any(nat[chain].lines for chain in ("PREROUTING", "OUTPUT", "POSTROUTING"))


def test_service_chain_that_others_lead_to_stays_with_all_that_it_needs(sync: Sync) -> None:
    """Its endpoint chains and the mark chain stay, too, whole; KUBE-SERVICES goes."""
    kernel = FakeKernel("*filter\nCOMMIT\n*nat\nCOMMIT\n")
    desired = _desired()
    sync(kernel, desired)
    used = next(name for name in desired.owners if name.startswith("KUBE-SVC-"))
    kernel.restore(f"*nat\n:MINE - [0:0]\n-A MINE -j {used}\nCOMMIT\n")
    before = kernel.saved().tables["nat"]
    kernel.apply(plan_cleanup(kernel.saved(), staged=True))
    after = kernel.saved().tables["nat"]

    assert {name.rpartition("-")[0] for name in after if name.startswith("KUBE-")} == {
        "KUBE-SVC",
        "KUBE-SEP",
        "KUBE-MARK",
    }
    assert all(before[name] == chain for name, chain in after.items() if chain.policy == "-")


def test_foreign_rule_of_a_built_in_chain_keeps_the_chain_it_leads_to(sync: Sync) -> None:
    """A jump that neither we nor a kube-proxy made is not removed."""
    kernel = FakeKernel()
    sync(kernel, _desired())
    kernel.restore("*filter\n-A FORWARD -i eth9 -j KUBE-FORWARD\nCOMMIT\n")
    plan = plan_cleanup(kernel.saved(), staged=True)
    kernel.apply(plan)
    filters = kernel.saved().tables["filter"]

    assert filters["FORWARD"].lines == ("-A FORWARD -i eth9 -j KUBE-FORWARD",)
    assert len(filters["KUBE-FORWARD"].lines) == 3
    assert "chain FORWARD" in plan.notes[0]
    assert "filter" not in plan.void_tables


@pytest.mark.parametrize(
    ("base", "is_void"),
    [
        (":INPUT ACCEPT [0:0]\n", True),
        (":INPUT DROP [0:0]\n", False),
        (":INPUT ACCEPT [0:0]\n-A INPUT -i lo -j ACCEPT\n", False),
        (":INPUT ACCEPT [0:0]\n:MINE - [0:0]\n", False),
    ],
)
def test_table_is_void_only_without_anything_of_others(base: str, *, is_void: bool) -> None:
    """A policy, a rule or a chain of somebody else keeps a table that came into being with us."""
    kernel = FakeKernel(f"*filter\n:KUBE-PROXY-CANARY - [0:0]\n{base}COMMIT\n")
    plans = [plan_cleanup(kernel.saved(), staged=staged) for staged in (True, False)]

    assert [plan.void_tables for plan in plans] == [("filter",) if is_void else (), ()]


def test_large_clean_up_is_staged_and_removes_callers_first(sync: Sync) -> None:
    """Thousands of chains go in several transactions, KUBE-MARK-MASQ last since all others may jump to it."""
    kernel = FakeKernel()
    services = [service(f"s{n:03}", cluster_ip=f"10.96.{n // 250}.{n % 250 + 1}") for n in range(300)]
    slices = [endpoint_slice(of, [f"10.{n}.1.1" for n in range(9)]) for of in services]
    sync(kernel, desired_for(*services, *slices))
    plan = plan_cleanup(kernel.saved(), staged=True)
    kernel.apply(plan)

    assert len([transaction for transaction in plan.transactions if transaction.table == "nat"]) > 1
    assert kernel.save() == ""


def test_nothing_of_ours_is_nothing_to_do() -> None:
    """Clean-up of a machine that never saw us changes nothing and needs no objects."""
    for text in ("", EMPTY, FOREIGN, KUBELET):
        assert plan_cleanup(FakeKernel(text).saved(), staged=True) == Plan()


def test_clean_up_that_fails_midway_is_finished_by_the_next(sync: Sync) -> None:
    """Each transaction leaves tables that the next attempt can go on from."""
    kernel = FakeKernel(FOREIGN)
    sync(kernel, _desired())
    plan = plan_cleanup(kernel.saved(), staged=True)
    for number in range(1, len(plan.transactions) + 1):
        kernel.fail_at(number)
        with pytest.raises(Exception, match="refused as told"):
            kernel.apply(plan)
        kernel.fail_at(0)
        plan = plan_cleanup(kernel.saved(), staged=True)
        if not plan.transactions:
            break
    kernel.apply(plan)

    assert kernel.save() == FOREIGN


def test_packets_are_kept_away_before_chains_of_services_go() -> None:
    """Jumps and fixed chains are the first to go, at one moment, however chains are listed; the mark chain is last."""
    own = "KUBE-SVC-AAAAAAAAAAAAAAAA"
    kernel = FakeKernel(
        "*nat\n:KUBE-MARK-MASQ - [0:0]\n:KUBE-PROXY-CANARY - [0:0]\n"
        f":{own} - [0:0]\n:KUBE-POSTROUTING - [0:0]\n:KUBE-SERVICES - [0:0]\n"
        f"-A {own} -j KUBE-MARK-MASQ\n"
        '-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES\nCOMMIT\n'
    )
    [transaction] = plan_cleanup(kernel.saved(), staged=True).transactions
    jump, *deleted = transaction.edits

    assert isinstance(jump, DeleteRule)
    names = [edit.name for edit in deleted if isinstance(edit, DeleteChain)]
    assert set(names[:2]) == {"KUBE-SERVICES", "KUBE-POSTROUTING"}
    assert names.index(own) < names.index("KUBE-MARK-MASQ")
    assert len(names) == 5


def test_mark_goes_from_any_table() -> None:
    """Older versions of kube-proxy put it into tables in which they had nothing else."""
    kernel = FakeKernel("*raw\n:KUBE-PROXY-CANARY - [0:0]\n:MINE - [0:0]\nCOMMIT\n")
    kernel.apply(plan_cleanup(kernel.saved(), staged=False))

    assert list(kernel.saved().tables["raw"]) == ["PREROUTING", "OUTPUT", "MINE"]
