"""What is packed, and what an installation lets one import."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import click
import pytest

import kproxy_ipt
from kproxy_ipt_cli.main import cli

_ROOT = Path(__file__).parents[1]
_DATA = ".data/data/"
_IMPORT_ALL = """
import kproxy_ipt
for name in kproxy_ipt.__all__:
    getattr(kproxy_ipt, name)
"""
_VERSION = re.compile(r"(?:kproxy-ipt:|--branch v)(\d+\.\d+\.\d+[\w.-]*)")


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


@pytest.fixture(scope="module")
def built(checkout: Path) -> Path:
    """The folder with the sdist and the wheel that was made from it."""
    command = [sys.executable, "-m", "build", "--no-isolation", str(checkout)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return checkout / "dist"


def _one(built: Path, pattern: str) -> Path:
    [path] = built.glob(pattern)
    return path


def _wheel_names(built: Path) -> set[str]:
    with zipfile.ZipFile(_one(built, "*.whl")) as wheel:
        return set(wheel.namelist())


def test_wheel_holds_both_packages_and_nothing_else(built: Path) -> None:
    """The wheel has all files of the library and the command line, type markers too; no tests, no folder `cli`."""
    names = _wheel_names(built)
    sources = [*(_ROOT / "kproxy_ipt").rglob("*"), *(_ROOT / "cli" / "kproxy_ipt_cli").rglob("*")]
    files = {str(path.relative_to(_ROOT)) for path in sources if path.is_file() and path.suffix != ".pyc"}

    packed = {name for name in names if ".dist-info/" not in name and _DATA not in name}
    assert packed == {name.removeprefix("cli/") for name in files}
    assert {"kproxy_ipt/py.typed", "kproxy_ipt_cli/py.typed"} <= packed


def test_wheel_brings_manual_page_and_completions(built: Path) -> None:
    """Every file below cli/share is installed below share of the prefix, and nothing else beside the packages."""
    shipped = {name.partition(_DATA)[2] for name in _wheel_names(built) if _DATA in name}
    files = {str(path.relative_to(_ROOT / "cli")) for path in (_ROOT / "cli" / "share").rglob("*") if path.is_file()}

    assert shipped == files
    assert len(files) == 4


def test_wheel_installs_the_command_and_the_plugin(built: Path) -> None:
    """The wheel declares the program `kproxy-ipt` and the plugin of pytest."""
    with zipfile.ZipFile(_one(built, "*.whl")) as wheel:
        entry = next(name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt"))
        text = wheel.read(entry).decode()

    assert "kproxy-ipt = kproxy_ipt_cli.main:main" in text
    assert "kproxy_ipt = kproxy_ipt.testing.pytest_plugin" in text


def test_sdist_holds_what_a_distributor_needs(built: Path) -> None:
    """The sdist has tests, manifests, Makefile, licence and changelog as well, and no compiled file."""
    with tarfile.open(_one(built, "*.tar.gz")) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}

    assert {"LICENSE", "CHANGELOG.md", "Makefile", "pyproject.toml", "tests/test_packaging.py"} <= names
    assert {".ci/locked/project.txt", ".ci/dependencies.py", "docs/site/mkdocs.yml"} <= names
    assert {"manifests/examples/web.yaml", "cli/kproxy_ipt_cli/main.py", "kproxy_ipt/errors.py"} <= names
    assert not [name for name in names if name.endswith(".pyc") or "__pycache__" in name]


def test_an_index_would_take_both(built: Path) -> None:
    """Metadata and long description are such that an index accepts and shows them."""
    command = [sys.executable, "-m", "twine", "--no-color", "check", "--strict", *map(str, built.iterdir())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stdout.count("PASSED")) == (0, 2), done.stdout + done.stderr


def _locked_names() -> set[str]:
    texts = [(_ROOT / ".ci" / "locked" / f"{name}.txt").read_text(encoding="utf-8") for name in ("build", "project")]
    return set(re.findall(r"^([\w.-]+)==", "".join(texts), re.MULTILINE))


def _clean_environment(folder: Path) -> Path:
    """
    A virtual environment with the locked packages of the project and what builds it, and nothing else.

    They are lent by the environment of the tests, so that no server is asked.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60)
    [packages] = folder.glob("lib/python*/site-packages")
    for name in _locked_names():
        try:
            lent = metadata.distribution(name)
        except metadata.PackageNotFoundError:  # locked for another Python or machine
            continue
        for top in {file.parts[0] for file in lent.files or () if file.parts[0] not in {"..", "__pycache__"}}:
            if not (packages / top).exists():
                (packages / top).symlink_to(str(lent.locate_file(top)))
    return folder / "bin"


