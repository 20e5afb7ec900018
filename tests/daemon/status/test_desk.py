"""Where pages are made."""

import asyncio

import pytest

from kproxy_ipt.daemon.status.desk import BusyError, Desk


def test_who_comes_when_all_places_are_taken_is_sent_away() -> None:
    """And whoever comes after one has left is served."""
    desk = Desk(None, places=2)
    with desk.place():
        with desk.place(), pytest.raises(BusyError), desk.place():
            pass
        with desk.place():
            assert asyncio.run(desk.work(lambda: "fourth")) == "fourth"
    desk.close()


def test_a_page_that_fails_gives_its_place_back() -> None:
    """An error of one page is not the end of all."""
    desk = Desk(None, places=1)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), desk.place():
            asyncio.run(desk.work(lambda: 1 // 0))
    desk.close()
