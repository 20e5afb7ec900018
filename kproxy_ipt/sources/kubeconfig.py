"""
Which cluster, and as whom: kubeconfig files, the service account of a pod, or a bare address.

In goes a `ClusterConnection`, out comes a `ClusterAccess`: one cluster and one user as a kubeconfig document of a
single context, every path absolute, with the token of a token file already read. `cluster.py` hands that document to
the loader of the `kubernetes` client; a watching client can hand it to the loader of its `aio` part. Nothing here
imports the client.

Why the files are merged here and not by the client (37.0): it lets the last file of KUBECONFIG choose the current
context where kubectl takes the first, resolves client certificates against the folder of the cluster's file, keeps
the line feed at the end of a token file (which no HTTP header may hold), never reads a token file again, and goes on
as nobody if the user of the context is missing. Differences from kubectl that are wanted: a KUBECONFIG that names no
existing file is an error. A server address without a kubeconfig is used without credentials, as kube-proxy does, so
that the token of one cluster never travels to the address of another.

Source: client-go `tools/clientcmd` (loader, merge, `BuildConfigFromFlags`), `rest.InClusterConfig`,
`transport.NewCachedFileTokenSource`.
"""

import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from kproxy_ipt.errors import SourceError

SERVICE_ACCOUNT_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"
_NO_SECRET = re.compile(r"[^@?#]*")
_YAML_PLACE = re.compile(r"line \d+, column \d+")

TOKEN_LIFE_S = 60.0
"""A token file is read again after this many seconds; the kubelet rotates tokens minutes before they expire."""

_CLUSTER_PATHS = ("certificate-authority",)
_SECURE_KEYS = (
    "certificate-authority",
    "certificate-authority-data",
    "insecure-skip-tls-verify",
    "client-certificate",
    "client-certificate-data",
)
_USER_PATHS = ("client-certificate", "client-key", "tokenFile")


class ClusterConnection(msgspec.Struct, frozen=True, kw_only=True):
    """
    How to reach an API server.

    Attributes:
        kubeconfig: A kubeconfig file; "" means, in this order, the files of KUBECONFIG (separated by colons),
            `~/.kube/config`, the service account of the pod.
        context: A context of that kubeconfig; "" means its current one.
        master: Address that takes the place of the server in the kubeconfig; with neither *kubeconfig* nor *context*
            nothing but this address is used, without credentials.
        qps: Requests per second in the long run; 0 means 5, a negative number means no limit.
        burst: Requests that may go out at once before *qps* counts; 0 means 10.
        timeout_s: How long the server may stay silent: while connecting, or between two pieces of an answer.
        page_size: Objects in one answer; 0 asks for everything at once.
        service_account: Folder with `token` and `ca.crt` of the service account.
    """

    kubeconfig: str = ""
    context: str = ""
    master: str = ""
    qps: float = 5.0
    burst: int = 10
    timeout_s: float = 30.0
    page_size: int = 500
    service_account: str = SERVICE_ACCOUNT_FOLDER


class ClusterAccess(msgspec.Struct, frozen=True, kw_only=True):
    """
    One cluster and one user, found and complete.

    Attributes:
        origin: Where this comes from, for messages: `context prod of /root/.kube/config`.
        server: Address of the API server.
        cluster: The `cluster` entry of a kubeconfig, paths absolute; holds *server*.
        user: The `user` entry of a kubeconfig, paths absolute, without `tokenFile` and `exec`; empty for nobody.
        token_file: Absolute path of the file that holds the token, or "".
        plugin: The `exec` entry: a program that prints credentials; None if there is none.
        folder: Working folder of that program.
    """

    origin: str
    server: str
    cluster: Mapping[str, object]
    user: Mapping[str, object] = msgspec.field(default_factory=dict)
    token_file: str = ""
    plugin: Mapping[str, object] | None = None
    folder: str = ""

    def document(self) -> dict[str, object]:
        """A kubeconfig document of one context, `access`, for the loader of the client; without token of a file."""
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "access",
            "contexts": [{"name": "access", "context": {"cluster": "access", "user": "access"}}],
            "clusters": [{"name": "access", "cluster": dict(self.cluster)}],
            "users": [{"name": "access", "user": dict(self.user)}],
        }


class _Cluster(msgspec.Struct, frozen=True):
    """An entry of `clusters`."""

    name: str
    cluster: dict[str, object] | None = None


class _User(msgspec.Struct, frozen=True):
    """An entry of `users`."""

    name: str
    user: dict[str, object] | None = None


class _ContextEntry(msgspec.Struct, frozen=True):
    """`context` of an entry of `contexts`: names."""

    cluster: str = ""
    user: str = ""


