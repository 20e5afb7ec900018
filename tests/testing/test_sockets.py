"""Ports that are kept for a server."""

import errno
import socket
from pathlib import Path

import pytest

from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.testing.namespaces import temporary_namespace
from kproxy_ipt.testing.sockets import reserved_port

pytestmark = pytest.mark.kernel

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def test_reserved_port_is_given_to_nobody_and_can_be_served() -> None:
    """Where there are two ports a second server gets the other one, a third one and a client none; by name it opens."""
    with temporary_namespace("sockets") as netns, inside(netns):
        _RANGE.write_text("40000 40001")
        with reserved_port() as kept, socket.create_server(("127.0.0.1", 0)):
            port = kept.getsockname()[1]
            with pytest.raises(OSError, match="in use"):
                socket.create_server(("127.0.0.1", 0)).close()
            with socket.socket() as client:
                client.bind(("127.0.0.1", 39999))
                assert client.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED
            with socket.socket() as client:
                assert client.connect_ex(("127.0.0.1", port)) == errno.EADDRNOTAVAIL
            socket.create_server(("127.0.0.1", port)).close()
