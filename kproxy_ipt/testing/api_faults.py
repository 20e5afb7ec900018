"""
What can go wrong with a request to the test API server.

Source: answers recorded from a kube-apiserver v1.36.2.
"""

import math
from pathlib import Path
from typing import Self

import msgspec

from kproxy_ipt.testing.api_replies import Reply, status_reply


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """
    One thing that goes wrong with one request.

    Attributes:
        reply: Answered instead of the right answer; None leaves that as it is.
        delay_s: Wait before the answer.
        cut_after: Close the connection after so many bytes of the body; None sends all.
        silent_after: Send no more after so many bytes of the body, and leave the connection open; None sends all.
        byte_delay_s: Wait before each byte of the body.
        lines: Sent at the beginning of a watch, before what is right.
    """

    reply: Reply | None = None
    delay_s: float = 0.0
    cut_after: int | None = None
    silent_after: int | None = None
    byte_delay_s: float = 0.0
    lines: tuple[bytes, ...] = ()

    @classmethod
    def unauthorized(cls) -> Self:
        """401: the token is not known (any more)."""
        return cls(reply=status_reply(401, "Unauthorized", "Unauthorized"))

    @classmethod
    def forbidden(cls, resource: str = "services", group: str = "", user: str = "system:kube-proxy") -> Self:
        """403: no role allows *user* to list *resource*."""
        message = (
            f'{resource} is forbidden: User "{user}" cannot list resource "{resource}" in API group "{group}" '
            "at the cluster scope"
        )
        return cls(reply=status_reply(403, "Forbidden", message, details={"kind": resource}))

    @classmethod
    def expired(cls) -> Self:
        """410: the snapshot behind a continue token was compacted."""
        return cls(reply=status_reply(410, "Expired", "The provided continue parameter is too old."))

    @classmethod
    def too_many_requests(cls, retry_after_s: int | None = 1) -> Self:
        """429: priority and fairness turns the request away; None leaves out Retry-After."""
        message = "the server has received too many requests and has asked us to try again later"
        return cls(reply=status_reply(429, "TooManyRequests", message, retry_after_s=retry_after_s))

    @classmethod
    def unavailable(cls) -> Self:
        """503 without Retry-After, as a load balancer without a server behind it sends."""
        return cls(reply=Reply(status=503, body=b"<html>503</html>", content_type="text/html"))

    @classmethod
    def gateway_timeout(cls, retry_after_s: int = 1) -> Self:
        """504: the server is behind the wanted version."""
        message = "Timeout: Too large resource version: 999999999, current: 234"
        return cls(reply=status_reply(504, "Timeout", message, retry_after_s=retry_after_s))

    @classmethod
    def answer(cls, status: int, body: bytes, content_type: str = "application/json") -> Self:
        """Any answer at all."""
        return cls(reply=Reply(status=status, body=body, content_type=content_type))

    @classmethod
    def cut(cls, after: int = 100) -> Self:
        """The connection breaks after so many bytes of the right body."""
        return cls(cut_after=after)

    @classmethod
    def slow(cls, delay_s: float) -> Self:
        """The right answer, late."""
        return cls(delay_s=delay_s)

    @classmethod
    def hang(cls) -> Self:
        """The request is accepted and never answered."""
        return cls(delay_s=math.inf)

    @classmethod
    def half_open(cls, after: int = 0) -> Self:
        """After the head and so many bytes nothing comes any more, and the connection stays."""
        return cls(silent_after=after)

    @classmethod
    def trickle(cls, byte_delay_s: float) -> Self:
        """The right answer, byte by byte."""
        return cls(byte_delay_s=byte_delay_s)

    @classmethod
    def line(cls, *lines: bytes) -> Self:
        """A watch that begins with lines of any kind."""
        return cls(lines=lines)

    @classmethod
    def server_error(cls) -> Self:
        """500: something broke in the server."""
        return cls(reply=status_reply(500, "InternalError", "Internal error occurred: etcdserver: leader changed"))

    @classmethod
    def recorded(cls, path: Path) -> Self:
        """The answer in a file with comment lines, status line, headers, an empty line and the body."""
        head, _, body = path.read_bytes().partition(b"\n\n")
        lines = [line for line in head.decode().splitlines() if not line.startswith("#")]
        headers = dict(line.split(": ", 1) for line in lines[1:])
        return cls(
            reply=Reply(
                status=int(lines[0].split(" ")[1]),
                body=body,
                content_type=headers.get("Content-Type", ""),
                retry_after=headers.get("Retry-After", ""),
            )
        )
