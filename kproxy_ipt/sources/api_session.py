"""
Requests to one API server, for a daemon: paced, with time limits, and with credentials that stay fresh.

`api_client.py` makes a client with one set of credentials. Here a new one is made as soon as a file with credentials
changes, the server answers 401, or TLS fails; requests under way keep the client they began with. Tokens and plug-ins
are asked for in a thread, since they may block.
"""

import asyncio
import contextlib
import os
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import aiohttp

from kproxy_ipt.errors import SourceError
from kproxy_ipt.sources.api_client import LoadedClient, load_client
from kproxy_ipt.sources.kubeconfig import ClusterConnection
from kproxy_ipt.sources.paging import Answer
from kproxy_ipt.sources.refusals import failure_text
from kproxy_ipt.sources.request_rate import RequestRate

Query = Mapping[str, str]


class ConnectionFailedError(SourceError):
    """Nothing was answered, or the answer broke off; `began` says whether there was an answer."""

    def __init__(self, message: str, *, began: bool) -> None:
        super().__init__(message)
        self.began = began


class SilenceError(ConnectionFailedError):
    """The server said nothing for too long."""


class ApiSession:
    """
    A client of one API server.

    Args:
        connection: Which cluster, as whom, how fast.
        clock: Seconds, never going back.
        sleep: Waits so many seconds, between requests (`qps`).

    Attributes:
        server: Address of the API server; "" before `open`.
        origin: Where that address comes from.
        timeout_s: How long the server may stay silent.
        page_size: Objects in one page of a list.
    """

    def __init__(
        self,
        connection: ClusterConnection,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.server = ""
        self.origin = ""
        self.timeout_s = connection.timeout_s
        self.page_size = connection.page_size
        self._connection = connection
        self._sleep = sleep
        self._rate = RequestRate(connection.qps, connection.burst, clock)
        self._client: LoadedClient | None = None
        self._building = asyncio.Lock()

    async def open(self) -> None:
        """
        Find the cluster and load the credentials.

        Raises:
            SourceError: No cluster is configured, or a file or plug-in fails.
        """
        await self._current_client()

    async def close(self) -> None:
        """Close all connections; requests under way break."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    @contextlib.asynccontextmanager
    async def request(
        self, method: str, path: str, query: Query | None = None, body: object = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """
        Send a request; the answer is there up to its head, whatever its status, and is closed in the end.

        Raises:
            ConnectionFailedError: No answer, or it breaks off inside the `async with` block.
            SourceError: Credentials cannot be loaded.
        """
        wait_s = self._rate.reserve()
        if wait_s:
            await self._sleep(wait_s)
        client = await self._current_client()
        response: aiohttp.ClientResponse | None = None
        async with client.in_use():
            try:
                response = await self._answered(client, method, path, query or {}, body)
                if response.status == 401:
                    client.is_refused = True
                yield response
            except (aiohttp.ClientError, ssl.SSLError, ConnectionError) as error:
                client.is_refused = client.is_refused or _is_tls(error)
                raise self._failure(error, began=response is not None) from error
            finally:
                if response is not None:
                    _hang_up(response)

    async def fetch(self, method: str, path: str, query: Query | None = None, body: object = None) -> Answer:
        """
        Send a request and receive the whole answer.

        Returns:
            An answer of status 0 if it broke off.

        Raises:
            SourceError: There was no answer.
        """
        try:
            async with self.request(method, path, query, body) as response:
                return await self.whole_answer(response)
        except ConnectionFailedError as error:
            if not error.began:
                raise
            return Answer(status=0, interruption=str(error))

    async def whole_answer(self, response: aiohttp.ClientResponse) -> Answer:
        """Receive the rest of an answer; ConnectionFailedError if it breaks off."""
        pieces = []
        while piece := await self.next_piece(response, self.timeout_s):
            pieces.append(piece)
        retry_after = response.headers.get("Retry-After", "")
        return Answer(status=response.status, body=b"".join(pieces), retry_after=retry_after)

    async def next_piece(self, response: aiohttp.ClientResponse, limit_s: float) -> bytes:
        """
        The next bytes of an answer, b"" at its end.

        Raises:
            SilenceError: Nothing came within *limit_s*.
        """
        try:
            async with asyncio.timeout(limit_s):
                return await response.content.readany()
        except TimeoutError as error:
            raise self._silence(limit_s, began=True) from error

    async def _answered(
        self, client: LoadedClient, method: str, path: str, query: Query, body: object
    ) -> aiohttp.ClientResponse:
        """Send a request and receive the head of the answer."""
        if client.tokens is not None:
            await asyncio.to_thread(
                client.tokens.token
            )  # so that the hook of the configuration has nothing to wait for
        limits = aiohttp.ClientTimeout(total=None, sock_connect=self.timeout_s)
        try:
            serialized = await client.api.param_serialize(
                method,
                path,
                query_params=list(query.items()),
                header_params={"Accept": "application/json", "Content-Type": "application/json"},
                body=body,
                auth_settings=["BearerToken"],
            )
            async with asyncio.timeout(self.timeout_s):
                answered = await client.api.call_api(*serialized, _request_timeout=limits)
        except TimeoutError as error:
            raise self._silence(self.timeout_s, began=False) from error
        except ValueError as error:
            if isinstance(error, aiohttp.ClientError | ssl.SSLError):  # some of these are ValueErrors as well
                raise
            # Not chained: the text of the error may hold the token.
            text = f"{self.origin}: the credentials hold characters that no HTTP header may hold"
            raise SourceError(text) from None
        return answered.response

    async def _current_client(self) -> LoadedClient:
        """The client with the latest credentials."""
        async with self._building:
            client = self._client
            if client is not None and not client.is_refused and not client.is_outdated:
                return client
            try:
                loaded = await asyncio.to_thread(load_client, self._connection)
            except SourceError:
                if client is None or client.is_refused:
                    raise
                return client  # files are being exchanged: the old credentials still serve
            built = LoadedClient(loaded)
            self.server, self.origin = loaded.access.server, loaded.access.origin
            self._client = built
            if client is not None:
                await client.retire()
            return built

    def _silence(self, limit_s: float, *, began: bool) -> SilenceError:
        return SilenceError(failure_text(self.server, self.origin, "Timeout", "", limit_s), began=began)

    def _failure(self, error: Exception, *, began: bool) -> ConnectionFailedError:
        """What the transport reports, in plain words."""
        kind, reason = type(error).__name__, str(error)
        if isinstance(error, aiohttp.ClientConnectorDNSError):
            kind = "NameResolutionError"
        elif _is_tls(error):
            kind = "SSLError"
        elif isinstance(error, aiohttp.ClientConnectorError):
            reason = os.strerror(error.errno) if error.errno else reason
        elif began or isinstance(error, aiohttp.ClientConnectionError | aiohttp.ClientPayloadError | ConnectionError):
            how = "before the answer was complete" if began else " ".join(reason.split())[:200]
            text = f"{self.server}: the connection broke ({how})"
            return ConnectionFailedError(text, began=began)
        return ConnectionFailedError(failure_text(self.server, self.origin, kind, reason, self.timeout_s), began=began)


def _hang_up(response: aiohttp.ClientResponse) -> None:
    """Close the connection of an answer that was not read to its end, without the long goodbye of TLS."""
    connection = response.connection
    if connection is not None and isinstance(connection.transport, asyncio.WriteTransport):
        connection.transport.abort()
    response.close()


def _is_tls(error: Exception) -> bool:
    return isinstance(error, ssl.SSLError | aiohttp.ClientSSLError) or "[SSL" in str(error)
