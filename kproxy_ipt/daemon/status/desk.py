"""
Where pages are made: one thread of their own, with room for a few who wait.

Syncs have their own threads and the event loop only takes what it needs, so nobody who reads, however much, holds up a
sync or a health answer. Who comes when all places are taken is told to come again.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from kproxy_ipt.daemon.kernel_thread import KernelThread

PLACES = 4
RETRY_AFTER_S = 2

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class BusyError(Exception):
    """All places are taken."""


class Desk:
    """The thread, in the network namespace of the rules; `close` it."""

    def __init__(self, netns: str | None, *, places: int = PLACES) -> None:
        """
        Prepare; the thread starts with the first page.

        Args:
            netns: Name or path of the namespace, None for the one of the process.
            places: How many pages may be made or wait at once.
        """
        self._thread = KernelThread(netns, "status")
        self._free = places

    @contextmanager
    def place(self) -> Iterator[None]:
        """
        Around everything that is done for one page.

        Raises:
            BusyError: Too many wait.
        """
        if not self._free:
            raise BusyError
        self._free -= 1
        try:
            yield
        finally:
            self._free += 1

    async def work(
        self, function: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Result:
        """Run *function* in the thread, after those who came before; who asks has a place."""
        return await self._thread.call(function, *args, **kwargs)

    def close(self) -> None:
        """Wait for what runs, drop what waits."""
        self._thread.close()
