"""
List and watch one kind of object, for ever: what a reflector of client-go does.

::

    no version   list (as a stream where the server offers that, else in pages) -> Listed
    a version    watch from it -> Put, Gone; each event and bookmark moves the version on
    stream ends  in good order: watch on; too soon: wait first
    trouble      Trouble, wait with back-off; then watch on from the version
    410, an ERROR, a line that cannot be understood, a version that goes backwards: no version any more

A server that came back with an older state answers a watch from our version with an empty stream. So after every
interruption, and after a stream in which nothing came at all, the current version is asked for first.

Times: a watch is asked for 300 to 600 s, as client-go does. Where bookmarks are known to come (about one a minute), a
stream without any word is given up after `silence_s`; elsewhere, when the server should have ended it.

Source: client-go `tools/cache/reflector.go`; KEP-3157 (streaming lists); KEP-956 (bookmarks).
"""

import asyncio
import random as random_module
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus

import aiohttp
import msgspec

from kproxy_ipt.errors import Finding, SourceError
from kproxy_ipt.objects.events import ApiObject, Contact, Event, Kind, Listed, Trouble
from kproxy_ipt.sources.api_session import ApiSession, SilenceError
from kproxy_ipt.sources.backoff import Backoff
from kproxy_ipt.sources.paged_list import PagedList
from kproxy_ipt.sources.paging import ListRefusedError, retry_after_s
from kproxy_ipt.sources.refusals import Resource, refusal_text
from kproxy_ipt.sources.watch_stream import (
    Bookmark,
    Changed,
    Gathering,
    LineSplitter,
    Malformed,
    Refused,
    StreamLine,
    is_older,
    read_line,
)

WATCH_S = 300.0
"""A watch is asked for this long at least, and twice as long at most."""
GRACE_S = 10.0
"""So much later than asked for a watch may end."""
INITIAL_S = 120.0
"""A streaming list has to be complete after this time."""
SHORT_WATCH_S = 5.0
"""A watch that ends sooner, without an event, is not followed by the next one at once."""
CONTACT_INTERVAL_S = 1.0
MAX_RETRY_AFTER_S = 60.0
"""A server that asks for more patience is asked again after this time."""

_SAME_VERSION = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS})
_FIRST_SERVER_ERROR = 500
"""Refusals that say nothing about our version: those above and those from here on."""
_NOT_ABOUT_STREAMS = _SAME_VERSION | {HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT}
"""Refusals of a streaming list that a list in pages would meet as well."""


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """
    Time and chance, for tests to hold still.

    Attributes:
        clock: Seconds, never going back.
        sleep: Waits so many seconds.
        random: A number from 0 up to, but not including, 1.
        silence_s: How long a stream with bookmarks may be silent.
        watch_s: How long a watch is asked for, at least.
    """

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    random: Callable[[], float] = random_module.random
    silence_s: float = 90.0
    watch_s: float = WATCH_S


class WatchCounts(msgspec.Struct):
    """What has happened so far with one kind: watches that the server agreed to, and their events."""

    watches: int = 0
    events: int = 0


class _Deadlines(msgspec.Struct, frozen=True):
    """When a streaming list has to be complete, and when a watch has to have ended."""

    list_by: float
    end_by: float


