"""A chain is changed in place only where that has the effect of writing it anew."""

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.plan.in_place import in_place
from kproxy_ipt.plan.stages import Step
from kproxy_ipt.plan.wanted import Wanted
from kproxy_ipt.ruleset.edits import Edit, EditChain, WriteChain
from kproxy_ipt.ruleset.scan import scan_save

A, B, C = (f"-A KUBE-SERVICES -d 10.96.0.{number}/32 -j KUBE-SVC-{number * 4}AAAAAAAAAAAAAAA" for number in (1, 2, 3))
_ODD = "-A KUBE-SERVICES -m limit --limit 3/min -j KUBE-SVC-AAAAAAAAAAAAAAAA"
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
        ((A, B), (A, B, C)),  # a small chain is as soon written
    ],
)
def test_chain_is_written_anew_where_an_edit_would_not_do(old: tuple[str, ...], new: tuple[str, ...]) -> None:
    """Order, doubles and rules of others are left to a transaction that replaces the chain."""
    assert _edit(old, new) == WriteChain("KUBE-SERVICES", new)
