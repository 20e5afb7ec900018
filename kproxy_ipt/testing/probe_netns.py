"""Asking an HTTP server from inside a network namespace: one request, one connection."""

import http.client
import socket

from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.testing.probe import Probed

_TIMEOUT_S = 30.0


def probe_netns(netns: str, host: str, port: int, path: str = "/", *, timeout_s: float = _TIMEOUT_S) -> Probed:
    """
    Ask once.

    Args:
        netns: Name of the namespace that the request comes from.
        host: Address of the server.
        port: Its port.
        path: With a query, if any.
        timeout_s: For the connection, and for each part of the answer.

    Raises:
        ConnectionRefusedError: Nobody listens.
        TimeoutError: No answer.
        NamespaceError: The namespace cannot be entered.
    """
    with inside(netns):
        client = socket.create_connection((host, port), timeout_s)
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    connection.sock = client
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return Probed(answer.status, {name.lower(): text for name, text in answer.getheaders()}, answer.read())
    finally:
        connection.close()
