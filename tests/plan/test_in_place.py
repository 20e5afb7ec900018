"""A chain is changed in place only where that has the effect of writing it anew."""

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.plan.in_place import in_place
from kproxy_ipt.plan.stages import Step
from kproxy_ipt.plan.wanted import Wanted
from kproxy_ipt.rules.names import endpoint_chain_name
from kproxy_ipt.ruleset.edits import DeleteChain, Edit, EditChain, EnsureChain, WriteChain
from kproxy_ipt.ruleset.scan import SavedChain, SavedTables, scan_save

A, B, C = (f"-A KUBE-SERVICES -d 10.96.0.{number}/32 -j KUBE-SVC-{number * 4}AAAAAAAAAAAAAAA" for number in (1, 2, 3))
_ODD = "-A KUBE-SERVICES -m limit --limit 3/min -j KUBE-SVC-AAAAAAAAAAAAAAAA"
_REFUSED = "-A KUBE-SERVICES -d 10.96.0.9/32 -j REJECT --reject-with icmp-port-unreachable"
_NO_RULE = "-A KUBE-SERVICES foo"


def _edit(old: tuple[str, ...], new: tuple[str, ...]) -> Edit:
    lines = "".join(f"{line}\n" for line in old)
    actual = scan_save(f"*nat\n:KUBE-SERVICES - [0:0]\n{lines}COMMIT\n")
    wanted = Wanted(family=Family.IPV4, tables={})
    ((edit,),) = (step.edits for step in in_place([Step("nat", (WriteChain("KUBE-SERVICES", new),))], actual, wanted))
    return edit


def test_rule_that_goes_is_deleted_where_it_stands() -> None:
    """What stays is not written again."""
    assert _edit((A, B, C), (A, C)) == EditChain("KUBE-SERVICES", (B,), ())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ((A, B, C), (C, A)),  # what stays changes places
        ((A, B, B, C), (A, C)),  # which of the two is deleted?
        ((A, B, C), (A, A)),
        ((A, _ODD, C), (A, C)),  # a match that nobody here understands
        ((A, _NO_RULE, C), (A, C)),
        ((A, _REFUSED, C), (A, C)),  # a target with options
        ((A, B), (A, B, C)),  # a small chain is as soon written
    ],
)
def test_chain_is_written_anew_where_an_edit_would_not_do(old: tuple[str, ...], new: tuple[str, ...]) -> None:
    """Order, doubles and rules of others are left to a transaction that replaces the chain."""
    assert _edit(old, new) == WriteChain("KUBE-SERVICES", new)


CHAIN = "KUBE-SERVICES"
WANTED = Wanted(family=Family.IPV4, tables={}, owners={"KUBE-SVC-AAAAAAAAAAAAAAAA": "default/web"})


def _row(numbers: range, chain: str = CHAIN) -> tuple[str, ...]:
    return tuple(f"-A {chain} -j {endpoint_chain_name('default/web', 'tcp', str(number))}" for number in numbers)


def _listed(lines: tuple[str, ...], *, table: str = "nat", chain: str = CHAIN) -> SavedTables:
    return SavedTables({table: {chain: SavedChain(chain, "-", lines)}})


@pytest.mark.parametrize(
    ("old", "new", "edited"),
    [
        (range(64), range(1, 64), True),  # one of 64 goes
        (range(64), range(65), True),  # one is added, to 65
        (range(63), range(64), True),  # the smallest chain in which a rule is inserted
        (range(62), range(63), False),
        (range(64), range(8, 72), False),  # 8 go and 8 are added: 16 of 64
        (range(64), range(4, 68), True),  # 4 and 4: an eighth
        (range(64), range(5, 68), False),  # one more
        (range(64), range(32, 64), True),  # the most that are deleted
        (range(64), range(33, 64), False),
        (range(480), range(512), True),  # the most that are inserted
        (range(479), range(512), False),
        (range(64), range(0), False),  # nothing is left: it is as soon emptied
        (range(3), range(0), False),
        (range(0), range(64), False),  # nothing was there
        (range(33), range(32, 33), True),  # deleting needs no large chain
        (range(3), range(3), True),  # nothing differs
    ],
)
def test_bounds_within_which_a_chain_is_edited(old: range, new: range, *, edited: bool) -> None:
    """Of each bound the last chain on either side; the edit holds what differs, each at the place it ends up at."""
    step = Step("nat", (WriteChain(CHAIN, _row(new)),))
    [(edit,)] = [one.edits for one in in_place([step], _listed(_row(old)), WANTED)]

    gone, come = _row(range(old.start, new.start)), _row(range(max(old.stop, new.start), new.stop))
    first = len(new) - len(come) + 1
    assert edit == (
        EditChain(CHAIN, gone, tuple(enumerate(come, start=first))) if edited else WriteChain(CHAIN, _row(new))
    )


def test_rule_is_inserted_where_it_ends_up() -> None:
    """Positions are those of the chain as it is in the end, from 1."""
    row = _row(range(70))
    new = (A, *row[:40], B, *row[41:], C)
    [(edit,)] = [one.edits for one in in_place([Step("nat", (WriteChain(CHAIN, new),))], _listed(row), WANTED)]

    assert edit == EditChain(CHAIN, (row[40],), ((1, A), (42, B), (72, C)))


def test_chains_of_service_ports_are_left_as_they_are() -> None:
    """They are small, and all of one Service change together."""
    own = "KUBE-SVC-AAAAAAAAAAAAAAAA"
    old = _row(range(3), own)
    step = Step("nat", (WriteChain(own, old[1:]),))

    assert list(in_place([step], _listed(old, chain=own), WANTED)) == [step]


def test_chain_that_is_written_twice_is_edited_from_what_it_is_by_then() -> None:
    """Of either table; a chain that was deleted in between is a new one, and other edits pass through."""
    row = _row(range(4))
    writes = [WriteChain(CHAIN, row[number:]) for number in (1, 2)]
    steps = [
        Step("nat", (writes[0], EnsureChain("X"))),
        Step("filter", (writes[0],)),
        Step("nat", (writes[1],)),
        Step("nat", (DeleteChain(CHAIN),)),
        Step("nat", (writes[1],)),
    ]

    assert list(in_place(steps, _listed(row), WANTED)) == [
        Step("nat", (EditChain(CHAIN, row[:1], ()), EnsureChain("X"))),
        Step("filter", (writes[0],)),
        Step("nat", (EditChain(CHAIN, row[1:2], ()),)),
        Step("nat", (DeleteChain(CHAIN),)),
        Step("nat", (writes[1],)),
    ]
