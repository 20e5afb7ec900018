"""In which order a plan does what it does, and what it counts."""

from collections.abc import Mapping

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.plan.plan import Plan, plan_wanted, rules_written
from kproxy_ipt.plan.wanted import Wanted
from kproxy_ipt.rules.fixed import BASE_JUMPS, loopback_guard
from kproxy_ipt.ruleset.edits import (
    AppendRule,
    DeleteChain,
    DeleteRule,
    Edit,
    EditChain,
    EnsureChain,
    InsertRule,
    Transaction,
    WriteChain,
)
from kproxy_ipt.ruleset.model import Rule
from kproxy_ipt.ruleset.render import render_rule
from kproxy_ipt.ruleset.scan import SavedTables, scan_save

SVC, SEP = "KUBE-SVC-AAAAAAAAAAAAAAAA", "KUBE-SEP-AAAAAAAAAAAAAAAA"
OLD_SEP, PART = "KUBE-SEP-BBBBBBBBBBBBBBBB", "KUBE-SVC-CCCCCCCCCCCCCCCC"


def _actual(**tables: Mapping[str, tuple[str, ...]]) -> SavedTables:
    lines: list[str] = []
    for table, chains in tables.items():
        lines += [f"*{table}", *(f":{name} - [0:0]" for name in chains)]
        lines += [*(line for rules in chains.values() for line in rules), "COMMIT"]
    return scan_save("".join(f"{line}\n" for line in lines))


def _wanted(**tables: Mapping[str, tuple[str, ...]]) -> Wanted:
    return Wanted(family=Family.IPV4, tables={"filter": {}, "nat": {}, **tables})


def _done(plan: Plan) -> list[tuple[str, str, str]]:
    """Table, edit and chain of everything that a plan does, in order."""
    return [
        (one.table, type(edit).__name__.removesuffix("Chain"), edit.name)
        for one in plan.transactions
        for edit in one.edits
        if isinstance(edit, WriteChain | EnsureChain | DeleteChain | EditChain)
    ]


@pytest.mark.parametrize(
    ("chain", "waits"),
    [
        ("KUBE-SERVICES", True),
        ("KUBE-EXTERNAL-SERVICES", True),
        ("KUBE-PROXY-FIREWALL", True),
        (PART, True),
        ("KUBE-NODEPORTS", False),
        ("KUBE-FORWARD", False),
    ],
)
def test_refusals_and_drops_go_after_nat_has_switched(chain: str, *, waits: bool) -> None:
    """Until then old and new ones stand together; what accepts, or counts, is written once."""
    old, new = (f"-A {chain} -d 10.96.0.{number}/32 -j REJECT --reject-with icmp-port-unreachable" for number in (1, 2))
    rule = "-A KUBE-SERVICES -d 10.96.0.1/32 -j KUBE-MARK-MASQ"
    actual = _actual(filter={chain: (old,)}, nat={"KUBE-SERVICES": ()})
    plan = plan_wanted(_wanted(filter={chain: (new,)}, nat={"KUBE-SERVICES": (rule,)}), actual, staged=False)

    written = [
        (one.table, edit.rules) for one in plan.transactions for edit in one.edits if isinstance(edit, WriteChain)
    ]
    nat = ("nat", (rule,))
    assert written == ([("filter", (new, old)), nat, ("filter", (new,))] if waits else [("filter", (new,)), nat])


def test_refusal_that_only_goes_is_not_written_before() -> None:
    """The chain holds all that is wanted already; without a change of nat it is written at once."""
    old, stays = (f"-A KUBE-SERVICES -d 10.96.0.{number}/32 -j DROP" for number in (1, 2))
    filters = {"KUBE-SERVICES": (old, stays)}
    wanted = {"KUBE-SERVICES": (stays,)}
    mark = "-A KUBE-MARK-MASQ -j RETURN"
    actual = _actual(filter=filters, nat={"KUBE-MARK-MASQ": ()})
    orders = [
        [table for table, _, _ in _done(plan_wanted(_wanted(filter=wanted, nat=nat), actual, staged=False))]
        for nat in ({"KUBE-MARK-MASQ": (mark,)}, {"KUBE-MARK-MASQ": ()}, {"KUBE-POSTROUTING": (), "KUBE-MARK-MASQ": ()})
    ]

    assert orders == [["nat", "filter"], ["filter"], ["nat", "filter"]]


