"""
Waiting for changes of files, without polling where the kernel tells.

What is told is when to look and what not to read yet; the truth is in the files. A file counts as being written from
its first change on until whoever changes it closes it, so that nobody acts on half a file. After the last event there
is a short quiet time, for what is done in several steps: a temporary file and its renaming, a dump in pieces, a git
checkout.

Where inotify is refused (no more watches) or blind (file systems that other machines write to), the listener has to
look every two seconds, and must not trust a file before it looked the same twice: `is_unsure`.
"""

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from kproxy_ipt.sources import inotify
from kproxy_ipt.sources.inotify import FileEvent, Inotify
from kproxy_ipt.sources.watch_places import Interest, Places, remote_filesystem

QUIET_S = 0.1
POLL_S = 2.0
_MAX_QUIET_S = 2.0
"""A folder that never comes to rest is looked at after this time."""
_NAMES = inotify.CREATE | inotify.DELETE | inotify.MOVED_FROM | inotify.MOVED_TO | inotify.ATTRIB
_GONE = inotify.DELETE | inotify.MOVED_FROM
_SELF = inotify.DELETE_SELF | inotify.MOVE_SELF
_SELF_TOLD = _SELF | inotify.UNMOUNT | inotify.IGNORED | inotify.ATTRIB
_CONTENTS = inotify.MODIFY | inotify.CLOSE_WRITE


class PathWatch:
    """Watches the places it is told; closes at the end of the `with` block."""

    def __init__(self, note: Callable[[str], None], *, quiet_s: float = QUIET_S, poll_s: float = POLL_S) -> None:
        """
        Begin with nothing watched; a loop must be running.

        Args:
            note: Called with a line, once, if it has to be polled.
            quiet_s: Seconds without event before `changed` returns.
            poll_s: Seconds between looks where inotify does not do.
        """
        self._note = note
        self._quiet_s = quiet_s
        self._poll_s = poll_s
        self._event = asyncio.Event()
        self._folders: dict[int, tuple[str, Interest]] = {}
        self._being_written: set[str] = set()
        self._touched: set[str] = set()
        self._overran = False
        self._polls = False
        self.sequence = 0
        """Grows with everything that is told."""
        self._inotify: Inotify | None = None
        self._loop = asyncio.get_running_loop()
        try:
            self._inotify = Inotify()
        except OSError as error:
            self._poll(error.strerror or str(error))
        else:
            self._loop.add_reader(self._inotify, self.refresh)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._inotify is not None:
            self._loop.remove_reader(self._inotify)
            self._inotify.close()
            self._inotify = None

    @property
    def is_unsure(self) -> bool:
        """Whether events may be missing, so that only files that look the same twice can be trusted."""
        return self._polls or self._overran

    @property
    def being_written(self) -> frozenset[str]:
        """Real paths of files that somebody is writing."""
        return frozenset(self._being_written)

    def refresh(self) -> None:
        """Take in what the kernel has to tell, without waiting for the loop."""
        if self._inotify is not None:
            for event in self._inotify.read():
                self._take(event)

    def take_touched(self) -> frozenset[str]:
        """Real paths of files that were written, made, moved or removed since the last call."""
        touched, self._touched = frozenset(self._touched), set()
        return touched

    def watch(self, places: Places) -> bool:
        """
        Watch these places and no others.

        Returns:
            Whether something was not watched before: it may have changed meanwhile and must be looked at again.
        """
        if self._inotify is None:
            return False
        kept: dict[int, tuple[str, Interest]] = {}
        for folder, interest in places.folders.items():
            watch = self._watched(self._inotify, folder, interest)
            if watch is not None:
                kept[watch] = (folder, interest)
        known = {watch: interest for watch, (_, interest) in self._folders.items()}
        is_new = any(interest.exceeds(known.get(watch)) for watch, (_, interest) in kept.items())
        for watch in self._folders.keys() - kept.keys():
            self._forget(watch)
            self._inotify.remove(watch)
        self._folders = kept
        if is_new and not self._polls:
            self._look_for_remote(places)
        return is_new

    async def changed(self, timeout_s: float | None = None) -> bool:
        """
        Wait for a change and for the quiet after it, *timeout_s* seconds at most.

        Returns:
            Whether it is time to look; False if only the time is over.
        """
        if self.is_unsure:
            timeout_s = self._poll_s if timeout_s is None else min(timeout_s, self._poll_s)
        if not await self._told(timeout_s):
            return self._is_due()
        end = self._loop.time() + _MAX_QUIET_S
        self._event.clear()
        while self._loop.time() < end and await self._told(self._quiet_s):
            self._event.clear()
        self._event.clear()
        return True

    async def _told(self, timeout_s: float | None) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            return False
        return True

    def _is_due(self) -> bool:
        """Whether to look though nothing was told; after an overrun the second look of all files ends the doubt."""
        is_due = self.is_unsure
        self._overran = False
        return is_due

    def _take(self, event: FileEvent) -> None:
        if event.mask & inotify.OVERFLOW:
            self._overran = True
            self._being_written.clear()
            self._tell()
            return
        folder, interest = self._folders.get(event.watch, ("", None))
        if interest is None:
            return
        if not event.name:
            if event.mask & _SELF_TOLD:
                self._tell()
            if event.mask & inotify.IGNORED:
                self._forget(event.watch)
            return
        self._take_entry(event, interest, str(Path(folder) / event.name))

    def _take_entry(self, event: FileEvent, interest: Interest, path: str) -> None:
        is_content = interest.has_file(event.name) and not event.mask & inotify.IS_FOLDER
        if event.mask & inotify.MODIFY and is_content:
            self._being_written.add(path)
            self.sequence += 1
        elif event.mask & inotify.CLOSE_WRITE and is_content:
            self._being_written.discard(path)
            self._tell(path)
        elif event.mask & _NAMES and interest.has_name(event.name):
            if event.mask & (_GONE | inotify.MOVED_TO):
                self._being_written.discard(path)
            self._tell(path)

    def _tell(self, path: str | None = None) -> None:
        self.sequence += 1
        if path is not None:
            self._touched.add(path)
        self._event.set()

    def _forget(self, watch: int) -> None:
        """Whether files of a folder that is watched no longer are being written will not be told."""
        folder, _ = self._folders.pop(watch, ("", None))
        if folder:
            self._being_written = {path for path in self._being_written if str(Path(path).parent) != folder}

    def _watched(self, kernel: Inotify, folder: str, interest: Interest) -> int | None:
        mask = _NAMES | _SELF | (_CONTENTS if interest.contents_matter else 0)
        try:
            return kernel.add(folder, mask)
        except OSError as error:
            # What is missing or may not be read is told by the folder above it, or by whoever looks.
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP):
                self._poll(f"{folder}: {error.strerror}")
            return None

    def _look_for_remote(self, places: Places) -> None:
        try:
            mounts = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
        except OSError:
            return
        for folder, interest in places.folders.items():
            if interest.contents_matter and (kind := remote_filesystem(folder, mounts)):
                self._poll(f"{folder}: {kind} does not tell what other machines change")
                return

    def _poll(self, reason: str) -> None:
        if not self._polls:
            self._polls = True
            self._note(f"files are looked at every {self._poll_s:g} s, as they cannot be watched: {reason}")
