"""The pytest plugin, run as users run it: collected folders, options, the fixture, and the example project."""

import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import yaml

from kproxy_ipt.config.model import Config
from kproxy_ipt.testing.flow_assertions import GivenObject, rules_for
from kproxy_ipt.testing.objects import endpoint_slice, node, service, service_port
from kproxy_ipt.testing.pytest_plugin import Kproxy

pytest_plugins = ["pytester"]

_ROOT = Path(__file__).parents[2]
_EXAMPLE = _ROOT / "docs" / "examples" / "golden-in-ci"
_CASE = _ROOT / "tests" / "golden" / "26-node-port-cluster"
_PODS = {"clusterCIDR": "10.244.0.0/16"}


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """An empty project; the plugin of hypothesis costs a second in each run, and plays no part."""
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest")
    return pytester


@pytest.fixture
def case(project: pytest.Pytester) -> Path:
    """A golden case below `golden/` of an otherwise empty project."""
    return Path(shutil.copytree(_CASE, project.path / "golden" / "web"))


@pytest.fixture
def change(case: Path) -> Callable[[str, str, str], None]:
    """Replace a text in a file of the case."""

    def replace(name: str, old: str, new: str) -> None:
        text = (case / name).read_text()
        assert old in text
        (case / name).write_text(text.replace(old, new))

    return replace


def test_plugin_is_an_entry_point() -> None:
    """An installation is all that a user needs."""
    (found,) = entry_points(group="pytest11", name="kproxy_ipt")

    assert found.value == "kproxy_ipt.testing.pytest_plugin"


def test_plugin_costs_nothing_until_it_is_used() -> None:
    """It is loaded in every run of pytest, so it imports no other module of ours."""
    script = (
        "import sys, pytest; import kproxy_ipt.testing.pytest_plugin;"
        "print(sorted(name for name in sys.modules if name.startswith(('kproxy_ipt', 'yaml', 'msgspec'))))"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout

    assert shown.strip() == "['kproxy_ipt', 'kproxy_ipt.testing', 'kproxy_ipt.testing.pytest_plugin']"


@pytest.mark.usefixtures("case")
def test_cases_are_no_tests_unless_asked_for(project: pytest.Pytester) -> None:
    """A folder with a `case.yaml` may be anything."""
    assert project.runpytest().ret == pytest.ExitCode.NO_TESTS_COLLECTED


@pytest.mark.usefixtures("case")
def test_option_collects_rule_files_and_flows(project: pytest.Pytester) -> None:
    """Each is a test of its own, beside the tests that are named."""
    project.makepyfile("def test_other(): pass")
    result = project.runpytest("-v", "--golden", "golden")

    result.assert_outcomes(passed=8)
    result.stdout.fnmatch_lines_random(
        [
            "golden/web/case.yaml::iptables.txt PASSED*",
            "golden/web/case.yaml::ip6tables.txt PASSED*",
            "golden/web/case.yaml::flow 0: node -> 172.31.0.2:30080/tcp PASSED*",
        ]
    )


@pytest.mark.usefixtures("case")
def test_option_adds_folders_outside_of_what_is_named(project: pytest.Pytester) -> None:
    """`pytest tests/ --golden golden/` runs both; a folder that is named as well runs once."""
    project.mkdir("tests").joinpath("test_own.py").write_text("def test_other(): pass")

    project.runpytest("tests", "--golden", "golden").assert_outcomes(passed=8)
    project.runpytest("golden", "--golden", "golden").assert_outcomes(passed=7)


@pytest.mark.usefixtures("case")
def test_ini_file_says_where_cases_are(project: pytest.Pytester) -> None:
    """Plain `pytest` runs them, also beside `testpaths`; naming other files leaves them out."""
    project.makeini("[pytest]\nkproxy_golden_paths = golden\ntestpaths = tests\n")
    project.mkdir("tests").joinpath("test_own.py").write_text("def test_other(): pass")

    project.runpytest().assert_outcomes(passed=8)
    project.runpytest("golden/web").assert_outcomes(passed=7)
    project.runpytest("tests/test_own.py").assert_outcomes(passed=1)


def test_several_processes_share_the_cases(project: pytest.Pytester, case: Path) -> None:
    """pytest-xdist finds the same tests in each worker."""
    shutil.copytree(case, case.with_name("copy"))

    project.runpytest("-n", "2", "--golden", "golden").assert_outcomes(passed=14)


def test_failure_is_a_report_without_traceback(
    project: pytest.Pytester, change: Callable[[str, str, str], None]
) -> None:
    """What changed, the diff, and the rules that a wrong flow met."""
    change("iptables.txt", "--dport 30080", "--dport 30081")
    change("flows.yaml", "is: untouched", "is: rejected")
    result = project.runpytest("--golden", "golden")

    result.assert_outcomes(passed=5, failed=2)
    result.stdout.fnmatch_lines(
        [
            "*_ web: iptables.txt _*",
            "behaviour changed: some packets are treated differently",
            "--- web/iptables.txt (expected)",
            "*_ web: flow 2: outside -> 172.31.0.2:80/tcp _*",
            "rejected: expected a share of 1, found 0",
            "found:    untouched",
            "  INPUT filter: *",
        ]
    )
    result.stdout.no_fnmatch_line("*Traceback*")


def test_text_alone_need_not_fail(project: pytest.Pytester, change: Callable[[str, str, str], None]) -> None:
    """`--golden-semantic` asks for behaviour only."""
    change("iptables.txt", "kubernetes forwarding rules", "forwarding rules")

    project.runpytest("--golden", "golden").assert_outcomes(passed=6, failed=1)
    project.runpytest("--golden", "golden", "--golden-semantic").assert_outcomes(passed=7)


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("case.yaml", "title: 3", "*/web/case.yaml: title: expected str, got int"),
        ("flows.yaml", "flows: [{to: 10.0.0.1}]", "*/web/flows.yaml: flows?0?: object missing required field from"),
    ],
)
def test_bad_case_is_an_error_of_collection(
    project: pytest.Pytester, case: Path, name: str, text: str, problem: str
) -> None:
    """With file, place and reason; nothing passes by being unreadable."""
    (case / name).write_text(text)
    result = project.runpytest("--golden", "golden")

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([problem])


