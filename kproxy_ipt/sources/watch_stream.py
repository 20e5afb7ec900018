"""
The lines of a watch become events: each is decoded once, into typed values. No I/O, no clock.

What cannot be understood is never passed over in silence, since an event may be lost in it:

- An object that makes no sense, but has a name: it is set aside, `Gone` with findings that say why. Its next good
  version brings it back.
- All else (no JSON, an unknown type of event, an object without name or of another kind): `Malformed`, and whoever
  reads the stream has to list anew.

Source: API concepts of Kubernetes, "Efficient detection of changes"; streams recorded from a v1.36.2 server.
"""

from typing import Final, TypeAlias

import msgspec

from kproxy_ipt.errors import Finding
from kproxy_ipt.objects.decode import Decoded, decode_document
from kproxy_ipt.objects.events import ApiObject, Gone, Kind, Put
from kproxy_ipt.objects.report import printable
from kproxy_ipt.objects.type_errors import UNREADABLE
from kproxy_ipt.sources.paging import Status

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
"""An annotation that repeats the whole object; nobody here reads it, so it is not kept in memory."""

MAX_LINE: Final = 16 * 1024 * 1024
"""Bytes. etcd stores objects of at most 1.5 MiB; a longer line is no event."""

_INITIAL_END = "k8s.io/initial-events-end"


class Changed(msgspec.Struct, frozen=True):
    """An object is as *event* says since *version* ("" if the server does not tell)."""

    event: Put | Gone
    version: str


class Bookmark(msgspec.Struct, frozen=True):
    """Nothing is missing up to *version*; *ends_initial* says that a streaming list is complete."""

    version: str
    ends_initial: bool = False


class Refused(msgspec.Struct, frozen=True):
    """The server ends the watch with an error; *code* is a status code of HTTP."""

    code: int
    status: Status


class Malformed(msgspec.Struct, frozen=True):
    """A line that cannot be understood; what it said is lost."""

    reason: str


StreamLine: TypeAlias = Changed | Bookmark | Refused | Malformed


class _Line(msgspec.Struct, frozen=True):
    """A line, its object not yet looked at."""

    type: str
    object: msgspec.Raw


class _HeadMeta(msgspec.Struct, frozen=True, rename="camel"):
    """The part of `metadata` that names an object, whatever its types."""

    name: object = None
    namespace: object = None
    resource_version: object = None
    annotations: object = None


class _Head(msgspec.Struct, frozen=True):
    """The part of an object that names it."""

    kind: object = None
    metadata: _HeadMeta = msgspec.field(default_factory=_HeadMeta)


class _ErrorObject(msgspec.Struct, frozen=True):
    """The Status of an ERROR event."""

    code: int = 0


_LINE = msgspec.json.Decoder(_Line)
_HEAD = msgspec.json.Decoder(_Head)
_ERROR = msgspec.json.Decoder(_ErrorObject)
_STATUS = msgspec.json.Decoder(Status)


