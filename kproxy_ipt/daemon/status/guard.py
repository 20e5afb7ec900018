"""
Who may read the status page, and what browsers may do with it.

There is no password: the address that it listens on is the protection. A browser on the same machine would undo that,
since any page may send requests to loopback; so the name in the request has to be one that only we can be reached by
(a foreign name that resolves to us is refused), and requests that other sites make are too, unless a person follows a
link. Nothing but our own files is loaded, no script or style stands in a page, nobody may frame it.

Source: Fetch Metadata Request Headers; Content Security Policy Level 3.
"""

from collections.abc import Mapping

from kproxy_ipt.addresses import canonical_address, is_loopback
from kproxy_ipt.config.host_port import split_host_port
from kproxy_ipt.daemon.answers import Answer, Request, text_answer

_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_OUR_SITES = frozenset({"same-origin", "none"})
_UNSPECIFIED = frozenset({"0.0.0.0", "::"})

POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
POLICY += "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

PICTURE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
"""A picture of the graph has its own style in it, and is no page of ours."""

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}


def is_open(address: str) -> bool:
    """Whether *address* (`host:port`) can be reached from other machines."""
    parts = split_host_port(address)
    return parts is not None and not is_loopback(parts.host)


def refusal(request: Request, bound_host: str) -> Answer | None:
    """
    The answer to a request that must not be answered, None for all others.

    Args:
        request: With its headers.
        bound_host: Address that is listened on; with a wildcard every address, but no name, is right.
    """
    if not _is_right_host(request.headers.get("host", ""), bound_host):
        return text_answer("421 ask by the address that is listened on, or localhost\n", 421)
    if request.headers.get("sec-fetch-site", "none") not in _OUR_SITES and not _is_navigation(request):
        return text_answer("403 not for other sites\n", 403)
    return None


def _is_right_host(text: str, bound_host: str) -> bool:
    host = _host_of(text)
    if host in _LOCAL_NAMES or host == bound_host:
        return True
    return bound_host in _UNSPECIFIED and canonical_address(host) is not None


def _host_of(text: str) -> str:
    """The host of a Host header, without port and brackets, canonical where it is an address."""
    parts = split_host_port(text)
    host = parts.host if parts else text.removeprefix("[").removesuffix("]")
    return canonical_address(host) or host.lower()


def _is_navigation(request: Request) -> bool:
    return request.headers.get("sec-fetch-mode") == "navigate" and request.headers.get("sec-fetch-dest") == "document"
