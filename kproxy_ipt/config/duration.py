"""
Go durations: `1h2m`, `1.5s`, `300ms`, `-1s`; read as Go reads them and printed as Go prints them.

A duration is a whole number of nanoseconds in 64 bits, so that reading, comparing and printing are exact; the rest of
the program counts seconds in floats.

Source: `time.ParseDuration` and `time.Duration.String` of Go.
"""

import re
from fractions import Fraction

import msgspec

_NANOSECONDS = {
    "ns": 1,
    "us": 1_000,
    "\u00b5s": 1_000,
    "\u03bcs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_SECOND = _NANOSECONDS["s"]
_MINUTE = _NANOSECONDS["m"]
_HOUR = _NANOSECONDS["h"]
_MAX = 2**63 - 1

_PART = re.compile(r"([0-9]*)(\.[0-9]*)?(ns|us|\u00b5s|\u03bcs|ms|s|m|h)")
_SIGNIFICANT_DIGITS = 19


class Duration(msgspec.Struct, frozen=True, order=True):
    """A length of time in nanoseconds, negative ones included; `str()` is Go's text (`1m0s`)."""

    nanoseconds: int = 0

    @property
    def seconds(self) -> float:
        """The nearest float; exact to the nanosecond below 97 days."""
        return self.nanoseconds / _SECOND

    def __bool__(self) -> bool:
        return self.nanoseconds != 0

    def __str__(self) -> str:
        return _text(self.nanoseconds)


def duration_of(seconds: float) -> Duration:
    """The duration nearest to *seconds*, at most what 64 bits hold: the inverse of `Duration.seconds`."""
    nanoseconds = round(Fraction(seconds) * _SECOND)
    return Duration(max(-_MAX, min(_MAX, nanoseconds)))


def parse_duration(text: str) -> Duration:
    """
    Read a duration with Go's syntax: an optional sign, then one or more decimal numbers, each with its unit.

    Args:
        text: `1h2m`, `1.5s`, `-300ms`, `0`; units are ns, us, \u00b5s, ms, s, m and h. No white space.

    Raises:
        ValueError: The text has another shape (a number without unit, but for a lone `0`), or does not fit in 64 bits.
    """
    unsigned = text[1:] if text[:1] in {"+", "-"} else text
    if unsigned == "0":
        return Duration(0)
    total = 0
    position = 0
    while position < len(unsigned) or position == 0:
        part = _PART.match(unsigned, position)
        if part is None:
            raise ValueError(_complaint(text))
        total += _part_nanoseconds(part, text)
        position = part.end()
    sign = -1 if text.startswith("-") else 1
    if total > _MAX + (1 if sign < 0 else 0):
        raise ValueError(_complaint(text))
    return Duration(sign * total)


def _part_nanoseconds(part: re.Match[str], text: str) -> int:
    whole = part[1].lstrip("0")
    fraction = (part[2] or ".")[1:]
    if len(whole) > _SIGNIFICANT_DIGITS or not (part[1] or fraction):
        raise ValueError(_complaint(text))
    fraction = fraction[:_SIGNIFICANT_DIGITS]
    unit = _NANOSECONDS[part[3]]
    scale = int("1" + "0" * len(fraction))
    return int(whole or "0") * unit + int(fraction or "0") * unit // scale


def _complaint(text: str) -> str:
    shown = text if len(text) <= 40 else f"{text[:40]}..."
    return f'invalid duration "{shown}"'


def _decimal(value: int, unit: int) -> str:
    """*value* / *unit* without trailing zeros; *unit* is a power of ten."""
    whole, rest = divmod(value, unit)
    fraction = str(rest).rjust(len(str(unit)) - 1, "0").rstrip("0")
    return f"{whole}.{fraction}" if fraction else str(whole)


def _text(nanoseconds: int) -> str:
    if nanoseconds < 0:
        return f"-{_text(-nanoseconds)}"
    if nanoseconds == 0:
        return "0s"
    if nanoseconds < _SECOND:
        unit = next(name for name in ("ms", "\u00b5s", "ns") if nanoseconds >= _NANOSECONDS[name])
        return f"{_decimal(nanoseconds, _NANOSECONDS[unit])}{unit}"
    hours, rest = divmod(nanoseconds, _HOUR)
    minutes, rest = divmod(rest, _MINUTE)
    seconds = f"{_decimal(rest, _SECOND)}s"
    if hours:
        return f"{hours}h{minutes}m{seconds}"
    return f"{minutes}m{seconds}" if minutes else seconds
