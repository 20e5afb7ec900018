"""What others left in tables: what is kept, replaced or removed, and why."""

from collections.abc import Mapping

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Balance, Config, Dispatch, ShapeConfig
from kproxy_ipt.objects.model import EndpointSlice, Service
from kproxy_ipt.plan.takeover import (
    Fate,
    Kind,
    Leftover,
    Place,
    Scope,
    judge_interface,
    judge_nftables,
    judge_sets,
    judge_tables,
    judge_virtual_services,
    plan_takeover,
    rules_stand,
    sets_in_use,
)
from kproxy_ipt.rules.build import with_base_chains
from kproxy_ipt.ruleset.render import render_save
from kproxy_ipt.testing.desired import desired_for
from kproxy_ipt.testing.fake_kernel import FakeKernel
from kproxy_ipt.testing.objects import endpoint_slice, service, service_port, slice_endpoint

_USED = Place("nft", Family.IPV4, is_used=True)
_OTHER = Place("legacy", Family.IPV4, is_used=False)
_XLB = "KUBE-XLB-ABCDEFGHIJKLMNOP"
_SVC = "KUBE-SVC-ABCDEFGHIJKLMNOP"

_OURS = f"""*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-SERVICES - [0:0]
:{_SVC} - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-SERVICES -d 10.96.0.1/32 -j {_SVC}
COMMIT
"""
_IPVS = """*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:KUBE-LOAD-BALANCER - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-SERVICES - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A KUBE-LOAD-BALANCER -j KUBE-MARK-MASQ
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-SERVICES -m set --match-set KUBE-LOAD-BALANCER dst,dst -j KUBE-LOAD-BALANCER
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT
COMMIT
*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:KUBE-IPVS-FILTER - [0:0]
:KUBE-NODE-PORT - [0:0]
-A INPUT -m comment --comment "kubernetes ipvs access filter" -j KUBE-IPVS-FILTER
-A INPUT -m comment --comment "kubernetes health check rules" -j KUBE-NODE-PORT
-A INPUT -s 198.51.100.1/32 -j DROP
COMMIT
"""


def _with(text: str, *chains: str, rules: tuple[str, ...] = ()) -> FakeKernel:
    """*text* with more chains and rules in the table nat."""
    declared = "".join(f":{chain} - [0:0]\n" for chain in chains)
    added = "".join(f"{rule}\n" for rule in rules)
    body, end, rest = text.partition("COMMIT\n")
    head, first, old = body.partition("-A ")
    return FakeKernel(f"{head}{declared}{first}{old}{added}{end}{rest}")


def _fates(kernel: FakeKernel, place: Place, scope: Scope = Scope.ALL) -> Mapping[str, tuple[Kind, Fate]]:
    """By chain of the table nat."""
    judged = judge_tables(kernel.saved(), place, scope)
    return {name: (one.kind, one.fate) for one in judged if one.place.endswith(" nat") for name in one.names}


def test_same_chains_are_replaced_by_a_sync() -> None:
    """In the backend in use kube-proxy's chains are ours: nothing is planned."""
    kernel = FakeKernel(_OURS)

    assert set(_fates(kernel, _USED).values()) == {(Kind.SAME_CHAINS, Fate.REPLACED)}
    assert plan_takeover(kernel.saved(), _USED, Scope.ALL, staged=True).transactions == ()


def _rendered(shape: ShapeConfig) -> FakeKernel:
    """40 Services, one of them with 300 endpoints, in the tables of a node."""
    objects: list[Service | EndpointSlice] = []
    for number in range(1, 41):
        one = service(f"s{number}", cluster_ip=f"10.96.{number % 3}.{number}", ports=[service_port(80)])
        hosts = range(1, 151) if number == 1 else range(1, 3)
        entries = [slice_endpoint(f"10.244.{net}.{host}") for host in hosts for net in (1, 2)]
        objects += [one, endpoint_slice(one, entries, ports=[8080])]
    return FakeKernel(render_save(with_base_chains(desired_for(*objects, config=Config(shape=shape)))))


