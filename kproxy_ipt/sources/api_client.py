"""
A client of one API server with one set of credentials, made of the `aio` part of the `kubernetes` client.

`Configuration`, authentication and transport are those of `kubernetes.aio.client`; its resource classes and models are
left out, since answers are taken as bytes and decoded by `objects` (importing them costs 25 MiB more, measured).

What that client (37.0) does differently than client-go, and is made good here:

- `trust_env` of aiohttp is off: it would read ~/.netrc and then refuse to send our token. Proxies of the environment
  are found as by the blocking client (`cluster.py`): HTTPS_PROXY, NO_PROXY with its prefixes.
- Nothing tells a dead connection from a quiet one. Sockets have TCP keep-alive and TCP_USER_TIMEOUT (`api_sockets.py`).
- Certificates are read once. `LoadedClient.is_outdated` tells that a file has changed, and a new client is due.

`kubernetes` is imported inside functions only: the import costs half a second.
"""

import contextlib
import os
import ssl
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Protocol

import aiohttp

from kproxy_ipt.errors import SourceError
from kproxy_ipt.sources.api_sockets import ApiSockets
from kproxy_ipt.sources.cluster import TokenSource, load_access
from kproxy_ipt.sources.kubeconfig import ClusterAccess, ClusterConnection, find_access
from kproxy_ipt.sources.refusals import failure_text

_Stamp = tuple[tuple[int, int, int] | None, ...]


class _Configuration(Protocol):
    """The part of `kubernetes.aio.client.Configuration` that is set here."""

    client_session_kwargs: Mapping[str, object]


class _RestClient(Protocol):
    """The part of `kubernetes.aio.client.rest.RESTClientObject` that is used here."""

    ssl_context: ssl.SSLContext


class _Answered(Protocol):
    """The part of its `RESTResponse`."""

    response: aiohttp.ClientResponse


class ApiClient(Protocol):
    """The part of `kubernetes.aio.client.ApiClient` that is used here."""

    user_agent: str
    configuration: _Configuration
    rest_client: _RestClient

    async def param_serialize(
        self,
        method: str,
        resource_path: str,
        *,
        query_params: list[tuple[str, str]],
        header_params: dict[str, str],
        body: object,
        auth_settings: list[str],
    ) -> tuple[object, ...]:
        """Method, address, headers and body, with credentials."""

    async def call_api(self, *request: object, _request_timeout: aiohttp.ClientTimeout) -> _Answered:
        """Send them."""

    async def close(self) -> None:
        """Close the session."""


class LoadedAccess:
    """Files have been read and a plug-in has run; the connections are not there yet."""

    def __init__(
        self, access: ClusterAccess, api: ApiClient, tokens: TokenSource | None, paths: tuple[str, ...], stamp: _Stamp
    ) -> None:
        self.access = access
        self.api = api
        self.tokens = tokens
        self.paths = paths
        self.stamp = stamp


class LoadedClient:
    """
    A client that can send requests; to be made in the loop that uses it.

    It is closed when it is retired and the last request has ended.

    Attributes:
        api: Sends requests.
        tokens: Source of the token, None if there is none.
        is_refused: The server did not accept the credentials.
    """

    def __init__(self, loaded: LoadedAccess) -> None:
        self.api = loaded.api
        self.tokens = loaded.tokens
        self.is_refused = False
        self._loaded = loaded
        self._sockets = ApiSockets()
        self._connector = aiohttp.TCPConnector(
            limit=0, ssl=loaded.api.rest_client.ssl_context, socket_factory=self._sockets.make
        )
        self.api.configuration.client_session_kwargs = {"connector": self._connector, "trust_env": False}
        self._users = 0
        self._is_retired = False

    @property
    def is_outdated(self) -> bool:
        """Whether a file with credentials has changed since it was read."""
        return self._loaded.stamp != _stamp_of(self._loaded.paths)

    @contextlib.asynccontextmanager
    async def in_use(self) -> AsyncIterator[None]:
        """Keep the client open."""
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            if self._is_retired and not self._users:
                await self.close()

    async def retire(self) -> None:
        """No request will begin any more."""
        self._is_retired = True
        if not self._users:
            await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self.api.close()
        await self._connector.close()
        await self._sockets.closed()


def load_client(connection: ClusterConnection) -> LoadedAccess:
    """
    Find the cluster, read files, run a plug-in; blocks.

    Raises:
        SourceError: No cluster is configured, or a file or a plug-in fails.
    """
    from kubernetes.aio import client

    access = find_access(connection, os.environ)
    paths = _credential_paths(access, connection)
    stamp = _stamp_of(paths)
    configuration = client.Configuration()
    tokens = load_access(configuration, access)
    configuration.proxy = configuration.proxy or _proxy_of_environment(access.server)
    try:
        api: ApiClient = client.ApiClient(configuration)
    except (ssl.SSLError, OSError) as error:
        text = failure_text(access.server, access.origin, "SSLError", str(error), connection.timeout_s)
        raise SourceError(text) from error
    api.user_agent = "kproxy-ipt"
    return LoadedAccess(access, api, tokens, paths, stamp)


def _credential_paths(access: ClusterAccess, connection: ClusterConnection) -> tuple[str, ...]:
    """The files whose change makes a new client necessary; token files are read by their source."""
    entries = (
        access.cluster.get("certificate-authority"),
        access.user.get("client-certificate"),
        access.user.get("client-key"),
        connection.kubeconfig,
    )
    return tuple(str(entry) for entry in entries if entry)


def _stamp_of(paths: tuple[str, ...]) -> _Stamp:
    """What changes when one of the files is written, replaced or linked to another one."""
    return tuple(_file_stamp(Path(path).expanduser()) for path in paths)


def _file_stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _proxy_of_environment(server: str) -> str | None:
    """The proxy that HTTPS_PROXY, HTTP_PROXY or ALL_PROXY name for *server*, unless NO_PROXY exempts it."""
    from kubernetes.client.rest import should_bypass_proxies

    proxies = urllib.request.getproxies()
    proxy = proxies.get(urllib.parse.urlsplit(server).scheme) or proxies.get("all")
    return None if not proxy or should_bypass_proxies(server, proxies.get("no", "")) else proxy
