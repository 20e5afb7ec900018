"""What rules ask for, in words."""

from fractions import Fraction

import pytest

from kproxy_ipt.ruleset.parse import parse_rule
from kproxy_ipt.trace.conditions import condition_words, plain_share, share_words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("-p tcp -m tcp --dport 80", ("tcp 80",)),
        ("-d 10.0.0.1/32 -p udp -m udp ! --dport 53:60", ("udp not 53-60 to 10.0.0.1",)),
        ("-i eth0 ! -o eth1", ("in by eth0", "not out by eth1")),
        ("-f", ("no first fragment",)),
        ("! -f", ("first fragment",)),
        ("-m statistic --mode nth --every 3 --packet 0", ("one in 3",)),
        ("-m mark --mark 0x1/0x3", ("mark 0x1/0x3",)),
        ("-m mark ! --mark 0x4/0x4", ("without mark 0x4",)),
        ("-m limit --limit 3/min", ("limit --limit 3/min",)),
        ("-m comment --comment why", ()),
    ],
)
def test_conditions_are_words(text: str, words: tuple[str, ...]) -> None:
    """Each part by itself; comments ask for nothing; what no words are known for stays as it is written."""
    assert words == condition_words(parse_rule(f"-A X {text} -j Y")[1])


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (Fraction(0), "0"),
        (Fraction(715827883, 2**31), "1/3"),
        (Fraction(1, 2), "1/2"),
    ],
)
def test_shares_are_simple_fractions(share: Fraction, words: str) -> None:
    """The nearest simple one; none stays none."""
    assert (Fraction(words), words) == (plain_share(share), words)


def test_share_near_no_simple_fraction_is_a_percentage() -> None:
    """One whose denominator would be past all reading; next to nothing is not called nothing."""
    assert share_words(Fraction(2, 10**5 + 1)) == "0.002 %"
