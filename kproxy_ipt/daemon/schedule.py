"""
When to sync: at once after a quiet time, then at most once a period; again after a failure, with back-off.

Pure: time comes in as seconds of any clock that never goes back.

Source: kube-proxy's bounded frequency runner, with two differences: a failed run is tried again soon, not after
syncPeriod, and there is no run without a reason: the kernel is compared by a schedule of its own.
"""

_FIRST_RETRY_S = 1.0


class SyncSchedule:
    """
    The next moment to sync, for one family.

    Attributes:
        failures: Runs that failed since the last that succeeded.
    """

    def __init__(self, *, min_gap_s: float, retry_cap_s: float) -> None:
        """
        Begin with nothing to do.

        Args:
            min_gap_s: From the end of a run to the start of the next; 0 allows runs back to back.
            retry_cap_s: Longest wait before a failed run is tried again without a new request.
        """
        self.min_gap_s = min_gap_s
        self.retry_cap_s = retry_cap_s
        self.failures = 0
        self._requested = False
        self._ended_s: float | None = None
        self._retry_s: float | None = None
        self._kept_retry_s: float | None = None
        self._waits = 0

    def request(self) -> None:
        """Something is to be done."""
        self._requested = True

    def due_s(self) -> float | None:
        """When to run next: 0 means at once; None means that there is nothing to do."""
        gap_end_s = 0.0 if self._ended_s is None else self._ended_s + self.min_gap_s
        if self._requested:
            return gap_end_s
        return None if self._retry_s is None else max(self._retry_s, gap_end_s)

    def started(self) -> None:
        """A run begins; requests from now on are for the next one."""
        self._requested = False
        self._kept_retry_s, self._retry_s = self._retry_s, None

    def ended(self, now_s: float, *, succeeded: bool) -> None:
        """
        A run has ended at *now_s*.

        One that failed before the retry was due leaves that moment as it is: waits double with time, not with the
        number of requests, or a second of failures under many changes would be followed by the longest wait.
        """
        self._ended_s = now_s
        if succeeded:
            self.failures = self._waits = 0
            return
        self.failures += 1
        if self._kept_retry_s is not None and now_s < self._kept_retry_s:
            self._retry_s = min(self._kept_retry_s, now_s + self.retry_cap_s)
            return
        self._retry_s = now_s + min(_FIRST_RETRY_S * 2**self._waits, self.retry_cap_s)
        self._waits = min(self._waits + 1, 30)
