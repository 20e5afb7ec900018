"""
Objects from a cluster: all Services, EndpointSlices and the own Node, listed through the `kubernetes` client.

`kubeconfig.py` says which cluster and as whom, `paging.py` what to ask next, `refusals.py` what to tell the user;
here are the client and the clock. The client's own model classes are left out: answers are taken as bytes and decoded
page by page, so that a large cluster costs little time and memory.

This and `api_client.py`, for clients that watch, are the only importers of `kubernetes`, and only inside functions:
the import costs half a second.

For a client that watches: `load_access` fills a Configuration of `kubernetes.client` as well as one of
`kubernetes.aio.client`, `complete_list` and `cluster_resources` know nothing of how requests travel.

What the client (37.0) does differently than kubectl, and is made good here: errors of an `exec` plug-in are only
logged and the request then goes out without credentials; tokens of files are read once; requests that fail to
connect are repeated three times before anything is said; redirects are followed.

Source: kube-proxy v1.36 for selectors (`cmd/kube-proxy/app/server.go`); API concepts of Kubernetes.
"""

import base64
import os
import subprocess
import time
import warnings
from collections.abc import Callable, Generator, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Protocol, Self, TypeVar

import msgspec

from kproxy_ipt.errors import Finding, Severity, SourceError
from kproxy_ipt.objects.collect import collect
from kproxy_ipt.objects.decode import Decoded, decode_document
from kproxy_ipt.objects.model import HEADLESS_LABEL, SERVICE_PROXY_NAME_LABEL, Objects
from kproxy_ipt.sources.kubeconfig import ClusterAccess, ClusterConnection, TokenFile, find_access
from kproxy_ipt.sources.paging import Answer, CompleteList, ListRefusedError, PageRequest, complete_list
from kproxy_ipt.sources.refusals import Resource, failure_text, refusal_text
from kproxy_ipt.sources.request_rate import RequestRate

__all__ = ["ClusterConnection", "cluster_resources", "load_access", "read_cluster"]

_EXPIRY_MARGIN_S = 30.0
"""Credentials of a plug-in are replaced this long before they expire: clocks differ, requests take time."""

Page = TypeVar("Page")


class TokenSource(Protocol):
    """A token that changes with time."""

    def token(self) -> str:
        """The token to send now; SourceError if there is none."""

    def forget(self) -> None:
        """The server refused the token; get another one."""


class ClientConfiguration(Protocol):
    """The part of a Configuration that is touched here; `kubernetes.client` and `kubernetes.aio.client` have it."""

    host: str
    verify_ssl: bool
    api_key: dict[str, str]
    refresh_api_key_hook: Callable[[Self], None] | None


