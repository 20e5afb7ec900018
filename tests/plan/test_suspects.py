"""The search for Services that are refused, without any kernel: who is found, and in how many trials."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kproxy_ipt.plan.suspects import Search
from kproxy_ipt.state.tracker import ServiceName

MOST_TRIALS = 500
"""More than any search of these tests may take: one that goes round in circles fails instead of hanging."""


def _names(numbers: range) -> list[ServiceName]:
    return [("default", f"s{number:04}") for number in numbers]


def _searched(suspects: list[ServiceName], bad: set[ServiceName], *, named: bool = False) -> tuple[Search, int]:
    """Search until nothing is untold; also the number of trials."""
    search, trials = Search(suspects), 0
    while search.untold:
        trials += 1
        assert trials <= MOST_TRIALS
        culprits = [name for name in search.trial if name in bad]
        if not culprits:
            search.taken()
        else:
            assert search.refused(culprits[0] if named else None)
    return search, trials


@pytest.mark.parametrize("number", range(0, 2000, 37))
def test_one_among_two_thousand_is_found_in_fourteen_trials(number: int) -> None:
    """Wherever it stands."""
    suspects = _names(range(2000))
    search, trials = _searched(suspects, {suspects[number]})

    assert search.found == [suspects[number]]
    assert trials <= 14


@given(size=st.integers(1, 200), choice=st.randoms(use_true_random=False), named=st.booleans())
@settings(max_examples=100, deadline=None)
def test_all_bad_ones_and_no_others_are_found_within_the_bound(size: int, choice: object, *, named: bool) -> None:
    """Each costs no more trials than the first one; one that the program names costs a single trial."""
    suspects = _names(range(size))
    bad = set(choice.sample(suspects, choice.randint(0, min(size, 6))))  # type: ignore[attr-defined]
    search, trials = _searched(suspects, bad, named=named)

    assert set(search.found) == bad
    assert trials <= 2 + max(len(bad), 1) * (math.ceil(math.log2(size)) + 2)


def test_refusal_without_any_suspect_is_nobodys_fault() -> None:
    """The first trial holds all back: what is refused then is something else."""
    assert not Search(_names(range(3))).refused()


def test_refusal_that_names_somebody_else_is_no_answer() -> None:
    """A Service outside of the trial is not among those that are being looked for."""
    search = Search(_names(range(4)))
    search.taken()

    assert not search.refused(("default", "other"))
