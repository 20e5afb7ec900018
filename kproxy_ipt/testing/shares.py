"""
Shares that are counted until they fit, or until it cannot be chance that they do not.

One look of fixed length is wrong as often as its threshold says: with 0.001 once in a thousand runs. So counts that do
not fit well are no failure yet: more are asked for, and all together are judged, with a threshold that nobody will see
chance reach. A correct balancing fails once in 10^9 runs, and an error is seen better than by the first look alone.
`kproxy_ipt/stats/chance.py` has the test itself.
"""

from collections import Counter
from collections.abc import Callable, Mapping

import msgspec

from kproxy_ipt.stats.chance import chi_square_tail, shares_probability

__all__ = ["LEAST_PROBABILITY", "Sample", "assert_shares", "chi_square_tail", "sample_shares", "shares_probability"]

LEAST_PROBABILITY = 1e-9
"""Counts that chance makes less often than this do not fit the expected shares."""

_FITS_WELL = 0.05
"""Nothing more is asked for then; 19 of 20 correct balancings need one round."""

_MOST_ROUNDS = 8


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """
    What was counted.

    Attributes:
        counts: By name, of all rounds.
        expected: Weights by name, see `shares_probability`.
        probability: How likely chance alone makes counts as far off; 0 where a name came that has no share.
    """

    counts: Mapping[str, int]
    expected: Mapping[str, float]
    probability: float

    @property
    def is_complete(self) -> bool:
        """Whether every name that has a share came: among hundreds of others a missing one hardly shows in the sum."""
        return all(self.counts.get(name) for name, share in self.expected.items() if share > 0)

    @property
    def fits(self) -> bool:
        """Whether a correct balancing may have done this."""
        return self.is_complete and self.probability >= LEAST_PROBABILITY

    def __str__(self) -> str:
        weight, total = sum(self.expected.values()), sum(self.counts.values())
        wanted = {name: round(total * share / weight, 1) for name, share in self.expected.items()}
        return (
            f"counted {dict(sorted(self.counts.items()))}, expected {wanted}, "
            f"probability by chance {self.probability:.2g}"
        )


def sample_shares(ask: Callable[[], Mapping[str, int]], expected: Mapping[str, float]) -> Sample:
    """
    Count until the shares fit well, eight rounds at most.

    Args:
        ask: Makes one round of choices and counts them by name. Let each name have 20 to expect.
        expected: Weights by name, see `shares_probability`.

    Raises:
        ValueError: The first round counts nothing, or nothing is expected.
    """
    counts: Counter[str] = Counter()
    for _ in range(_MOST_ROUNDS):
        counts.update(ask())
        sample = Sample(counts=counts, expected=expected, probability=shares_probability(counts, expected))
        if sample.probability == 0.0 or (sample.probability >= _FITS_WELL and sample.is_complete):
            break
    return sample


def assert_shares(ask: Callable[[], Mapping[str, int]], expected: Mapping[str, float]) -> None:
    """
    Fail where what is counted does not fit the expected shares.

    Args:
        ask: As for `sample_shares`.
        expected: Likewise.

    Raises:
        AssertionError: It cannot be chance; the text holds counts, expectations and probability.
        ValueError: As `sample_shares`.
    """
    sample = sample_shares(ask, expected)
    if not sample.fits:
        raise AssertionError(f"shares are off: {sample}")