_BEFORE = _actual(
    filter={"KUBE-SERVICES": ("-A KUBE-SERVICES -d 10.96.0.9/32 -j DROP",), PART: ()},
    nat={
        "KUBE-SERVICES": (),
        SVC: (f"-A {SVC} -j {OLD_SEP}",),
        OLD_SEP: (f"-A {OLD_SEP} -j RETURN",),
    },
)
_AFTER = Wanted(
    family=Family.IPV4,
    tables={
        "filter": {"KUBE-SERVICES": ("-A KUBE-SERVICES -d 10.96.0.8/32 -j DROP",), "KUBE-FORWARD": ()},
        "nat": {
            SEP: (f"-A {SEP} -j RETURN",),
            SVC: (f"-A {SVC} -j {SEP}",),
            "KUBE-MARK-MASQ": (),
            "KUBE-SERVICES": (f"-A KUBE-SERVICES -j {SVC}",),
        },
    },
    owners={SEP: "default/web", SVC: "default/web"},
)
_PREPARED = [("nat", "Write", "KUBE-MARK-MASQ"), ("nat", "Write", SEP), ("nat", "Write", SVC)]
_ADDED = [("filter", "Write", "KUBE-FORWARD"), ("filter", "Write", "KUBE-SERVICES")]
_SWITCHED = [("nat", "Write", "KUBE-SERVICES")]
_TAKEN = [("filter", "Edit", "KUBE-SERVICES"), ("filter", "Delete", PART)]
_TAKEN_BY_WRITING = [("filter", "Write", "KUBE-SERVICES"), ("filter", "Delete", PART)]
_DELETED = [("nat", "Delete", OLD_SEP)]


@pytest.mark.parametrize(("staged", "max_lines"), [(False, 1), (True, 100), (True, 8)])
def test_filter_is_written_first_and_last_where_nat_fits_one_transaction(*, staged: bool, max_lines: int) -> None:
    """Then there is no moment between its parts: fixed chains, endpoints, Services, dispatch, and what goes."""
    done = _done(plan_wanted(_AFTER, _BEFORE, staged=staged, max_lines=max_lines))

    assert done == [*_ADDED, *_PREPARED, *_SWITCHED, *_DELETED, *(_TAKEN if staged else _TAKEN_BY_WRITING)]


@pytest.mark.parametrize("max_lines", [1, 7])
def test_large_change_prepares_nat_before_filter(max_lines: int) -> None:
    """New chains, of which packets know nothing, come first, and what nothing leads to goes last."""
    done = _done(plan_wanted(_AFTER, _BEFORE, staged=True, max_lines=max_lines))

    assert done == [*_PREPARED, *_ADDED, *_SWITCHED, *_TAKEN, *_DELETED]


def test_new_tables_are_marked_before_anything_else() -> None:
    """On nf_tables; each before its first chain."""
    wanted = _wanted(filter={"KUBE-FORWARD": ()}, nat={"KUBE-MARK-MASQ": ()})
    mark = "KUBE-PROXY-CANARY"

    assert _done(plan_wanted(wanted, SavedTables({}), staged=True)) == [
        ("filter", "Ensure", mark),
        ("filter", "Write", "KUBE-FORWARD"),
        ("nat", "Ensure", mark),
        ("nat", "Write", "KUBE-MARK-MASQ"),
    ]


