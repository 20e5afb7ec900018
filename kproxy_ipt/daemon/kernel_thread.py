"""
The thread that talks to the kernel, one for each family.

Restore programs, listings and netlink answers make one wait, and a network namespace belongs to a thread: so each
family has a thread for them. What is asked of it is done in order; the event loop is not blocked meanwhile, and a slow
family does not keep the other.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from kproxy_ipt.kernel.netns import inside

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class KernelThread:
    """One thread in one network namespace; `close` it."""

    def __init__(self, netns: str | None, name: str) -> None:
        """
        Prepare the thread; it starts with the first call.

        Args:
            netns: Name or path of the namespace, None for the one of the process.
            name: For people who look at threads.
        """
        self._netns = netns
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def call(
        self, function: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Result:
        """
        Run *function* in the thread, in the namespace, after everything that was asked for before.

        If the caller is cancelled, the function runs to its end all the same: a restore is not cut off.

        Raises:
            NamespaceError: The namespace cannot be entered.
        """

        def run() -> Result:
            with inside(self._netns):
                return function(*args, **kwargs)

        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._executor, run))

    def close(self) -> None:
        """Wait for what runs, drop what has not begun, end the thread."""
        self._executor.shutdown(wait=True, cancel_futures=True)
