"""
When the sources last heard from their origin, by kind of object.

Told, never judged: see `health.py` for why a silent API server does not make a node unhealthy.
"""

from collections.abc import Callable, Iterable, Mapping

import msgspec

from kproxy_ipt.daemon.health import rfc3339
from kproxy_ipt.objects.events import Event, Kind, Trouble

SILENT_AFTER_S = 300.0
"""Watches get an event or a bookmark about every minute; five times that is no accident."""


class ApiStatus:
    """
    Remembers the last contact and the last trouble of each kind.

    Args:
        kinds: Those that are watched; their silence is counted from now on.
        clock: Monotonic seconds.
        wall_clock_ns: Nanoseconds since 1970.
        silent_after_s: From how many seconds on a kind is called silent.
    """

    def __init__(
        self,
        kinds: Iterable[Kind],
        *,
        clock: Callable[[], float],
        wall_clock_ns: Callable[[], int],
        silent_after_s: float = SILENT_AFTER_S,
    ) -> None:
        self._clock = clock
        self._wall_clock_ns = wall_clock_ns
        self._silent_after_s = silent_after_s
        self._records = {kind: _Record(heard=clock()) for kind in kinds}

    def observe(self, event: Event) -> None:
        """Take note of an event of a source; every event but `Trouble` is a sign of life."""
        record = self._records.setdefault(event.kind, _Record(heard=self._clock()))
        if isinstance(event, Trouble):
            record.trouble, record.trouble_ns = event.message, self._wall_clock_ns()
            return
        record.heard, record.heard_ns = self._clock(), self._wall_clock_ns()

    def silence_s(self) -> Mapping[Kind, float]:
        """Seconds since the last contact of each kind, since the start where there was none."""
        now = self._clock()
        return {kind: max(now - record.heard, 0.0) for kind, record in self._records.items()}

    def document(self) -> dict[str, object]:
        """For `?verbose`: by kind the last contact, the silence, whether it is too long, and the last error."""
        silences = self.silence_s()
        return {
            str(kind): {
                "lastContact": None if record.heard_ns is None else rfc3339(record.heard_ns),
                "silentSeconds": silences[kind],
                "silent": silences[kind] >= self._silent_after_s,
                "lastTrouble": None if record.trouble_ns is None else rfc3339(record.trouble_ns),
                "lastError": record.trouble or None,
            }
            for kind, record in self._records.items()
        }


class _Record(msgspec.Struct, kw_only=True):
    heard: float
    heard_ns: int | None = None
    trouble: str = ""
    trouble_ns: int | None = None
