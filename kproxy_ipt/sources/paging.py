"""
A complete, consistent list in pages: what to ask next, given what was answered. No I/O, no clock.

`complete_list` is a generator: it yields the `PageRequest` to send, is sent the `Answer` to it, and returns the
`CompleteList` in the end. Whoever drives it waits, sends and receives; a driver is a loop of a few lines, whether it
blocks or awaits (as h11 does it; style: no sync and async twins).

How it reacts:

- 2xx: the page is decoded at once, so that no bytes pile up; `metadata.continue` leads to the next page.
- 410, a refused continue token, or a page of another resource version than the first: the snapshot that we were
  walking through is gone. Start over once; if that happens again, ask for everything in one answer, which cannot
  expire between pages (as client-go's pager does).
- 429, 503, 504, other 5xx with Retry-After, and an answer cut off in the middle: ask again, after the time the
  server names or with back-off, a few times.
- 401: ask again once with fresh credentials; tokens rotate.
- all else is final.

Source: API concepts of Kubernetes, "Retrieving large results sets in chunks"; client-go `tools/pager`,
`rest/with_retry.go`; answers recorded from a v1.36.2 server.
"""

from collections.abc import Callable, Generator
from http import HTTPStatus
from typing import Generic, TypeVar

import msgspec

from kproxy_ipt.errors import SourceError

MAX_ATTEMPTS = 5
"""How often one page is asked for before the list fails."""
FIRST_WAIT_S = 0.5
"""Wait before the second attempt where the server names no time; doubled for each further one."""
MAX_WAIT_S = 30.0
"""A server that asks for more patience than this gets none: whoever waits should know it."""

_BUSY = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT})
_FIRST_SERVER_ERROR = 500

Page = TypeVar("Page")


class PageRequest(msgspec.Struct, frozen=True, kw_only=True):
    """
    One request to send.

    Attributes:
        limit: Objects wanted; 0 asks for all.
        continue_token: Where the former page ended; "" for the first page.
        wait_s: Seconds to wait before sending.
        renew_credentials: The former credentials were refused; get new ones.
    """

    limit: int
    continue_token: str = ""
    wait_s: float = 0.0
    renew_credentials: bool = False


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """
    What came back.

    Attributes:
        status: Status code of HTTP; 0 if the answer broke off, with *interruption* as the reason.
        body: As received.
        retry_after: The header Retry-After, or "".
    """

    status: int
    body: bytes = b""
    retry_after: str = ""
    interruption: str = ""


class CompleteList(msgspec.Struct, Generic[Page], frozen=True, kw_only=True):
    """All pages in order, and the version from which a watch goes on."""

    pages: tuple[Page, ...]
    resource_version: str


class StatusDetails(msgspec.Struct, frozen=True, rename="camel"):
    """`details` of a Status."""

    retry_after_seconds: int | None = None


class Status(msgspec.Struct, frozen=True):
    """A v1 Status: how an API server says no."""

    message: str = ""
    reason: str = ""
    details: StatusDetails | None = None


class ListRefusedError(SourceError):
    """The server will not give the list; `answer` is the last word, `attempts` how often it was asked for that page."""

    def __init__(self, answer: Answer, attempts: int) -> None:
        super().__init__(f"HTTP status {answer.status}")
        self.answer = answer
        self.attempts = attempts


class _ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    """`metadata` of a list."""

    continue_: str | None = msgspec.field(name="continue", default=None)
    resource_version: str | None = None


class _ListHead(msgspec.Struct, frozen=True):
    """A list whose items are not looked at, but are a list."""

    kind: str
    metadata: _ListMeta
    items: list[msgspec.Raw] | None


