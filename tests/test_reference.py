"""Lists in the documentation are complete: events of the log, flags, exit codes; what is new in the code is missed."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kproxy_ipt.config.flag_table import FLAGS
from kproxy_ipt_cli._exit_codes import ExitCode

_ROOT = Path(__file__).parents[1]
_SPEAKERS = ("kproxy_ipt/daemon", "kproxy_ipt/sources", "cli/kproxy_ipt_cli")
_LOGS = frozenset({"log", "_log"})
_LEVELS = frozenset({"debug", "info", "warning"})
_EVENT_ROW = re.compile(r"^\| `([^`]+)` \| (debug|info|warning) \| (.*?) \|", re.MULTILINE)
_CODE_ROW = re.compile(r"^\| ([0-9, ]+) \|", re.MULTILINE)


def _calls() -> Iterator[tuple[str, ast.Call]]:
    """Every call of a log in the source, with its level."""
    for file in (file for folder in _SPEAKERS for file in (_ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _LEVELS:
                speaker = node.func.value
                name = speaker.attr if isinstance(speaker, ast.Attribute) else getattr(speaker, "id", "")
                if name in _LOGS:
                    yield node.func.attr, node


def _spoken() -> set[tuple[str, str, frozenset[str]]]:
    """Event, level and names of the fields of every call."""
    return {
        (ast.literal_eval(call.args[0]), level, frozenset(keyword.arg or "" for keyword in call.keywords))
        for level, call in _calls()
    }


def _documented() -> set[tuple[str, str, frozenset[str]]]:
    text = (_ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    return {
        (event, level, frozenset(re.findall(r"`(\w+)`", fields))) for event, level, fields in _EVENT_ROW.findall(text)
    }


def test_every_event_of_the_log_is_documented() -> None:
    """Name, level and fields of each line that the daemon and `sync` may write stand in a table; no others do."""
    spoken, documented = _spoken(), _documented()

    assert len(spoken) > 25
    assert sorted(map(str, spoken - documented)) == []
    assert sorted(map(str, documented - spoken)) == []


def test_every_exit_code_is_documented() -> None:
    """Each number of the program has a row, and each row is a number of the program."""
    text = (_ROOT / "docs" / "exit-codes.md").read_text(encoding="utf-8")
    documented = {int(number) for row in _CODE_ROW.findall(text) for number in row.split(",")}

    assert {int(code) for code in ExitCode} == documented


@pytest.mark.parametrize("flag", [spec.name for spec in FLAGS])
def test_every_flag_is_documented(flag: str) -> None:
    """The page about the daemon names each flag of kube-proxy."""
    text = (_ROOT / "docs" / "operations.md").read_text(encoding="utf-8")

    assert f"`{'-v' if flag == 'v' else f'--{flag}'}`" in text
