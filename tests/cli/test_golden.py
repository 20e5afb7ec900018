"""`golden`: exit codes, reports for people, programs and CI, and files written anew."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner, Result

from kproxy_ipt_cli.main import cli

Invoke = Callable[..., Result]

_GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two cases, `web` with rules and flows and `none` with rules alone."""
    shutil.copytree(_GOLDEN / "26-node-port-cluster", tmp_path / "golden" / "web")
    shutil.copytree(_GOLDEN / "01-no-services", tmp_path / "golden" / "none")
    (tmp_path / "golden" / "none" / "flows.yaml").unlink()
    return tmp_path / "golden"


@pytest.fixture
def other_text(folder: Path) -> None:
    """The rules of `web` have another comment than expected."""
    _replace(folder / "web" / "iptables.txt", "kubernetes forwarding rules", "forwarding rules")


@pytest.fixture
def other_behaviour(folder: Path) -> None:
    """The expected rules of `web` have another node port."""
    _replace(folder / "web" / "iptables.txt", "--dport 30080", "--dport 30081")


def _replace(path: Path, old: str, new: str) -> None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def test_all_as_expected_is_0(invoke: Invoke, folder: Path) -> None:
    """One line says what was checked."""
    ran = invoke("golden", "check", folder)

    assert (ran.exit_code, ran.stderr) == (0, "")
    assert ran.stdout == "2 cases: 4 rule files and 5 flows checked, all as expected\n"


@pytest.mark.usefixtures("other_text")
def test_other_text_is_1_unless_only_behaviour_counts(invoke: Invoke, folder: Path) -> None:
    """The diff is shown in both cases."""
    strict, semantic = (invoke("golden", "check", folder, *words) for words in ((), ("--semantic",)))

    assert (strict.exit_code, semantic.exit_code) == (1, 0)
    for ran in (strict, semantic):
        assert "iptables.txt: only the text differs: every packet is treated alike\n" in ran.stdout
        assert '\n--A FORWARD -m comment --comment "forwarding rules" -j KUBE-FORWARD\n' in ran.stdout
    assert semantic.stdout.endswith("1 rule file with another text alone (does not fail)\n")


@pytest.mark.usefixtures("other_behaviour")
def test_other_behaviour_is_1_in_any_case(invoke: Invoke, folder: Path) -> None:
    """The packets that notice stand above the diff."""
    ran = invoke("golden", "check", folder, "--semantic")

    assert ran.exit_code == 1
    assert ran.stdout.index("to 172.31.0.2:30081: expected 10.244.1.5:8080") < ran.stdout.index(
        "\n--- web/iptables.txt"
    )


def test_wrong_flow_is_1_with_the_rules_it_met(invoke: Invoke, folder: Path) -> None:
    """Place, expected, found and way."""
    _replace(folder / "web" / "flows.yaml", "is: untouched", "is: rejected")
    ran = invoke("golden", "check", folder, "--semantic")

    assert ran.exit_code == 1
    assert f"{folder}/web/flows.yaml: flows[2] outside -> 172.31.0.2:80/tcp: not as expected\n" in ran.stdout
    assert "  expected: rejected\n  found:    untouched\n    PREROUTING nat: " in ran.stdout


def test_case_that_cannot_be_read_is_2_and_others_are_checked(invoke: Invoke, folder: Path) -> None:
    """The error goes to standard error, what is known to standard output."""
    (folder / "none" / "flows.yaml").write_text("flows: [{from: pod}]")
    ran = invoke("golden", "check", folder)

    assert ran.exit_code == 2
    assert f"error: {folder}/none/flows.yaml: flows[0]: object missing required field to\n" in ran.stderr
    assert ran.stdout == "2 cases: 2 rule files and 5 flows checked, 1 case not readable\n"


@pytest.mark.parametrize("command", ["check", "update"])
def test_folder_without_cases_is_2(command: str, invoke: Invoke, tmp_path: Path) -> None:
    """A typing error must not look like success."""
    ran = invoke("golden", command, tmp_path, tmp_path / "missing")

    assert ran.exit_code == 2
    assert f"{tmp_path}: no case (a folder with case.yaml) is here" in ran.stderr
    assert f"{tmp_path}/missing: no such folder" in ran.stderr


