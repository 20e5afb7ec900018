"""What is in the image, and what is not."""

import re
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path

import pytest

from kproxy_ipt.testing.image import Image, project_version

pytestmark = [pytest.mark.kernel, pytest.mark.image]

_ROOT = Path(__file__).parents[2]
_MOST_BYTES = 320_000_000
_MOST_COMPRESSED_BYTES = 90_000_000
_BOTH_BACKENDS = [
    f"usr/sbin/{word}-{backend}{ending}"
    for word in ("iptables", "ip6tables")
    for backend in ("nft", "legacy")
    for ending in ("", "-save", "-restore")
]


def _files(image: Image) -> Iterator[Path]:
    """Every file that is no link, relative to the root."""
    for path in image.rootfs.rglob("*"):
        if path.is_file() and not path.is_symlink():
            yield path.relative_to(image.rootfs)


def test_configuration_is_what_a_runtime_needs(image: Image) -> None:
    """Commands of the program are arguments; SIGTERM ends it; the version is that of the project."""
    assert image.config.entrypoint == ["/usr/local/bin/kproxy-ipt"]
    assert image.config.cmd == []
    assert image.config.stop_signal == "SIGTERM"
    assert image.config.user == "0"
    assert image.config.labels["org.opencontainers.image.version"] == project_version(_ROOT)


def test_programs_are_there(image: Image) -> None:
    """The names of kube-proxy's image, and iptables of both backends and families."""
    expected = ["usr/local/bin/kube-proxy", "usr/local/bin/kproxy-ipt", "usr/bin/python3", *_BOTH_BACKENDS]

    assert [name for name in expected if not (image.rootfs / name).is_symlink() | (image.rootfs / name).is_file()] == []


def test_python_packages_are_those_that_are_locked(image: Image) -> None:
    """Exact versions of `.ci/locked/project.txt` and the project itself; neither pip nor setuptools."""
    text = (_ROOT / ".ci/locked/project.txt").read_text(encoding="utf-8")
    locked = dict(re.findall(r"^([\w.-]+)==([\w.]+)", text, re.MULTILINE))
    (folder,) = image.rootfs.glob("opt/kproxy-ipt/lib/python3*/site-packages")
    installed = {found.name.lower().replace("_", "-"): found.version for found in distributions(path=[str(folder)])}

    assert installed.pop("kproxy-ipt") == project_version(_ROOT)
    assert {"kubernetes", "msgspec", "python-iptables"} <= set(installed)
    assert {name: version for name, version in installed.items() if locked.get(name) != version} == {}


def test_nothing_of_the_build_is_left(image: Image) -> None:
    """No compiler, no headers, no caches, no lists of packages, no secret; no program that the daemon does without."""
    files = {str(path) for path in _files(image)}
    left = re.compile(
        r"usr/bin/(.*-)?(gcc|cc|cpp|ld|pip)[\d.-]*$|usr/include/.*\.h$|(root|home/.*)/\.cache/|var/lib/apt/lists/."
        r"|var/log/.|.*/pip\.conf$|run/secrets/|mnt/|source/|locked/|usr/s?bin/(conntrack|nft|ipset|ipvsadm)$"
    )

    assert len(files) > 5000
    assert sorted(name for name in files if left.match(name) or name.endswith((".whl", ".deb"))) == []


def test_byte_code_is_there_and_counts_whatever_the_date(image: Image) -> None:
    """The root file system is read-only: what is not compiled would be compiled at each start."""
    folders = [*image.rootfs.glob("opt/kproxy-ipt/lib/python3*"), *image.rootfs.glob("usr/lib/python3.*")]
    sources = [source for folder in folders for source in folder.rglob("*.py")]
    tag = "cpython-" + folders[0].name.removeprefix("python").replace(".", "")
    headers = []
    for source in sources:
        with (source.parent / "__pycache__" / f"{source.stem}.{tag}.pyc").open("rb") as compiled:
            headers.append(compiled.read(8)[4:])

    assert len(headers) > 2000
    assert set(headers) == {b"\x01\0\0\0"}  # by hash, and not checked: PEP 552


def test_size_stays_in_bounds(image: Image, capsys: pytest.CaptureFixture[str]) -> None:
    """Unpacked and as a registry holds it; printed, with the times of the build."""
    unpacked = sum((image.rootfs / path).stat().st_size for path in _files(image))
    with capsys.disabled():
        print(  # noqa: T201 - the figures of docs/image.md
            f"\nimage: {unpacked / 1e6:.0f} MB, compressed {image.compressed_bytes / 1e6:.0f} MB;"
            f" base in {image.base_s:.0f} s, image in {image.build_s:.0f} s"
        )

    assert 50_000_000 < unpacked < _MOST_BYTES
    assert 20_000_000 < image.compressed_bytes < _MOST_COMPRESSED_BYTES
