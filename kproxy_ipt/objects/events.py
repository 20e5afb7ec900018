"""
What a source that watches has to say, as values: the language between sources and whoever keeps state.

For each kind of object a source first delivers `Listed`, then `Put` and `Gone`, and `Listed` again whenever it had to
start over: whatever is not in the latest list is gone. `Contact` says that the source is alive though nothing changed.
"""

from enum import StrEnum
from typing import TypeAlias

import msgspec

from kproxy_ipt.errors import Finding
from kproxy_ipt.objects.model import EndpointSlice, Node, Service


class Kind(StrEnum):
    """Kinds that are watched; the value is the resource name of the API."""

    SERVICES = "services"
    ENDPOINT_SLICES = "endpointslices"
    NODES = "nodes"

    @property
    def api_name(self) -> str:
        """What `kind` says in an object."""
        return _API_NAMES[self]


_API_NAMES = {Kind.SERVICES: "Service", Kind.ENDPOINT_SLICES: "EndpointSlice", Kind.NODES: "Node"}


ApiObject: TypeAlias = Service | EndpointSlice | Node


class Listed(msgspec.Struct, frozen=True):
    """Everything of one kind; *findings* tell what is odd, and which objects were set aside (they are not in it)."""

    kind: Kind
    objects: tuple[ApiObject, ...]
    findings: tuple[Finding, ...] = ()


class Put(msgspec.Struct, frozen=True):
    """One object was added or changed."""

    kind: Kind
    object: ApiObject
    findings: tuple[Finding, ...] = ()


class Gone(msgspec.Struct, frozen=True):
    """
    One object is no longer there, or no longer ours to serve.

    Also said of an object that was changed into one that makes no sense: *findings* then tell why it was set aside.
    *namespace* is "" for Nodes.
    """

    kind: Kind
    namespace: str
    name: str
    findings: tuple[Finding, ...] = ()


class Contact(msgspec.Struct, frozen=True):
    """
    The source heard from its origin: an answer, an event, a bookmark.

    *findings* tell what is odd about what it heard where that belongs to no object that changed, such as a file that is
    cut off.
    """

    kind: Kind
    findings: tuple[Finding, ...] = ()


class Trouble(msgspec.Struct, frozen=True):
    """The source cannot hear its origin; it tries again by itself, *retry_in_s* seconds from now."""

    kind: Kind
    message: str
    retry_in_s: float


Event: TypeAlias = Listed | Put | Gone | Contact | Trouble
