"""
Telling when the content of one file changes, as that of the configuration: kube-proxy ends then, to be started anew.

Only another content counts: an editor that saves what was there, a ConfigMap that is mounted again with the same text,
or a file that is away for a moment are no changes. Nor is a file that somebody is just writing.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path

from kproxy_ipt.sources.path_watch import POLL_S, QUIET_S, PathWatch
from kproxy_ipt.sources.watch_places import Places


class FileWatch:
    """Watches one file by name, whatever links it is reached through."""

    def __init__(
        self,
        path: str,
        on_change: Callable[[], None],
        *,
        known: bytes | None = None,
        note: Callable[[str], None] = lambda _: None,
        quiet_s: float = QUIET_S,
        poll_s: float = POLL_S,
    ) -> None:
        """
        Name the file.

        Args:
            path: It may be missing, now or later; it counts when it is back.
            on_change: Called on the loop each time the content is another one than before.
            known: The content that is in use; by default that of now.
            note: Called with a line if the file has to be polled, and why.
            quiet_s: Seconds without a change before it is read.
            poll_s: Seconds between looks where the kernel does not tell about changes.
        """
        self._path = Path(path)
        self._on_change = on_change
        self._note = note
        self._quiet_s = quiet_s
        self._poll_s = poll_s
        self._known = _digest(self._content() if known is None else known)

    async def run(self) -> None:
        """Watch until cancelled."""
        with PathWatch(self._note, quiet_s=self._quiet_s, poll_s=self._poll_s) as watch:
            candidate: bytes | None = None
            while True:
                candidate = self._look(watch, candidate)
                await watch.changed(self._poll_s if candidate is not None else None)

    def _look(self, watch: PathWatch, candidate: bytes | None) -> bytes | None:
        """Call back if there is another content; the digest of one that must be seen once more, or None."""
        is_new = True
        while is_new:
            places = Places()
            places.add_path(self._path)
            is_new = watch.watch(places)
        watch.refresh()
        sequence = watch.sequence
        found = _digest(self._content())
        watch.refresh()
        # What was told meanwhile may have made it half a file; `changed` will return for it.
        if found in (None, self._known) or watch.being_written or watch.sequence != sequence:
            return None
        if watch.is_unsure and found != candidate:
            return found
        self._known = found
        self._on_change()
        return None

    def _content(self) -> bytes | None:
        try:
            return self._path.read_bytes()
        except OSError:
            return None


def _digest(content: bytes | None) -> bytes | None:
    return None if content is None else hashlib.sha256(content).digest()
