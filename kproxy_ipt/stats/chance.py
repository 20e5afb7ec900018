"""
Do the connections that were counted fit the shares that were promised?

Pearson's chi-square test, with its own survival function so that no numerical library is needed. Who compares shares
must accept chance: with `p=0.001` a correct balancing fails once in a thousand looks, and 3,000 connections show a
share that is off by a tenth of itself.
"""

import math
from collections.abc import Mapping

_TERMS = 10_000
_PRECISION = 1e-15
_TINY = 1e-300


def _lower_gamma_series(a: float, x: float) -> float:
    """Regularised lower incomplete gamma function by its power series; converges fast for x < a + 1."""
    term = total = 1.0 / a
    for step in range(1, _TERMS):
        term *= x / (a + step)
        total += term
        if term < total * _PRECISION:
            break
    return total * math.exp(a * math.log(x) - x - math.lgamma(a))


def _upper_gamma_fraction(a: float, x: float) -> float:
    """Regularised upper incomplete gamma function by its continued fraction (Lentz); converges fast for x >= a + 1."""
    b = x + 1.0 - a
    c = 1.0 / _TINY
    d = 1.0 / b
    fraction = d
    for step in range(1, _TERMS):
        numerator = -step * (step - a)
        b += 2.0
        d = 1.0 / (numerator * d + b or _TINY)
        c = b + numerator / c or _TINY
        fraction *= d * c
        if abs(d * c - 1.0) < _PRECISION:
            break
    return fraction * math.exp(a * math.log(x) - x - math.lgamma(a))


def chi_square_tail(statistic: float, degrees: int) -> float:
    """
    The probability that a chi-square variable is at least as large as *statistic*.

    Args:
        statistic: 0 or more.
        degrees: Degrees of freedom, 1 or more.

    Raises:
        ValueError: An argument is outside its range.
    """
    if statistic < 0 or degrees < 1:
        raise ValueError(f"no chi-square tail for statistic {statistic} with {degrees} degrees of freedom")
    a, x = degrees / 2.0, statistic / 2.0
    if x == 0:
        return 1.0
    return 1.0 - _lower_gamma_series(a, x) if x < a + 1.0 else _upper_gamma_fraction(a, x)


def shares_statistic(counts: Mapping[str, int], expected: Mapping[str, float]) -> tuple[float, int]:
    """
    Pearson's statistic of one choice, and its degrees of freedom; both may be added up over independent choices.

    Args:
        counts: By name; a missing name counts 0.
        expected: Weights by name; they are divided by their sum, so that `{"a": 1, "b": 1}` means halves.

    Returns:
        `(inf, n)` where a name was chosen that has no share; `(0.0, 0)` where only one name has a share.

    Raises:
        ValueError: No count at all, a negative weight, or no positive one: there is nothing to compare.
    """
    total, weight = sum(counts.values()), sum(expected.values())
    if total <= 0 or weight <= 0 or min(expected.values()) < 0:
        raise ValueError(f"nothing to compare: {dict(counts)} with shares {dict(expected)}")
    likely = {name: total * share / weight for name, share in expected.items() if share > 0}
    if any(count > 0 and name not in likely for name, count in counts.items()):
        return math.inf, len(likely)
    return sum((counts.get(name, 0) - mean) ** 2 / mean for name, mean in likely.items()), len(likely) - 1


def shares_probability(counts: Mapping[str, int], expected: Mapping[str, float]) -> float:
    """
    How likely chance alone makes counts that are at least as far from the expected shares as these.

    Args:
        counts: As for `shares_statistic`.
        expected: Likewise.

    Returns:
        Between 0 and 1; exactly 0 where a name was chosen that has no share. 1 where only one name has a share.

    Raises:
        ValueError: As `shares_statistic`.
    """
    return probability_of(*shares_statistic(counts, expected))


def probability_of(statistic: float, degrees: int) -> float:
    """The probability that belongs to one or several sums of `shares_statistic`; 1 where nothing was to choose."""
    if math.isinf(statistic):
        return 0.0
    return chi_square_tail(statistic, degrees) if degrees else 1.0
