"""
What a file says, over time: its last good version stays in force where the latest one cannot be read.

The decision, for a file that was read before:

- It has documents or entries that are set aside and do not tell which object they are (a file that is cut off does not
  parse at all): each object of its last good version that the new one neither holds nor names stays as it was, until
  the file parses again. Taking it away could cut off a Service because somebody mistyped another one.
- An object that makes no sense and can be named goes: that is what the author said about it, and what an API server
  that takes such an object would make a proxy do.
- All else that the new version no longer holds goes: it was taken out on purpose, as with a file that was emptied.

A file that was never read before has no last good version: what makes sense in it applies.
"""

from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec

from kproxy_ipt.errors import Finding, Severity
from kproxy_ipt.objects.decode import Decoded
from kproxy_ipt.objects.model import Endpoints, EndpointSlice, Node, ObjectMeta, Service
from kproxy_ipt.objects.report import object_text

T = TypeVar("T", bound=Service | EndpointSlice | Endpoints | Node)


def with_last_good(latest: Sequence[Decoded], last: Sequence[Decoded], origin: str) -> tuple[Decoded, ...]:
    """
    Documents of a file, completed by what stays of those that were in force before.

    Args:
        latest: As just decoded.
        last: What this function gave last time; empty for a file that is read for the first time.
        origin: Name of the file in *latest*.

    Returns:
        *latest*, in front of it a part with the objects that stay, if any, and a warning that counts them.
    """
    rejected = {finding.object for part in latest for finding in part.findings if finding.severity is Severity.REJECTED}
    if not any(_is_place(text, origin) for text in rejected):
        return tuple(latest)
    taken = rejected | {text for part in latest for text in _names(part)}
    kept = Decoded(
        origin=f"{origin}, last good version",
        services=_without("Service", (value for part in last for value in part.services), taken),
        endpoint_slices=_without("EndpointSlice", (value for part in last for value in part.endpoint_slices), taken),
        endpoints=_without("Endpoints", (value for part in last for value in part.endpoints), taken),
        nodes=_without("Node", (value for part in last for value in part.nodes), taken),
    )
    count = sum(1 for _ in _names(kept))
    if not count:
        return tuple(latest)
    return (msgspec.structs.replace(kept, findings=(_warning(origin, count),)), *latest)


def _is_place(text: str, origin: str) -> bool:
    """Whether a finding is about a place in the file and not about an object with a name."""
    return text == origin or text.startswith(f"{origin}, ") or f" in {origin}" in text


def _names(part: Decoded) -> Iterator[str]:
    """All objects, as findings call them."""
    yield from (_name("Service", value.metadata) for value in part.services)
    yield from (_name("EndpointSlice", value.metadata) for value in part.endpoint_slices)
    yield from (_name("Endpoints", value.metadata) for value in part.endpoints)
    yield from (_name("Node", value.metadata) for value in part.nodes)


def _name(kind: str, metadata: ObjectMeta) -> str:
    return object_text(kind, metadata.namespace, metadata.name)


def _without(kind: str, values: Iterator[T], taken: set[str]) -> tuple[T, ...]:
    """The last definition of each object whose name is not in *taken*."""
    named = {_name(kind, value.metadata): value for value in values}
    return tuple(value for name, value in named.items() if name not in taken)


def _warning(origin: str, count: int) -> Finding:
    return Finding(
        object=origin,
        field="",
        found=f"text that is set aside, and {count} of the objects of its last good version missing",
        expected="a file that can be read to its end",
        consequence="they stay in force until it can be",
        severity=Severity.WARNING,
    )