def test_missing_folder_is_wrong_usage(project: pytest.Pytester) -> None:
    """A typing error must not look like success."""
    result = project.runpytest("--golden", "gold")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--golden */gold: no such folder"])


def test_source_without_an_address_fails_with_its_place(project: pytest.Pytester, case: Path) -> None:
    """A flow over a family that the node does not have is a mistake of the table."""
    (case / "flows.yaml").write_text("flows: [{from: '::1', to: 10.0.0.1, port: 80, is: dropped}]")
    result = project.runpytest("--golden", "golden")

    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["flows.yaml: flows?0?: ::1 -> 10.0.0.1:80/tcp: found '::1', expected pod, *"])


def test_flow_reaches_endpoints_in_shares(kproxy: Kproxy) -> None:
    """Mappings say shares, lists mean equal ones; each assertion returns the flow."""
    rules = kproxy.rules([node(), service(), endpoint_slice("web", ["10.244.1.2", "10.244.1.3"])], config=_PODS)
    flow = rules.flow(source="pod", to="10.96.0.10", port=80)

    assert flow.reaches(["10.244.1.2:80", "10.244.1.3:80"]).is_not_masqueraded() is flow
    flow.reaches({"10.244.1.2:80": Fraction(1, 2), "10.244.1.3:80": 0.5}, masqueraded=False)
    rules.flow(source="outside", to="10.96.0.10", port=80).is_masqueraded()
    assert repr(flow) == "<pod -> 10.96.0.10:80/tcp: 10.244.1.2:80 1/2, 10.244.1.3:80 1/2>"


def test_flow_that_reaches_nothing_says_why(kproxy: Kproxy) -> None:
    """No endpoint at all, none for this policy, and no rule."""
    rules = kproxy.rules(
        [node(), service("a"), service("b", cluster_ip="10.96.0.11", internal_policy="Local"), endpoint_slice("b")]
    )

    rules.flow(source="node", to="10.96.0.10", port=80).is_rejected()
    rules.flow(source="node", to="10.96.0.11", port=80).is_dropped()
    rules.flow(source="node", to="10.96.0.12", port=80).is_untouched()


@pytest.mark.parametrize("method", ["is_rejected", "is_dropped", "is_untouched", "is_masqueraded"])
def test_wrong_assertion_fails_with_the_rules(kproxy: Kproxy, method: str) -> None:
    """The message shows what was found and the way of the packets."""
    rules = kproxy.rules([node(), service(), endpoint_slice()], config=_PODS)
    flow = rules.flow(to="10.96.0.10", port=80)

    with pytest.raises(AssertionError) as caught:
        getattr(flow, method)()

    assert "found:    10.244.1.2:80" in str(caught.value)
    assert "    PREROUTING nat: -A PREROUTING " in str(caught.value)