def test_dispatch_that_is_new_waits_for_the_chains_that_it_leads_to() -> None:
    """In a listing without any chain of ours: it is written in the end, with the jumps into it."""
    jump = next(one for one in BASE_JUMPS if one.table == "nat" and one.chain == "OUTPUT")
    chains: dict[str, tuple[str, ...]] = {"KUBE-SERVICES": (), "KUBE-NODEPORTS": (), SVC: (), "KUBE-MARK-MASQ": ()}
    wanted = Wanted(family=Family.IPV4, tables={"filter": {}, "nat": chains}, base_jumps=BASE_JUMPS)
    base = dict.fromkeys(("INPUT", "FORWARD", "OUTPUT", "PREROUTING", "POSTROUTING"), ())
    plan = plan_wanted(wanted, _actual(filter=base, nat=base), staged=True, max_lines=1)
    nat = [one.edits for one in plan.transactions if one.table == "nat"]

    assert nat[:2] == [(WriteChain("KUBE-MARK-MASQ", ()),), (WriteChain(SVC, ()),)]
    assert nat[2][:2] == (WriteChain("KUBE-SERVICES", ()), WriteChain("KUBE-NODEPORTS", ()))
    assert nat[2][2:] == tuple(InsertRule(one.chain, one.rule) for one in BASE_JUMPS if one.table == "nat")
    assert jump.rule in [edit.rule for edit in nat[2] if isinstance(edit, InsertRule)]
    inserted = [edit for one in plan.transactions if one.table == "filter" for edit in one.edits]
    assert inserted == [InsertRule(one.chain, one.rule) for one in BASE_JUMPS if one.table == "filter"]


def test_part_of_a_filter_tree_that_others_lead_to_stays_with_a_note() -> None:
    """As chains of nat do; the note names the table."""
    actual = _actual(filter={PART: (), "MINE": (f"-A MINE -j {PART}",)}, nat={SVC: (), "MINE": (f"-A MINE -j {SVC}",)})
    plan = plan_wanted(_wanted(), actual, staged=True)

    assert plan.transactions == ()
    assert plan.notes == (
        f"chain {SVC} of table nat is no longer needed but stays: chain MINE jumps to it",
        f"chain {PART} of table filter is no longer needed but stays: chain MINE jumps to it",
    )


@pytest.mark.parametrize("staged", [True, False])
def test_changed_rules_of_nat_tree_parts_come_before_dispatch(*, staged: bool) -> None:
    """Parts are no Service's; each is a step of its own."""
    actual = _actual(filter={}, nat={PART: (), SVC: (), "KUBE-SERVICES": (), "KUBE-POSTROUTING": ()})
    nat = {
        "KUBE-SERVICES": (f"-A KUBE-SERVICES -j {PART}",),
        "KUBE-POSTROUTING": ("-A KUBE-POSTROUTING -j RETURN",),
        PART: (f"-A {PART} -j {SVC}",),
        SVC: (f"-A {SVC} -j RETURN",),
    }
    wanted = Wanted(family=Family.IPV4, tables={"filter": {}, "nat": nat}, owners={SVC: "default/web"})
    plan = plan_wanted(wanted, actual, staged=staged, max_lines=1)

    assert [name for _, _, name in _done(plan)] == [SVC, PART, "KUBE-SERVICES", "KUBE-POSTROUTING"]
    assert [len(one.edits) for one in plan.transactions] == ([1, 1, 2] if staged else [4])


def test_changed_chains_of_each_service_are_a_step() -> None:
    """Those of one Service change together, those of two do not have to."""
    svl = "KUBE-SVL-AAAAAAAAAAAAAAAA"
    nat = {name: (f"-A {name} -j RETURN",) for name in (SVC, PART, svl)}
    owners = {SVC: "default/web", svl: "default/web", PART: "default/api"}
    wanted = Wanted(family=Family.IPV4, tables={"filter": {}, "nat": nat}, owners=owners)
    actual = _actual(filter={}, nat=dict.fromkeys(nat, ()))
    plan = plan_wanted(wanted, actual, staged=True, max_lines=1)

    assert [[name for _, _, name in _done(Plan(transactions=(one,)))] for one in plan.transactions] == [
        [SVC, svl],
        [PART],
    ]


