"""
The ways of a packet as text: one line a rule, deeper with each jump, shares where ways part.

What several ways have in common is printed once: before they part, and the tables after it that they pass alike.
"""

import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import TypeAlias

from kproxy_ipt.trace.distribution import nominal
from kproxy_ipt.trace.packet import Outcome, Step

_INDENT = "  "
_MARGIN = 7
_COMMENT = re.compile(r' -m comment --comment ("(?:[^"\\]|\\.)*"|\S+)')
_PORTS = re.compile(r" -m (?:tcp|udp|sctp)(?= --[sd]port| -j|$)")

_Way: TypeAlias = tuple[tuple[Step, ...], Fraction]
"""Steps that are left, and how often."""


def percent(share: Fraction) -> str:
    """`100 %`, `33.3 %`; never 0 or 100 by rounding alone."""
    value = float(nominal(share)) * 100
    text = f"{value:.1f}".removesuffix(".0")
    if text in ("0", "100") and value not in (0.0, 100.0):
        text = f"{value:.3g}" if value < 1 else f"{value:.9f}".rstrip("0")
    return f"{text} %"


def short_line(step: Step) -> str:
    """The rule of *step* without what everybody knows; its comment stays whole."""
    line = step.line.removeprefix(f"-A {step.chain}")
    line = _PORTS.sub("", line)
    comment = _COMMENT.search(line)
    if comment:
        text = comment[1][1:-1] if comment[1].startswith('"') else comment[1]
        line = f"{_COMMENT.sub('', line, count=1)}  ({text})"
    return line.strip()


def tree_lines(outcomes: Sequence[Outcome], *, most_ways: int = 8) -> Iterator[str]:
    """
    All paths of *outcomes* as indented lines, with the share of all packets in the margin where a way parts.

    Args:
        outcomes: In the order of the walk.
        most_ways: Where more ways part at one place, the others are only counted.
    """
    yield from _Tree(most_ways).lines([(outcome.path, outcome.share) for outcome in outcomes], ("", ""), 0)


class _Tree:
    """What has been printed, so that it need not be printed twice."""

    def __init__(self, most_ways: int) -> None:
        self._most_ways = most_ways
        self._printed: set[tuple[tuple[Step, ...], ...]] = set()

    def lines(self, ways: Sequence[_Way], place: tuple[str, str], mark: int) -> Iterator[str]:
        """Everything that is left of *ways*, which have come to the same *place* (hook and table), with *mark*."""
        groups: dict[Step, list[_Way]] = {}
        for steps, share in ways:
            if steps:
                groups.setdefault(steps[0], []).append((steps, share))
        parts = len(groups) > 1
        for group in list(groups.values())[: self._most_ways]:
            margin = percent(_total(group)) if parts else ""
            yield from self._group(group, place, mark, margin)
        rest = [way for group in list(groups.values())[self._most_ways :] for way in group]
        if rest:
            yield f"{percent(_total(rest)):>{_MARGIN}}  and {len(rest)} more ways (--output json has them all)"

    def _group(self, ways: Sequence[_Way], place: tuple[str, str], mark: int, margin: str) -> Iterator[str]:
        """*ways* that begin with the same step."""
        step = ways[0][0][0]
        here = (step.hook, step.table)
        if here != place:
            left = tuple(steps for steps, _ in ways)
            if left in self._printed:
                yield f"{margin:>{_MARGIN}}  {' '.join(here)}: as above"
                return
            self._printed.add(left)
            yield f"{margin:>{_MARGIN}}  {' '.join(here)}"
            margin = ""
        yield f"{margin:>{_MARGIN}}  {_step(step, mark)}"
        yield from self.lines([(steps[1:], share) for steps, share in ways], here, step.mark)


def _total(ways: Sequence[_Way]) -> Fraction:
    return sum((share for _, share in ways), start=Fraction(0))


def _step(step: Step, mark: int) -> str:
    position = f" {step.position}" if step.position else ""
    changed = f"  [mark {step.mark:#x}]" if step.mark != mark else ""
    assumed = f"  [assumed: {step.assumption}]" if step.assumption else ""
    return f"{_INDENT * (step.depth + 1)}{step.chain}{position}: {short_line(step)}{changed}{assumed}"
