"""What is locked: complete, for every Python, installed as it stands; and an audit that never passes in silence."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]
_SCRIPT = _ROOT / ".ci" / "dependencies.py"
_CLICK = re.compile(r"^click==(\S+) .*?(?=^\w)", re.MULTILINE | re.DOTALL)


def _check(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(_SCRIPT), "--root", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the files that are compared, to be changed."""
    shutil.copytree(_ROOT / ".ci" / "locked", tmp_path / ".ci" / "locked")
    shutil.copy(_ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def _replace(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def _click(checkout: Path) -> tuple[Path, re.Match[str]]:
    path = checkout / ".ci" / "locked" / "project.txt"
    found = _CLICK.search(path.read_text(encoding="utf-8"))
    assert found
    return path, found


def test_everything_is_locked_and_installed_as_locked() -> None:
    """Every dependency of the project and its groups has a version, hashes and no host; this environment has them."""
    done = _check(_ROOT)

    assert (done.returncode, done.stderr) == (0, "")
    assert "NOT CHECKED: known vulnerabilities (make audit)" in done.stdout


def test_locked_files_need_nothing_else() -> None:
    """Each line is a package, a marker or a hash: no option that says where packages come from."""
    for path in (_ROOT / ".ci" / "locked").glob("*.txt"):
        lines = path.read_text(encoding="utf-8").splitlines()

        assert lines
        assert all(re.match(r"[a-z0-9][a-z0-9-]*==\S|    --hash=sha256:[0-9a-f]{64}", line) for line in lines), path


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ('"click>=8.1"', '"click>=99"', "asks for click>=99"),
        (
            '"click>=8.1"',
            '"click>=8.1", "zope.interface>=7"',
            "project.txt: no zope.interface>=7 for Python 3.11",
        ),
        ('"mutmut>=3.8"', '"mutmut>=3.8", "click<1"', "mutation.txt: click"),
        ("\nmutation = [", '\nmore = ["click"]\nmutation = [', "more.txt: missing"),
        ("\nmutation = [", "\nother = [", "mutation.txt: pyproject.toml has no such group"),
    ],
)
def test_lock_that_is_not_what_the_project_asks_for_is_told(checkout: Path, old: str, new: str, fault: str) -> None:
    """A dependency that was added or raised, a group that was added or went, and the lock was not written anew."""
    _replace(checkout / "pyproject.toml", old, new)
    done = _check(checkout)

    assert done.returncode == 1
    assert fault in done.stderr


def test_other_version_than_installed_is_told(checkout: Path) -> None:
    """Another version is locked than the one that is installed, and another than in the other files."""
    path, click = _click(checkout)
    _replace(path, f"click=={click[1]}", "click==8.1.99")
    done = _check(checkout)

    assert done.returncode == 1
    assert f"click {click[1]} is installed, 8.1.99, {click[1]} is locked" in done.stderr
    assert f"Python 3.14: click in several versions: 8.1.99, {click[1]}" in done.stderr


def test_package_that_is_locked_and_not_installed_is_told(checkout: Path) -> None:
    """A locked package must be there; those of groups that are installed later need not."""
    digest = "0" * 64
    for name in ("dev", "bench"):
        with (checkout / ".ci" / "locked" / f"{name}.txt").open("a", encoding="utf-8") as file:
            file.write(f"absent-{name}==1.0 --hash=sha256:{digest}\n")
    done = _check(checkout)

    assert (done.returncode, done.stderr) == (1, "absent-dev is not installed, 1.0 is locked\n")


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("click=={} \n", "project.txt: no hashes: click"),
        ("click=={} --hash=sha256:abc\n", "project.txt: no hashes: click"),
        ("click>=8 --hash=sha256:" + "0" * 64 + "\n", "project.txt: no exact version: click"),
        ("click==8.* --hash=sha256:" + "0" * 64 + "\n", "project.txt: no exact version: click"),
        ("--index-url https://packages.example/simple\n", "project.txt: names a host"),
        ("click=={} ; python_version >= '3.12' --hash=sha256:" + "0" * 64 + "\n", "no click>=8.1 for Python 3.11\n"),
    ],
)
def test_line_that_does_not_pin_is_told(checkout: Path, line: str, fault: str) -> None:
    """No hash, no exact version, a host, a Python left out."""
    path, click = _click(checkout)
    _replace(path, click[0], line.format(click[1]))
    done = _check(checkout)

    assert done.returncode == 1
    assert fault in done.stderr


def _auditor(tmp_path: Path, script: str) -> tuple[str, ...]:
    program = tmp_path / "pip-audit"
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    program.chmod(0o755)
    return ("--audit", "--program", str(program))


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo 'cannot resolve the name' >&2; exit 1", "exit status 1): cannot resolve the name"),
        (
            """echo '{"dependencies":[{"name":"a","skip_reason":"unknown"},{"name":"b","version":"1","vulns":[]}]}'""",
            "NOT CHECKED: vulnerabilities of 1 of 2 packages",
        ),
        ("exit 0", "NOT CHECKED: vulnerabilities: "),
    ],
    ids=["no network", "unknown packages", "no output"],
)
def test_service_that_does_not_answer_is_no_finding_and_no_silence(tmp_path: Path, script: str, words: str) -> None:
    """Where nobody can be asked the audit says so, and does not fail for it."""
    done = _check(_ROOT, *_auditor(tmp_path, script))

    assert (done.returncode, done.stderr) == (0, "")
    assert words in done.stdout


def test_audit_without_its_program_says_so(tmp_path: Path) -> None:
    """pip-audit is not installed."""
    done = _check(_ROOT, "--audit", "--program", str(tmp_path / "absent"))

    assert done.returncode == 0
    assert "NOT CHECKED: vulnerabilities: " in done.stdout


def test_vulnerability_fails_the_audit(tmp_path: Path) -> None:
    """A finding of the service is told with the versions that mend it; every file was asked about."""
    found = '{"dependencies":[{"name":"a","version":"1","vulns":[{"id":"X-1","fix_versions":["2"]}]}],"fixes":[]}'
    done = _check(_ROOT, *_auditor(tmp_path, f"echo \"$*\" > {tmp_path}/asked; echo '{found}'; exit 1"))
    asked = (tmp_path / "asked").read_text(encoding="utf-8")

    assert (done.returncode, done.stderr) == (1, "a 1: X-1, fixed in 2\n")
    assert all(str(path) in asked for path in (_ROOT / ".ci" / "locked").glob("*.txt"))