def test_stale_chains_go_before_those_that_they_jump_to() -> None:
    """However they are listed; nothing of the other table comes in between."""
    nat = {OLD_SEP: (), SEP: (), SVC: (f"-A {SVC} -j {OLD_SEP}", f"-A {SVC} -j {SEP}")}
    part = "KUBE-SVC-DDDDDDDDDDDDDDDD"
    filters = {PART: (), part: (f"-A {part} -j {PART}",), "KUBE-FORWARD": ()}
    plan = plan_wanted(
        _wanted(filter={"KUBE-FORWARD": ("-A KUBE-FORWARD -j ACCEPT",)}), _actual(filter=filters, nat={}), staged=True
    )
    done = _done(plan_wanted(_wanted(), _actual(filter={}, nat=nat), staged=True))

    assert done[0] == ("nat", "Delete", SVC)
    assert {name for _, _, name in done[1:]} == {SEP, OLD_SEP}
    assert [name for _, _, name in _done(plan)] == ["KUBE-FORWARD", part, PART]
    assert [one.table for one in plan.transactions] == ["filter"]


def test_shared_chain_is_made_only_where_it_is_missing() -> None:
    """KUBE-FIREWALL without a rule of ours is never written, so that nobody's rules go."""
    wanted = Wanted(
        family=Family.IPV4, tables={"filter": {}, "nat": {}}, shared_chains=(("filter", "KUBE-FIREWALL"), ("nat", "X"))
    )
    plans = [
        plan_wanted(wanted, actual, staged=False) for actual in (_actual(nat={}), _actual(filter={"KUBE-FIREWALL": ()}))
    ]

    assert [_done(plan) for plan in plans] == [[("filter", "Ensure", "KUBE-FIREWALL")], []]


def test_guard_is_inserted_where_it_is_missing_and_written_with_a_new_chain() -> None:
    """Never twice; in an existing chain it goes to the top, whatever else stands there."""
    guard = render_rule("KUBE-FIREWALL", loopback_guard())
    wanted = _wanted(filter={"KUBE-FIREWALL": (guard,)})
    theirs = "-A KUBE-FIREWALL -j RETURN"
    edits = [
        [edit for one in plan_wanted(wanted, _actual(filter=chains), staged=False).transactions for edit in one.edits]
        for chains in ({}, {"KUBE-FIREWALL": (theirs,)}, {"KUBE-FIREWALL": (theirs, guard)})
    ]

    assert edits == [[WriteChain("KUBE-FIREWALL", (guard,))], [InsertRule("KUBE-FIREWALL", loopback_guard())], []]


COUNTED: list[tuple[Edit, int]] = [
    (WriteChain("A", ("-A A -j B", "-A A -j C")), 2),
    (EditChain("A", ("-A A -j B",), ((1, "-A A -j C"), (2, "-A A -j D"), (3, "-A A -j E"))), 3),
    (InsertRule("A", Rule()), 1),
    (AppendRule("A", Rule()), 1),
    (DeleteRule("A", Rule()), 0),
    (EnsureChain("A"), 0),
    (DeleteChain("A"), 0),
]


@pytest.mark.parametrize(("edit", "count"), COUNTED)
def test_rules_are_counted_as_they_are_written(edit: Edit, count: int) -> None:
    """Those that go are not among them."""
    assert rules_written(edit) == count
    assert Plan(transactions=(Transaction("nat", (edit,)),)).rules_written == count


def test_plan_counts_chains_and_rules() -> None:
    """A chain that is written twice is one; one of the same name in another table is another."""
    edits = tuple(edit for edit, _ in COUNTED)
    plan = Plan(transactions=(Transaction("nat", edits), Transaction("filter", (*edits, EnsureChain("B")))))

    assert plan.chains_written == 3
    assert plan.chains_deleted == 2
    assert plan.rules_deleted == 2
    assert plan.rules_written == 2 * 7
    assert plan.restore_input.transactions == plan.transactions
