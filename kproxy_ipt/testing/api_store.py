"""
The objects of the test API server: versions, history, snapshots, pages. No sockets here.

An object is a full document (`kind`, `apiVersion`, `metadata`, ...). Snapshots of a list that was handed out in pages
are kept until `compact`, so that later pages show what the first one showed, as with etcd; so is the history of
changes that watches are served from.

Source: API concepts of Kubernetes; answers recorded from a kube-apiserver v1.36.2.
"""

import base64
from collections.abc import Mapping

import msgspec

from kproxy_ipt.objects.model import EndpointSlice, Node, Service
from kproxy_ipt.testing.api_replies import Reply, not_found, status_reply
from kproxy_ipt.testing.api_selectors import ApiObject, Selection, fields_of, selection

RESOURCES: Mapping[str, tuple[str, str]] = {
    "/api/v1/services": ("Service", "v1"),
    "/api/v1/nodes": ("Node", "v1"),
    "/apis/discovery.k8s.io/v1/endpointslices": ("EndpointSlice", "discovery.k8s.io/v1"),
    "/apis/events.k8s.io/v1/events": ("Event", "events.k8s.io/v1"),
    "/api/v1/namespaces": ("Namespace", "v1"),
    "/api/v1/pods": ("Pod", "v1"),
    "/api/v1/endpoints": ("Endpoints", "v1"),
    "/apis/apps/v1/deployments": ("Deployment", "apps/v1"),
    "/apis/apps/v1/replicasets": ("ReplicaSet", "apps/v1"),
}
"""Path of a list to kind and apiVersion of its objects."""
CLUSTER_KINDS = frozenset({"Node", "Namespace"})
"""Kinds whose objects are in no namespace."""

