"""
The project's image, built from scratch: a Debian of our own under the name of the base, then `make image`.

No registry is asked and nothing of an earlier build is used: base, image and containers have a storage of their own.
What pip is told on this machine (an index, a certificate) reaches the build as a secret.
"""

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

PROGRAMS = ("buildah", "crun", "make", "mmdebstrap")
"""What is needed, here and by `testing/container.py`."""

_LIMIT_S = 900.0
# What Debian's slim images leave out.
_LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/info/*", "/usr/share/locale/*")
# What of pip's settings says where packages come from, or how long that may take.
_PIP_SETTINGS = ("index-url", "proxy", "trusted-host", "timeout", "default-timeout")


class ImageConfig(msgspec.Struct, frozen=True, rename="pascal"):
    """The part `config` of the OCI image configuration."""

    env: list[str]
    entrypoint: list[str]
    labels: Mapping[str, str]
    stop_signal: str
    user: str
    cmd: list[str] = []


class _ImageDocument(msgspec.Struct, frozen=True):
    config: ImageConfig


class _Inspected(msgspec.Struct, frozen=True):
    image: _ImageDocument = msgspec.field(name="OCIv1")


class Image(msgspec.Struct, frozen=True):
    """
    A built image.

    Attributes:
        rootfs: Its files, mounted.
        compressed_bytes: All layers and documents, as a registry would hold them.
        base_s: Seconds for the base.
        build_s: Seconds for the image.
    """

    rootfs: Path
    config: ImageConfig
    compressed_bytes: int
    base_s: float
    build_s: float


@contextmanager
def built_image(root: Path, folder: Path) -> Iterator[Image]:
    """
    Build base and image, some two minutes; both are gone at the end.

    Args:
        root: The checkout.
        folder: Empty; removed at the end.

    Raises:
        RuntimeError: A step failed; the text holds the end of what it printed.
    """
    builder = ["buildah", "--root", f"{folder}/storage", "--runroot", f"{folder}/run", "--storage-driver", "vfs"]
    try:
        yield _build(root, folder, builder)
    finally:
        subprocess.run([*builder, "rm", "--all"], capture_output=True, check=False, timeout=_LIMIT_S)
        shutil.rmtree(folder)


def _build(root: Path, folder: Path, builder: Sequence[str]) -> Image:
    began_s = time.monotonic()
    _make_base(_base_name(root), folder / "base.tar", builder)
    based_s = time.monotonic()
    options = ["--isolation", "chroot", "--pull-never", *_secrets(folder)]
    _run(["make", "image", f"BUILDER={' '.join(builder)}", f"OPTIONS={' '.join(options)}"], root)
    built_s = time.monotonic()
    name = f"kproxy-ipt:{project_version(root)}"
    _run([*builder, "push", "--quiet", name, f"oci:{folder}/pushed"])
    container = _run([*builder, "from", "--pull-never", name])
    inspected = _run([*builder, "inspect", "--type", "image", name])
    return Image(
        rootfs=Path(_run([*builder, "mount", container])),
        config=msgspec.json.decode(inspected, type=_Inspected).image.config,
        compressed_bytes=sum(path.stat().st_size for path in (folder / "pushed/blobs/sha256").iterdir()),
        base_s=based_s - began_s,
        build_s=built_s - based_s,
    )


def project_version(root: Path) -> str:
    """The version of the package in a checkout."""
    return _only(r'^__version__ = "(.+)"$', root / "kproxy_ipt/__init__.py")


def _base_name(root: Path) -> str:
    return _only(r"^ARG BASE=(.+)$", root / "manifests/image/Containerfile")


def _only(pattern: str, file: Path) -> str:
    (found,) = re.findall(pattern, file.read_text(encoding="utf-8"), re.MULTILINE)
    return str(found)


def _make_base(name: str, tar: Path, builder: Sequence[str]) -> None:
    suite = name.partition(":")[2].removesuffix("-slim")
    left_out = [f"--dpkgopt=path-exclude={pattern}" for pattern in _LEFT_OUT]
    kept = "--dpkgopt=path-include=/usr/share/doc/*/copyright"
    _run(["mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", *left_out, kept, suite, str(tar)])
    container = _run([*builder, "from", "scratch"])
    _run([*builder, "add", "--quiet", container, str(tar), "/"])
    _run([*builder, "commit", "--quiet", "--rm", container, name])


def _secrets(folder: Path) -> list[str]:
    """Options that hand this machine's settings of pip to the build."""
    listed = _run([sys.executable, "-m", "pip", "config", "list"])
    settings = dict(re.findall(r"^(?:global|install|:env:)\.([\w-]+)='(.*)'$", listed, re.MULTILINE))
    wanted = {name: settings[name] for name in _PIP_SETTINGS if name in settings}
    options = ["--secret", f"id=pip.conf,src={folder}/pip.conf"]
    if "cert" in settings:
        options += ["--secret", f"id=ca.crt,src={settings['cert']}"]
        wanted["cert"] = "/run/secrets/ca.crt"
    lines = ["[global]", *(f"{name} = {value}" for name, value in wanted.items()), ""]
    (folder / "pip.conf").write_text("\n".join(lines), encoding="utf-8")
    return options


def _run(command: Sequence[str], folder: Path | None = None) -> str:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=_LIMIT_S, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}")
    return done.stdout.strip()
