"""`lint` from the command line: what it prints, and its exit codes."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Invoke = Callable[..., Result]

_SERVICE = "{{apiVersion: v1, kind: Service, metadata: {{name: web, namespace: a}}, spec: {{{}}}}}\n"
_CLEAN = _SERVICE.format("clusterIP: None")
_WARNING = _SERVICE.format("clusterIP: 10.96.0.1, ports: [{port: 80}]")
_REJECTED = _SERVICE.format("type: X")


@pytest.mark.parametrize(
    ("text", "options", "code", "summary"),
    [
        (_CLEAN, [], 0, "1 Service: 1 note"),
        (_CLEAN, ["--strict"], 0, "1 Service: 1 note"),
        (_WARNING, [], 0, "1 Service: 1 warning"),
        (_WARNING, ["--strict"], 1, "1 Service: 1 warning"),
        (_REJECTED, [], 3, "0 Services: 1 rejected"),
        (_REJECTED, ["--strict"], 3, "0 Services: 1 rejected"),
    ],
)
def test_exit_code_is_that_of_the_worst_finding(
    text: str, options: list[str], code: int, summary: str, invoke: Invoke, tmp_path: Path
) -> None:
    """Warnings are 1 for those who ask for it, rejections 3 in any case, notes nothing."""
    path = tmp_path / "objects.yaml"
    path.write_text(text)
    ran = invoke("lint", "--from", path, *options)
    printed = invoke("lint", "--from", path, "-o", "json", *options)

    assert ran.exit_code == printed.exit_code == code
    assert ran.stdout.splitlines()[-1] == summary
    assert json.loads(printed.stdout)["exit_code"] == code


def test_findings_are_rows_with_object_and_consequence(invoke: Invoke, tmp_path: Path) -> None:
    """Results go to standard output, so that they can be searched."""
    path = tmp_path / "objects.yaml"
    path.write_text(_WARNING)
    header, row, _ = invoke("lint", "--from", path).stdout.splitlines()

    assert header.split() == ["severity", "object", "field", "found", "consequence"]
    assert row.startswith("warning   Service a/web")
    assert row.endswith("traffic to it is refused")


def test_json_sorts_findings_by_what_they_cost(invoke: Invoke, examples: Path) -> None:
    """The examples hold no warning, and notes with every field."""
    document = json.loads(invoke("lint", "--from", examples, "--hostname-override", "n1", "-o", "json").stdout)

    assert (document["rejected"], document["warnings"]) == ([], [])
    assert {one["object"] for one in document["notes"]} == {"Service demo/public", "Service demo/sticky"}
    assert set(document["notes"][0]) == {"object", "field", "found", "expected", "consequence", "severity"}
