"""Numbers and times as pages show them."""

import pytest

from kproxy_ipt.daemon.status import render


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(-3, "0 s"), (0.4, "0 s"), (119, "119 s"), (120, "2 min"), (7199, "120 min"), (7200, "2 h"), (9e5, "10 d")],
)
def test_how_long_ago(seconds: float, words: str) -> None:
    """In one unit, of which there are two at least."""
    assert render.ago(seconds) == words


@pytest.mark.parametrize(("octets", "words"), [(0, "0 B"), (1023, "1023 B"), (2048, "2 KiB"), (1_500_000, "1.4 MiB")])
def test_sizes(octets: int, words: str) -> None:
    """In units of 1024."""
    assert render.size(octets) == words


@pytest.mark.parametrize(("part", "words"), [(1 / 3, "33.3 %"), (0.2, "20 %"), (1.0, "100 %"), (0.0, "0 %")])
def test_parts_in_percent(part: float, words: str) -> None:
    """With one digit where it says something."""
    assert render.percent(part) == words


@pytest.mark.parametrize(("seconds", "words"), [(0.00321, "3.2"), (1.2, "1,200")])
def test_milliseconds(seconds: float, words: str) -> None:
    """Small ones with a digit more."""
    assert render.milliseconds(seconds) == words


def test_addresses_of_static_files_hold_their_content() -> None:
    """So that browsers may keep them, and take the new one after an update."""
    found = render.static_file("status.css")

    assert found is not None
    assert len(found.version) == 12
    assert render.static_file("../pages.py") is None
