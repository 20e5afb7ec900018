"""
How an answer of the test API server goes on the wire, and what can go wrong there.

The head is that of a kube-apiserver: short bodies carry their length, longer ones and watches come in chunks.
"""

import asyncio

from aiohttp import web

from kproxy_ipt.testing.api_faults import Fault
from kproxy_ipt.testing.api_replies import Reply

_CHUNKED_FROM = 2048
"""Go's HTTP server counts the bytes of shorter bodies itself and sends longer ones in chunks."""


class HungUpError(Exception):
    """The connection was broken on purpose; nothing more can be sent."""


class Wire:
    """
    One answer on its way.

    Args:
        request: What is answered.
        fault: What befalls the body.
        stopping: Ends every wait.
    """

    def __init__(self, request: web.BaseRequest, fault: Fault, stopping: asyncio.Event) -> None:
        self._request = request
        self._fault = fault
        self._stopping = stopping
        self._sent = 0
        self.response = web.StreamResponse()

    async def send_reply(self, reply: Reply) -> None:
        """Send a whole answer."""
        length = None if len(reply.body) >= _CHUNKED_FROM else len(reply.body)
        await self.open(reply, length)
        await self.send(reply.body)

    async def open(self, reply: Reply, length: int | None = None) -> None:
        """Send the head; *length* None means chunks."""
        headers = {"Cache-Control": "no-cache, private", "Content-Type": reply.content_type}
        if reply.retry_after:
            headers["Retry-After"] = reply.retry_after
        self.response = web.StreamResponse(status=reply.status, headers=headers)
        if length is None:
            self.response.enable_chunked_encoding()
        else:
            self.response.content_length = length
        await self.response.prepare(self._request)

    async def send(self, content: bytes) -> None:
        """
        Send a piece of the body.

        Raises:
            HungUpError: The fault says that the connection breaks within this piece.
        """
        allowed = min(
            limit for limit in (self._fault.cut_after, self._fault.silent_after, 1 << 62) if limit is not None
        )
        whole = allowed - self._sent > len(content)
        await self._write(content if whole else content[: allowed - self._sent])
        if whole:
            return
        if self._fault.silent_after is not None:
            await self.fall_silent()
        self.hang_up()

    async def fall_silent(self) -> None:
        """Keep the connection and send nothing, until the server stops."""
        await self._stopping.wait()
        self.hang_up()

    def hang_up(self) -> None:
        """Close the connection behind what was sent so far; raises HungUpError."""
        if self._request.transport is not None:
            self._request.transport.close()
        raise HungUpError

    async def wait(self, seconds: float) -> None:
        """Do nothing for a while; HungUpError if the server stops meanwhile."""
        try:
            async with asyncio.timeout(None if seconds == float("inf") else seconds):
                await self._stopping.wait()
        except TimeoutError:
            return
        self.hang_up()

    async def _write(self, content: bytes) -> None:
        self._sent += len(content)
        if not self._fault.byte_delay_s:
            if content:
                await self.response.write(content)
            return
        for number in content:
            await self.wait(self._fault.byte_delay_s)
            await self.response.write(bytes([number]))
