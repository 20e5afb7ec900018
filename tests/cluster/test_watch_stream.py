"""Facts about the lines of a watch: what they become, and that nothing is passed over in silence."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproxy_ipt.errors import Severity
from kproxy_ipt.objects.events import Gone, Kind, Put
from kproxy_ipt.sources.watch_stream import (
    LAST_APPLIED,
    MAX_LINE,
    Bookmark,
    Changed,
    Gathering,
    LineSplitter,
    Malformed,
    Refused,
    is_older,
    read_line,
)
from kproxy_ipt.testing.objects import node, service

RECORDINGS = Path(__file__).parent.parent / "api"
EVENT = {"kind": "Service", "apiVersion": "v1", "metadata": {"name": "web", "namespace": "shop"}, "spec": {}}


def recorded_lines(name: str) -> list[bytes]:
    """The lines of a recorded watch."""
    return (RECORDINGS / f"{name}.http").read_bytes().partition(b"\n\n")[2].splitlines()


def line(kind: str, document: object) -> bytes:
    """A line as a server writes it."""
    return msgspec.json.encode({"type": kind, "object": document})


def test_recorded_watch_of_slices_is_understood() -> None:
    """Two changes, a creation, a deletion and two bookmarks, each with its version."""
    items = [read_line(Kind.ENDPOINT_SLICES, text, "api") for text in recorded_lines("watch-endpointslices")]

    changes = [item for item in items if isinstance(item, Changed)]
    assert [item.version for item in changes] == ["235", "236", "237", "238"]
    assert [type(item.event) for item in changes] == [Put, Put, Put, Gone]
    assert changes[-1].event == Gone(Kind.ENDPOINT_SLICES, "default", "news-a")
    assert items[4:] == [Bookmark("250"), Bookmark("250")]


def test_recorded_streaming_list_is_understood() -> None:
    """Four objects, the mark of the end, the label of another proxy added and removed, a bookmark."""
    items = [read_line(Kind.SERVICES, text, "api") for text in recorded_lines("watch-streaming-list")]

    assert items[4] == Bookmark("259", ends_initial=True)
    assert [type(item.event) for item in items if isinstance(item, Changed)] == [Put, Put, Put, Put, Gone, Put]
    assert items[-1] == Bookmark("261")


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("watch-expired", 410, "too old resource version: 224 (276)"),
        ("watch-too-old", 410, "too old resource version: 1 (12)"),
        ("watch-streaming-list-refused", 500, "a watch stream was requested by the client but"),
    ],
)
def test_recorded_errors_are_understood(name: str, code: int, message: str) -> None:
    """Code and words of the server."""
    item = read_line(Kind.SERVICES, recorded_lines(name)[0], "api")

    assert isinstance(item, Refused)
    assert (item.code, item.status.message.startswith(message)) == (code, True)


def test_object_without_sense_is_gone_with_the_reason() -> None:
    """It has a name, so only it is set aside."""
    item = read_line(Kind.SERVICES, line("ADDED", {**EVENT, "spec": {"clusterIP": "nonsense"}}), "api")

    assert isinstance(item, Changed)
    assert isinstance(item.event, Gone)
    assert [finding.severity for finding in item.event.findings] == [Severity.REJECTED]


def test_odd_object_is_kept_with_its_warning() -> None:
    """A warning does not set the object aside."""
    odd = {"ports": [{"port": 80}], "clusterIP": "10.96.0.1", "externalIPs": ["nonsense"]}
    item = read_line(Kind.SERVICES, line("ADDED", {**EVENT, "spec": odd}), "api")

    assert isinstance(item, Changed)
    assert isinstance(item.event, Put)
    assert [finding.field for finding in item.event.findings] == ["spec.externalIPs[0]"]


def test_deletion_of_an_object_without_sense_is_a_deletion() -> None:
    """Of a deleted object only the name counts."""
    item = read_line(Kind.SERVICES, line("DELETED", {**EVENT, "spec": "none"}), "api")

    assert item == Changed(Gone(Kind.SERVICES, "shop", "web"), "")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"null",
        b"[]",
        b'{"type":"ADDED"}',
        b'{"type":7,"object":{}}',
        b'{"type":"ADDED","object":7}',
        b'{"type":"DELETED","object":{"kind":"Service","metadata":7}}',
        b'{"type":"DELETED","object":{"kind":"Service","metadata":{"name":"web"}}}',
        b'{"type":"DELETED","object":{"kind":"Pod","metadata":{"name":"web","namespace":"shop"}}}',
        b'{"type":"ERROR","object":{"code":"many"}}',
        b'{"type":"BOOKMARK","object":{}}',
        b"\xff\xfe",
        b"[" * 10_000,
        line("ADDED", {"kind": "ServiceList", "apiVersion": "v1", "items": [EVENT, EVENT]}),
        line("ADDED", {**EVENT, "apiVersion": "v2", "metadata": {}}),
        line("SYNCED", EVENT),
    ],
)
def test_line_that_cannot_be_understood_is_malformed(text: bytes) -> None:
    """Nothing raises, and nothing is taken for something else."""
    assert isinstance(read_line(Kind.SERVICES, text, "api"), Malformed)


def test_annotation_that_repeats_the_object_is_not_kept() -> None:
    """What `kubectl apply` remembers would double the memory of every object."""
    metadata = {"name": "web", "namespace": "shop", "annotations": {LAST_APPLIED: "{}" * 500, "other": "kept"}}
    item = read_line(Kind.SERVICES, line("ADDED", {**EVENT, "metadata": metadata}), "api")

    assert isinstance(item, Changed)
    assert isinstance(item.event, Put)
    assert item.event.object.metadata.annotations == {"other": "kept"}


@given(st.lists(st.binary(min_size=1).filter(lambda text: b"\n" not in text and text.strip()), max_size=8), st.data())
def test_lines_are_whole_however_they_were_cut(lines: list[bytes], data: st.DataObject) -> None:
    """Pieces of any size give the lines back."""
    stream = b"".join(text + b"\n" for text in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    splitter = LineSplitter()
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]

    assert [found for piece in pieces for found in splitter.feed(piece)] == lines
    assert not splitter.is_within_line


def test_line_without_end_is_refused_in_time() -> None:
    """A stream that never breaks its line does not fill the memory."""
    splitter = LineSplitter()
    splitter.feed(b"x" * MAX_LINE)

    assert splitter.is_within_line
    with pytest.raises(ValueError, match="a line of more than"):
        splitter.feed(b"x")


@pytest.mark.parametrize(
    ("version", "known", "expected"),
    [
        ("9", "10", True),
        ("10", "9", False),
        ("10", "10", False),
        ("", "10", False),
        ("a", "b", False),
        ("9", "", False),
    ],
)
def test_versions_are_compared_as_numbers(version: str, known: str, expected: bool) -> None:  # noqa: FBT001  # a table
    """Texts that are no numbers tell nothing."""
    assert is_older(version, known) is expected


def test_gathered_list_holds_the_latest_version_of_each_object() -> None:
    """Changes and deletions that arrive before the end of a streaming list count."""
    gathering = Gathering()
    newer = service("web", labels={"app": "web"})
    for event in (
        Put(Kind.SERVICES, service("web")),
        Put(Kind.SERVICES, service("old")),
        Put(Kind.SERVICES, newer),
        Gone(Kind.SERVICES, "default", "old"),
    ):
        gathering.take(event)

    assert gathering.objects == (newer,)


def test_gathered_node_can_go() -> None:
    """Objects without namespace are found again."""
    gathering = Gathering()
    gathering.take(Put(Kind.NODES, node("node1")))
    gathering.take(Gone(Kind.NODES, "", "node1"))

    assert gathering.objects == ()
