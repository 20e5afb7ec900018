"""
Listening TCP sockets in a network namespace, as Go opens them.

A socket stays in the namespace in which it was made, so the thread is only inside for that moment.

Source: `net.Listen` of Go, `favoriteAddrFamily`.
"""

import errno
import os
import socket

from kproxy_ipt.config.host_port import join_host_port
from kproxy_ipt.errors import ListenError, NamespaceError
from kproxy_ipt.kernel.netns import inside

_BACKLOG = 128
_WILDCARDS = ("0.0.0.0", "::")
_NO_IPV6 = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT)


def listen_on(host: str, port: int, *, netns: str | None, dual_stack: bool) -> socket.socket:
    """
    Open a socket that listens.

    Args:
        host: A canonical address.
        port: 0 lets the kernel choose.
        netns: Name or path of the network namespace, None: where we are.
        dual_stack: Whether `0.0.0.0` and `::` both mean every address of both families, as far as the machine has
            IPv6. Otherwise an IPv6 socket takes IPv6 alone.

    Raises:
        ListenError: The port is taken, the address is not one of the namespace, or there is no such namespace.
    """
    try:
        with inside(netns):
            if not dual_stack or host not in _WILDCARDS:
                return _listening(host, port, both=False)
            return _listening_on_everything(host, port)
    except (OSError, NamespaceError) as error:
        number = error.errno if isinstance(error, OSError) else None
        reason = os.strerror(number).lower() if number else str(error)
        raise ListenError(f"listen tcp {join_host_port(host, port)}: {reason}") from error


def _listening_on_everything(host: str, port: int) -> socket.socket:
    try:
        return _listening("::", port, both=True)
    except OSError as error:
        if host == "::" or error.errno not in _NO_IPV6:
            raise
        return _listening(host, port, both=False)


def _listening(host: str, port: int, *, both: bool) -> socket.socket:
    is_ipv6 = ":" in host
    opened = socket.socket(socket.AF_INET6 if is_ipv6 else socket.AF_INET, socket.SOCK_STREAM)
    try:
        # A port whose last connections are still being forgotten can be opened again at once.
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_ipv6:
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if both else 1)
        opened.bind((host, port))
        opened.listen(_BACKLOG)
        opened.setblocking(False)
    except BaseException:
        opened.close()
        raise
    return opened
