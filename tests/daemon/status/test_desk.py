"""Where pages are made."""

import asyncio
import threading

import pytest

from kproxy_ipt.daemon.status.desk import BusyError, Desk


def test_who_comes_when_all_places_are_taken_is_sent_away() -> None:
    """And whoever comes after one has left is served."""

    async def scenario() -> None:
        desk, gate = Desk(None, places=2), threading.Event()
        waiting = [asyncio.create_task(desk.work(gate.wait, 10.0)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(BusyError):
            await desk.work(lambda: "third")

        gate.set()
        assert await asyncio.gather(*waiting) == [True, True]
        assert await desk.work(lambda: "fourth") == "fourth"
        desk.close()

    asyncio.run(scenario())


def test_a_page_that_fails_gives_its_place_back() -> None:
    """An error of one page is not the end of all."""

    async def scenario() -> None:
        desk = Desk(None, places=1)
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                await desk.work(lambda: 1 // 0)
        desk.close()

    asyncio.run(scenario())
