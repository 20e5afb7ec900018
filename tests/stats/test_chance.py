"""The chi-square statistic and what may be added up."""

import math

import pytest

from kproxy_ipt.stats.chance import probability_of, shares_probability, shares_statistic


def test_statistic_is_that_of_pearson() -> None:
    """The sum of squared deviations over expectations."""
    statistic, degrees = shares_statistic({"a": 60, "b": 40}, {"a": 1, "b": 1})

    assert (4.0, 1) == (statistic, degrees)
    assert shares_probability({"a": 60, "b": 40}, {"a": 1, "b": 1}) == pytest.approx(0.0455, abs=1e-4)


def test_what_has_no_share_cannot_be_chance() -> None:
    """However much the others fit."""
    statistic, _ = shares_statistic({"a": 50, "b": 50, "c": 1}, {"a": 1, "b": 1})

    assert math.isinf(statistic)
    assert 0.0 == probability_of(statistic, 2)


def test_where_nothing_is_chosen_everything_fits() -> None:
    """One place has no degree of freedom."""
    assert (0.0, 0) == shares_statistic({"a": 9}, {"a": 1})
    assert 1.0 == probability_of(0.0, 0)


def test_sums_of_two_choices_are_judged_together() -> None:
    """Two choices that are each a little off are less likely than one of them."""
    one, degrees = shares_statistic({"a": 60, "b": 40}, {"a": 1, "b": 1})

    assert probability_of(2 * one, 2 * degrees) == pytest.approx(math.exp(-one))
    assert probability_of(5 * one, 5 * degrees) < probability_of(one, degrees)


def test_nothing_counted_is_nothing_to_compare() -> None:
    """An error, not a probability."""
    with pytest.raises(ValueError, match="nothing to compare"):
        shares_statistic({}, {"a": 1})