@pytest.mark.parametrize(
    "shape",
    [
        ShapeConfig(dispatch=Dispatch.TREE, balance=Balance.LINEAR),
        ShapeConfig(dispatch=Dispatch.LINEAR, balance=Balance.GROUPED),
        ShapeConfig(dispatch=Dispatch.TREE, balance=Balance.GROUPED),
    ],
    ids=["tree", "groups", "both"],
)
def test_real_trees_and_groups_are_all_told(shape: ShapeConfig) -> None:
    """Every chain that the row of rules lacks is told as a shape of ours, and no other one."""
    row = _rendered(ShapeConfig(dispatch=Dispatch.LINEAR, balance=Balance.LINEAR)).saved().tables["nat"]
    kernel = _rendered(shape)

    told = {name for name, (kind, _) in _fates(kernel, _USED).items() if kind is Kind.SHAPE}
    assert told
    assert kernel.saved().tables["nat"].keys() - row.keys() == told


@pytest.mark.parametrize("scope", [Scope.START, Scope.ALL])
def test_other_backend_is_emptied_of_ours_and_keeps_the_rest(scope: Scope) -> None:
    """Chains of our names and the jumps into them go; a look-alike and the rules of others stay."""
    kernel = _with(_OURS, "KUBE-SVC-MYOWN", rules=("-A OUTPUT -d 198.51.100.1/32 -j KUBE-SVC-MYOWN",))
    fates = _fates(kernel, _OTHER, scope)
    kernel.apply(plan_takeover(kernel.saved(), _OTHER, scope, staged=False))

    assert fates["KUBE-SVC-MYOWN"] == (Kind.FOREIGN, Fate.KEPT)
    assert fates[_SVC] == (Kind.OTHER_BACKEND, Fate.REMOVED)
    assert [line for line in kernel.save().splitlines() if "KUBE" in line] == [
        ":KUBE-SVC-MYOWN - [0:0]",
        "-A OUTPUT -d 198.51.100.1/32 -j KUBE-SVC-MYOWN",
    ]


@pytest.mark.parametrize("staged", [True, False])
def test_table_that_came_into_being_with_ours_goes_from_the_other_backend(*, staged: bool) -> None:
    """On nf_tables, where the mark says so; in the legacy backend tables cannot be removed."""
    plan = plan_takeover(_with(_OURS, "KUBE-PROXY-CANARY").saved(), _OTHER, Scope.START, staged=staged)

    assert plan.void_tables == (("nat",) if staged else ())


def test_chain_that_somebody_else_uses_stays_in_the_other_backend() -> None:
    """A host port rule that jumps to KUBE-MARK-MASQ keeps it; the row says who."""
    kernel = _with(_OURS, "CNI-HOSTPORT-SETMARK", rules=("-A CNI-HOSTPORT-SETMARK -j KUBE-MARK-MASQ",))
    judged = judge_tables(kernel.saved(), _OTHER, Scope.ALL)

    kept = [one for one in judged if one.names == ("KUBE-MARK-MASQ",)]
    assert [(one.fate, one.why) for one in kept] == [(Fate.KEPT, "chain CNI-HOSTPORT-SETMARK jumps to it")]


def test_foreign_rules_in_the_other_backend_are_told() -> None:
    """Packets meet the rules of both backends, so a person has to know."""
    kernel = FakeKernel(_IPVS)
    judged = judge_tables(kernel.saved(), _OTHER, Scope.ALL)

    foreign = [(one.place, one.names, one.fate) for one in judged if one.kind is Kind.FOREIGN]
    assert foreign == [("legacy ipv4 filter", ("INPUT",), Fate.KEPT)]


def test_nothing_goes_while_our_rules_do_not_stand() -> None:
    """What is there may be all that answers for Services."""
    kernel = _with(_OURS, _XLB)

    assert {fate for _, fate in _fates(kernel, _OTHER, Scope.NOTHING).values()} == {Fate.KEPT}
    assert plan_takeover(kernel.saved(), _OTHER, Scope.NOTHING, staged=True).transactions == ()
    assert not rules_stand(FakeKernel(_IPVS).saved())
    assert not rules_stand(FakeKernel("").saved())
    assert rules_stand(kernel.saved())