def read_cluster(
    connection: ClusterConnection,
    *,
    node_name: str,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Objects:
    """
    List what rules are made from, once.

    Args:
        connection: Which cluster, as whom, how fast.
        node_name: Name of the own Node.
        clock: Seconds, never going back.
        sleep: Waits so many seconds: between requests (`qps`) and before asking again.

    Returns:
        Complete lists, each from one moment; objects that make no sense are set aside with a finding. `nodes` is
        empty, with a warning, if the cluster has no Node of that name.

    Raises:
        SourceError: Nothing, or not everything, can be read; says which server, what was asked, and what to do.
    """
    access = find_access(connection, os.environ)
    rate = RequestRate(connection.qps, connection.burst, clock)
    with _ClusterClient(access, connection, wait=lambda seconds: sleep(max(seconds, rate.reserve()))) as client:
        pages = [page for resource in cluster_resources(node_name) for page in client.list(resource)]
    objects = collect(pages)
    if objects.nodes:
        return objects
    return msgspec.structs.replace(objects, findings=(*objects.findings, _missing_node(access.server, node_name)))


def _missing_node(server: str, node_name: str) -> Finding:
    return Finding(
        object=f"Node {node_name}",
        field="",
        found=f"no such node in {server}",
        expected="the name of the node that the rules are for, as in `kubectl get nodes`",
        consequence="rules are made without its zone, addresses and pod CIDR, and no endpoint counts as local",
        severity=Severity.WARNING,
    )


def cluster_resources(node_name: str) -> tuple[Resource, ...]:
    """What kube-proxy lists and watches in iptables mode: Services, EndpointSlices, the own Node."""
    return (
        Resource(
            kind="Service",
            name="services",
            group_version="v1",
            label_selector=f"!{SERVICE_PROXY_NAME_LABEL}",
            field_selector="spec.clusterIP!=None",
        ),
        Resource(
            kind="EndpointSlice",
            name="endpointslices",
            group_version="discovery.k8s.io/v1",
            label_selector=f"!{HEADLESS_LABEL}",
        ),
        Resource(kind="Node", name="nodes", group_version="v1", field_selector=f"metadata.name={node_name}"),
    )


def load_access(configuration: ClientConfiguration, access: ClusterAccess) -> TokenSource | None:
    """
    Fill a Configuration of the client, so that requests made with it carry the credentials of *access*.

    A plug-in is run, a token file is read. The returned source, if there is one, is already hooked into
    *configuration*; its `forget` is for the caller who is answered 401.

    Raises:
        SourceError: A file or the plug-in fails, or the loader of the client does not accept the settings.
    """
    from kubernetes.config import ConfigException, load_kube_config_from_dict

    source: TokenSource | None = TokenFile(access.token_file) if access.token_file else None
    if access.plugin is not None:
        plugin = _Plugin(access, access.plugin)
        access = msgspec.structs.replace(access, user={**access.user, **plugin.certificate()})
        source = plugin if plugin.token() else None
    document = access.document()
    try:
        load_kube_config_from_dict(document, client_configuration=configuration, persist_config=False)
    except (ConfigException, ValueError, OSError) as error:
        raise SourceError(f"{access.origin}: {error}") from error
    if source is not None:
        _hook(configuration, source)
    return source


def _hook(configuration: ClientConfiguration, source: TokenSource) -> None:
    """Ask *source* for the token before every request."""

    def refresh(refreshed: ClientConfiguration) -> None:
        refreshed.api_key["BearerToken"] = f"Bearer {source.token()}"

    refresh(configuration)
    configuration.refresh_api_key_hook = refresh


class _ExecStatus(msgspec.Struct, frozen=True, rename="camel"):
    """`status` of an ExecCredential."""

    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: datetime | None = None


class _Plugin:
    """Credentials printed by the program of an `exec` entry; it is run again when they expire."""

    def __init__(self, access: ClusterAccess, entry: Mapping[str, object]) -> None:
        self._access = access
        self._entry = entry
        self._status: _ExecStatus | None = None

    def token(self) -> str:
        """The bearer token, "" if the plug-in gives a certificate only."""
        return self._current().token

    def certificate(self) -> dict[str, object]:
        """Client certificate and key as fields of a kubeconfig user; empty if the plug-in gives none."""
        status = self._current()
        if not status.client_certificate_data or not status.client_key_data:
            return {}
        return {
            "client-certificate-data": base64.b64encode(status.client_certificate_data.encode()).decode(),
            "client-key-data": base64.b64encode(status.client_key_data.encode()).decode(),
        }

    def forget(self) -> None:
        """Run the program at the next occasion."""
        self._status = None

    def _current(self) -> _ExecStatus:
        status = self._status
        expiry = status.expiration_timestamp if status else None
        if status is None or (expiry and expiry.timestamp() - _EXPIRY_MARGIN_S < datetime.now(tz=UTC).timestamp()):
            status = self._run()
            self._status = status
        return status

    def _run(self) -> _ExecStatus:
        from kubernetes.config import ConfigException
        from kubernetes.config.exec_provider import ExecProvider
        from kubernetes.config.kube_config import ConfigNode

        command = self._entry.get("command")
        place = f"{self._access.origin}: credential plug-in {command!r}"
        try:
            printed = ExecProvider(
                ConfigNode("exec", dict(self._entry)),
                self._access.folder,
                ConfigNode("cluster", dict(self._access.cluster)),
            ).run()
            status = msgspec.convert(printed, _ExecStatus)
        except FileNotFoundError as error:
            hint = " ".join(str(self._entry.get("installHint") or "install it, or correct the path").split())
            raise SourceError(f"{place} does not exist: {hint}") from error
        except (ConfigException, msgspec.ValidationError, OSError, subprocess.SubprocessError) as error:
            raise SourceError(f"{place} failed: {' '.join(str(error).split())}") from error
        if not status.token and not (status.client_certificate_data and status.client_key_data):
            raise SourceError(f"{place} printed neither a token nor a client certificate with its key")
        return status


class _ClusterClient:
    """A blocking client of one API server; closes its connections at the end of the `with` block."""

    def __init__(self, access: ClusterAccess, connection: ClusterConnection, wait: Callable[[float], None]) -> None:
        from kubernetes import client

        self._access = access
        self._timeout_s = connection.timeout_s
        self._page_size = connection.page_size
        self._wait = wait
        configuration = client.Configuration()
        configuration.retries = False
        self._tokens = load_access(configuration, access)
        self._insecure = not configuration.verify_ssl
        try:
            self._api = client.ApiClient(configuration)
        except ImportError as error:
            raise SourceError(f"{access.origin}: the proxy needs a package that is not installed: {error}") from error
        self._api.user_agent = "kproxy-ipt"
        self._core, self._discovery = client.CoreV1Api(self._api), client.DiscoveryV1Api(self._api)

    def list(self, resource: Resource) -> tuple[Decoded, ...]:
        """All pages of one list; SourceError if it cannot be completed."""
        origin = f"{self._access.server}, {resource.name}"
        steps = complete_list(lambda page: decode_document(page, origin), self._page_size, kind=f"{resource.kind}List")
        try:
            return _driven(steps, lambda request: self._send(resource, request)).pages
        except ListRefusedError as error:
            text = refusal_text(self._access.server, self._access.origin, resource, error)
            raise SourceError(text) from error

    def _send(self, resource: Resource, request: PageRequest) -> Answer:
        """Send one request and receive the whole answer."""
        import urllib3
        from kubernetes.client import ApiException

        if request.renew_credentials and self._tokens is not None:
            self._tokens.forget()
        self._wait(request.wait_s)
        try:
            return self._received(resource, request)
        except ApiException as error:
            if error.status:
                headers = error.headers or {}
                body = (error.body or "").encode()
                return Answer(status=error.status, body=body, retry_after=headers.get("Retry-After") or "")
            raise self._failure("SSLError", str(error.reason)) from error
        except urllib3.exceptions.ProtocolError as error:
            return Answer(status=0, interruption=" ".join(str(error.args[-1]).split()))
        except urllib3.exceptions.HTTPError as error:
            raise self._failure(type(error).__name__, str(error)) from error
        except ValueError:
            # Not chained: the text of the error holds the token.
            text = f"{self._access.origin}: the credentials hold characters that no HTTP header may hold"
            raise SourceError(text) from None

    def _received(self, resource: Resource, request: PageRequest) -> Answer:
        method = {
            "services": self._core.list_service_for_all_namespaces,
            "nodes": self._core.list_node,
            "endpointslices": self._discovery.list_endpoint_slice_for_all_namespaces,
        }[resource.name]
        selection = {
            "limit": request.limit,
            "_continue": request.continue_token,
            "label_selector": resource.label_selector,
            "field_selector": resource.field_selector,
        }
        with warnings.catch_warnings():
            if self._insecure:
                # The user said insecure-skip-tls-verify, and need not be told once a request.
                warnings.filterwarnings("ignore", message="Unverified HTTPS request")
            response = method(
                **{name: value for name, value in selection.items() if value},
                _preload_content=False,
                _request_timeout=(self._timeout_s, self._timeout_s),
            )
        try:
            return Answer(status=response.status, body=response.read(decode_content=True))
        finally:
            response.release_conn()

    def _failure(self, kind: str, reason: str) -> SourceError:
        return SourceError(failure_text(self._access.server, self._access.origin, kind, reason, self._timeout_s))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._api.close()


def _driven(
    steps: Generator[PageRequest, Answer, CompleteList[Page]], send: Callable[[PageRequest], Answer]
) -> CompleteList[Page]:
    """Send what *steps* ask for until they are done."""
    try:
        request = next(steps)
        while True:
            request = steps.send(send(request))
    except StopIteration as end:
        complete: CompleteList[Page] = end.value
        return complete
