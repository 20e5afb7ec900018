"""
Looking at files and folders again and again: only what changed is read, and nothing that somebody is writing.

A file is read again if its status (device, inode, size, times) is another one, if the kernel told that it was
written, or if it was just being changed when it was read last. Looking costs a `stat` of each file, reading costs what
changed.

What cannot be read costs nothing that is in force: a path that is missing, a folder that may not be searched, a file
with an error of the disk keep what they said last, and are a trouble to be told. A folder without any manifest is a
trouble too, unless it is the very folder that held some before: then they were taken out of it on purpose. (A volume
that is not mounted, and a folder that was made again and is still empty, are other folders.)
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from kproxy_ipt.errors import SourceError
from kproxy_ipt.objects.collect import collect
from kproxy_ipt.objects.decode import Decoded
from kproxy_ipt.objects.model import Objects
from kproxy_ipt.sources.file_versions import with_last_good
from kproxy_ipt.sources.files import EmptyFolderError, bytes_of, decode_file, manifest_files, unreadable
from kproxy_ipt.sources.watch_places import Places

Status = tuple[int, ...]
_FRESH_NS = 100_000_000


class FileVersion(msgspec.Struct, frozen=True):
    """
    What one file said.

    Attributes:
        status: When it was read.
        real_path: Where it was.
        parts: What it said, completed by what stays in force.
        is_fresh: It was changed so shortly before that another change may have left the status as it is: times of
            files go on in steps of some milliseconds.
    """

    status: Status
    real_path: str
    parts: tuple[Decoded, ...]
    is_fresh: bool


class Listing(msgspec.Struct, frozen=True):
    """The files of one path, and the identity of the path: device and inode."""

    identity: Status
    files: tuple[Path, ...]


class Contents(msgspec.Struct, frozen=True):
    """
    What all paths said at one moment.

    Attributes:
        listings: By path as the user wrote it; a path that could never be read is absent.
        versions: By file.
        candidates: The status of files that must look the same once more before they are read.
        troubles: What could not be read.
    """

    listings: Mapping[str, Listing] = {}
    versions: Mapping[Path, FileVersion] = {}
    candidates: Mapping[Path, Status] = {}
    troubles: tuple[str, ...] = ()

    @property
    def unread(self) -> tuple[Path, ...]:
        """Files that could not be read since somebody is writing them, and that never said anything before."""
        return tuple(file for listing in self.listings.values() for file in listing.files if file not in self.versions)

    def says_the_same(self, other: "Contents") -> bool:
        """Whether both make the same objects, as far as can be told without comparing objects."""
        return (
            self.listings == other.listings
            and self.versions.keys() == other.versions.keys()
            and all(self.versions[file] is version for file, version in other.versions.items())
        )


class Circumstances(msgspec.Struct, frozen=True):
    """What is known of files by events; see `PathWatch`."""

    touched: frozenset[str] = frozenset()
    being_written: frozenset[str] = frozenset()
    is_unsure: bool = False


def look(
    paths: Sequence[str],
    before: Contents,
    known: Circumstances,
    places: Places,
    *,
    clock_ns: Callable[[], int] = time.time_ns,
) -> Contents:
    """
    Look at all paths, read what changed.

    Args:
        paths: Files and folders.
        before: What the last look gave.
        known: Of the time before this call.
        places: Filled with what must be watched for the next change.
        clock_ns: What times of files are made from, in nanoseconds since 1970.

    Returns:
        The contents. What changed while it was looked at may be half-read: the caller knows from events, and looks
        again.
    """
    listings: dict[str, Listing] = {}
    reader = _Reader(before, known, clock_ns)
    troubles: list[str] = []
    for path in paths:
        try:
            listings[path] = _listing(Path(path), before.listings.get(path), places)
        except SourceError as error:
            troubles.append(str(error))
            if path in before.listings:
                listings[path] = before.listings[path]
                reader.keep(listings[path].files)
            continue
        for file in listings[path].files:
            try:
                reader.add(file)
            except SourceError as error:
                troubles.append(str(error))
    return Contents(listings, reader.versions, reader.candidates, tuple(dict.fromkeys(troubles)))


def restored(contents: Contents, before: Contents, uncertain: frozenset[str]) -> Contents:
    """*contents* with the earlier versions of files (by real path) that may have been read half-way."""
    versions = dict(contents.versions)
    for file, version in contents.versions.items():
        old = before.versions.get(file)
        if version.real_path not in uncertain or version is old:
            continue
        if old is None:
            del versions[file]
        else:
            versions[file] = old
    return msgspec.structs.replace(contents, versions=versions)


def objects_of(contents: Contents) -> Objects:
    """All objects, as `files.read_paths` puts them together: of several definitions the last one wins."""
    return collect(
        part
        for listing in contents.listings.values()
        for file in listing.files
        if file in contents.versions
        for part in contents.versions[file].parts
    )


def _listing(path: Path, before: Listing | None, places: Places) -> Listing:
    places.add_path(path)
    try:
        found = path.stat()
    except OSError as error:
        raise unreadable(path, error) from error
    identity = (found.st_dev, found.st_ino)
    folders: list[Path] = []
    files: tuple[Path, ...] = ()
    try:
        files = manifest_files(path, folders.append)
    except EmptyFolderError:
        if before is None or before.identity != identity:
            raise
    finally:
        places.add_manifests(folders, files if folders else ())
    return Listing(identity, files)


class _Reader:
    """Decides for each file whether it is read, and reads it."""

    def __init__(self, before: Contents, known: Circumstances, clock_ns: Callable[[], int]) -> None:
        self._before = before
        self._clock_ns = clock_ns
        self._known = known
        self.versions: dict[Path, FileVersion] = {}
        self.candidates: dict[Path, Status] = {}

    def keep(self, files: Sequence[Path]) -> None:
        """Note what *files* said last."""
        self.versions |= {file: self._before.versions[file] for file in files if file in self._before.versions}

    def add(self, file: Path) -> None:
        """Note what *file* says now, or said last; SourceError if it cannot be read."""
        if file in self.versions:
            return
        self.keep((file,))
        old = self.versions.get(file)
        try:
            status = _status(file.stat())
            real_path = os.path.realpath(file)
            if real_path in self._known.being_written or not self._is_changed(file, old, status, real_path):
                return
            if self._known.is_unsure and self._before.candidates.get(file) != status:
                self.candidates[file] = status
                return
            is_fresh = self._clock_ns() - status[-1] < _FRESH_NS
            text = self._read(file)
        except OSError as error:
            raise unreadable(file, error) from error
        if text is not None:
            parts = with_last_good(decode_file(text, str(file)), old.parts if old else (), str(file))
            self.versions[file] = FileVersion(status, real_path, parts, is_fresh)

    def _is_changed(self, file: Path, old: FileVersion | None, status: Status, real_path: str) -> bool:
        return (
            old is None
            or old.is_fresh
            or (status, real_path) != (old.status, old.real_path)
            or real_path in self._known.touched
            or file in self._before.candidates
        )

    def _read(self, file: Path) -> bytes | None:
        """The content; None if it changed meanwhile, so that it has to be looked at again."""
        with file.open("rb") as opened:
            status = _status(os.fstat(opened.fileno()))
            text = bytes_of(opened, str(file))
            if _status(os.fstat(opened.fileno())) != status:
                self.candidates[file] = status
                return None
        return text


def _status(found: os.stat_result) -> Status:
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
