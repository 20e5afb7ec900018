"""The chi-square helper, held against published values and against simulated balancing."""

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping

import pytest

from kproxy_ipt.testing.shares import (
    LEAST_PROBABILITY,
    assert_shares,
    chi_square_tail,
    sample_shares,
    shares_probability,
)

# Critical values of the chi-square distribution as printed in statistics tables: degrees, statistic, tail.
_TABLE = [
    (1, 3.841, 0.05),
    (1, 10.828, 0.001),
    (2, 5.991, 0.05),
    (4, 13.277, 0.01),
    (9, 16.919, 0.05),
    (30, 43.773, 0.05),
    (100, 149.449, 0.001),
    (100, 77.929, 0.95),
]


@pytest.mark.parametrize(("degrees", "statistic", "tail"), _TABLE)
def test_tail_agrees_with_printed_tables(degrees: int, statistic: float, tail: float) -> None:
    """The tail at a critical value is the significance level of the table."""
    actual = chi_square_tail(statistic, degrees)

    assert actual == pytest.approx(tail, rel=0.002)


@pytest.mark.parametrize("statistic", [1e-9, 0.3, 1.0, 2.9, 3.1, 40.0, 700.0])
def test_tail_with_one_degree_is_the_normal_distribution(statistic: float) -> None:
    """With one degree of freedom the tail is that of a squared normal variable, on both sides of the method switch."""
    actual = chi_square_tail(statistic, 1)

    assert actual == pytest.approx(math.erfc(math.sqrt(statistic / 2)), rel=1e-9)


@pytest.mark.parametrize("statistic", [0.5, 3.9, 4.1, 25.0])
def test_tail_with_two_degrees_is_the_exponential_distribution(statistic: float) -> None:
    """With two degrees of freedom the tail is an exponential function."""
    actual = chi_square_tail(statistic, 2)

    assert actual == pytest.approx(math.exp(-statistic / 2), rel=1e-12)


def test_tail_of_zero_is_one() -> None:
    """Counts that hit the expectation exactly are no surprise at all."""
    assert chi_square_tail(0.0, 5) == 1.0


@pytest.mark.parametrize(("statistic", "degrees"), [(-1.0, 2), (1.0, 0)])
def test_tail_outside_its_range_is_an_error(statistic: float, degrees: int) -> None:
    """A negative statistic and no degree of freedom are refused."""
    with pytest.raises(ValueError, match="no chi-square tail"):
        chi_square_tail(statistic, degrees)


def _rounds(*counts: dict[str, int]) -> Callable[[], dict[str, int]]:
    """Give these counts, and fail when one round more is asked for."""
    return iter(counts).__next__


def _draws(seed: int, weights: Mapping[str, float], size: int = 300) -> Callable[[], Counter[str]]:
    dice = random.Random(seed)
    return lambda: Counter(dice.choices(list(weights), weights=list(weights.values()), k=size))


def test_fair_balancing_is_accepted() -> None:
    """Of 2,000 balancings some look odd at first, and none is called wrong."""
    thirds = {"a": 1.0, "b": 1.0, "c": 1.0}
    first_looks = [shares_probability(_draws(seed, thirds)(), thirds) for seed in range(2000)]
    samples = [sample_shares(_draws(seed, thirds), thirds) for seed in range(2000)]

    assert min(first_looks) < 0.002
    assert all(sample.fits for sample in samples)


def test_uneven_weights_are_expected_as_given() -> None:
    """Draws with weights 1 to 3 fit those weights and not equal ones."""
    weights = {"a": 1.0, "b": 3.0}

    assert_shares(_draws(7, weights), weights)
    assert not sample_shares(_draws(7, weights), {"a": 1, "b": 1}).fits


def test_counts_that_fit_well_are_enough() -> None:
    """One round, and no second one."""
    assert sample_shares(_rounds({"a": 160, "b": 140}), {"a": 1, "b": 1}).counts == {"a": 160, "b": 140}


def test_counts_that_fit_badly_are_judged_with_more() -> None:
    """Bad luck passes once the counts of all rounds fit well."""
    found = sample_shares(_rounds({"a": 130, "b": 170}, {"a": 155, "b": 145}), {"a": 1, "b": 1})

    assert (found.counts, found.fits) == ({"a": 285, "b": 315}, True)


def test_share_that_is_off_by_a_tenth_is_found() -> None:
    """A name that gets 1,120 of 3,000 instead of 1,000, again and again, is reported with counts and probability."""
    counts = {"a": 1120, "b": 940, "c": 940}
    with pytest.raises(AssertionError, match=r"counted \{'a': 8960, 'b': 7520, 'c': 7520\}.*probability by chance"):
        assert_shares(_rounds(*[counts] * 8), {"a": 1, "b": 1, "c": 1})


def test_endpoint_that_never_answers_is_found() -> None:
    """A name that is expected but never answers fails."""
    with pytest.raises(AssertionError, match="shares are off"):
        assert_shares(_rounds(*[{"a": 60}] * 8), {"a": 1, "b": 1})


def test_small_share_that_nobody_met_is_asked_for_again() -> None:
    """Among many others it hardly shows in the sum, so it must have been met."""
    shares = {**dict.fromkeys(map(str, range(200)), 1.0), "late": 1.0}
    early = dict.fromkeys(map(str, range(200)), 10)

    assert shares_probability(early, shares) > 0.05
    assert sample_shares(_rounds(early, {**early, "late": 12}), shares).counts["late"] == 12


def test_small_share_that_nobody_ever_met_is_found() -> None:
    """However well the others fit."""
    shares = dict.fromkeys(map(str, range(1001)), 1.0)
    found = sample_shares(_rounds(*[dict.fromkeys(map(str, range(1000)), 10)] * 8), shares)

    assert found.probability > LEAST_PROBABILITY
    assert not found.fits


def test_name_without_a_share_ends_the_counting() -> None:
    """Nothing can make up for it."""
    found = sample_shares(_rounds({"a": 50, "b": 50, "stranger": 1}), {"a": 1, "b": 1})

    assert (found.probability, found.fits) == (0.0, False)


@pytest.mark.parametrize("expected", [{"a": 1.0}, {"a": 1.0, "stranger": 0.0}])
def test_name_without_a_share_is_found(expected: dict[str, float]) -> None:
    """One single answer of a name that must not answer fails, however many others are right."""
    assert shares_probability({"a": 100_000, "stranger": 1}, expected) == 0.0


def test_single_endpoint_always_fits() -> None:
    """With one name there is nothing to share out."""
    assert shares_probability({"a": 5}, {"a": 1}) == 1.0


@pytest.mark.parametrize(("counts", "expected"), [({}, {"a": 1.0}), ({"a": 1}, {"a": 0.0}), ({"a": 1}, {"a": -1.0})])
def test_nothing_to_compare_is_an_error(counts: dict[str, int], expected: dict[str, float]) -> None:
    """No answers, no shares and negative shares are mistakes of the caller, not failures of the balancing."""
    with pytest.raises(ValueError, match="nothing to compare"):
        shares_probability(counts, expected)
