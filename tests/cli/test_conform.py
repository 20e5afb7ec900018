"""`kproxy-ipt conform`: what is shown, and the exit codes."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from click.testing import Result

_TESTS = Path(__file__).parents[1]
_AFFINITY = _TESTS / "golden" / "56-affinity-custom-timeout"
_TARGET_PORT = _TESTS / "flows" / "08-target-port"
_NOBODY = ("unshare", "--user")


@pytest.mark.kernel
def test_flows_that_are_as_expected_end_in_zero(invoke: Callable[..., Result]) -> None:
    """Only the summary is shown, unless all is asked for."""
    brief = invoke("conform", _TARGET_PORT, "--backend", "nft")
    full = invoke("conform", _TARGET_PORT, "--backend", "nft", "--all")

    assert brief.exit_code == full.exit_code == 0
    assert brief.stdout == "1 trial: 2 flows as expected, 0 different, 0 skipped\n"
    assert "flows[0] pod -> 172.30.0.41:443/tcp" in full.stdout


@pytest.mark.kernel
def test_a_difference_ends_in_one_and_says_what_was_seen(invoke: Callable[..., Result]) -> None:
    """The table shows the flow, what was expected and what was seen."""
    done = invoke("conform", _TARGET_PORT, "--backend", "nft", "--program", "true")

    assert done.exit_code == 1
    assert "10.180.0.1:8443, not masqueraded  untouched" in done.stdout
    assert "10.180.0.1:8443: expected a share of 1, never seen" in done.stdout
    assert "1 trial: 1 flow as expected, 1 different, 0 skipped" in done.stdout


@pytest.mark.kernel
def test_reports_for_programs_hold_the_same(invoke: Callable[..., Result], tmp_path: Path) -> None:
    """JSON counts what JUnit shows as failures."""
    report = tmp_path / "report.xml"

    done = invoke("conform", _TARGET_PORT, "--backend=nft", "--program=true", "--junit", report, "--output=json")

    document = json.loads(done.stdout)
    assert (document["as_expected"], document["different"], document["exit_code"]) == (1, 1, 1)
    assert [flow["seen"] for flow in document["cases"][0]["flows"]] == ["untouched", "untouched"]
    root = ET.parse(report).getroot()
    assert (root.get("name"), root.get("tests"), root.get("failures")) == ("kproxy-ipt conform", "2", "1")


@pytest.mark.kernel
def test_flows_that_are_not_sent_are_skipped_in_reports(invoke: Callable[..., Result], tmp_path: Path) -> None:
    """A flow that nobody could judge is neither passed nor left out."""
    report = tmp_path / "report.xml"

    invoke("conform", _AFFINITY, "--backend=nft", "--program=true", "--junit", report)

    suite = ET.parse(report).getroot()[0]
    reasons = [element.get("message", "") for element in suite.iter("skipped")]
    assert suite.get("skipped") == f"{len(reasons)}" != "0"
    assert all("session affinity" in reason for reason in reasons)


@pytest.mark.kernel
def test_a_failed_program_ends_in_two(invoke: Callable[..., Result]) -> None:
    """Where no rules stand there is nothing to compare, on either backend."""
    done = invoke("conform", _TARGET_PORT, "--program", "false")

    assert done.exit_code == 2
    assert done.stderr.count("false ended with 1") == 2


@pytest.mark.parametrize("command", ["run {nets}", "run {", "run '", "run {netns.x}", "run {}", " "])
def test_a_command_that_makes_no_sense_ends_in_two(command: str, invoke: Callable[..., Result]) -> None:
    """Unknown placeholders and wrong quotes are named before anything is made."""
    done = invoke("conform", _TARGET_PORT, "--program", command)

    assert done.exit_code == 2
    assert "cannot be used" in done.stderr
    assert "{netns}" in done.stderr


def test_folders_without_tables_end_in_two(invoke: Callable[..., Result], tmp_path: Path) -> None:
    """Nothing that was compared is not the same as everything as expected."""
    folder = shutil.copytree(_AFFINITY, tmp_path / "case")
    (folder / "flows.yaml").unlink()

    done = invoke("conform", folder)

    assert done.exit_code == 2
    assert "no case with flows.yaml" in done.stderr


@pytest.mark.kernel
def test_without_root_the_reason_is_named(program: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """Who may not make namespaces is told so at once."""
    done = program("conform", _TARGET_PORT, prefix=_NOBODY)

    assert done.returncode == 2
    assert "network namespaces can only be made by root" in done.stderr