def test_wrong_endpoints_fail(kproxy: Kproxy) -> None:
    """A missing endpoint, a further one and a wrong share are told."""
    rules = kproxy.rules([node(), service(), endpoint_slice("web", ["10.244.1.2", "10.244.1.3"])])

    with pytest.raises(AssertionError, match=r"10\.244\.1\.3:80: expected a share of 0, found 1/2"):
        rules.flow(source="node", to="10.96.0.10", port=80).reaches({"10.244.1.2:80": 1})


@pytest.mark.parametrize("endpoints", ["10.244.1.2:80", [], {"10.244.1.2": 1}, {"10.244.1.2:80": "half"}])
def test_expectation_that_makes_no_sense_is_no_failure(kproxy: Kproxy, endpoints: list[str]) -> None:
    """It is a mistake of the test."""
    flow = kproxy.rules([node(), service(), endpoint_slice()]).flow(source="node", to="10.96.0.10", port=80)

    with pytest.raises(ValueError, match=r"found|Invalid"):
        flow.reaches(endpoints)


def test_objects_come_in_any_form(tmp_path: Path) -> None:
    """Files, texts, plain objects and builders give the same rules; configurations too."""
    text = (_CASE / "objects.yaml").read_text()
    config = (_CASE / "config.yaml").read_text()
    plain = list(yaml.safe_load_all(text))
    (tmp_path / "config.yaml").write_text(config)
    forms = (
        rules_for(text, config=config),
        rules_for(_CASE / "objects.yaml", config=tmp_path / "config.yaml"),
        rules_for(plain, config=yaml.safe_load(config)),
    )

    expected = (_CASE / "iptables.txt").read_text()
    assert [rules.text() for rules in forms] == [expected] * 3
    assert forms[0].text("ipv6") == (_CASE / "ip6tables.txt").read_text()


def test_rules_know_the_machine() -> None:
    """Further addresses take node ports, and without nfacct nothing listens on localhost."""
    ports = [service_port(80, node_port=30080)]
    objects: list[GivenObject] = [node(), service(service_type="NodePort", ports=ports), endpoint_slice()]
    config = Config(node_port_addresses=("198.51.100.0/24",))

    assert "198.51.100.7" in rules_for(objects, config=config, addresses=["198.51.100.7"]).text()
    assert "nfacct" not in rules_for(objects, nfacct=False).text()
    with pytest.raises(ValueError, match="expected an IP address"):
        rules_for(objects, addresses=["n1"])


def test_rejected_object_is_an_error() -> None:
    """A test of rules that silently lack a Service would test nothing."""
    with pytest.raises(ValueError, match="Service"):
        rules_for({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {"ports": 3}})


def test_flow_needs_an_address_of_its_family() -> None:
    """An IPv6 destination cannot be reached from an IPv4 source."""
    rules = rules_for([node(), service(), endpoint_slice()])

    for source, to in (("192.0.2.9", "fd00::1"), ("me", "10.96.0.10"), ("node", "web")):
        with pytest.raises(ValueError, match=r"IP(v[46])? address"):
            rules.flow(source=source, to=to, port=80)


def test_example_project_passes_as_its_workflow_runs_it(tmp_path: Path) -> None:
    """The commands of the GitHub workflow, but for installing, succeed in a copy of the example."""
    project = Path(shutil.copytree(_EXAMPLE, tmp_path / "project"))
    workflow = yaml.safe_load((project / ".github" / "workflows" / "services.yaml").read_text())
    commands = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    assert [command.split()[0] for command in commands] == ["pip", "kproxy-ipt", "pytest"]

    for command in commands[1:]:
        program, *arguments = shlex.split(command)
        words = [str(Path(sys.executable).with_name(program)), *arguments]
        done = subprocess.run(words, cwd=project, capture_output=True, text=True, check=False, timeout=60)

        assert done.returncode == 0, done.stdout + done.stderr
    assert 'failures="0" errors="0"' in (project / "golden.xml").read_text()


def test_example_project_fails_when_a_service_breaks(tmp_path: Path) -> None:
    """Taking the policy Local away is noticed by rules, flows and tests."""
    project = Path(shutil.copytree(_EXAMPLE, tmp_path / "project"))
    objects = project / "golden" / "shop" / "objects.yaml"
    objects.write_text(objects.read_text().replace("externalTrafficPolicy: Local", "externalTrafficPolicy: Cluster"))
    command = [str(Path(sys.executable).with_name("pytest")), "--golden-semantic", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False, timeout=60)

    assert done.returncode == 1
    assert "FAILED golden/shop/case.yaml::iptables.txt - behaviour changed" in done.stdout
    assert "FAILED golden/shop/case.yaml::flow 1: outside" in done.stdout
    assert "FAILED tests/test_maintenance.py::test_customers_are_dropped" in done.stdout
