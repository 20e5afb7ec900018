"""A folder of manifests that changes as a cluster does: one file for each object, replaced as a whole."""

from pathlib import Path

import msgspec

from kproxy_ipt.objects.model import EndpointSlice, Node, Service
from kproxy_ipt.testing.desired import ApiObject

_KINDS = {
    Service: ("v1", "Service"),
    EndpointSlice: ("discovery.k8s.io/v1", "EndpointSlice"),
    Node: ("v1", "Node"),
}


def manifest(api_object: ApiObject) -> bytes:
    """One object as JSON, with `apiVersion` and `kind`."""
    version, kind = _KINDS[type(api_object)]
    return msgspec.json.encode({"apiVersion": version, "kind": kind, **msgspec.to_builtins(api_object)})


class ObjectFolder:
    """
    The folder.

    Attributes:
        path: Where it is.
    """

    def __init__(self, path: Path, *api_objects: ApiObject) -> None:
        """Make the folder, if it is not there, with *api_objects*."""
        self.path = path
        path.mkdir(exist_ok=True)
        self.put(*api_objects)

    def put(self, *api_objects: ApiObject) -> None:
        """Write objects; each file changes at once as a whole."""
        for api_object in api_objects:
            self.write(self.file(api_object).name, manifest(api_object))

    def remove(self, *api_objects: ApiObject) -> None:
        """Remove objects, which must be there."""
        for api_object in api_objects:
            self.file(api_object).unlink()

    def write(self, name: str, text: bytes) -> None:
        """Write a file of any content, at once as a whole."""
        draft = self.path / f".{name}.draft"
        draft.write_bytes(text)
        draft.replace(self.path / name)

    def file(self, api_object: ApiObject) -> Path:
        """Where an object is kept."""
        metadata = api_object.metadata
        kind = _KINDS[type(api_object)][1].lower()
        return self.path / f"{kind}-{metadata.namespace or ''}-{metadata.name}.json"