class _Context(msgspec.Struct, frozen=True):
    """An entry of `contexts`."""

    name: str
    context: _ContextEntry | None = None


class _KubeconfigFile(msgspec.Struct, frozen=True, rename="kebab"):
    """One file as it stands."""

    clusters: tuple[_Cluster, ...] | None = None
    users: tuple[_User, ...] | None = None
    contexts: tuple[_Context, ...] | None = None
    current_context: str | None = None


class _Entry(msgspec.Struct, frozen=True):
    """A cluster or a user, and the folder that its relative paths count from."""

    fields: dict[str, object]
    folder: Path


class _Merged(msgspec.Struct, frozen=True, kw_only=True):
    """All files as one, by name; *origin* lists the files."""

    origin: str
    clusters: dict[str, _Entry]
    users: dict[str, _Entry]
    contexts: dict[str, _ContextEntry]
    current_context: str


def find_access(connection: ClusterConnection, environ: Mapping[str, str]) -> ClusterAccess:
    """
    Decide which cluster is meant and collect what is needed to talk to it.

    Args:
        connection: What the user said.
        environ: Environment variables: KUBECONFIG, HOME, KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT count.

    Raises:
        SourceError: No cluster is configured, a file cannot be read or makes no sense, or a context, cluster or user
            that is referred to does not exist. The message names the file and what to do.
    """
    if connection.master and not connection.kubeconfig and not connection.context:
        server = _checked_server(connection.master, "the option master")
        return ClusterAccess(origin="the option master", server=server, cluster={"server": server})
    paths = _kubeconfig_paths(connection, environ)
    if paths:
        return _access_of_context(_merge(paths), connection)
    if connection.context:
        raise SourceError(f"context {connection.context!r} is asked for, but there is no kubeconfig to take it from")
    return _access_in_cluster(connection, environ)


def _kubeconfig_paths(connection: ClusterConnection, environ: Mapping[str, str]) -> tuple[Path, ...]:
    """The kubeconfig files to merge, all existing; none means that there is no kubeconfig."""
    if connection.kubeconfig:
        return (Path(connection.kubeconfig).expanduser(),)
    if listed := environ.get("KUBECONFIG", ""):
        candidates = [Path(text).expanduser() for text in listed.split(":") if text]
        existing = tuple(path for path in candidates if path.exists())
        if not existing:
            raise SourceError(f"KUBECONFIG is {listed!r}, but no such file exists: correct the variable or unset it")
        return existing
    home = environ.get("HOME", "")
    default = Path(home) / ".kube" / "config"
    return (default,) if home and default.exists() else ()


def _merge(paths: tuple[Path, ...]) -> _Merged:
    """All files as one; the first file that defines a name, or a current context, wins."""
    clusters: dict[str, _Entry] = {}
    users: dict[str, _Entry] = {}
    contexts: dict[str, _ContextEntry] = {}
    current_context = ""
    for path in paths:
        content = _read(path)
        folder = path.absolute().parent
        for cluster in content.clusters or ():
            clusters.setdefault(cluster.name, _Entry(cluster.cluster or {}, folder))
        for user in content.users or ():
            users.setdefault(user.name, _Entry(user.user or {}, folder))
        for context in content.contexts or ():
            contexts.setdefault(context.name, context.context or _ContextEntry())
        current_context = current_context or content.current_context or ""
    return _Merged(
        origin=", ".join(str(path) for path in paths),
        clusters=clusters,
        users=users,
        contexts=contexts,
        current_context=current_context,
    )