def test_chains_of_the_ipvs_mode_stay_as_long_as_its_dispatch_leads_there() -> None:
    """A plan for the backend in use takes no chain from under KUBE-SERVICES."""
    fates = _fates(FakeKernel(_IPVS), _USED)
    plan = plan_takeover(FakeKernel(_IPVS).saved(), _USED, Scope.ALL, staged=True)

    assert fates["KUBE-LOAD-BALANCER"] == fates["KUBE-NODE-PORT"] == (Kind.IPVS, Fate.KEPT)
    assert {transaction.table for transaction in plan.transactions} == {"filter"}


def test_chains_of_the_ipvs_mode_go_once_a_sync_has_rewritten_the_dispatch() -> None:
    """Its jumps from built-in chains go with them; a foreign rule beside them stays."""
    kernel = FakeKernel(_IPVS)
    rewritten = f"*nat\n:KUBE-SERVICES - [0:0]\n:{_SVC} - [0:0]\n-A KUBE-SERVICES -d 10.96.0.1/32 -j {_SVC}\nCOMMIT\n"
    kernel.restore(rewritten)
    kernel.apply(plan_takeover(kernel.saved(), _USED, Scope.ALL, staged=True))

    text = kernel.save()
    assert "KUBE-LOAD-BALANCER" not in text
    assert "KUBE-NODE-PORT" not in text
    assert "KUBE-IPVS" not in text
    assert "-A INPUT -s 198.51.100.1/32 -j DROP" in text
    assert f"-A KUBE-SERVICES -d 10.96.0.1/32 -j {_SVC}" in text


def test_tables_of_the_ipvs_mode_go_as_a_whole_from_the_other_backend() -> None:
    """Chains of both kinds that lead to each other keep nothing."""
    kernel = FakeKernel(_IPVS)
    kernel.apply(plan_takeover(kernel.saved(), _OTHER, Scope.ALL, staged=False))

    assert "KUBE" not in kernel.save()


def test_daemon_keeps_what_the_ipvs_mode_and_older_versions_left() -> None:
    """As kube-proxy does when it starts in iptables mode; the row names the command that removes it."""
    kernel = _with(_OURS, _XLB, "KUBE-LOAD-BALANCER")
    judged = judge_tables(kernel.saved(), _USED, Scope.START)

    kept = [one for one in judged if one.kind in (Kind.IPVS, Kind.OLDER)]
    assert [one.fate for one in kept] == [Fate.KEPT, Fate.KEPT]
    assert all("`kproxy-ipt takeover` removes them" in one.why for one in kept)


@pytest.mark.parametrize(("kubelet", "fate"), [((), Fate.REMOVED), (("KUBE-KUBELET-CANARY",), Fate.KEPT)])
def test_mark_for_drop_stays_where_a_kubelet_is(kubelet: tuple[str, ...], fate: Fate) -> None:
    """Old kubelets own KUBE-MARK-DROP as well."""
    fates = _fates(_with(_OURS, "KUBE-MARK-DROP", _XLB, *kubelet), _USED)

    assert (fate, Fate.REMOVED) == (fates["KUBE-MARK-DROP"][1], fates[_XLB][1])


def test_only_exact_names_are_older_ones() -> None:
    """A chain that merely begins like one is somebody else's."""
    fates = _fates(_with(_OURS, "KUBE-XLB-MYOWN", "KUBE-HOSTPORTS"), _USED)

    assert fates["KUBE-XLB-MYOWN"] == fates["KUBE-HOSTPORTS"] == (Kind.FOREIGN, Fate.KEPT)


def test_sets_go_by_exact_name_and_when_nothing_asks_them() -> None:
    """A set of somebody else with a similar name is not even listed; one that a staying rule asks stays."""
    names = ("KUBE-CLUSTER-IP", "KUBE-6-LOOP-BACK", "KUBE-CUSTOM", "MINE")
    judged = judge_sets(names, frozenset({"KUBE-6-LOOP-BACK"}), Scope.ALL)

    assert [(one.names, one.fate) for one in judged] == [
        (("KUBE-CLUSTER-IP",), Fate.REMOVED),
        (("KUBE-6-LOOP-BACK",), Fate.KEPT),
    ]


