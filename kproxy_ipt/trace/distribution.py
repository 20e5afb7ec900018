"""Outcomes put together: what becomes of a packet how often, whatever path it takes."""

from collections.abc import Iterable
from fractions import Fraction

import msgspec

from kproxy_ipt.ruleset.matches import PROBABILITY_ONE
from kproxy_ipt.trace.packet import Outcome

_SIMPLE = (12, 100, 1_000)
"""Denominators of simple fractions, simplest first."""

_MOST_WAYS = 100_000
"""One in more ways than this is not told apart from rounding."""

_ROUNDING = Fraction(4, PROBABILITY_ONE)


def distribution(outcomes: Iterable[Outcome]) -> tuple[Outcome, ...]:
    """
    Outcomes that differ in nothing but path and share, as one: shares added, the path of the first.

    Returns:
        In the order of their first appearance.
    """
    merged: dict[tuple[object, ...], Outcome] = {}
    for outcome in outcomes:
        key = tuple(getattr(outcome, name) for name in _KEY)
        known = merged.get(key)
        merged[key] = msgspec.structs.replace(known, share=known.share + outcome.share) if known else outcome
    return tuple(merged.values())


_KEY = tuple(name for name in Outcome.__struct_fields__ if name not in ("share", "path"))


def nominal(share: Fraction) -> Fraction:
    """
    The share that was meant: the kernel keeps probabilities in steps of 2**-31, so a third is 715827883/2**31.

    Returns:
        A simple fraction, or one in a number of ways, within some steps of *share*; *share* itself where there is none.
    """
    for most_parts in _SIMPLE:
        simple = share.limit_denominator(most_parts)
        # What can happen, or fail to, must not vanish.
        if simple == share or (0 < simple < 1 and abs(simple - share) <= _ROUNDING):
            return simple
    if share * _MOST_WAYS < 1:
        return share
    one_in = Fraction(1, round(1 / share))
    return one_in if one_in < 1 and abs(one_in - share) <= _ROUNDING else share