class _InterruptedError(Exception):
    """
    A list or a watch ended before its time.

    Attributes:
        reason: One sentence, or "" for what is no trouble.
        start_over: Something may have been missed; list anew.
        retry_after_s: What the server asks for; 0 for nothing.
        at_once: Try again without a pause.
    """

    def __init__(
        self, reason: str, *, start_over: bool = False, retry_after_s: float = 0.0, at_once: bool = False
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.start_over = start_over
        self.retry_after_s = retry_after_s
        self.at_once = at_once


class KindWatch:
    """
    One kind, listed and watched.

    Args:
        kind: What is watched.
        resource: The same in the words of the API, with selectors.
        session: Sends requests.
        deliver: Called with each event.
        pace: Time and chance.
        counts: Written here, read by whoever gave it.
    """

    def __init__(
        self,
        kind: Kind,
        resource: Resource,
        session: ApiSession,
        deliver: Callable[[Event], None],
        *,
        pace: Pace,
        counts: WatchCounts,
    ) -> None:
        self._kind = kind
        self._resource = resource
        self._session = session
        self._deliver = deliver
        self._pace = pace
        self._counts = counts
        self._backoff = Backoff(pace.clock, pace.random)
        self._pages = PagedList(kind, resource, session, sleep=pace.sleep, heard=self._heard)
        self._version = ""
        self._streams_lists = True
        self._has_bookmarks = False
        self._is_doubtful = False
        self._is_refused = False
        self._contact_at = -CONTACT_INTERVAL_S

    async def run(self) -> None:
        """List and watch until cancelled."""
        while True:
            try:
                await self._turn()
                continue
            except _InterruptedError as error:
                wait_s = self._wait_after(error)
            except ListRefusedError as error:
                wait_s = self._wait_after(self._refusal(error, "list"))
            except SourceError as error:
                wait_s = self._wait_after(_InterruptedError(str(error)))
            if wait_s:
                await self._pace.sleep(wait_s)

    async def _turn(self) -> None:
        """One list, or one watch, or both in one."""
        if self._version and self._is_doubtful:
            await self._verify_version()
        if self._version or self._streams_lists:
            await self._watch()
        else:
            await self._list()

    def _wait_after(self, error: _InterruptedError) -> float:
        """Tell what happened; returns the seconds to wait."""
        self._is_doubtful = True
        if error.start_over:
            self._version = ""
        if error.at_once:
            return 0.0
        wait_s = max(self._backoff.next_s(), min(error.retry_after_s, MAX_RETRY_AFTER_S))
        if error.reason:
            self._deliver(Trouble(self._kind, error.reason, wait_s))
        return wait_s

    def _heard(self) -> None:
        """The server has said something."""
        now = self._pace.clock()
        if now - self._contact_at >= CONTACT_INTERVAL_S:
            self._contact_at = now
            self._deliver(Contact(self._kind))

    async def _list(self) -> None:
        found = await self._pages.read()
        if not found.version:
            raise _InterruptedError(f"{self._doing('list')}: the list carries no resourceVersion")
        self._listed(found.objects, found.findings, found.version)

    def _listed(self, objects: tuple[ApiObject, ...], findings: tuple[Finding, ...], version: str) -> None:
        self._version = version
        self._is_doubtful = self._is_refused = False
        self._deliver(Listed(self._kind, objects, findings))

    async def _verify_version(self) -> None:
        """Start over if the server has an older state than the one that we know."""
        if is_older(await self._pages.current_version(), self._version):
            self._version = ""
        self._is_doubtful = False

    async def _watch(self) -> None:
        """One watch from its request to its end; without a version it begins with a streaming list."""
        gathering = None if self._version else Gathering()
        asked_s = int(self._pace.watch_s * (1.0 + self._pace.random()))
        began, events = self._pace.clock(), self._counts.events
        async with self._session.request("GET", self._resource.path, self._query(asked_s)) as response:
            if response.status != HTTPStatus.OK:
                refused = ListRefusedError(await self._session.whole_answer(response), attempts=1)
                raise self._watch_refusal(refused, is_list=gathering is not None)
            self._counts.watches += 1
            self._is_refused = False
            self._is_doubtful = True  # until the first word
            self._heard()
            await self._follow(response, gathering, _Deadlines(began + INITIAL_S, began + asked_s + GRACE_S))
        lasted_s = self._pace.clock() - began
        if events == self._counts.events and lasted_s < SHORT_WATCH_S:
            raise _InterruptedError(f"{self._doing('watch')}: the server ended it after {lasted_s:.1f} s")

    def _query(self, asked_s: int) -> dict[str, str]:
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(asked_s),
            "labelSelector": self._resource.label_selector,
            "fieldSelector": self._resource.field_selector,
            "resourceVersion": self._version,
        }
        if not self._version:
            query |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        return {name: text for name, text in query.items() if text}

    async def _follow(
        self, response: aiohttp.ClientResponse, gathering: Gathering | None, deadlines: _Deadlines
    ) -> None:
        """Read a stream to its end."""
        splitter = LineSplitter()
        while piece := await self._next_piece(response, gathering, deadlines):
            try:
                lines = splitter.feed(piece)
            except ValueError as error:
                self._take(Malformed(str(error)), gathering)
            for line in lines:
                said = read_line(self._kind, line, self._session.server)
                if self._take(said, gathering):
                    gathering = None
            await asyncio.sleep(0)  # a flood of events must not keep the others waiting
        if gathering is not None:
            self._streams_lists = False
            raise _InterruptedError(f"{self._doing('watch')}: the list was not completed", at_once=True)
        if splitter.is_within_line:
            raise _InterruptedError(f"{self._doing('watch')}: cut off within an event")

    async def _next_piece(
        self, response: aiohttp.ClientResponse, gathering: Gathering | None, deadlines: _Deadlines
    ) -> bytes:
        """The next bytes, within the time that fits what is waited for."""
        now = self._pace.clock()
        limit_s = deadlines.end_by - now
        if gathering is not None:
            limit_s = min(deadlines.list_by - now, self._session.timeout_s)
        elif self._has_bookmarks:
            limit_s = min(limit_s, self._pace.silence_s)
        try:
            return await self._session.next_piece(response, max(limit_s, 0.0))
        except SilenceError as error:
            if gathering is not None:
                self._streams_lists = False  # a server that does not know streaming lists never ends one
            raise _InterruptedError(f"{self._doing('watch')}: silent for {limit_s:.0f} s") from error

    def _take(self, said: StreamLine, gathering: Gathering | None) -> bool:
        """Pass on one line; returns whether it completes the list that is being gathered."""
        if isinstance(said, Malformed):
            self._streams_lists = self._streams_lists and gathering is None  # pages tell which object it is
            raise _InterruptedError(f"{self._doing('watch')}: {said.reason}; listing anew", start_over=True)
        if isinstance(said, Refused):
            raise self._error_event(said, is_list=gathering is not None)
        self._heard()
        if isinstance(said, Bookmark):
            return self._take_bookmark(said, gathering)
        self._counts.events += 1
        if gathering is not None:
            gathering.take(said.event)
        else:
            self._advance(said)
            self._deliver(said.event)
        return False

    def _take_bookmark(self, bookmark: Bookmark, gathering: Gathering | None) -> bool:
        self._has_bookmarks = True
        if gathering is None:
            self._advance(bookmark)
            return False
        if bookmark.ends_initial:
            self._listed(gathering.objects, tuple(gathering.findings), bookmark.version)
        return bookmark.ends_initial

    def _advance(self, said: Changed | Bookmark) -> None:
        """Everything up to the version of *said* is known."""
        if is_older(said.version, self._version):
            text = f"{self._doing('watch')}: version {said.version} after {self._version}; listing anew"
            raise _InterruptedError(text, start_over=True)
        self._version = said.version or self._version
        self._is_doubtful = False

    def _error_event(self, refused: Refused, *, is_list: bool) -> _InterruptedError:
        """What an ERROR in the stream leads to: always a new list, as with client-go."""
        if is_list and refused.code not in _NOT_ABOUT_STREAMS:
            self._streams_lists = False
            return _InterruptedError("", at_once=True)
        text = f"{self._doing('watch')}: {refused.code}, {refused.status.message}"
        details = refused.status.details
        return _InterruptedError(
            "" if refused.code == HTTPStatus.GONE else text,
            start_over=True,
            retry_after_s=float((details.retry_after_seconds if details else None) or 0),
        )

    def _watch_refusal(self, error: ListRefusedError, *, is_list: bool) -> _InterruptedError:
        """What a refused watch leads to."""
        if is_list and error.answer.status not in _NOT_ABOUT_STREAMS:
            self._streams_lists = False
            return _InterruptedError("", at_once=True)
        return self._refusal(error, "watch")

    def _refusal(self, error: ListRefusedError, verb: str) -> _InterruptedError:
        """What a refused request leads to; credentials that were refused for the first time are loaded anew."""
        text = refusal_text(self._session.server, self._session.origin, self._resource, error, verb=verb)
        status = error.answer.status
        at_once = status == HTTPStatus.UNAUTHORIZED and not self._is_refused
        self._is_refused = status == HTTPStatus.UNAUTHORIZED
        return _InterruptedError(
            "" if status == HTTPStatus.GONE else text,
            start_over=status not in _SAME_VERSION and 0 < status < _FIRST_SERVER_ERROR,
            retry_after_s=retry_after_s(error.answer) or 0.0,
            at_once=at_once,
        )

    def _doing(self, verb: str) -> str:
        return f"{self._session.server}: {verb} {self._resource.full_name}"
