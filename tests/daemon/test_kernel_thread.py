"""The thread in which one may wait for the kernel."""

import asyncio
import threading
from pathlib import Path

import pytest

from kproxy_ipt.daemon.kernel_thread import KernelThread
from kproxy_ipt.errors import NamespaceError
from kproxy_ipt.testing.namespaces import temporary_namespace


def _raise() -> None:
    raise LookupError("a bug")


def test_calls_run_one_after_the_other_in_one_other_thread() -> None:
    """What is asked for first is done first; the loop's thread does none of it."""
    done: list[tuple[int, str]] = []

    def note(number: int) -> None:
        done.append((number, threading.current_thread().name))

    async def run() -> None:
        thread = KernelThread(None, "kernel-test")
        await asyncio.gather(*(thread.call(note, number) for number in range(5)))
        thread.close()

    asyncio.run(run())
    assert [number for number, _ in done] == [0, 1, 2, 3, 4]
    assert {name for _, name in done} == {"kernel-test_0"}


def test_loop_goes_on_while_the_thread_waits() -> None:
    """A restore program that takes long keeps neither watching nor health."""

    async def run() -> bool:
        thread, released = KernelThread(None, "kernel-test"), threading.Event()
        waiting = asyncio.create_task(thread.call(released.wait, 10.0))
        await asyncio.sleep(0)
        released.set()
        result = await waiting
        thread.close()
        return result

    assert asyncio.run(run())


def test_exception_reaches_the_caller() -> None:
    """It is the caller's to judge, and the thread goes on."""

    async def run() -> int:
        thread = KernelThread(None, "kernel-test")
        with pytest.raises(LookupError, match="a bug"):
            await thread.call(_raise)
        result = await thread.call(lambda: 7)
        thread.close()
        return result

    assert asyncio.run(run()) == 7


def test_cancelled_caller_does_not_cut_off_what_runs() -> None:
    """Closing waits for it: a restore is finished, never torn."""
    began, released, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        released.wait(10.0)
        ended.set()

    async def run() -> None:
        thread = KernelThread(None, "kernel-test")
        caller = asyncio.create_task(thread.call(work))
        await asyncio.to_thread(began.wait, 10.0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        released.set()
        thread.close()

    asyncio.run(run())
    assert ended.is_set()


def test_namespace_that_is_not_there_is_told() -> None:
    """The function does not run anywhere else."""
    done: list[int] = []

    async def run() -> None:
        thread = KernelThread("kpt-there-is-none", "kernel-test")
        with pytest.raises(NamespaceError):
            await thread.call(done.append, 1)
        thread.close()

    asyncio.run(run())
    assert done == []


@pytest.mark.kernel
def test_thread_works_in_its_namespace_and_the_loop_does_not() -> None:
    """Each family's thread enters by itself."""

    def namespace() -> str:
        return str(Path("/proc/thread-self/ns/net").readlink())

    async def run(netns: str) -> tuple[str, str]:
        thread = KernelThread(netns, "kernel-test")
        inside = await thread.call(namespace)
        thread.close()
        return inside, namespace()

    with temporary_namespace("thread") as netns:
        inside, outside = asyncio.run(run(netns))
    assert inside != outside
