"""
Text becomes objects: JSON or YAML, single objects, Lists of all kinds, dumps of `kubectl get -o yaml|json`.

What comes in is bytes from anybody; what goes out is values of `model.py` that passed the checks, and findings about
the rest. One bad object costs that object, one unreadable document costs that document; nothing raises.

Each entry of a List stays raw JSON until its kind is known and is then decoded once, into its type, so that 10,000
objects take some tenths of a second and an entry of the wrong shape is refused alone. YAML goes through JSON.

A kind that plays no part (Pod, or the `Service` of another API group, as Knative's) is counted and passed over. A kind
of ours in a version that we do not read (`discovery.k8s.io/v1beta1`) is refused.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

import msgspec

from kproxy_ipt.errors import Finding, Severity
from kproxy_ipt.objects.check import check_node, check_service
from kproxy_ipt.objects.check_endpoints import check_endpoint_slice, check_endpoints
from kproxy_ipt.objects.documents import Document, split_documents
from kproxy_ipt.objects.model import Endpoints, EndpointSlice, Node, Service
from kproxy_ipt.objects.report import printable, printable_word
from kproxy_ipt.objects.type_errors import UNREADABLE, lenient_object_text, type_finding, with_texts_for_nulls
from kproxy_ipt.objects.yaml_text import TextError, json_of_yaml

MAX_LIST_DEPTH = 8
"""How deep Lists may stand in Lists."""
MAX_FINDINGS = 10_000
"""Findings of one document; a last one counts the others."""
MAX_JSON_TRIED_AS_YAML = 1024 * 1024
"""Bytes. A longer text that starts like JSON and is broken is not worth a second reading as YAML."""

_DOCUMENT_SET_ASIDE = "this document is set aside"
_ENTRY_SET_ASIDE = "this entry is set aside"


class Decoded(msgspec.Struct, frozen=True, kw_only=True):
    """
    What was in one document, in the order of the text: only objects that passed the checks.

    Attributes:
        origin: Where it stands: `web.yaml`, or `web.yaml, document 3` where there are several.
        findings: Rejections name objects or documents that are not among the others.
        ignored: Number of objects of kinds that play no part, by kind; those of other API groups under
            `Service.serving.knative.dev`.
    """

    origin: str
    services: tuple[Service, ...] = ()
    endpoint_slices: tuple[EndpointSlice, ...] = ()
    endpoints: tuple[Endpoints, ...] = ()
    nodes: tuple[Node, ...] = ()
    findings: tuple[Finding, ...] = ()
    ignored: Mapping[str, int] = msgspec.field(default_factory=dict)


def decode_documents(text: bytes, origin: str) -> tuple[Decoded, ...]:
    """
    Read a text of any number of documents.

    Args:
        text: JSON or YAML in UTF-8, cut by lines `---`; anything else gives findings.
        origin: Name of the text for messages, such as the path of its file.

    Returns:
        One value for each document that is not blank. Nothing is raised, whatever *text* is.
    """
    try:
        documents = split_documents(text)
    except TextError as error:
        return (Decoded(origin=origin, findings=(_text_finding(origin, error),)),)
    several = len(documents) > 1
    return tuple(
        _decode(document, f"{origin}, document {number}" if several else origin)
        for number, document in enumerate(documents, start=1)
    )


def decode_document(text: bytes, origin: str) -> Decoded:
    """
    Read a text as one value: what `decode_documents` gives, joined.

    Meant for answers of an API server, which are one JSON document each.
    """
    parts = decode_documents(text, origin)
    if len(parts) == 1:
        return parts[0]
    ignored: Counter[str] = Counter()
    for part in parts:
        ignored.update(part.ignored)
    return Decoded(
        origin=origin,
        services=tuple(service for part in parts for service in part.services),
        endpoint_slices=tuple(endpoint_slice for part in parts for endpoint_slice in part.endpoint_slices),
        endpoints=tuple(endpoints for part in parts for endpoints in part.endpoints),
        nodes=tuple(node for part in parts for node in part.nodes),
        findings=tuple(finding for part in parts for finding in part.findings),
        ignored=dict(ignored),
    )


def _decode(document: Document, place: str) -> Decoded:
    contents = _Contents()
    if not document.looks_like_json:
        _add_yaml(contents, document, place)
        return contents.decoded(place)
    try:
        contents.add(document.text, place)
    except UNREADABLE as error:
        if not _is_syntax_error(error) or not _add_flow_yaml(contents, document, place):
            finding = type_finding(document.text, error, name=place, consequence=_DOCUMENT_SET_ASIDE)
            contents.note(finding)
    return contents.decoded(place)


def _is_syntax_error(error: Exception) -> bool:
    return isinstance(error, msgspec.DecodeError) and not isinstance(error, msgspec.ValidationError)


def _add_flow_yaml(contents: "_Contents", document: Document, place: str) -> bool:
    """Try a text that starts like JSON but is none as YAML, and tell whether it was YAML."""
    if len(document.text) > MAX_JSON_TRIED_AS_YAML:
        return False
    attempt = _Contents()
    _add_yaml(attempt, document, place)
    if any(finding.object == place for finding in attempt.findings):
        return False
    contents.take_over(attempt)
    return True


def _add_yaml(contents: "_Contents", document: Document, place: str) -> None:
    try:
        for text in json_of_yaml(document.text, first_line=document.first_line):
            if text != b"null":
                _add_json_of_yaml(contents, text, place)
    except TextError as error:
        contents.note(_text_finding(place, error))


def _add_json_of_yaml(contents: "_Contents", text: bytes, place: str) -> None:
    try:
        contents.add(text, place)
    except UNREADABLE as error:
        contents.note(type_finding(text, error, name=place, consequence=_DOCUMENT_SET_ASIDE))


def _text_finding(place: str, error: TextError) -> Finding:
    return _rejection(place, "", error.found, error.expected, _DOCUMENT_SET_ASIDE)


def _rejection(name: str, field: str, found: str, expected: str, consequence: str) -> Finding:
    return Finding(
        object=name,
        field=field,
        found=found,
        expected=expected,
        consequence=consequence,
        severity=Severity.REJECTED,
    )


T = TypeVar("T", bound=Service | EndpointSlice | Endpoints | Node)


class _Kind(Generic[T]):
    """How to read and check one kind of ours."""

    def __init__(self, name: str, api_version: str, model: type[T], check: Callable[[T], tuple[Finding, ...]]) -> None:
        self.name = name
        self.api_version = api_version
        self.group = api_version.rpartition("/")[0]
        self.check = check
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(model)

    def decode(self, raw: msgspec.Raw | bytes) -> T:
        """The typed value; labels and annotations may be null. Raises one of UNREADABLE."""
        try:
            return self._decoder.decode(raw)
        except msgspec.ValidationError:
            repaired = with_texts_for_nulls(raw)
            if repaired is None:
                raise
            return self._decoder.decode(repaired)


_SERVICE = _Kind("Service", "v1", Service, check_service)
_ENDPOINT_SLICE = _Kind("EndpointSlice", "discovery.k8s.io/v1", EndpointSlice, check_endpoint_slice)
_ENDPOINTS = _Kind("Endpoints", "v1", Endpoints, check_endpoints)
_NODE = _Kind("Node", "v1", Node, check_node)
_VERSIONS = {kind.name: (kind.group, kind.api_version) for kind in (_SERVICE, _ENDPOINT_SLICE, _ENDPOINTS, _NODE)}


class _Head(msgspec.Struct, rename="camel"):
    """What tells how to read the rest."""

    kind: str = ""
    api_version: str = ""
    items: msgspec.Raw = msgspec.Raw(b"null")


_HEAD = msgspec.json.Decoder(_Head)
_RAW_LIST = msgspec.json.Decoder(list[msgspec.Raw] | None)


class _Contents:
    """What one document holds, while it is being read."""

    def __init__(self) -> None:
        self.services: list[Service] = []
        self.endpoint_slices: list[EndpointSlice] = []
        self.endpoints: list[Endpoints] = []
        self.nodes: list[Node] = []
        self.findings: list[Finding] = []
        self.unlisted = 0
        self.ignored: Counter[str] = Counter()

    def add(
        self, raw: msgspec.Raw | bytes, place: str, *, kind: str = "", api_version: str = "", depth: int = 0
    ) -> None:
        """
        Add an object or a List.

        Args:
            raw: Its JSON text.
            place: Where it stands.
            kind: Used if the object has none of its own: API servers leave it out in entries of typed Lists.
            api_version: The same.
            depth: Number of Lists around it.

        Raises:
            UNREADABLE: This is no JSON, or no object.
        """
        head = _HEAD.decode(raw)
        kind = head.kind or kind
        api_version = head.api_version or api_version
        if not kind or not api_version:
            found = f"kind {printable(kind)} and apiVersion {printable(api_version)}"
            self._reject_place(place, found, "kind and apiVersion")
        elif kind == "List":
            self._add_list(head.items, place, depth=depth)
        elif (single := kind.removesuffix("List")) in _VERSIONS and single != kind:
            if self._is_ours(single, api_version, place, head.items):
                self._add_list(head.items, place, kind=single, api_version=api_version, depth=depth)
        elif kind not in _VERSIONS:
            self._ignore(kind, head.items)
        elif self._is_ours(kind, api_version, place):
            self._add_object(kind, raw, place)

    def _add_object(self, kind: str, raw: msgspec.Raw | bytes, place: str) -> None:
        # No table of bound methods: it would be a cycle, and hold all objects where garbage is not collected.
        if kind == _SERVICE.name:
            self._read(_SERVICE, self.services, raw, place)
        elif kind == _ENDPOINT_SLICE.name:
            self._read(_ENDPOINT_SLICE, self.endpoint_slices, raw, place)
        elif kind == _ENDPOINTS.name:
            self._read(_ENDPOINTS, self.endpoints, raw, place)
        else:
            self._read(_NODE, self.nodes, raw, place)

    def note(self, *findings: Finding) -> None:
        """Keep findings, as many as a document may have."""
        kept = findings[: MAX_FINDINGS - len(self.findings)]
        self.findings += kept
        self.unlisted += len(findings) - len(kept)

    def take_over(self, other: "_Contents") -> None:
        """Add all that *other* holds."""
        self.services += other.services
        self.endpoint_slices += other.endpoint_slices
        self.endpoints += other.endpoints
        self.nodes += other.nodes
        self.note(*other.findings)
        self.unlisted += other.unlisted
        self.ignored.update(other.ignored)

    def decoded(self, origin: str) -> Decoded:
        """All of it as one value."""
        if self.unlisted:
            found = f"{self.unlisted} more oddities"
            self.findings.append(_rejection(origin, "", found, "none", "they are not listed"))
        return Decoded(
            origin=origin,
            services=tuple(self.services),
            endpoint_slices=tuple(self.endpoint_slices),
            endpoints=tuple(self.endpoints),
            nodes=tuple(self.nodes),
            findings=tuple(self.findings),
            ignored=dict(self.ignored),
        )

    def _read(self, kind: _Kind[T], found: list[T], raw: msgspec.Raw | bytes, place: str) -> None:
        """Decode and check one object; keep it in *found* unless it is rejected."""
        try:
            value = kind.decode(raw)
        except UNREADABLE as error:
            name = lenient_object_text(kind.name, raw, place)
            self._note_unreadable(raw, error, name, f"this {kind.name} is set aside")
            return
        findings = kind.check(value)
        if not findings:
            found.append(value)
            return
        if not value.metadata.name:
            findings = tuple(msgspec.structs.replace(finding, object=f"{kind.name} in {place}") for finding in findings)
        self.note(*findings)
        if all(finding.severity is not Severity.REJECTED for finding in findings):
            found.append(value)

    def _note_unreadable(self, raw: msgspec.Raw | bytes, error: Exception, name: str, consequence: str) -> None:
        """Explaining is slow: it is done only for findings that are kept."""
        if len(self.findings) < MAX_FINDINGS:
            self.note(type_finding(raw, error, name=name, consequence=consequence))
        else:
            self.unlisted += 1

    def _add_list(self, items: msgspec.Raw, place: str, *, kind: str = "", api_version: str = "", depth: int) -> None:
        if depth == MAX_LIST_DEPTH:
            self._reject_place(place, f"more than {MAX_LIST_DEPTH} Lists in Lists", "objects")
            return
        try:
            entries = _RAW_LIST.decode(items) or ()
        except UNREADABLE:
            self._reject_place(f"{place}, items", "no list", "a list of objects")
            return
        for index, raw in enumerate(entries):
            entry_place = f"{place}, items[{index}]"
            try:
                self.add(raw, entry_place, kind=kind, api_version=api_version, depth=depth + 1)
            except UNREADABLE as error:
                self._note_unreadable(raw, error, entry_place, _ENTRY_SET_ASIDE)

    def _is_ours(self, kind: str, api_version: str, place: str, items: msgspec.Raw | None = None) -> bool:
        """Whether group and version are those that we read; if not, the object is counted or refused here."""
        group, expected = _VERSIONS[kind]
        if api_version == expected:
            return True
        found_group = api_version.rpartition("/")[0]
        if found_group != group:
            self._ignore(f"{kind}.{found_group}", items)
        else:
            self._reject_place(f"{kind} in {place}", printable_word(api_version), expected, field="apiVersion")
        return False

    def _ignore(self, kind: str, items: msgspec.Raw | None) -> None:
        """Count what plays no part: the entries of a List under their kind, or one."""
        try:
            entries = _RAW_LIST.decode(items) if items is not None else None
        except UNREADABLE:
            entries = None
        if entries is None:
            self.ignored[kind] += 1
        else:
            self.ignored[kind.removesuffix("List")] += len(entries)

    def _reject_place(self, place: str, found: str, expected: str, *, field: str = "") -> None:
        self.note(_rejection(place, field, found, expected, "it is set aside"))