@pytest.mark.usefixtures("other_behaviour")
def test_junit_report_is_written_too(invoke: Invoke, folder: Path, tmp_path: Path) -> None:
    """The report holds the failure; the text output stays."""
    report = tmp_path / "report.xml"
    ran = invoke("golden", "check", folder, "--junit", report)
    root = ET.parse(report).getroot()

    assert ran.stdout.endswith("1 rule file with another behaviour\n")
    assert (root.attrib["tests"], root.attrib["failures"]) == ("9", "1")


def test_junit_report_that_cannot_be_written_is_2(invoke: Invoke, folder: Path, tmp_path: Path) -> None:
    """CI must not go on without it."""
    ran = invoke("golden", "check", folder, "--junit", tmp_path / "missing" / "report.xml")

    assert ran.exit_code == 2
    assert "No such file or directory" in ran.stderr


@pytest.mark.usefixtures("other_behaviour")
def test_json_says_the_same(invoke: Invoke, folder: Path) -> None:
    """One object with all cases, exit code included."""
    ran = invoke("golden", "check", folder, "--output", "json")
    document = json.loads(ran.stdout)
    none, web = document["cases"]

    assert document["exit_code"] == ran.exit_code == 1
    assert (none["failed"], web["failed"]) == (False, True)
    assert {name: family["change"] for name, family in web["families"].items()} == {
        "ipv4": "behaviour",
        "ipv6": "none",
    }
    assert len(web["families"]["ipv4"]["diff"]) > 5
    assert [flow["problems"] for flow in web["flows"]] == [[]] * 5


def test_jobs_do_not_matter(invoke: Invoke, folder: Path) -> None:
    """Several processes print what one prints."""
    assert invoke("golden", "check", folder, "--jobs", "2").stdout == invoke("golden", "check", folder).stdout


@pytest.mark.usefixtures("other_text")
def test_diff_is_coloured_on_terminals_alone(folder: Path) -> None:
    """Green for built, red for expected."""
    words = ["golden", "check", str(folder)]
    coloured, plain = (CliRunner().invoke(cli, words, color=color).stdout for color in (True, False))

    assert "\x1b[31m--A FORWARD" in coloured
    assert "\x1b[32m+-A FORWARD" in coloured
    assert "\x1b" not in plain


@pytest.mark.usefixtures("other_behaviour")
def test_update_writes_what_is_stale(invoke: Invoke, folder: Path) -> None:
    """Afterwards a check finds nothing."""
    dry, ran = (invoke("golden", "update", folder, *words) for words in (("--dry-run",), ()))

    assert dry.stdout.startswith(f"would be written: {folder}/web/iptables.txt\n")
    assert ran.stdout == f"written: {folder}/web/iptables.txt\n2 cases: 1 rule file written, 3 unchanged\n"
    assert invoke("golden", "check", folder).exit_code == 0


def test_update_makes_files_for_a_new_case(invoke: Invoke, examples: Path, tmp_path: Path) -> None:
    """Objects and a title are enough to begin with."""
    shutil.copy(examples / "web.yaml", tmp_path / "objects.yaml")
    (tmp_path / "case.yaml").write_text("title: web\nnode: {name: n1}\n")
    document = json.loads(invoke("golden", "update", tmp_path, "--output", "json").stdout)

    assert document["cases"][0]["written"] == ["iptables.txt", "ip6tables.txt"]
    assert "demo/web:http" in (tmp_path / "iptables.txt").read_text()


def test_update_of_a_broken_case_is_2(invoke: Invoke, folder: Path) -> None:
    """The others are written all the same."""
    (folder / "none" / "case.yaml").write_text("title: [")
    (folder / "web" / "iptables.txt").write_text("")
    ran = invoke("golden", "update", folder)

    assert ran.exit_code == 2
    assert "error: " in ran.stderr
    assert ran.stdout.startswith(f"written: {folder}/web/iptables.txt\n")


def test_oddities_of_objects_are_told(invoke: Invoke) -> None:
    """A warning about an object goes to standard error and fails nothing."""
    ran = invoke("golden", "check", _GOLDEN / "70-fqdn-slice")

    assert ran.exit_code == 0
    assert "warning: EndpointSlice default/" in ran.stderr


@pytest.mark.kernel
def test_needs_neither_iptables_nor_root(
    program: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    """For the user nobody, without any iptables program."""
    (tmp_path / "empty").mkdir()
    nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all")

    for ran in (
        program("golden", "check", _GOLDEN, sbin=tmp_path / "empty"),
        program("golden", "check", _GOLDEN, prefix=nobody),
    ):
        assert ran.returncode == 0
        assert ran.stdout.endswith("all as expected\n")