def _run(folder: Path, *command: str | Path) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(folder), "PIP_CONFIG_FILE": os.devnull},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("pattern", ["*.whl", "*.tar.gz"], ids=["wheel", "sdist"])
def test_installation_into_a_clean_environment_works(built: Path, pattern: str, tmp_path: Path) -> None:
    """With the declared dependencies alone the program tells its version, makes rules and has its manual page."""
    environment = _clean_environment(tmp_path / "venv")
    install = ("install", "--no-index", "--no-deps", "--no-build-isolation", _one(built, pattern))
    _run(tmp_path, environment / "python", "-m", "pip", *install)
    example = _ROOT / "manifests" / "examples" / "web.yaml"
    program = environment / "kproxy-ipt"

    _run(tmp_path, environment / "python", "-m", "pip", "check")
    assert _run(tmp_path, program, "--version") == f"kproxy-ipt, version {kproxy_ipt.__version__}\n"
    assert "KUBE-SVC-XRY76EGRC3BSCIIJ" in _run(tmp_path, program, "render", "--from", example, "--family", "ipv4")
    assert _run(tmp_path, environment / "python", "-c", _IMPORT_ALL) == ""
    assert (tmp_path / "venv" / "share" / "man" / "man1" / "kproxy-ipt.1").is_file()


def test_shipped_files_are_those_of_the_commands(tmp_path: Path) -> None:
    """Manual page and completions are what `make shipped` writes today."""
    subprocess.run([sys.executable, str(_ROOT / ".ci" / "shipped.py"), str(tmp_path)], check=True, timeout=60)
    committed = _ROOT / "cli" / "share"

    for path in (each for each in [*committed.rglob("*"), *tmp_path.rglob("*")] if each.is_file()):
        name = path.relative_to(committed if path.is_relative_to(committed) else tmp_path)
        assert (committed / name).read_text(encoding="utf-8") == (tmp_path / name).read_text(encoding="utf-8"), name


def test_manual_page_tells_every_command_and_is_set_without_a_warning() -> None:
    """The program groff understands all of it; where there is no groff, the requests of the page are checked alone."""
    page = _ROOT / "cli" / "share" / "man" / "man1" / "kproxy-ipt.1"
    text = page.read_text(encoding="utf-8")

    for name in cli.list_commands(click.Context(cli)):
        assert f'.SS "kproxy\\-ipt {name} ' in text
    requests = {line.split(" ")[0] for line in text.splitlines() if line.startswith((".", "'"))}
    assert requests == {".TH", ".SH", ".SS", ".PP", ".TP", ".nf", ".fi"}
    if groff := shutil.which("groff"):
        done = subprocess.run(
            [groff, "-man", "-Tutf8", "-ww", str(page)], capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("shell", "folder"),
    [("bash", "bash-completion/completions"), ("zsh", "zsh/site-functions"), ("fish", "fish/vendor_completions.d")],
)
def test_completion_is_a_script_of_its_shell(shell: str, folder: str) -> None:
    """Where the shell is installed, it can parse what is shipped for it."""
    [script] = (_ROOT / "cli" / "share" / folder).iterdir()

    assert f"_KPROXY_IPT_COMPLETE={shell}_complete" in script.read_text(encoding="utf-8")
    if program := shutil.which(shell):
        done = subprocess.run([program, "-n", str(script)], capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, "")


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
    headings = re.findall(r"^## \[(.+?)\]", (_ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)

    assert headings[0] in {"Unreleased", kproxy_ipt.__version__}


def test_one_place_says_the_version() -> None:
    """The package says it, metadata repeats it, and wherever an image is named it has this version."""
    named = {
        str(path.relative_to(_ROOT)): set(_VERSION.findall(path.read_text(encoding="utf-8")))
        for folder in ("docs", "manifests", "README.md")
        for path in [_ROOT / folder, *(_ROOT / folder).rglob("*")]
        if path.suffix in {".md", ".yaml", ".yml"}
    }
    images = {path: versions for path, versions in named.items() if versions}

    assert {"README.md", "manifests/base/daemonset.yaml"} <= set(images)
    assert all(versions == {kproxy_ipt.__version__} for versions in images.values()), images
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (project.get("version"), project["dynamic"]) == (None, ["version"])


def test_metadata_has_the_version(built: Path) -> None:
    """The version of wheel and sdist is that of the package."""
    names = {path.name for path in built.iterdir()}

    version = kproxy_ipt.__version__
    assert names == {f"kproxy_ipt-{version}-py3-none-any.whl", f"kproxy_ipt-{version}.tar.gz"}
