"""Golden cases: read strictly, compared with what is built, told apart by behaviour, and written anew."""

import pickle
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.testing.flow_table import CaseError
from kproxy_ipt.testing.golden import Change, check_case, check_cases, update_case, update_cases
from kproxy_ipt.testing.golden_case import find_cases, load_case
from kproxy_ipt.testing.junit import junit_xml

_GOLDEN = Path(__file__).parents[1] / "golden"
_CASES = find_cases([_GOLDEN])
_MOST_SECONDS = 5.0

Edit = Callable[[str, str, str], None]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of a case with a node port and flows."""
    return Path(shutil.copytree(_GOLDEN / "26-node-port-cluster", tmp_path / "case"))


@pytest.fixture
def edit(folder: Path) -> Edit:
    """Replace a text in a file of the case, which must be there."""

    def replace(name: str, old: str, new: str) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new))

    return replace


@pytest.mark.parametrize("case", _CASES, ids=lambda case: case.name)
def test_recorded_rules_are_as_expected(case: Path) -> None:
    """The check finds nothing in what a real kube-proxy wrote."""
    result = check_case(case)

    assert (result.errors, result.failed()) == ((), False)
    assert [family.change for family in result.families] == [Change.NONE, Change.NONE]


def test_unchanged_case_says_so(folder: Path) -> None:
    """Both families are compared, every flow is walked, nothing differs."""
    result = check_case(folder)

    assert [(one.family, one.change, one.diff) for one in result.families] == [
        (Family.IPV4, Change.NONE, ()),
        (Family.IPV6, Change.NONE, ()),
    ]
    assert len(result.flows) == 5
    assert not result.failed()


def test_other_comment_is_a_change_of_text(folder: Path, edit: Edit) -> None:
    """It fails, but not where only behaviour counts."""
    edit("iptables.txt", "kubernetes forwarding rules", "forwarding rules")
    result = check_case(folder)

    (ipv4, ipv6) = result.families
    assert (ipv4.change, ipv6.change) == (Change.TEXT, Change.NONE)
    assert '-A FORWARD -m comment --comment "forwarding rules" -j KUBE-FORWARD' in [line[1:] for line in ipv4.diff]
    assert (result.failed(), result.failed(semantic=True)) == (True, False)


def test_other_port_is_a_change_of_behaviour(folder: Path, edit: Edit) -> None:
    """The packets that notice are named, with what was expected and what was built."""
    edit("iptables.txt", "--dport 30080", "--dport 30081")
    result = check_case(folder)

    ipv4 = result.families[0]
    assert ipv4.change is Change.BEHAVIOUR
    assert any("to 172.31.0.2:30081: expected 10.244.1.5:8080" in text for text in ipv4.packets)
    assert all(text.startswith("default/web:http: tcp from ") for text in ipv4.packets)
    assert result.failed(semantic=True)


def test_share_that_moved_is_a_change_of_behaviour(folder: Path, edit: Edit) -> None:
    """Probabilities are behaviour."""
    edit("iptables.txt", "--probability 0.50000000000", "--probability 0.40000000000")

    assert check_case(folder).families[0].change is Change.BEHAVIOUR


def test_rules_that_cannot_be_read_count_as_changed(folder: Path, edit: Edit) -> None:
    """Nobody is told that behaviour is the same where that is not known."""
    edit("iptables.txt", "*nat", "*nat\nnonsense")
    family = check_case(folder).families[0]

    assert family.change is Change.BEHAVIOUR
    assert "the expected rules cannot be read: line " in family.cannot_compare


def test_flow_that_is_wrong_shows_the_rules_it_met(folder: Path, edit: Edit) -> None:
    """Expected, found, and the way of the packet."""
    edit("flows.yaml", "is: untouched", "is: rejected")
    result = check_case(folder)

    (wrong,) = [flow for flow in result.flows if flow.problems]
    assert (wrong.expected, wrong.found) == ("rejected", "untouched")
    assert any(line.startswith("INPUT filter: -A INPUT ") for line in wrong.path)
    assert result.failed(semantic=True)


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("case.yaml", "title: x\nnodes: {}\n", "case.yaml: object contains unknown field nodes"),
        ("case.yaml", "title: x\nnode: {name: n1, ips: [web]}\n", "case.yaml: node.ips: 'web' is no IP address"),
        ("case.yaml", "title: 3\n", "case.yaml: title: expected str, got int"),
        ("case.yaml", "shows: x\n", "case.yaml: object missing required field title"),
        ("config.yaml", "[1]", "config.yaml: found a list, expected a mapping"),
        ("flows.yaml", "flows: 3\n", "flows.yaml: flows: expected array, got int"),
        ("flows.yaml", "flows: [{from: '::1', to: 1.2.3.4, port: 1, is: dropped}]", "flows.yaml: flows[0]: "),
    ],
)
def test_bad_file_is_an_error_with_its_place(folder: Path, name: str, text: str, problem: str) -> None:
    """A case that cannot be read is neither right nor wrong."""
    (folder / name).write_text(text)
    result = check_case(folder)

    assert (len(result.errors), result.failed()) == (1, False)
    assert result.errors[0].removeprefix(f"{folder}/").startswith(problem)


def test_rule_file_that_is_no_text_is_an_error(folder: Path) -> None:
    """A file of another kind is not compared with anything."""
    (folder / "iptables.txt").write_bytes(b"*nat\n\xff\n")

    assert check_case(folder).errors == (f"{folder}: the rule files must be UTF-8 text",)


def test_missing_objects_are_an_error(folder: Path) -> None:
    """Objects are the one thing that no default stands in for."""
    (folder / "objects.yaml").unlink()

    assert check_case(folder).errors == (f"{folder}/objects.yaml: No such file or directory",)


def test_node_without_a_name_is_an_error(folder: Path) -> None:
    """The name of the machine that runs a check must not matter."""
    (folder / "case.yaml").write_text("title: x\n")
    (folder / "config.yaml").unlink()

    with pytest.raises(CaseError, match=r"case\.yaml: node\.name: missing"):
        load_case(folder)


def test_case_that_expects_nothing_is_an_error(folder: Path) -> None:
    """A case without rules and flows would pass forever."""
    for name in ("iptables.txt", "ip6tables.txt", "flows.yaml"):
        (folder / name).unlink()

    assert "nothing is expected" in check_case(folder).errors[0]


def test_machine_can_lack_parts(folder: Path) -> None:
    """`without` takes nfacct and --random-fully away, as `render` does."""
    (folder / "case.yaml").write_text("title: x\nnode: {name: node1}\nwithout: [nfacct, random-fully]\n")
    update_case(folder)

    assert "nfacct" not in (folder / "iptables.txt").read_text()
    assert "random-fully" not in (folder / "iptables.txt").read_text()


def test_node_has_the_addresses_of_its_object_unless_told_otherwise(folder: Path) -> None:
    """Restricted node ports need to know what is on the interfaces."""
    with (folder / "config.yaml").open("a") as config:
        config.write("nodePortAddresses: [172.31.0.0/16, 192.0.2.0/24]\n")
    (folder / "case.yaml").write_text("title: x\nnode: {name: node1}\n")
    update_case(folder)
    by_object = (folder / "iptables.txt").read_text()
    (folder / "case.yaml").write_text("title: x\nnode: {name: node1, ips: [192.0.2.9]}\n")
    update_case(folder)

    assert "-d 172.31.0.2/32 " in by_object
    assert "-d 172.31.0.2/32 " not in (folder / "iptables.txt").read_text()
    assert "-d 192.0.2.9/32 " in (folder / "iptables.txt").read_text()


def test_cases_are_found_below_folders(tmp_path: Path) -> None:
    """Sorted, each once, nothing hidden; a folder without cases and a missing one are errors."""
    for name in ("b/one", "a/two", ".git/three"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "case.yaml").touch()

    assert find_cases([tmp_path, tmp_path / "b"]) == (tmp_path / "a/two", tmp_path / "b/one")
    with pytest.raises(CaseError) as caught:
        find_cases([tmp_path / "missing", tmp_path / "none"])
    assert len(caught.value.problems) == 2


def test_update_writes_what_a_check_expects(folder: Path, edit: Edit) -> None:
    """Stale files are written, right ones left; afterwards nothing differs."""
    edit("iptables.txt", "--dport 30080", "--dport 30081")
    update = update_case(folder)

    assert (update.written, update.unchanged) == (("iptables.txt",), ("ip6tables.txt",))
    assert not check_case(folder).failed()


def test_update_without_writing_tells_the_same(folder: Path, edit: Edit) -> None:
    """A dry run leaves the files alone."""
    edit("iptables.txt", "--dport 30080", "--dport 30081")
    before = (folder / "iptables.txt").read_bytes()

    assert update_case(folder, dry_run=True).written == ("iptables.txt",)
    assert (folder / "iptables.txt").read_bytes() == before


@pytest.mark.parametrize(("has_flows", "create", "files"), [(False, False, 2), (True, False, 0), (True, True, 2)])
def test_update_makes_files_for_cases_that_expect_nothing(
    folder: Path, *, has_flows: bool, create: bool, files: int
) -> None:
    """A case of flows alone stays one, unless files are asked for."""
    for name in ("iptables.txt", "ip6tables.txt", *(() if has_flows else ("flows.yaml",))):
        (folder / name).unlink()

    assert len(update_case(folder, create=create).written) == files
    assert len(list(folder.glob("*.txt"))) == files


def test_update_reports_what_it_cannot_read(folder: Path) -> None:
    """One broken case does not keep the others from being written."""
    (folder / "case.yaml").write_text("[")
    updates = update_cases((folder, _CASES[0]), dry_run=True)

    assert (len(updates[0].errors), updates[1].errors) == (1, ())


def test_processes_give_what_one_gives() -> None:
    """Same results in the same order, errors included."""
    folders = (*_CASES[:8], _GOLDEN)

    assert check_cases(folders, jobs=2) == check_cases(folders, jobs=1)


def test_error_travels_between_processes() -> None:
    """Problems survive pickling."""
    assert pickle.loads(pickle.dumps(CaseError(("a", "b")))).problems == ("a", "b")


def test_hundred_cases_take_less_than_five_seconds() -> None:
    """Of any size that a person writes by hand, flows included."""
    folders = (*_CASES, *find_cases([_GOLDEN.parent / "flows"]))
    start = time.process_time()
    results = check_cases(folders, jobs=1)

    assert len(results) >= 100
    assert time.process_time() - start < _MOST_SECONDS


def test_junit_report_counts_and_names(folder: Path, edit: Edit) -> None:
    """Files and flows are test cases; a changed text is no failure where only behaviour counts."""
    edit("iptables.txt", "kubernetes forwarding rules", "forwarding rules")
    edit("flows.yaml", "is: untouched", "is: rejected")
    results = [check_case(folder), check_case(_GOLDEN)]
    strict, semantic = (ET.fromstring(junit_xml(results, semantic=flag)) for flag in (False, True))

    assert dict(strict.attrib) == {
        "name": "kproxy-ipt golden",
        "tests": "8",
        "failures": "2",
        "errors": "1",
        "skipped": "0",
    }
    assert semantic.attrib["failures"] == "1"
    assert [suite.attrib["name"] for suite in strict] == ["case", "golden"]
    failure = strict.find("testsuite/testcase[@name='iptables.txt']/failure")
    assert failure is not None
    assert "only the text differs" in failure.attrib["message"]
    assert "+-A FORWARD" in (failure.text or "")


def test_junit_report_tells_what_cannot_be_told(folder: Path, edit: Edit) -> None:
    """Rules that cannot be compared are a failure that says why, whatever only behaviour counts."""
    edit("iptables.txt", "-A KUBE-POSTROUTING -j MARK", "-A KUBE-POSTROUTING -j KUBE-POSTROUTING")
    root = ET.fromstring(junit_xml([check_case(folder)], command="golden check", semantic=True))

    failure = root.find(".//failure")
    assert failure is not None
    assert failure.get("message", "").startswith("the rules differ, and whether behaviour changed cannot be told: ")


def test_junit_report_holds_no_character_that_xml_forbids(folder: Path) -> None:
    """Names come from files that anybody writes."""
    (folder / "flows.yaml").write_text(
        'flows: [{from: pod, to: 10.96.10.1, port: 80, is: dropped, title: "a\\x07<&>"}]\n', encoding="utf-8"
    )
    report = ET.fromstring(junit_xml([check_case(folder)]))

    assert [case.attrib["name"] for case in report.iter("testcase")][-1].endswith("(a?<&>)")