def test_sets_of_deleted_chains_are_free() -> None:
    """Whether a set is asked is looked at without the chains that go."""
    kernel = FakeKernel(_IPVS)
    actual = kernel.saved()

    gone = plan_takeover(actual, _OTHER, Scope.ALL, staged=False)
    nothing = plan_takeover(actual, _OTHER, Scope.NOTHING, staged=False)
    assert sets_in_use(actual, gone) == frozenset()
    assert sets_in_use(actual, nothing) == {"KUBE-LOAD-BALANCER"}


@pytest.mark.parametrize(
    ("link_kind", "scope", "fate"),
    [
        ("dummy", Scope.ALL, Fate.REMOVED),
        ("dummy", Scope.START, Fate.KEPT),
        ("dummy", Scope.NOTHING, Fate.KEPT),
        ("bridge", Scope.ALL, Fate.KEPT),
        ("", Scope.ALL, Fate.KEPT),
    ],
)
def test_only_a_dummy_interface_is_that_of_the_ipvs_mode(link_kind: str, scope: Scope, fate: Fate) -> None:
    """An interface of that name and another kind was made by somebody else."""
    judged = judge_interface("kube-ipvs0", link_kind, scope)

    assert judged.fate is fate
    assert ("no dummy interface" in judged.why) is (link_kind != "dummy")
    assert link_kind == "dummy" or f"but {link_kind or 'a device'}," in judged.why


def test_tables_of_the_nftables_mode_go_in_both_scopes() -> None:
    """kube-proxy removes them at each start in iptables mode."""
    judged = [judge_nftables(Family.IPV6, "kube-proxy", scope) for scope in Scope]

    assert [one.fate for one in judged] == [Fate.KEPT, Fate.REMOVED, Fate.REMOVED]
    assert ["`sync --once`" in one.why for one in judged] == [True, False, False]


def test_things_that_are_no_chains_say_what_they_are_and_where() -> None:
    """Sets, the interface, virtual services and tables of the nftables mode, each in a row of its own."""
    judged = [
        *judge_sets(("KUBE-CLUSTER-IP",), frozenset(), Scope.START),
        judge_interface("kube-ipvs0", "dummy", Scope.ALL),
        judge_virtual_services(7),
        *(judge_nftables(family, "kube-proxy", Scope.ALL) for family in Family),
    ]

    assert [(one.kind, one.place, one.names, one.fate) for one in judged] == [
        (Kind.IPVS, "ipset", ("KUBE-CLUSTER-IP",), Fate.KEPT),
        (Kind.IPVS, "link", ("kube-ipvs0",), Fate.REMOVED),
        (Kind.IPVS, "ipvs", ("7 virtual services",), Fate.KEPT),
        (Kind.NFTABLES, "nf_tables ip", ("kube-proxy",), Fate.REMOVED),
        (Kind.NFTABLES, "nf_tables ip6", ("kube-proxy",), Fate.REMOVED),
    ]


def test_shared_chains_are_told_as_such_in_the_backend_in_use() -> None:
    """Those of the kubelet, the firewall chain and the mark; in the other backend the mark is a chain like ours."""
    names = ("KUBE-KUBELET-CANARY", "KUBE-IPTABLES-HINT", "KUBE-FIREWALL", "KUBE-PROXY-CANARY")
    kernel = _with(_OURS, *names)
    used, other = (_fates(kernel, place) for place in (_USED, _OTHER))

    assert {name: used[name] for name in names} == dict.fromkeys(names, (Kind.SHARED, Fate.KEPT))
    assert {name: other[name] for name in names[:3]} == dict.fromkeys(names[:3], (Kind.SHARED, Fate.KEPT))
    assert other["KUBE-PROXY-CANARY"] == (Kind.OTHER_BACKEND, Fate.REMOVED)


