"""
Addresses with a port, as Go writes them: `127.0.0.1:10249`, `[::1]:10249`.

Source: `net.SplitHostPort` of Go, `AppendPortIfNeeded` of kube-proxy.
"""

import re

import msgspec

from kproxy_ipt.addresses import canonical_address

_BRACKETED = re.compile(r"\[([^\[\]]*)\]:([^\[\]:]*)", re.DOTALL)
_BARE = re.compile(r"([^\[\]:]*):([^\[\]:]*)", re.DOTALL)
_PORT = re.compile(r"[0-9]{1,9}")


class HostPort(msgspec.Struct, frozen=True):
    """The two halves of an address with a port, unchecked texts; *host* without brackets."""

    host: str
    port: str


def split_host_port(text: str) -> HostPort | None:
    """Split `host:port` or `[host]:port`; None where *text* has neither shape."""
    match = (_BRACKETED if text.startswith("[") else _BARE).fullmatch(text)
    return HostPort(match[1], match[2]) if match else None


def join_host_port(host: str, port: int) -> str:
    """`host:port`, with brackets around a host that holds a colon."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def port_number(text: str) -> int | None:
    """A port in 1 to 65535, None where *text* is none."""
    number = int(text) if _PORT.fullmatch(text) else 0
    return number if 1 <= number <= 65535 else None


def with_port(text: str, port: int) -> str:
    """Add *port* to a bare address; any other text stays as it is, for validation to judge."""
    if split_host_port(text) is not None or canonical_address(text) is None:
        return text
    return join_host_port(text, port)


def canonical_host_port(text: str) -> str:
    """The canonical form of a valid address with a port; "" stays."""
    parts = split_host_port(text)
    host = canonical_address(parts.host) if parts else None
    if parts is None or host is None:
        return text
    return join_host_port(host, int(parts.port))
