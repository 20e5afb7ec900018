"""Steps become transactions: in order, never cut, bounded in size where that is asked for."""

import pytest

from kproxy_ipt.plan.stages import MAX_LINES, Step, fits_one_transaction, pack
from kproxy_ipt.ruleset.edits import DeleteChain, Edit, EditChain, EnsureChain, WriteChain

A, B, C = (DeleteChain(name) for name in "ABC")


def _rules(count: int) -> tuple[str, ...]:
    return tuple(f"-A X -j R{number}" for number in range(count))


@pytest.mark.parametrize(
    ("edit", "lines"),
    [
        (WriteChain("X", _rules(3)), 4),
        (WriteChain("X", ()), 1),
        (EditChain("X", _rules(2), ((1, "-A X -j NEW"),)), 3),
        (EnsureChain("X"), 1),
        (A, 1),
    ],
)
def test_a_step_is_as_long_as_the_lines_that_it_makes(edit: Edit, lines: int) -> None:
    """A chain's own line counts where it is written or deleted, not where single rules of it change."""
    assert Step("nat", (edit,)).lines == lines
    assert Step("nat", (edit, edit)).lines == 2 * lines


def test_transaction_is_filled_up_to_the_bound_and_not_beyond() -> None:
    """A step that does not fit begins the next one; the lines of the one before do not count any more."""
    steps = [Step("nat", (WriteChain(name, _rules(2)),)) for name in "ABCDE"]

    sizes = [[len(one.edits) for one in pack(steps, staged=True, max_lines=bound)] for bound in (5, 6, 8, 9, 15)]
    assert sizes == [[1, 1, 1, 1, 1], [2, 2, 1], [2, 2, 1], [3, 2], [5]]


def test_step_that_exceeds_the_bound_stays_whole() -> None:
    """It has a transaction to itself, and no empty one comes before it."""
    long = Step("nat", (WriteChain("X", _rules(9)), A))
    packed = pack([long, Step("nat", (B,))], staged=True, max_lines=3)

    assert [one.edits for one in packed] == [long.edits, (B,)]


def test_another_table_is_another_transaction_in_either_way() -> None:
    """The order of the steps is kept, so a table can come twice."""
    steps = [Step("nat", (A,)), Step("nat", (B,)), Step("filter", (C,)), Step("nat", (C,))]

    for staged in (True, False):
        packed = pack(steps, staged=staged)
        assert [(one.table, one.edits) for one in packed] == [("nat", (A, B)), ("filter", (C,)), ("nat", (C,))]
    assert pack([], staged=True) == ()


def test_size_is_unbounded_where_it_is_not_staged() -> None:
    """On the legacy backend each transaction copies the whole table."""
    steps = [Step("nat", (A,))] * (MAX_LINES + 1)

    assert [len(one.edits) for one in pack(steps, staged=False)] == [MAX_LINES + 1]
    assert [len(one.edits) for one in pack(steps, staged=True)] == [MAX_LINES, 1]


def test_what_fits_one_transaction_is_what_would_be_packed_into_one() -> None:
    """Up to the bound, which is the same."""
    steps = [Step("nat", (A,))] * 4

    assert [fits_one_transaction(steps, bound) for bound in (3, 4)] == [False, True]
    assert [fits_one_transaction([Step("nat", (A,))] * count) for count in (MAX_LINES, MAX_LINES + 1)] == [True, False]
