"""The Makefile and the CI script: what they promise without being run to their end."""

import os
import subprocess
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]
_TARGETS = (
    *("setup", "demo", "test", "lint", "check", "coverage", "mutation", "bench", "docs", "shipped", "dist"),
    *("lock", "audit", "image", "clean"),
)


def _make(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    # The variables of a surrounding make would reach this one.
    kept = {name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}}
    command = ["make", *arguments]
    return subprocess.run(
        command, cwd=_ROOT, env=kept | environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_help_names_every_target() -> None:
    """`make` alone lists the targets that people use."""
    listed = [line.split()[0] for line in _make().stdout.splitlines()]

    assert set(_TARGETS) <= set(listed)


@pytest.mark.parametrize("target", _TARGETS)
def test_recipe_is_valid(target: str) -> None:
    """Every target can be planned: all its prerequisites have a rule."""
    done = _make("-n", target)

    assert done.returncode == 0, done.stderr


def test_ci_runs_the_test_command_alone() -> None:
    """The CI script is executable and ends in `make test`."""
    script = _ROOT / ".ci" / "run"

    assert script.stat().st_mode & 0o111
    assert script.read_text(encoding="utf-8").splitlines()[-1] == "exec make test"


def test_old_python_is_refused_with_its_version(tmp_path: Path) -> None:
    """A python3 below 3.11 on the path stops the set-up with a message that says what is needed."""
    old = tmp_path / "python3"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.9.1"\n[ "$1" = --version ]\n', encoding="utf-8")
    old.chmod(0o755)
    done = _make("system", "MISSING_PACKAGES=:", PATH=f"{tmp_path}:{os.environ['PATH']}")

    assert done.returncode != 0
    assert "Python 3.11 or newer is needed; python3 on the path is Python 3.9.1" in done.stderr


@pytest.mark.parametrize(("target", "asked"), [("test", True), ("coverage", True), ("demo", False), ("setup", False)])
def test_tools_of_the_image_are_installed_where_it_is_built(target: str, asked: bool, tmp_path: Path) -> None:  # noqa: FBT001
    """The tests build it; the demo and the set-up of a checkout need no container tools."""
    installer = tmp_path / "apt-get"
    installer.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    installer.chmod(0o755)
    looked_at = "MISSING_PACKAGES=echo tools-$${IMAGE_TOOLS:-none}"
    # Under `make test` the variable is in the environment of this test, too.
    done = _make(target, "ROOT=0", looked_at, PATH=f"{tmp_path}:{os.environ['PATH']}", IMAGE_TOOLS="")

    assert done.returncode != 0
    assert f"Installing tools-{'0' if asked else 'none'}\n" in done.stdout


def test_missing_programs_are_named_where_they_cannot_be_installed() -> None:
    """Who may not install packages is told their Debian names, and nothing is tried."""
    done = _make("system", "ROOT=", "MISSING_PACKAGES=echo conntrack nftables")

    assert done.returncode != 0
    assert "sudo apt-get install conntrack nftables" in done.stderr
