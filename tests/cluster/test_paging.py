"""Facts about walking through a list in pages, without any network: answers go in, requests come out."""

from collections.abc import Iterable

import msgspec
import pytest

from kproxy_ipt.sources.paging import (
    MAX_ATTEMPTS,
    Answer,
    CompleteList,
    ListRefusedError,
    PageRequest,
    complete_list,
    retry_after_s,
)

Walk = tuple[list[PageRequest], CompleteList[bytes]]


def page(*, token: str = "", version: str = "7", kind: str = "ServiceList") -> Answer:
    """A page of a list."""
    document = {"kind": kind, "metadata": {"resourceVersion": version, "continue": token}, "items": []}
    return Answer(status=200, body=msgspec.json.encode(document))


def refusal(status: int, message: str = "no", *, retry_after: str = "") -> Answer:
    """A Status as an answer."""
    return Answer(status=status, body=msgspec.json.encode({"message": message}), retry_after=retry_after)


def walk(answers: Iterable[Answer], page_size: int = 2) -> Walk:
    """Give *answers* one after the other; all requests, and the list."""
    steps = complete_list(bytes, page_size, kind="ServiceList")
    requests = [next(steps)]
    try:
        for answer in answers:
            requests += [steps.send(answer)]
    except StopIteration as end:
        return requests, end.value
    raise AssertionError("more answers are wanted")


def refused_after(answers: Iterable[Answer]) -> ListRefusedError:
    """The error that *answers* lead to."""
    with pytest.raises(ListRefusedError) as caught:
        walk(answers)
    return caught.value


def test_continue_token_leads_through_all_pages() -> None:
    """Each page names the next; the version of the list is that of its pages."""
    requests, complete = walk([page(token="a"), page(token="b"), page()])

    assert requests == [PageRequest(limit=2, continue_token=token) for token in ("", "a", "b")]
    assert (len(complete.pages), complete.resource_version) == (3, "7")


@pytest.mark.parametrize(
    "gone",
    [refusal(410), refusal(400, "invalid continue token: continue key is not valid"), page(version="8")],
    ids=["expired", "bad-token", "other-version"],
)
def test_lost_snapshot_starts_the_list_over(gone: Answer) -> None:
    """When later pages no longer fit to the first one, the list begins again and the old pages are dropped."""
    requests, complete = walk([page(token="a"), gone, page(token="c", version="9"), page(version="9")])

    assert [request.continue_token for request in requests] == ["", "a", "", "c"]
    assert (len(complete.pages), complete.resource_version) == (2, "9")


def test_twice_lost_snapshot_is_read_in_one_piece() -> None:
    """A list that expires again while it is read is asked for without pages at last."""
    requests, complete = walk([page(token="a"), refusal(410), page(token="b"), refusal(410), page(version="9")])

    assert [request.limit for request in requests] == [2, 2, 2, 2, 0]
    assert len(complete.pages) == 1


def test_list_that_expires_in_one_piece_is_refused() -> None:
    """A server that expires even the list in one piece is not asked for ever."""
    error = refused_after([page(token="a"), refusal(410)] * 3)

    assert error.answer.status == 410


@pytest.mark.parametrize("status", [400, 403, 404, 410, 500])
def test_other_refusals_are_final(status: int) -> None:
    """What waiting cannot cure is not tried again."""
    error = refused_after([refusal(status)])

    assert (error.answer.status, error.attempts) == (status, 1)


@pytest.mark.parametrize(
    ("answer", "wait_s"),
    [
        (refusal(429, retry_after="3"), 3.0),
        (refusal(503, retry_after="0"), 0.5),
        (refusal(504), 0.5),
        (refusal(500, retry_after="2"), 2.0),
        (Answer(status=503, retry_after="Fri, 31 Dec 2027 23:59:59 GMT"), 0.5),
        (Answer(status=0, interruption="reset"), 0.5),
    ],
)
def test_busy_server_is_asked_again_after_its_time(answer: Answer, wait_s: float) -> None:
    """Retry-After is kept; without one, and after a broken connection, half a second passes."""
    requests, complete = walk([page(token="a"), answer, page()])

    assert requests[2] == PageRequest(limit=2, continue_token="a", wait_s=wait_s)
    assert len(complete.pages) == 2


def test_waits_double_until_the_list_is_given_up() -> None:
    """A server that stays busy is asked five times, with growing pauses."""
    steps = complete_list(bytes, 2, kind="ServiceList")
    waits = [next(steps).wait_s]
    waits += [steps.send(refusal(503)).wait_s for _ in range(MAX_ATTEMPTS - 1)]
    with pytest.raises(ListRefusedError) as caught:
        steps.send(refusal(503))

    assert waits == [0.0, 0.5, 1.0, 2.0, 4.0]
    assert caught.value.attempts == MAX_ATTEMPTS


def test_unreasonable_retry_after_is_not_waited_for() -> None:
    """A server that wants a pause of minutes ends the list instead."""
    error = refused_after([refusal(429, retry_after="120")])

    assert (error.attempts, retry_after_s(error.answer)) == (1, 120.0)


def test_refused_credentials_are_renewed_once() -> None:
    """401 is answered with fresh credentials, at once and only once a page."""
    requests, _ = walk([refusal(401), page(token="a"), refusal(401), page()])
    error = refused_after([refusal(401), refusal(401)])

    assert [request.renew_credentials for request in requests] == [False, True, False, True]
    assert (error.answer.status, error.attempts) == (401, 2)


@pytest.mark.parametrize(
    "body",
    [
        b"<html>login</html>",
        b"[]",
        b"",
        b'{"kind": "Service", "metadata": {}}',
        b'{"kind": "NodeList", "metadata": {}, "items": []}',
        b'{"kind": "ServiceList", "metadata": {}, "items": "none"}',
    ],
)
def test_answer_that_is_no_list_is_refused(body: bytes) -> None:
    """Status 200 alone does not make a list: login pages of proxies have it too."""
    error = refused_after([Answer(status=200, body=body)])

    assert error.answer.body == body
