"""What is packed, and what an installation lets one import."""

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]
_BUILD = """
import sys
from setuptools import build_meta
getattr(build_meta, "build_" + sys.argv[1])(sys.argv[2])
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is in the project's folder, so that building leaves nothing behind in it."""
    copy = tmp_path_factory.mktemp("checkout")
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for name in ("pyproject.toml", "MANIFEST.in", "CHANGELOG.md", "LICENSE", "Makefile", project["readme"]):
        (copy / name).write_bytes((_ROOT / name).read_bytes())
    for folder in ("kproxy_ipt", "cli", "tests", "manifests", "bench", "docs", ".ci"):
        for path in (_ROOT / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                target = copy / path.relative_to(_ROOT)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(path.read_bytes())
    return copy


def _build(checkout: Path, kind: str, folder: Path) -> Path:
    command = [sys.executable, "-c", _BUILD, kind, str(folder)]
    subprocess.run(command, cwd=checkout, check=True, capture_output=True, timeout=120)
    return next(path for path in folder.iterdir() if path.name.startswith("kproxy_ipt-"))


def test_wheel_holds_both_packages_and_nothing_else(checkout: Path, tmp_path: Path) -> None:
    """The wheel has the library, the command line and their type markers; no tests, no folder `cli`."""
    with zipfile.ZipFile(_build(checkout, "wheel", tmp_path)) as wheel:
        names = wheel.namelist()

    top = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert top == {"kproxy_ipt", "kproxy_ipt_cli"}
    assert {"kproxy_ipt/py.typed", "kproxy_ipt_cli/py.typed"} <= set(names)
    modules = {str(path.relative_to(_ROOT)) for path in (_ROOT / "kproxy_ipt").rglob("*.py")}
    assert modules <= set(names)
    pages = {str(path.relative_to(_ROOT)) for path in (_ROOT / "kproxy_ipt/daemon/status/pages").iterdir()}
    assert pages <= set(names)
    assert any(name.endswith("services.html") for name in pages)


def test_wheel_installs_the_command(checkout: Path, tmp_path: Path) -> None:
    """The wheel declares the program `kproxy-ipt`."""
    with zipfile.ZipFile(_build(checkout, "wheel", tmp_path)) as wheel:
        entry = next(name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt"))
        text = wheel.read(entry).decode()

    assert "kproxy-ipt = kproxy_ipt_cli.main:main" in text


def test_sdist_holds_what_a_distributor_needs(checkout: Path, tmp_path: Path) -> None:
    """The sdist has tests, manifests, Makefile, licence and changelog as well, and no compiled file."""
    with tarfile.open(_build(checkout, "sdist", tmp_path)) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}

    assert {"LICENSE", "CHANGELOG.md", "Makefile", "pyproject.toml", "tests/test_packaging.py"} <= names
    assert {".ci/locked/project.txt", ".ci/dependencies.py"} <= names
    assert {"manifests/examples/web.yaml", "cli/kproxy_ipt_cli/main.py", "kproxy_ipt/errors.py"} <= names
    assert not [name for name in names if name.endswith(".pyc") or "__pycache__" in name]


def test_folder_of_the_command_line_is_no_package(tmp_path: Path) -> None:
    """`import cli` fails in an installation, as does `import tests`; the real names work."""
    script = """
import importlib.util
print([importlib.util.find_spec(name) is not None for name in ("cli", "tests", "kproxy_ipt", "kproxy_ipt_cli")])
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True, timeout=60)

    assert done.stdout.strip() == "[False, False, True, True]"


def test_newest_changes_stand_under_unreleased_or_the_version() -> None:
    """The changelog begins with the version of the project or with what is not released yet."""
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    headings = re.findall(r"^## \[(.+?)\]", (_ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)

    assert headings[0] in {"Unreleased", project["version"]}
