"""
Objects from files and folders that are watched: what `files.py` reads once, kept up to date.

First everything is read, and told as soon as all paths can be read: before that, nothing would be known completely.
From then on each change is told as the objects that differ. When to look is the business of `path_watch.py`, what has
to be read again that of `folder_contents.py`, what becomes of text that cannot be read that of `file_versions.py`.

Files are searched, read and decoded in a thread: a dump of a large cluster takes seconds, a network file system may
hang, and the loop has other things to do. Between two looks no thread runs.
"""

import asyncio
from collections.abc import Callable, Sequence

from kproxy_ipt.errors import SourceError
from kproxy_ipt.objects.events import Contact, Event, Kind, Trouble
from kproxy_ipt.objects.model import Objects
from kproxy_ipt.sources.files import STANDARD_INPUT
from kproxy_ipt.sources.folder_contents import Circumstances, Contents, look, objects_of, restored
from kproxy_ipt.sources.object_changes import changes, listed
from kproxy_ipt.sources.path_watch import POLL_S, QUIET_S, PathWatch
from kproxy_ipt.sources.watch_places import Places

_CONTACT_S = 30.0
"""Seconds after which the source says that it is alive though nothing happened."""
_FIRST_RETRY_S = 1.0
_LAST_RETRY_S = 30.0
_SHOWN_TROUBLES = 5
_MAX_LOOKS = 5
"""Looks that may be disturbed by changes before what was certain in the last one counts."""


class FolderSource:
    """A source that watches files and folders."""

    def __init__(
        self,
        paths: Sequence[str],
        *,
        note: Callable[[str], None] = lambda _: None,
        quiet_s: float = QUIET_S,
        poll_s: float = POLL_S,
        contact_s: float = _CONTACT_S,
    ) -> None:
        """
        Name what is watched; nothing is read yet.

        Args:
            paths: Files and folders as for `files.read_paths`, in their order; they need not exist yet.
            note: Called with a line if files have to be polled, and why.
            quiet_s: Seconds without a change before files are read.
            poll_s: Seconds between looks where the kernel does not tell about changes.
            contact_s: Longest time in seconds between two events, while all is well.

        Raises:
            SourceError: Standard input is among them: it can be read once only.
        """
        if STANDARD_INPUT in paths:
            raise SourceError("standard input cannot be watched: name files or folders")
        self._paths = tuple(dict.fromkeys(paths))
        self._note = note
        self._quiet_s = quiet_s
        self._poll_s = poll_s
        self._contact_s = contact_s
        self._retry_s = _FIRST_RETRY_S
        self._contents = Contents()
        self._touched: frozenset[str] = frozenset()
        self._objects: Objects | None = None

    async def run(self, deliver: Callable[[Event], None]) -> None:
        """
        Watch until cancelled; never gives up.

        Args:
            deliver: Called on the loop. First with `Listed` of all three kinds, once all paths can be read; then with
                `Put`, `Gone` and `Contact`. `Trouble` of all kinds tells what cannot be read, again with each try;
                what was known of it stays in force.
        """
        with PathWatch(self._note, quiet_s=self._quiet_s, poll_s=self._poll_s) as watch:
            while True:
                contents = await self._look(watch)
                if contents.troubles:
                    # In the middle of a renaming a file may be missing for a moment.
                    await watch.changed(self._quiet_s)
                    contents = await self._look(watch)
                await self._tell(contents, deliver)
                await self._next_occasion(watch, deliver)

    async def _look(self, watch: PathWatch) -> Contents:
        """The contents, none of which was half-written when it was read."""
        contents = self._contents
        watch.refresh()
        self._touched |= watch.take_touched()
        for _ in range(_MAX_LOOKS):
            sequence = watch.sequence
            # The first reading is as good as that of `read_paths`: waiting would leave the node without rules.
            is_unsure = watch.is_unsure and self._objects is not None
            known = Circumstances(self._touched, watch.being_written, is_unsure)
            places = Places()
            found = await asyncio.to_thread(look, self._paths, contents, known, places)
            is_new = watch.watch(places)
            watch.refresh()
            self._touched = watch.take_touched()
            contents = restored(found, contents, self._touched | watch.being_written)
            if watch.sequence != sequence:
                await watch.changed(self._quiet_s)
                self._touched |= watch.take_touched()
            elif not is_new:
                break
        return contents

    async def _tell(self, contents: Contents, deliver: Callable[[Event], None]) -> None:
        """Tell what is new."""
        before, self._contents = self._contents, contents
        troubles = contents.troubles
        if self._objects is None:
            troubles += tuple(f"{file}: somebody is writing it" for file in contents.unread)
        is_known = self._objects is not None and contents.says_the_same(before)
        if not is_known and (self._objects is not None or not troubles):
            objects = await asyncio.to_thread(objects_of, contents)
            old, self._objects = self._objects, objects
            for event in listed(objects) if old is None else changes(old, objects):
                deliver(event)
        if troubles:
            self._tell_trouble(_joined(troubles), deliver)
        else:
            self._retry_s = _FIRST_RETRY_S
            _tell_contact(deliver)

    def _tell_trouble(self, message: str, deliver: Callable[[Event], None]) -> None:
        for kind in Kind:
            deliver(Trouble(kind, message, self._retry_s))

    async def _next_occasion(self, watch: PathWatch, deliver: Callable[[Event], None]) -> None:
        """Wait until there is reason to look."""
        if self._contents.troubles:
            await watch.changed(self._retry_s)
            self._retry_s = min(2 * self._retry_s, _LAST_RETRY_S)
        elif self._touched:
            await watch.changed(self._quiet_s)
        elif self._contents.candidates:
            await watch.changed(self._poll_s)
        else:
            while not await watch.changed(self._contact_s):
                _tell_contact(deliver)


def _joined(troubles: Sequence[str]) -> str:
    more = f"; and {len(troubles) - _SHOWN_TROUBLES} more" if len(troubles) > _SHOWN_TROUBLES else ""
    return "; ".join(troubles[:_SHOWN_TROUBLES]) + more


def _tell_contact(deliver: Callable[[Event], None]) -> None:
    for kind in Kind:
        deliver(Contact(kind))
