"""
How the test API server reads a request and writes an answer: HTTP, credentials, faults.

Source: answers recorded from a kube-apiserver v1.36.2.
"""

import socket
import ssl
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from typing import Protocol, cast
from urllib.parse import parse_qsl, urlsplit

import msgspec

from kproxy_ipt.testing.api_faults import Fault
from kproxy_ipt.testing.api_store import RESOURCES, ApiStore, ListQuery, Reply, status_reply

_CHUNKED_FROM = 2048
"""Go's HTTP server counts the bytes of shorter bodies itself and sends longer ones in chunks."""
_ANONYMOUS = "system:anonymous"


class ReceivedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request as it arrived: path without query, query decoded, header names in lower case, user as recognised."""

    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    user: str


class RequestReceiver(Protocol):
    """What a connection needs of its server."""

    tokens: dict[str, str]
    tls: ssl.SSLContext | None
    store: ApiStore
    changed: threading.Condition
    stopping: threading.Event

    def record(self, request: ReceivedRequest) -> Fault:
        """Note a request and say what goes wrong with it."""


class ApiRequestHandler(BaseHTTPRequestHandler):
    """One connection, kept alive between requests."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002  # the name is http.server's
        """Write no access log; `ApiServer.requests` is there to be asked."""

    def do_GET(self) -> None:  # the name is http.server's
        """Answer one request, or fail it as scheduled."""
        server = cast("RequestReceiver", self.server)
        address = urlsplit(self.path)
        query = dict(parse_qsl(address.query, keep_blank_values=True))
        headers = {name.lower(): value for name, value in self.headers.items()}
        user = self._user(server)
        fault = server.record(ReceivedRequest(path=address.path, query=query, headers=headers, user=user))
        reply = fault.reply or self._right_reply(server, address.path, query, user)
        if fault.delay_s and server.stopping.wait(fault.delay_s):
            self.close_connection = True
            return
        self._send(reply, fault.cut_after)

    def _user(self, server: RequestReceiver) -> str:
        """Name of the user, `system:anonymous` without credentials, "" with a token that is not known."""
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return server.tokens.get(token, "")
        if isinstance(self.connection, ssl.SSLSocket) and (certificate := self.connection.getpeercert()):
            subject = cast("tuple[tuple[tuple[str, str], ...], ...]", certificate.get("subject", ()))
            return next((value for names in subject for name, value in names if name == "commonName"), "")
        return _ANONYMOUS

    def _right_reply(self, server: RequestReceiver, path: str, query: dict[str, str], user: str) -> Reply:
        """What a healthy server answers."""
        guarded = bool(server.tokens) or (server.tls is not None and server.tls.verify_mode is not ssl.CERT_NONE)
        if guarded and not user:
            return status_reply(401, "Unauthorized", "Unauthorized")
        resource = path.rpartition("/")[2]
        if guarded and user == _ANONYMOUS:
            message = (
                f'{resource} is forbidden: User "{user}" cannot list resource "{resource}" in API group "" '
                "at the cluster scope"
            )
            return status_reply(403, "Forbidden", message, details={"kind": resource})
        if "watch" in query:
            return status_reply(400, "BadRequest", "this server has no watch")
        with server.changed:
            if path in RESOURCES:
                return server.store.list(path, _list_query(query))
            collection, _, name = path.rpartition("/")
            if collection in RESOURCES:
                return server.store.get(collection, name)
        return Reply(status=404, body=b"404 page not found\n", content_type="text/plain; charset=utf-8")

    def _send(self, reply: Reply, cut_after: int | None) -> None:
        """Write status line, headers and body, or only the first bytes of the body and then hang up."""
        chunked = len(reply.body) >= _CHUNKED_FROM
        self.send_response(reply.status)
        self.send_header("Cache-Control", "no-cache, private")
        self.send_header("Content-Type", reply.content_type)
        if reply.retry_after:
            self.send_header("Retry-After", reply.retry_after)
        if chunked:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        content = reply.body if cut_after is None else reply.body[:cut_after]
        self.wfile.write(b"%x\r\n%s\r\n" % (len(content), content) if chunked and content else content)
        if cut_after is not None:
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
        elif chunked:
            self.wfile.write(b"0\r\n\r\n")


def _list_query(query: dict[str, str]) -> ListQuery:
    return ListQuery(
        label_selector=query.get("labelSelector", ""),
        field_selector=query.get("fieldSelector", ""),
        limit=int(query.get("limit", "0")),
        continue_token=query.get("continue", ""),
    )
