"""
An assertion about shares that accepts chance.

With `p=0.001` a correct balancing fails once in a thousand runs; `kproxy_ipt/stats/chance.py` has the test itself.
"""

from collections.abc import Mapping

from kproxy_ipt.stats.chance import chi_square_tail, shares_probability

__all__ = ["assert_shares", "chi_square_tail", "shares_probability"]


def assert_shares(counts: Mapping[str, int], expected: Mapping[str, float], p: float = 0.001) -> None:
    """
    Fail where the counts do not fit the expected shares.

    Args:
        counts: Answers by name.
        expected: Weights by name, see `shares_probability`.
        p: How often a correct balancing may fail by chance.

    Raises:
        AssertionError: The counts are less likely than *p*; its text holds counts, expectations and probability.
    """
    probability = shares_probability(counts, expected)
    if probability < p:
        weight, total = sum(expected.values()), sum(counts.values())
        wanted = {name: round(total * share / weight, 1) for name, share in expected.items()}
        raise AssertionError(
            f"shares are off: counted {dict(sorted(counts.items()))}, expected {wanted}, "
            f"probability by chance {probability:.2g} < {p}"
        )
