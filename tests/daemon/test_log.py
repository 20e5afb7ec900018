"""The log: what is said at which verbosity, and in which form."""

import json

import pytest

from kproxy_ipt.daemon.log import Verbosity, open_log


def test_verbosity_counts_from_the_next_line_on(capsys: pytest.CaptureFixture[str]) -> None:
    """Single steps are told from 2 on, and no longer once the number is lowered again."""
    verbosity = Verbosity(1)
    log = open_log(verbosity=verbosity)
    for number in (1, 2, 0):
        verbosity.set(number)
        log.debug("step", number=number)
        log.warning("warned", number=number)

    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["event"], line["number"]) for line in lines] == [
        ("warned", 1), ("step", 2), ("warned", 2), ("warned", 0),
    ]  # fmt: skip


def test_lines_carry_level_and_time_in_utc(capsys: pytest.CaptureFixture[str]) -> None:
    """Where nobody reads on a terminal each line is a JSON object."""
    open_log(verbosity=Verbosity(0)).info("start", node="n1")

    line = json.loads(capsys.readouterr().err)
    assert line.pop("timestamp").endswith("Z")
    assert {"event": "start", "level": "info", "node": "n1"} == line
