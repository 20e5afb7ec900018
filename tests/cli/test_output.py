"""What is printed for people and programs, whatever the terminal can show."""

import json
import platform
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from click.testing import Result

from kproxy_ipt import __version__
from kproxy_ipt_cli._output import counted, print_table

Invoke = Callable[..., Result]
Program = Callable[..., subprocess.CompletedProcess[str]]


def test_table_aligns_words_left_and_numbers_right(capsys: pytest.CaptureFixture[str]) -> None:
    """A dash stands for an unknown number; no line ends in blanks."""
    print_table(("what", "number", "why"), [("a", "5", "x"), ("long word", "-", ""), ("b", "0.25", "y")])

    assert capsys.readouterr().out.splitlines() == [
        "what       number  why",
        "a               5  x",
        "long word       -",
        "b            0.25  y",
    ]


def test_table_never_cuts_a_name(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The width of the terminal does not matter: names are there to be copied."""
    monkeypatch.setenv("COLUMNS", "20")
    name = "KUBE-SVC-AAAAAAAAAAAAAAAA"
    print_table(("chain", "owner"), [(name, "n" * 63 + "/" + "s" * 63)])

    assert f"{name}  {'n' * 63}/{'s' * 63}\n" in capsys.readouterr().out


def test_table_without_rows_is_its_heading(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing to show is no error."""
    print_table(("a", "b"), [])

    assert capsys.readouterr().out == "a  b\n"


@pytest.mark.parametrize(("number", "text"), [(0, "0 rules"), (1, "1 rule"), (2, "2 rules")])
def test_one_is_singular(number: int, text: str) -> None:
    """Counted words."""
    assert counted(number, "rule") == text


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_any_name_can_be_printed_anywhere(encoding: str, program: Program, examples: Path, tmp_path: Path) -> None:
    """A terminal that knows no Unicode gets escapes instead of an exception."""
    bad = tmp_path / "bad.yaml"
    bad.write_text(
        "{apiVersion: v1, kind: Service, metadata: {name: 'sørvice→', namespace: x}, spec: {ports: [{port: 1}]}}"
    )
    arguments = ("render", "--from", bad, "--from", examples, "--hostname-override", "n1", "--output", "yaml")
    ran = program(*arguments, env={"PYTHONIOENCODING": encoding, "LC_ALL": "C.UTF-8"})

    assert ran.returncode == 3, ran.stderr
    assert "rejected: Service x/s" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_failure_is_an_object_too(form: str, invoke: Invoke) -> None:
    """Who asked for an object gets one, with kind, message and exit code, and the words on standard error."""
    ran = invoke("render", "--from", "/no/such/path", "--output", form)
    document = json.loads(ran.stdout) if form == "json" else yaml.safe_load(ran.stdout)

    assert document == {
        "error": {"kind": "SourceError", "message": "/no/such/path: No such file or directory"},
        "exit_code": 5,
    }
    assert ran.stderr == "error: /no/such/path: No such file or directory\n"


def test_configuration_is_printed_as_kube_proxy_would_read_it(invoke: Invoke, tmp_path: Path) -> None:
    """`config` gives a file that gives itself."""
    first = invoke("config", "--cluster-cidr", "10.244.0.0/16", "--masquerade-all", "--nodeport-addresses", "primary")
    file = tmp_path / "config.yaml"
    file.write_text(first.stdout)

    assert yaml.safe_load(first.stdout)["clusterCIDR"] == "10.244.0.0/16"
    assert invoke("config", "--config", file).stdout == first.stdout
    assert yaml.safe_load(first.stdout) == json.loads(invoke("config", "--config", file, "--output", "json").stdout)


def test_versions_are_an_object(invoke: Invoke) -> None:
    """`version --output json`: the program, Python, the kernel, and each iptables program with its backend."""
    ran = invoke("version", "--output", "json")
    document = json.loads(ran.stdout)

    assert ran.exit_code == 0
    assert (document["kproxy-ipt"], document["python"]) == (__version__, platform.python_version())
    assert document["kernel"] == platform.release()
    for found in document["iptables"]:
        assert set(found) == {"family", "backend", "program", "version"}
    assert invoke("--version").stdout == f"kproxy-ipt, version {__version__}\n"


@pytest.mark.kernel
def test_machine_without_programs_has_a_version(program: Program, tmp_path: Path) -> None:
    """No iptables is no failure of this command."""
    (tmp_path / "empty").mkdir()
    ran = program("version", sbin=tmp_path / "empty")

    assert ran.returncode == 0
    assert ran.stdout.splitlines()[-1] == "no iptables programs are installed"