class LineSplitter:
    """Pieces of a stream become lines, wherever they were cut."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, piece: bytes) -> list[bytes]:
        """
        The lines that *piece* completes, without line feeds; empty ones are left out.

        Raises:
            ValueError: A line is longer than any event.
        """
        self._rest += piece
        if b"\n" not in piece:
            if len(self._rest) > MAX_LINE:
                raise ValueError(f"a line of more than {MAX_LINE} bytes")
            return []
        *lines, rest = bytes(self._rest).split(b"\n")
        self._rest = bytearray(rest)
        return [line for line in lines if line.strip()]

    @property
    def is_within_line(self) -> bool:
        """Whether the last line is not complete yet."""
        return bool(self._rest.strip())


class Gathering:
    """
    The objects of a streaming list, until it is complete.

    Attributes:
        findings: What is odd about them, and about those that were set aside.
    """

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self._objects: dict[tuple[str, str], ApiObject] = {}

    @property
    def objects(self) -> tuple[ApiObject, ...]:
        """All objects so far, each in its latest version."""
        return tuple(self._objects.values())

    def take(self, event: Put | Gone) -> None:
        """Note one more event."""
        self.findings += event.findings
        if isinstance(event, Put):
            metadata = event.object.metadata
            self._objects[metadata.namespace or "", metadata.name] = event.object
        else:
            self._objects.pop((event.namespace, event.name), None)


def read_line(kind: Kind, line: bytes, origin: str) -> StreamLine:
    """
    Understand one line.

    Args:
        kind: What the stream is about.
        line: Without its line feed.
        origin: Name of the server, for findings about objects that have no name.
    """
    try:
        event = _LINE.decode(line)
        if event.type in ("ADDED", "MODIFIED"):
            return _changed(kind, event.object, origin)
        head = _HEAD.decode(event.object)
        if event.type == "DELETED":
            return _removed(kind, head)
        if event.type == "BOOKMARK":
            return _bookmark(head)
        if event.type == "ERROR":
            return Refused(_ERROR.decode(event.object).code, _STATUS.decode(event.object))
    except UNREADABLE as error:
        text = printable(line[:60].decode("utf-8", "replace"))
        return Malformed(f"a line that is no event ({' '.join(str(error).split())}): {text}")
    return Malformed(f"an event of the unknown type {printable(event.type)}")


def is_older(version: str, known: str) -> bool:
    """Whether *version* lies before *known*; False where they cannot be compared."""
    return version.isdecimal() and known.isdecimal() and int(version) < int(known)


def objects_of(kind: Kind, decoded: Decoded) -> tuple[ApiObject, ...]:
    """The objects of one kind, without what nobody reads."""
    found: tuple[ApiObject, ...] = decoded.nodes
    if kind is Kind.SERVICES:
        found = decoded.services
    elif kind is Kind.ENDPOINT_SLICES:
        found = decoded.endpoint_slices
    return tuple(_slimmed(api_object) for api_object in found)


def _changed(kind: Kind, raw: msgspec.Raw, origin: str) -> StreamLine:
    decoded = decode_document(bytes(raw), origin)
    found = objects_of(kind, decoded)
    if len(found) == 1:
        return Changed(Put(kind, found[0], decoded.findings), found[0].metadata.resource_version or "")
    head = _HEAD.decode(raw)
    gone = _removed(kind, head)
    if isinstance(gone, Malformed) or not decoded.findings:
        return Malformed(f"an object that is no {kind.api_name} with a name: kind {printable(head.kind)}")
    return Changed(msgspec.structs.replace(gone.event, findings=decoded.findings), gone.version)


def _removed(kind: Kind, head: _Head) -> Changed | Malformed:
    metadata = head.metadata
    namespace = metadata.namespace if kind is not Kind.NODES else ""
    is_named = isinstance(metadata.name, str) and metadata.name and isinstance(namespace, str)
    if not is_named or head.kind != kind.api_name or (not namespace and kind is not Kind.NODES):
        return Malformed(f"an object that is no {kind.api_name} with a name: kind {printable(head.kind)}")
    return Changed(Gone(kind, str(namespace), str(metadata.name)), _text(metadata.resource_version))


def _bookmark(head: _Head) -> StreamLine:
    version = _text(head.metadata.resource_version)
    if not version:
        return Malformed("a bookmark without a version")
    annotations = head.metadata.annotations
    return Bookmark(version, isinstance(annotations, dict) and annotations.get(_INITIAL_END) == "true")


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _slimmed(api_object: ApiObject) -> ApiObject:
    annotations = api_object.metadata.annotations
    if not annotations or LAST_APPLIED not in annotations:
        return api_object
    kept = {name: text for name, text in annotations.items() if name != LAST_APPLIED}
    metadata = msgspec.structs.replace(api_object.metadata, annotations=kept or None)
    return msgspec.structs.replace(api_object, metadata=metadata)