class _SnapshotGoneError(Exception):
    """The pages so far and the rest do not fit together any more."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.answer = answer


def complete_list(
    decode_page: Callable[[bytes], Page], page_size: int, *, kind: str
) -> Generator[PageRequest, Answer, CompleteList[Page]]:
    """
    Ask for a list until it is complete.

    Args:
        decode_page: Called once with the body of every page; what it returns for pages of a list that had to be
            started over is dropped.
        page_size: 0 asks for all at once.
        kind: Kind of the list, `ServiceList`. Anything else is refused: an empty list of something else must not pass
            for a cluster without services.

    Returns:
        As the value of the generator: the pages of one snapshot.

    Raises:
        ListRefusedError: The server refused for good, does not recover within the attempts, or sends something that
            is no list.
    """
    gone: _SnapshotGoneError | None = None
    for limit in (page_size, page_size, 0):
        try:
            return (yield from _one_snapshot(decode_page, limit, kind))
        except _SnapshotGoneError as error:
            gone = error
    raise ListRefusedError(gone.answer if gone else Answer(status=0), attempts=3)


def status_of(answer: Answer) -> Status:
    """The Status in the body; an empty one if the body holds none (a proxy in between has its own words)."""
    try:
        return msgspec.json.decode(answer.body, type=Status)
    except msgspec.MsgspecError:
        return Status()


def retry_after_s(answer: Answer) -> float | None:
    """Seconds the server wants us to wait, from header or Status; None if it does not say (dates do not count)."""
    if answer.retry_after.strip().isdecimal():
        return float(answer.retry_after)
    details = status_of(answer).details
    return float(details.retry_after_seconds) if details and details.retry_after_seconds else None


def _one_snapshot(
    decode_page: Callable[[bytes], Page], limit: int, kind: str
) -> Generator[PageRequest, Answer, CompleteList[Page]]:
    """All pages of one snapshot, or `_SnapshotGoneError`."""
    pages: list[Page] = []
    token, version = "", ""
    while True:
        answer = yield from _page(PageRequest(limit=limit, continue_token=token))
        head = _head(answer, kind)
        if version and head.resource_version != version:
            raise _SnapshotGoneError(answer)
        version = head.resource_version or ""
        pages.append(decode_page(answer.body))
        token = head.continue_ or ""
        if not token:
            return CompleteList(pages=tuple(pages), resource_version=version)


def _page(request: PageRequest) -> Generator[PageRequest, Answer, Answer]:
    """One page, asked for as often as makes sense."""
    renewed = False
    wait_s = 0.0
    for attempt in range(1, MAX_ATTEMPTS + 1):
        answer = yield msgspec.structs.replace(request, wait_s=wait_s, renew_credentials=renewed and wait_s == 0.0)
        if HTTPStatus.OK <= answer.status < HTTPStatus.MULTIPLE_CHOICES:
            return answer
        if _snapshot_is_gone(request, answer):
            raise _SnapshotGoneError(answer)
        if answer.status == HTTPStatus.UNAUTHORIZED and not renewed:
            renewed = True
            wait_s = 0.0
            continue
        wait_s = _wait_before_retry(answer, attempt)
        if not 0.0 < wait_s <= MAX_WAIT_S:
            break
    raise ListRefusedError(answer, attempt)


def _snapshot_is_gone(request: PageRequest, answer: Answer) -> bool:
    """Whether the server no longer understands the continue token; without one, 410 and 400 mean something else."""
    if not request.continue_token:
        return False
    return answer.status == HTTPStatus.GONE or (
        answer.status == HTTPStatus.BAD_REQUEST and "continue" in status_of(answer).message
    )


def _wait_before_retry(answer: Answer, attempt: int) -> float:
    """Seconds until the next attempt makes sense; 0 means that none does."""
    asked = retry_after_s(answer)
    back_off: float = FIRST_WAIT_S * 2.0 ** (attempt - 1)
    if answer.status == 0 or answer.status in _BUSY:
        return back_off if asked is None else max(asked, FIRST_WAIT_S)
    return max(asked, FIRST_WAIT_S) if asked is not None and answer.status >= _FIRST_SERVER_ERROR else 0.0


def _head(answer: Answer, kind: str) -> _ListMeta:
    """Version and continue token of a page; an answer that is no list is a refusal, whatever its status says."""
    try:
        head = msgspec.json.decode(answer.body, type=_ListHead)
    except msgspec.MsgspecError as error:
        raise ListRefusedError(answer, attempts=1) from error
    if head.kind != kind:
        raise ListRefusedError(answer, attempts=1)
    return head.metadata
