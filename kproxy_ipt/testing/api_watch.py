"""
What a watch of the test API server sends, line by line. No sockets, no clock.

Selectors choose among changes as the real server does it: an object that begins to match is ADDED, one that ceases to
match is DELETED in its last matching form, with the version of the change.

Source: API concepts of Kubernetes, "Efficient detection of changes", "Streaming lists"; `cacher` of the API server;
answers recorded from a kube-apiserver v1.36.2.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from types import MappingProxyType

import msgspec

from kproxy_ipt.testing.api_replies import status_document
from kproxy_ipt.testing.api_selectors import ApiObject, Selection, fields_of, selection
from kproxy_ipt.testing.api_store import ApiStore, Change, Target, encoded

_EMPTY_OBJECTS: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        "Service": {"spec": {}, "status": {"loadBalancer": {}}},
        "EndpointSlice": {"addressType": "", "endpoints": None, "ports": None},
        "Node": {"spec": {}, "status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 0}}}},
    }
)
"""What bookmarks hold beside `metadata`."""


class StreamingLists(StrEnum):
    """What becomes of `sendInitialEvents=true`."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    """Refused inside the stream, as by a cluster with an old etcd."""
    UNKNOWN = "unknown"
    """The parameter is not known: objects come, and no mark of their end."""


class WatchQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of a watch; *timeout_s* None means none."""

    label_selector: str = ""
    field_selector: str = ""
    resource_version: str = ""
    timeout_s: float | None = None
    allow_bookmarks: bool = False
    initial_events: bool = False


Shape = Callable[[ApiObject], ApiObject]
"""How an object is shown in an event."""


class WatchStream:
    """
    One watch; *shape* turns objects into what is sent of them, as tables are.

    Attributes:
        version: Everything up to it has been sent.
        is_over: No line will follow.
    """

    def __init__(self, store: ApiStore, target: Target, query: WatchQuery, shape: Shape = dict) -> None:
        self.version = store.resource_version
        self.is_over = False
        self._store = store
        self._target = target
        self._query = query
        self._shape = shape
        self._matches: Selection = selection(query.label_selector, query.field_selector)

    def first_lines(self, streaming: StreamingLists) -> list[bytes]:
        """What is sent at once; sets where the changes begin."""
        if self._query.initial_events:
            return self._initial_lines(streaming)
        if self._query.resource_version in ("", "0"):
            return self._present_lines()
        self.version = int(self._query.resource_version)
        if self.version < self._store.oldest_version:
            message = f"too old resource version: {self.version} ({self._store.oldest_version})"
            return [self._error(410, "Expired", message)]
        return self.lines()

    def lines(self) -> list[bytes]:
        """What has happened since; nothing if the version is one of the future."""
        found = []
        for change in self._store.changes(self._target.kind, self.version):
            self.version = change.version
            line = self._line(change)
            if line:
                found.append(line)
        return found

    def bookmark(self, *, ends_initial: bool = False) -> list[bytes]:
        """A bookmark, if the client wants them and is not ahead of us."""
        current = self._store.resource_version
        if not self._query.allow_bookmarks or self.version > current:
            return []
        self.version = current
        annotations = {"annotations": {"k8s.io/initial-events-end": "true"}} if ends_initial else {}
        document = {
            "kind": self._target.kind,
            "apiVersion": self._target.api_version,
            "metadata": {"resourceVersion": str(current), **annotations},
            **_EMPTY_OBJECTS.get(self._target.kind, {}),
        }
        return [_event("BOOKMARK", document)]

    def _initial_lines(self, streaming: StreamingLists) -> list[bytes]:
        if streaming is StreamingLists.REFUSED:
            message = (
                "a watch stream was requested by the client but the required storage feature RequestWatchProgress is "
                "disabled"
            )
            return [self._error(500, "InternalError", message)]
        end = self.bookmark(ends_initial=True) if streaming is StreamingLists.ACCEPTED else []
        return [*self._present_lines(), *end]

    def _present_lines(self) -> list[bytes]:
        return [_event("ADDED", self._shape(found)) for found in self._store.objects(self._target, self._matches)]

    def _error(self, code: int, reason: str, message: str) -> bytes:
        self.is_over = True
        return _event("ERROR", status_document(code, reason, message))

    def _line(self, change: Change) -> bytes:
        """The event of a change, or nothing if neither side of it is chosen."""
        before = change.before if change.before is not None and self._chooses(change.before) else None
        after = change.after if change.after is not None and self._chooses(change.after) else None
        if after is not None:
            return _event("ADDED" if before is None else "MODIFIED", self._shape(after))
        if before is None:
            return b""
        metadata = fields_of(before.get("metadata")) | {"resourceVersion": str(change.version)}
        return _event("DELETED", self._shape({**before, "metadata": metadata}))

    def _chooses(self, document: ApiObject) -> bool:
        namespace = self._target.namespace
        is_here = not namespace or fields_of(document.get("metadata")).get("namespace") == namespace
        return is_here and self._matches(document)


def _event(kind: str, document: ApiObject) -> bytes:
    return b'{"type":"' + kind.encode() + b'","object":' + encoded(document) + b"}\n"
