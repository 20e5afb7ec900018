"""
HTTP as values: what is asked, what is answered. Pages are functions from one to the other; `http.py` does the rest.

Whoever answers runs on the event loop and must not wait: a probe or a scrape never waits for a sync. A page that takes
work returns something to await, and works elsewhere.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

import msgspec

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """
    What was asked, with GET or HEAD.

    Attributes:
        path: Without the query, decoded.
        query: By name the first value of each.
        headers: By name in lower case.
    """

    path: str = "/"
    query: Mapping[str, str] = msgspec.field(default_factory=dict)
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What is answered; browsers are told not to guess another type."""

    status: int = 200
    body: bytes
    content_type: str = TEXT
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)


Responder: TypeAlias = Callable[[Request], Answer | Awaitable[Answer]]


def text_answer(text: str, status: int = 200) -> Answer:
    """Plain text."""
    return Answer(status=status, body=text.encode())


def json_answer(document: Mapping[str, object], status: int = 200) -> Answer:
    """JSON in one line, keys in their order, without a line feed."""
    return Answer(status=status, body=msgspec.json.encode(document), content_type=JSON)


def not_found() -> Answer:
    """There is no such page."""
    return text_answer("404 page not found\n", 404)