def _read(path: Path) -> _KubeconfigFile:
    """One file; SourceError if it is none of ours."""
    try:
        content: _KubeconfigFile | None = msgspec.yaml.decode(path.read_bytes(), type=_KubeconfigFile | None)
    except OSError as error:
        raise SourceError(f"kubeconfig {path} cannot be read: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        # Not chained: what a parser says may quote a token.
        raise SourceError(f"{path} is no kubeconfig: {_without_words_of_the_file(error)}") from None
    if content is None:
        raise SourceError(f"{path} is no kubeconfig: the file is empty")
    return content


def _without_words_of_the_file(error: Exception) -> str:
    """What is wrong with a file, and where; never a word of it."""
    if isinstance(error, msgspec.ValidationError):
        return " ".join(str(error).split())
    place = _YAML_PLACE.search(str(error))
    return f"no YAML at {place[0]}" if place else "no YAML"


def _access_of_context(merged: _Merged, connection: ClusterConnection) -> ClusterAccess:
    """The cluster and the user of the wanted context."""
    name = connection.context or merged.current_context
    if not name:
        raise SourceError(f"{merged.origin} has no current context: choose one of {_names(merged.contexts)}")
    if name not in merged.contexts:
        raise SourceError(f"{merged.origin} has no context {name!r}, only {_names(merged.contexts)}")
    context = merged.contexts[name]
    origin = f"context {name} of {merged.origin}"
    if context.cluster not in merged.clusters and not connection.master:
        raise SourceError(f"{origin} refers to cluster {context.cluster!r}, which does not exist")
    if context.user and context.user not in merged.users:
        raise SourceError(f"{origin} refers to user {context.user!r}, which does not exist")
    cluster = _resolved(merged.clusters.get(context.cluster), _CLUSTER_PATHS)
    user = _resolved(merged.users.get(context.user), _USER_PATHS)
    secure = any(key in cluster or key in user for key in _SECURE_KEYS)
    server = _checked_server(connection.master or str(cluster.get("server") or ""), origin, secure=secure)
    plugin = user.pop("exec", None)
    token_file = str(user.pop("tokenFile", None) or "")
    if token_file:
        user.pop("token", None)
    entry = merged.users.get(context.user)
    return ClusterAccess(
        origin=origin,
        server=server,
        cluster={**cluster, "server": server},
        user=user,
        token_file=token_file,
        plugin=plugin if isinstance(plugin, dict) and not token_file and not user.get("token") else None,
        folder=str(entry.folder) if entry else "",
    )


def _access_in_cluster(connection: ClusterConnection, environ: Mapping[str, str]) -> ClusterAccess:
    """The API server and the service account that the kubelet gives to every pod."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        raise SourceError(
            "no cluster is configured: give a kubeconfig, set KUBECONFIG, create ~/.kube/config, or run in a pod "
            "(KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set)"
        )
    folder = Path(connection.service_account)
    for name in ("token", "ca.crt"):
        if not (folder / name).is_file():
            raise SourceError(
                f"the service account has no {folder / name}: is automountServiceAccountToken off in this pod?"
            )
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return ClusterAccess(
        origin=f"service account in {folder}",
        server=server,
        cluster={"server": server, "certificate-authority": str(folder / "ca.crt")},
        token_file=str(folder / "token"),
    )


def _resolved(entry: _Entry | None, keys: tuple[str, ...]) -> dict[str, object]:
    """A copy of the fields whose paths are relative to the file no more; empty fields are left out."""
    if entry is None:
        return {}
    fields = {key: value for key, value in entry.fields.items() if value not in (None, "")}
    for key in keys:
        if key in fields:
            fields[key] = str(entry.folder / str(fields[key]))
    return fields


def _checked_server(server: str, origin: str, *, secure: bool = False) -> str:
    """The address without slash at the end; `host:port` alone means HTTPS only where TLS settings are given."""
    if not server:
        raise SourceError(f"{origin} has no server address")
    address = server if "://" in server else f"{'https' if secure else 'http'}://{server}"
    if not _NO_SECRET.fullmatch(address):  # an address stands in logs and on pages: nothing of what is there is shown
        place = "a user and password, or a query, do not belong into the address of an API server"
        raise SourceError(f"{origin}: {place}, expected https://HOST:PORT; credentials are those of a user")
    if not address.startswith(("http://", "https://")) or not _has_host_and_port(address):
        raise SourceError(f"{origin}: {server!r} is no address of an API server, expected https://HOST:PORT")
    return address.rstrip("/")


def _has_host_and_port(address: str) -> bool:
    """Whether the parts are there, and the port is a number."""
    try:
        parts = urlsplit(address)
        return bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False


def _names(contexts: Mapping[str, _ContextEntry]) -> str:
    """The contexts to choose from."""
    return ", ".join(sorted(contexts)) or "none (the file has no contexts)"


class TokenFile:
    """
    The token in a file that somebody else rotates.

    The file is read again once the token is older than `TOKEN_LIFE_S`. If it cannot be read then, the old token
    stays in use, as in client-go: the server has the last word on it.
    """

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = Path(path)
        self._clock = clock
        self._token = ""
        self._read_at = 0.0

    def token(self) -> str:
        """
        The token, without white space around it.

        Raises:
            SourceError: The file cannot be read or is empty, and there is no older token.
        """
        if self._token and self._clock() - self._read_at < TOKEN_LIFE_S:
            return self._token
        try:
            text = self._path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            if not self._token:
                reason = error.strerror if isinstance(error, OSError) else "not a text file"
                raise SourceError(f"token file {self._path} cannot be read: {reason}") from error
            return self._token
        if not text and not self._token:
            raise SourceError(f"token file {self._path} is empty")
        self._token = text or self._token
        self._read_at = self._clock()
        return self._token

    def forget(self) -> None:
        """Read the file again at the next occasion: the server did not accept the token."""
        self._read_at = -TOKEN_LIFE_S + self._clock()
