"""A clock that moves when a test says so."""

_NANOSECONDS = 10**9


class ManualClock:
    """
    Monotonic seconds when called, and a wall clock that goes with it.

    Args:
        unix_time_s: Wall clock at the start, whole seconds since 1970.
    """

    def __init__(self, unix_time_s: int = 1_700_000_000) -> None:
        self._unix_time_s = unix_time_s
        self._elapsed_s = 0.0

    def __call__(self) -> float:
        """Seconds since some moment that means nothing."""
        return 1_000.0 + self._elapsed_s

    def wall_ns(self) -> int:
        """Nanoseconds since 1970."""
        return self._unix_time_s * _NANOSECONDS + round(self._elapsed_s * _NANOSECONDS)

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._elapsed_s += seconds
