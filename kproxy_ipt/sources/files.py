"""
Objects from files, folders and standard input.

What is wrong inside a file is a finding and costs only itself; a path that cannot be read at all is an error, since
going on without it could take rules away that are wanted.
"""

import errno
import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from kproxy_ipt.errors import Finding, Severity, SourceError
from kproxy_ipt.objects.collect import collect
from kproxy_ipt.objects.decode import Decoded, decode_documents
from kproxy_ipt.objects.model import Objects

STANDARD_INPUT = "-"
SUFFIXES = (".yaml", ".yml", ".json")
MAX_BYTES = 512 * 1024 * 1024

_STANDARD_INPUT_NAME = "standard input"


class EmptyFolderError(SourceError):
    """A folder holds no manifest."""


def read_paths(paths: Sequence[str], *, stdin: BinaryIO | None = None) -> Objects:
    """
    Read manifests and dumps.

    Args:
        paths: Files, folders, or `-` for standard input; one that is named twice is read once. Of a folder all
            `*.yaml`, `*.yml` and `*.json` below it count, sorted by path, but nothing hidden: so the folders of a
            mounted ConfigMap (`..data`) are read once, and leftovers of editors not at all. Each file is read once
            by whatever links it is reached; links that lead in circles are passed over.
        stdin: Where `-` reads, default the standard input of the process.

    Raises:
        SourceError: A path is missing or unreadable, a folder holds no manifest, a file is larger than 512 MiB.
    """
    return collect(decoded for path in dict.fromkeys(paths) for decoded in _read(path, stdin))


def _read(path: str, stdin: BinaryIO | None) -> Iterator[Decoded]:
    if path == STANDARD_INPUT:
        yield from decode_file(bytes_of(sys.stdin.buffer if stdin is None else stdin, path), _STANDARD_INPUT_NAME)
        return
    for file in manifest_files(Path(path)):
        yield from decode_file(_content(file), str(file))


def decode_file(text: bytes, origin: str) -> tuple[Decoded, ...]:
    """The documents of a file called *origin*; one without any is worth a warning."""
    if text.strip():
        return decode_documents(text, origin)
    finding = Finding(
        object=origin,
        field="",
        found="nothing",
        expected="Kubernetes objects",
        consequence="no objects come from here",
        severity=Severity.WARNING,
    )
    return (Decoded(origin=origin, findings=(finding,)),)


def _content(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            return bytes_of(opened, str(file))
    except OSError as error:
        raise unreadable(file, error) from error


def bytes_of(opened: BinaryIO, name: str) -> bytes:
    """All that is in an opened file called *name*; SourceError if that is more than 512 MiB."""
    text = opened.read(MAX_BYTES + 1)
    if len(text) > MAX_BYTES:
        raise SourceError(f"{name}: larger than {MAX_BYTES} bytes")
    return text


def unreadable(path: Path, error: OSError) -> SourceError:
    """What to say of a path that the system does not let us read."""
    return SourceError(f"{path}: {error.strerror or error}")


def manifest_files(path: Path, on_folder: Callable[[Path], None] = lambda _: None) -> tuple[Path, ...]:
    """
    The file *path*, or the manifests below the folder *path* as `read_paths` tells.

    Args:
        path: A file or a folder.
        on_folder: Called with each folder before it is looked into, *path* included.

    Raises:
        EmptyFolderError: The folder holds no manifest.
        SourceError: Something cannot be read.
    """
    try:
        is_folder = stat.S_ISDIR(path.stat().st_mode)
    except OSError as error:
        raise unreadable(path, error) from error
    if not is_folder:
        return (path,)
    files = tuple(_manifests(path, on_folder))
    if not files:
        raise EmptyFolderError(f"{path}: a folder without any file named *.yaml, *.yml or *.json")
    return files


def _manifests(folder: Path, on_folder: Callable[[Path], None]) -> Iterator[Path]:
    """Manifests below *folder*, depth first, sorted; each file and folder once."""
    seen: set[tuple[int, int]] = set()
    waiting = [folder]
    while waiting:
        path = waiting.pop()
        found = _status(path)
        if found is None or (found.st_dev, found.st_ino) in seen:
            continue
        seen.add((found.st_dev, found.st_ino))
        if stat.S_ISDIR(found.st_mode):
            on_folder(path)
            waiting += reversed(_visible_entries(path))
        elif stat.S_ISREG(found.st_mode) and path.name.endswith(SUFFIXES):
            yield path


def _status(path: Path) -> os.stat_result | None:
    """What *path* leads to; None for links in circles, and for dead links that are no manifests by name."""
    try:
        return path.stat()
    except OSError as error:
        is_manifest = path.name.endswith(SUFFIXES)
        if error.errno == errno.ELOOP or not is_manifest:
            return None
        raise unreadable(path, error) from error


def _visible_entries(folder: Path) -> list[Path]:
    try:
        return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise unreadable(folder, error) from error