def _reasons(kernel: FakeKernel, place: Place, scope: Scope = Scope.ALL) -> Mapping[tuple[str, str], str]:
    """By table and chain."""
    judged = judge_tables(kernel.saved(), place, scope)
    return {(one.place.split()[2], name): one.why for one in judged for name in one.names}


def test_reason_is_that_of_the_thing_and_of_what_becomes_of_it() -> None:
    """Why a chain goes, why another one stays, and what to do about it."""
    firewall = "*filter\n:KUBE-FIREWALL - [0:0]\nCOMMIT\n"
    other = _reasons(FakeKernel(_OURS + firewall), _OTHER)
    used = _reasons(_with(_OURS, "KUBE-MARK-DROP", "KUBE-KUBELET-CANARY", _XLB, "KUBE-MINE"), _USED)

    assert other["filter", "KUBE-FIREWALL"] == other["nat", _SVC]
    assert "beside the rules of the backend in use" in other["nat", _SVC]
    assert "this version" in used["nat", _XLB]
    assert "there is a kubelet" in used["nat", "KUBE-MARK-DROP"]
    assert "neither kube-proxy nor kproxy-ipt" in used["nat", "KUBE-MINE"]
    assert "the kubelet has them too" in used["nat", "KUBE-KUBELET-CANARY"]


def test_foreign_rules_beside_ours_are_nothing_to_tell() -> None:
    """In the backend in use rules of others are everyday; only names like ours are told."""
    kernel = _with(_OURS, rules=("-A OUTPUT -d 198.51.100.1/32 -j ACCEPT",))

    assert not [one for one in judge_tables(kernel.saved(), _USED, Scope.ALL) if one.kind is Kind.FOREIGN]


def test_parts_of_a_tree_of_filter_are_told() -> None:
    """kube-proxy has no chains of Services there; a look-alike is somebody else's."""
    kernel = FakeKernel(f"*filter\n:{_SVC} - [0:0]\n:KUBE-SERVICES - [0:0]\n:KUBE-SVC-MYOWN - [0:0]\nCOMMIT\n")
    judged = judge_tables(kernel.saved(), _USED, Scope.ALL)

    assert {(one.kind, one.names) for one in judged} == {
        (Kind.SHAPE, (_SVC,)),
        (Kind.SAME_CHAINS, ("KUBE-SERVICES",)),
        (Kind.FOREIGN, ("KUBE-SVC-MYOWN",)),
    }


def test_chains_of_other_tables_are_nobodys() -> None:
    """The ipvs mode and older versions have none in mangle."""
    kernel = FakeKernel(f"*mangle\n:KUBE-LOAD-BALANCER - [0:0]\n:{_XLB} - [0:0]\nCOMMIT\n")

    assert {one.kind for one in judge_tables(kernel.saved(), _USED, Scope.ALL)} == {Kind.FOREIGN}
    assert plan_takeover(kernel.saved(), _USED, Scope.ALL, staged=True).transactions == ()


@pytest.mark.parametrize("scope", list(Scope))
def test_every_reason_is_a_clause(scope: Scope) -> None:
    """It goes on a sentence: it does not begin with a capital letter, nor end in a full stop."""
    kernel = _with(_IPVS, "KUBE-MARK-DROP", "KUBE-KUBELET-CANARY", _XLB, "KUBE-MINE", "KUBE-PROXY-CANARY")
    judged: list[Leftover] = [
        *(one for place in (_USED, _OTHER) for one in judge_tables(kernel.saved(), place, scope)),
        *judge_sets(("KUBE-CLUSTER-IP", "KUBE-LOOP-BACK"), frozenset({"KUBE-LOOP-BACK"}), scope),
        *(judge_interface("kube-ipvs0", link_kind, scope) for link_kind in ("dummy", "bridge", "")),
        judge_virtual_services(1),
        judge_nftables(Family.IPV4, "kube-proxy", scope),
    ]

    assert {kind for kind in Kind if kind is not Kind.SHAPE} <= {one.kind for one in judged}
    assert [one for one in judged if not one.why[0].islower() or one.why.endswith(".")] == []
