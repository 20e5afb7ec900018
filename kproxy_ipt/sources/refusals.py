"""
Why the cluster could not be read, in words that name the server, the resource, the user and what to do.

Pure: answers and texts of errors come in, sentences go out. The words of the server are kept where it has any.
"""

import re
from http import HTTPStatus

import msgspec

from kproxy_ipt.sources.paging import Answer, ListRefusedError, retry_after_s, status_of

_FORBIDDEN = re.compile(r'User "(?P<user>[^"]*)" cannot (?P<verb>\w+) resource')
_ANONYMOUS = "system:anonymous"


class Resource(msgspec.Struct, frozen=True, kw_only=True):
    """
    What is listed, and which of it.

    Attributes:
        kind: Kind of one object, `EndpointSlice`.
        name: Plural name in the API, `endpointslices`.
        group_version: `v1` or `discovery.k8s.io/v1`.
        label_selector: "" selects everything.
        field_selector: "" selects everything.
    """

    kind: str
    name: str
    group_version: str
    label_selector: str = ""
    field_selector: str = ""

    @property
    def full_name(self) -> str:
        """Name with its API group, as RBAC and kubectl write it: `endpointslices.discovery.k8s.io`."""
        group, _, _ = self.group_version.rpartition("/")
        return f"{self.name}.{group}" if group else self.name

    @property
    def path(self) -> str:
        """Path of the list of all namespaces."""
        return f"{'/apis' if '/' in self.group_version else '/api'}/{self.group_version}/{self.name}"


def refusal_text(server: str, origin: str, resource: Resource, refused: ListRefusedError, *, verb: str = "list") -> str:
    """One sentence on why *server* did not list *resource*; *origin* says where the credentials come from."""
    answer = refused.answer
    doing = f"{server}: {verb} {resource.full_name}"
    if answer.status == HTTPStatus.UNAUTHORIZED:
        return f"{doing}: 401, the credentials of {origin} are not accepted: expired, or of another cluster?"
    if answer.status == HTTPStatus.FORBIDDEN:
        return f"{doing}: 403, {_forbidden(origin, resource, answer)}"
    if answer.status == HTTPStatus.NOT_FOUND:
        return (
            f"{doing}: 404, the server does not know {resource.group_version} {resource.name}: "
            "is this the address of a Kubernetes API server, with nothing missing in its path?"
        )
    if answer.status == HTTPStatus.OK:
        return (
            f"{doing}: the answer is no {resource.kind}List, but {_words(answer)!r}: "
            "is this the address of a Kubernetes API server?"
        )
    hint = "; is https:// meant?" if answer.status == 0 and server.startswith("http:") else ""
    return f"{doing}: {_last_words(answer)}{_patience(refused)}{hint}"


def _forbidden(origin: str, resource: Resource, answer: Answer) -> str:
    """Who may not do what; the user as the server calls him."""
    found = _FORBIDDEN.search(status_of(answer).message)
    if found is None:
        return f"the credentials of {origin} do not allow it: {_words(answer)}"
    if found["user"] == _ANONYMOUS:
        return f"the request carried no credentials ({_ANONYMOUS}): {origin} has none that the server recognises"
    return (
        f"user {found['user']!r} of {origin} may not {found['verb']} {resource.full_name} in all namespaces: "
        "bind the ClusterRole system:node-proxier, or one with list and watch on services, endpointslices and nodes"
    )


def _last_words(answer: Answer) -> str:
    """What the last attempt brought."""
    if answer.status == 0:
        return f"the connection broke before the answer was complete ({answer.interruption})"
    if answer.status == HTTPStatus.GONE:
        return "410, the list expired again and again while it was read"
    return f"{answer.status}, {_words(answer)}"


def _patience(refused: ListRefusedError) -> str:
    """How long it was tried, where it was tried more than once."""
    asked = retry_after_s(refused.answer)
    if refused.attempts > 1:
        return f"; gave up after {refused.attempts} attempts"
    return f"; the server asks to come back in {asked:g} s" if asked else ""


def _words(answer: Answer) -> str:
    """What the server said, in one line of bounded length."""
    text = status_of(answer).message or answer.body[:200].decode("utf-8", "replace") or "without a word"
    return " ".join(text.split())[:300]


def failure_text(server: str, origin: str, kind: str, reason: str, timeout_s: float) -> str:
    """
    One sentence on why nothing at all was answered.

    Args:
        server: Address of the API server.
        origin: Where that address comes from.
        kind: Name of the class of the transport's error.
        reason: Its text.
        timeout_s: How long the server was allowed to be silent.
    """
    if "Timeout" in kind:
        return (
            f"{server}: no answer within {timeout_s:g} s: is the server overloaded, or are packets dropped on the way?"
        )
    if "CERTIFICATE_VERIFY_FAILED" in reason or "doesn't match" in reason:
        return (
            f"{server}: its certificate is not trusted ({_tidy(reason)}): is certificate-authority of {origin} that of "
            "this cluster, and is this address among the names of the certificate?"
        )
    if "WRONG_VERSION_NUMBER" in reason or "record layer failure" in reason:
        return f"{server}: the server speaks plain HTTP, not TLS: is http:// meant, or another port?"
    if "[X509" in reason or "PEM" in reason:
        return (
            f"{server}: a certificate of {origin} cannot be used ({_tidy(reason)}): certificate-authority, "
            "client-certificate and client-key have to be PEM, and the last two have to belong together"
        )
    if "SSL" in kind or "SSL" in reason:
        return (
            f"{server}: no TLS connection ({_tidy(reason)}): does the server accept the client certificate of {origin}?"
        )
    if "NameResolution" in kind or "getaddrinfo" in reason:
        return f"{server}: the host name cannot be resolved: is the address of {origin} right?"
    if "Proxy" in kind:
        return (
            f"{server}: the proxy on the way fails ({_tidy(reason)}): see proxy-url of {origin}, HTTPS_PROXY, NO_PROXY"
        )
    if "refused" in reason:
        return f"{server}: connection refused: does the API server run there? Is the address of {origin} right?"
    return f"{server}: no connection ({_tidy(reason)}): is the address of {origin} right?"


def _tidy(reason: str) -> str:
    """The text without names of Python objects and lines of C sources."""
    text = re.sub(r"\(_ssl\.c:\d+\)|^SSLError\s*", "", " ".join(reason.split()))
    return re.sub(r"\w+\(|['\"()]|\w+=", "", text)[:200].strip(" .,")
