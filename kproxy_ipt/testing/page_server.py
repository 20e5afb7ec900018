"""A server of the daemon over real connections, for as long as a test asks it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kproxy_ipt.daemon.answers import Responder
from kproxy_ipt.daemon.http import Server, Servers
from kproxy_ipt.daemon.log import SilentLog
from kproxy_ipt.testing.probe import Probed, probe_from_loop


@asynccontextmanager
async def serving(respond: Responder, address: str = "127.0.0.1:0", netns: str | None = None) -> AsyncIterator[int]:
    """A server; its port."""
    servers = Servers([Server("test", address, respond)], netns=netns, hard_fail=True, log=SilentLog())
    await servers.start()
    try:
        yield servers.port("test") or 0
    finally:
        await servers.close()


def ask(respond: Responder, path: str, *, method: str = "GET", body: bytes | None = None) -> Probed:
    """One answer of a server that lives for one question."""

    async def _once() -> Probed:
        async with serving(respond) as port:
            return await probe_from_loop("127.0.0.1", port, path, method=method, body=body)

    return asyncio.run(_once())
