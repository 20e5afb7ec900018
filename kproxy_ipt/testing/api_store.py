"""
The objects of the test API server: versions, snapshots, pages, selectors. No sockets here.

An object is a full document (`kind`, `apiVersion`, `metadata`, ...). Snapshots of a list that was handed out in pages
are kept until `compact`, so that later pages show what the first one showed, as with etcd.

Source: API concepts of Kubernetes; answers recorded from a kube-apiserver v1.36.2.
"""

import base64
import operator
from collections.abc import Callable, Mapping

import msgspec

from kproxy_ipt.objects.model import EndpointSlice, Node, Service

ApiObject = Mapping[str, object]

RESOURCES: Mapping[str, tuple[str, str]] = {
    "/api/v1/services": ("Service", "v1"),
    "/api/v1/nodes": ("Node", "v1"),
    "/apis/discovery.k8s.io/v1/endpointslices": ("EndpointSlice", "discovery.k8s.io/v1"),
}
"""Path of a list to kind and apiVersion of its objects."""

EXPIRED_MESSAGE = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter."
)


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """An answer before it goes on the wire; *retry_after* is the header, "" for none."""

    status: int
    body: bytes
    content_type: str = "application/json"
    retry_after: str = ""


class ListQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of a list; *limit* 0 means all."""

    label_selector: str = ""
    field_selector: str = ""
    limit: int = 0
    continue_token: str = ""


class _Token(msgspec.Struct, frozen=True):
    """What a continue token stands for; the names are those of the real server."""

    v: str
    rv: int
    start: str


def status_reply(
    status: int,
    reason: str,
    message: str,
    *,
    details: Mapping[str, object] | None = None,
    retry_after_s: int | None = None,
) -> Reply:
    """A v1 Status as the body of a refusal."""
    all_details = dict(details or {}) | ({} if retry_after_s is None else {"retryAfterSeconds": retry_after_s})
    document: dict[str, object] = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        **({"details": all_details} if all_details else {}),
        "code": status,
    }
    retry_after = "" if retry_after_s is None else str(retry_after_s)
    return Reply(status=status, body=msgspec.json.encode(document), retry_after=retry_after)


class ApiStore:
    """All objects, by kind and `namespace/name`; `resource_version` counts every change, as etcd's revision does."""

    def __init__(self) -> None:
        self.resource_version = 1
        self._objects: dict[str, dict[str, ApiObject]] = {}
        self._snapshots: dict[tuple[str, int], dict[str, ApiObject]] = {}

    def put(self, api_object: Service | EndpointSlice | Node | ApiObject) -> None:
        """Create or replace one object."""
        document = dict(_document(api_object))
        self.resource_version += 1
        metadata = _mapping(document.get("metadata")) | {"resourceVersion": str(self.resource_version)}
        document["metadata"] = metadata
        key = f"{metadata.get('namespace') or ''}/{metadata['name']}"
        self._objects.setdefault(str(document["kind"]), {})[key] = document

    def delete(self, kind: str, name: str, namespace: str) -> None:
        """Remove one object; `KeyError` if there is none."""
        del self._objects[kind][f"{'' if kind == 'Node' else namespace}/{name}"]
        self.resource_version += 1

    def compact(self) -> None:
        """Forget what continue tokens stand for."""
        self._snapshots.clear()

    def get(self, path: str, name: str) -> Reply:
        """One object that has no namespace, by name."""
        kind, _ = RESOURCES[path]
        found = self._objects.get(kind, {}).get(f"/{name}")
        if found is None:
            plural = path.rpartition("/")[2]
            message = f'{plural} "{name}" not found'
            return status_reply(404, "NotFound", message, details={"name": name, "kind": plural})
        return Reply(status=200, body=msgspec.json.encode(found))

    def list(self, path: str, query: ListQuery) -> Reply:
        """One page of a list."""
        kind, api_version = RESOURCES[path]
        version, start = self.resource_version, ""
        if query.continue_token:
            token = _decoded(query.continue_token)
            if token is None:
                return status_reply(400, "BadRequest", "invalid continue token: continue key is not valid")
            version, start = token.rv, token.start
            if (kind, version) not in self._snapshots:
                return status_reply(410, "Expired", EXPIRED_MESSAGE)
        snapshot = self._snapshots.get((kind, version)) or dict(self._objects.get(kind, {}))
        matches = _selection(query)
        keys = sorted(key for key, document in snapshot.items() if key >= start and matches(document))
        shown, rest = (keys[: query.limit], keys[query.limit :]) if query.limit else (keys, [])
        metadata: dict[str, object] = {"resourceVersion": str(version)}
        if rest:
            self._snapshots[kind, version] = snapshot
            metadata["continue"] = _encoded(_Token("meta.k8s.io/v1", version, rest[0]))
            if not query.label_selector and not query.field_selector:
                metadata["remainingItemCount"] = len(rest)
        items = [_without_type(snapshot[key]) for key in shown]
        document = {"kind": f"{kind}List", "apiVersion": api_version, "metadata": metadata, "items": items}
        return Reply(status=200, body=msgspec.json.encode(document))


def _document(api_object: Service | EndpointSlice | Node | ApiObject) -> ApiObject:
    """The object as a full document."""
    if isinstance(api_object, Mapping):
        return api_object
    kind = type(api_object).__name__
    api_version = next(version for known, version in RESOURCES.values() if known == kind)
    return {"kind": kind, "apiVersion": api_version, **_mapping(msgspec.to_builtins(api_object))}


def _mapping(value: object) -> dict[str, object]:
    return {str(key): field for key, field in value.items()} if isinstance(value, Mapping) else {}


def _without_type(document: ApiObject) -> dict[str, object]:
    """Items of a typed list carry neither kind nor apiVersion."""
    return {key: value for key, value in document.items() if key not in ("kind", "apiVersion")}


def _encoded(token: _Token) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(token)).decode().rstrip("=")


def _decoded(text: str) -> _Token | None:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=_Token)
    except ValueError:
        return None


def _selection(query: ListQuery) -> Callable[[ApiObject], bool]:
    """Whether an object is among those that both selectors choose."""
    labels = [_label_requirement(text) for text in query.label_selector.split(",") if text]
    fields = [_field_requirement(text) for text in query.field_selector.split(",") if text]
    requirements = (*labels, *fields)
    return lambda document: all(requirement(document) for requirement in requirements)


def _label_requirement(text: str) -> Callable[[ApiObject], bool]:
    """`key`, `!key`, `key=value`, `key!=value`."""
    if "=" not in text:
        key = text.removeprefix("!")
        return lambda document: (key in _labels(document)) is not text.startswith("!")
    key, wanted, compare = _comparison(text)
    return lambda document: compare(_labels(document).get(key), wanted)


def _field_requirement(text: str) -> Callable[[ApiObject], bool]:
    """`path=value`, `path!=value`; a field that is absent counts as empty."""
    path, wanted, compare = _comparison(text)
    return lambda document: compare(_field(document, path), wanted)


def _comparison(text: str) -> tuple[str, str, Callable[[object, object], bool]]:
    if "!=" in text:
        name, _, wanted = text.partition("!=")
        return name, wanted, operator.ne
    name, _, wanted = text.replace("==", "=").partition("=")
    return name, wanted, operator.eq


def _labels(document: ApiObject) -> dict[str, object]:
    return _mapping(_mapping(document.get("metadata")).get("labels"))


def _field(document: ApiObject, path: str) -> str:
    value: object = document
    for name in path.split("."):
        value = _mapping(value).get(name)
    return "" if value is None else str(value)