EXPIRED_MESSAGE = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter."
)


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What a path points at: a collection, the part of it in *namespace*, or the object *name*; "" for none."""

    collection: str
    namespace: str = ""
    name: str = ""

    @property
    def kind(self) -> str:
        """Kind of the objects."""
        return RESOURCES[self.collection][0]

    @property
    def api_version(self) -> str:
        """Their group and version."""
        return RESOURCES[self.collection][1]

    @property
    def plural(self) -> str:
        """Name of the resource."""
        return self.collection.rpartition("/")[2]

    @property
    def key(self) -> str:
        """Key of the object in the store."""
        return f"{self.namespace}/{self.name}"


class ListQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of a list; *limit* 0 means all, *not_older_than* 0 any version."""

    label_selector: str = ""
    field_selector: str = ""
    limit: int = 0
    continue_token: str = ""
    not_older_than: int = 0


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One step of the history: an object before and after; None where there was none."""

    version: int
    kind: str
    before: ApiObject | None
    after: ApiObject | None


class _Token(msgspec.Struct, frozen=True):
    """What a continue token stands for; the names are those of the real server."""

    v: str
    rv: int
    start: str


class ApiStore:
    """
    All objects, by kind and `namespace/name`.

    Attributes:
        resource_version: Counts every change, as etcd's revision does.
        oldest_version: Watches from before it are answered 410.
    """

    def __init__(self) -> None:
        self.resource_version = 1
        self.oldest_version = 1
        self._objects: dict[str, dict[str, ApiObject]] = {}
        self._snapshots: dict[tuple[str, int], dict[str, ApiObject]] = {}
        self._history: list[Change] = []

    def put(self, api_object: Service | EndpointSlice | Node | ApiObject) -> ApiObject:
        """Create or replace one object; returns it as it is stored."""
        document = dict(_document(api_object))
        self.resource_version += 1
        metadata = fields_of(document.get("metadata")) | {"resourceVersion": str(self.resource_version)}
        document["metadata"] = metadata
        key = f"{metadata.get('namespace') or ''}/{metadata['name']}"
        kind = str(document["kind"])
        objects = self._objects.setdefault(kind, {})
        self._note(kind, objects.get(key), document)
        objects[key] = document
        return document

    def delete(self, kind: str, name: str, namespace: str) -> None:
        """Remove one object; `KeyError` if there is none."""
        removed = self._objects[kind].pop(f"{'' if kind in CLUSTER_KINDS else namespace}/{name}")
        self.resource_version += 1
        self._note(kind, removed, None)

    def compact(self) -> None:
        """Forget what continue tokens stand for, and the history."""
        self._snapshots.clear()
        self._history.clear()
        self.oldest_version = self.resource_version

    def forget_before(self, version: int) -> None:
        """Forget the history up to *version*, as a periodic compaction does."""
        self._history = [change for change in self._history if change.version > version]
        self.oldest_version = max(self.oldest_version, version)

    def find(self, target: Target) -> ApiObject | None:
        """One object, or None."""
        return self._objects.get(target.kind, {}).get(target.key)

    def objects(self, target: Target, matches: Selection) -> list[ApiObject]:
        """What is there now, in the order of a list."""
        found = self._objects.get(target.kind, {})
        return [found[key] for key in sorted(found) if _is_in(key, target.namespace) and matches(found[key])]

    def changes(self, kind: str, since: int) -> list[Change]:
        """What happened to objects of *kind* after the version *since*, in order."""
        return [change for change in self._history if change.version > since and change.kind == kind]

    def get(self, target: Target) -> Reply:
        """One object by name."""
        found = self.find(target)
        return not_found(target.plural, target.name) if found is None else Reply(status=200, body=encoded(found))

    def list(self, target: Target, query: ListQuery) -> Reply:
        """One page of a list."""
        if query.not_older_than > self.resource_version:
            return _too_large(query.not_older_than, self.resource_version)
        kind = target.kind
        version, start = self.resource_version, ""
        if query.continue_token:
            token = _decoded(query.continue_token)
            if token is None:
                return status_reply(400, "BadRequest", "invalid continue token: continue key is not valid")
            version, start = token.rv, token.start
            if (kind, version) not in self._snapshots:
                return status_reply(410, "Expired", EXPIRED_MESSAGE)
        snapshot = self._snapshots.get((kind, version)) or dict(self._objects.get(kind, {}))
        matches = selection(query.label_selector, query.field_selector)
        chosen = (key for key, document in snapshot.items() if _is_in(key, target.namespace) and matches(document))
        keys = sorted(key for key in chosen if key >= start)
        shown, rest = (keys[: query.limit], keys[query.limit :]) if query.limit else (keys, [])
        metadata: dict[str, object] = {"resourceVersion": str(version)}
        if rest:
            self._snapshots[kind, version] = snapshot
            metadata["continue"] = _encoded(_Token("meta.k8s.io/v1", version, rest[0]))
            if not query.label_selector and not query.field_selector:
                metadata["remainingItemCount"] = len(rest)
        items = [_without_type(snapshot[key]) for key in shown]
        document = {"kind": f"{kind}List", "apiVersion": target.api_version, "metadata": metadata, "items": items}
        return Reply(status=200, body=encoded(document))

    def _note(self, kind: str, before: ApiObject | None, after: ApiObject | None) -> None:
        self._history.append(Change(version=self.resource_version, kind=kind, before=before, after=after))


def target_of(path: str) -> Target | None:
    """What a path points at; None if this server knows no such thing."""
    head, namespaces, rest = path.partition("/namespaces/")
    if namespaces:
        namespace, _, rest = rest.partition("/")
        plural, _, name = rest.partition("/")
        collection = f"{head}/{plural}"
        return Target(collection=collection, namespace=namespace, name=name) if collection in RESOURCES else None
    if path in RESOURCES:
        return Target(collection=path)
    collection, _, name = path.rpartition("/")
    return Target(collection=collection, name=name) if collection in RESOURCES and name else None


def encoded(document: ApiObject) -> bytes:
    """JSON."""
    return msgspec.json.encode(document)


def _is_in(key: str, namespace: str) -> bool:
    return not namespace or key.startswith(f"{namespace}/")


def _document(api_object: Service | EndpointSlice | Node | ApiObject) -> ApiObject:
    """The object as a full document."""
    if isinstance(api_object, Mapping):
        return api_object
    kind = type(api_object).__name__
    api_version = next(version for known, version in RESOURCES.values() if known == kind)
    return {"kind": kind, "apiVersion": api_version, **fields_of(msgspec.to_builtins(api_object))}


def _without_type(document: ApiObject) -> dict[str, object]:
    """Items of a typed list carry neither kind nor apiVersion."""
    return {key: value for key, value in document.items() if key not in ("kind", "apiVersion")}


def _too_large(wanted: int, current: int) -> Reply:
    """504: the server is behind the wanted version."""
    causes = [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]
    message = f"Timeout: Too large resource version: {wanted}, current: {current}"
    return status_reply(504, "Timeout", message, details={"causes": causes}, retry_after_s=1)


def _encoded(token: _Token) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(token)).decode().rstrip("=")


def _decoded(text: str) -> _Token | None:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=_Token)
    except ValueError:
        return None
