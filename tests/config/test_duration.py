"""Durations are read and printed as Go does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproxy_ipt.config.duration import Duration, duration_of, parse_duration

TEXTS = {
    "0": 0,
    "0s": 0,
    "-0": 0,
    "+5s": 5_000_000_000,
    "30s": 30_000_000_000,
    "1h2m": 3_720_000_000_000,
    "1.5s": 1_500_000_000,
    ".5s": 500_000_000,
    "1.s": 1_000_000_000,
    "300ms": 300_000_000,
    "-1s": -1_000_000_000,
    "2us": 2_000,
    "2\u00b5s": 2_000,
    "2\u03bcs": 2_000,
    "1h1h": 7_200_000_000_000,
    "0.1ns": 0,
    "9223372036854775807ns": 2**63 - 1,
    "-9223372036854775808ns": -(2**63),
    "000000000000000000000000001s": 1_000_000_000,
}

NOT_DURATIONS = (
    "",
    "-",
    "30",
    "s",
    ".s",
    "1",
    "1 s",
    " 1s",
    "1s ",
    "1d",
    "1e3s",
    "--1s",
    "9223372036854775808ns",
    "1h-1m",
)

PRINTED = {
    0: "0s",
    1: "1ns",
    1_100: "1.1\u00b5s",
    2_200_000: "2.2ms",
    3_300_000_000: "3.3s",
    60_000_000_000: "1m0s",
    245_001_000_000: "4m5.001s",
    3_600_000_000_000: "1h0m0s",
    86_400_000_000_000: "24h0m0s",
    480_000_000_001: "8m0.000000001s",
    -1_000_000_000: "-1s",
    2**63 - 1: "2562047h47m16.854775807s",
}


@pytest.mark.parametrize(("text", "nanoseconds"), TEXTS.items())
def test_text_is_read_to_the_nanosecond(text: str, nanoseconds: int) -> None:
    """Every notation of Go is read exactly, up to the limits of 64 bits."""
    assert parse_duration(text).nanoseconds == nanoseconds


@pytest.mark.parametrize("text", NOT_DURATIONS)
def test_text_of_another_shape_is_refused(text: str) -> None:
    """A number without unit, white space, unknown units and overflow are errors that quote the text."""
    with pytest.raises(ValueError, match="invalid duration"):
        parse_duration(text)


@pytest.mark.parametrize(("nanoseconds", "text"), PRINTED.items())
def test_print_is_that_of_go(nanoseconds: int, text: str) -> None:
    """Minutes and hours show all smaller units, small values their own unit."""
    assert str(Duration(nanoseconds)) == text


@given(st.integers(-(2**63) + 1, 2**63 - 1))
def test_print_and_read_are_inverse(nanoseconds: int) -> None:
    """Whatever is printed is read back to the same nanosecond."""
    assert parse_duration(str(Duration(nanoseconds))) == Duration(nanoseconds)


@given(st.integers(-(2**63) + 1, 2**63 - 1))
def test_seconds_survive_the_way_through_text(nanoseconds: int) -> None:
    """The float of seconds is the same after printing and reading, even where it is coarser than a nanosecond."""
    seconds = Duration(nanoseconds).seconds

    assert parse_duration(str(duration_of(seconds))).seconds == seconds
