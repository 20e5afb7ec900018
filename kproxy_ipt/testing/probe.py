"""Asking an HTTP server the way a balancer or a scraper does: one request, one connection."""

import asyncio
import http.client
from collections.abc import Mapping

import msgspec

_TIMEOUT_S = 30.0


class Probed(msgspec.Struct, frozen=True):
    """What was answered; names of headers in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def probe(host: str, port: int, path: str = "/", *, method: str = "GET", body: bytes | None = None) -> Probed:
    """
    Ask once.

    Raises:
        ConnectionRefusedError: Nobody listens.
        TimeoutError: No answer within 5 seconds.
    """
    connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
    try:
        connection.request(method, path, body=body)
        answer = connection.getresponse()
        headers = {name.lower(): text for name, text in answer.getheaders()}
        return Probed(answer.status, headers, answer.read())
    finally:
        connection.close()


async def probe_from_loop(
    host: str, port: int, path: str = "/", *, method: str = "GET", body: bytes | None = None
) -> Probed:
    """The same in a thread, for a server on the loop of the caller."""
    return await asyncio.to_thread(probe, host, port, path, method=method, body=body)
