"""
Objects as a `meta.k8s.io/v1` Table, for clients that ask for `as=Table`.

Source: API concepts of Kubernetes, "Receiving resources as Tables".
"""

from collections.abc import Sequence

from kproxy_ipt.lab.cells import COLUMNS, cells_of
from kproxy_ipt.lab.documents import ApiObject, part, text


def wants_table(accept: str) -> bool:
    """Whether the first choice of an Accept header is a table."""
    return "as=Table" in accept.partition(",")[0]


def table_of(kind: str, documents: Sequence[ApiObject], version: str, include: str) -> dict[str, object]:
    """
    A table with a row for each object.

    Args:
        kind: Of all the objects.
        documents: The objects; each with `kind`.
        version: Resource version of the list, "" for a single object.
        include: Parameter `includeObject`: `Object`, `None`, or "" for `Metadata`.
    """
    columns = [
        {
            "name": title,
            "type": "string",
            "format": "name" if title == "Name" else "",
            "description": "",
            "priority": priority,
        }
        for title, priority in COLUMNS[kind]
    ]
    rows = [{"cells": list(cells_of(document)), "object": _row_object(document, include)} for document in documents]
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": version},
        "columnDefinitions": columns,
        "rows": rows,
    }


def _row_object(document: ApiObject, include: str) -> dict[str, object] | None:
    if include == "None":
        return None
    if include == "Object":
        return dict(document)
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": part(document, "metadata")}


def row_table(document: ApiObject, include: str) -> dict[str, object]:
    """A table of one object, as an event of a watch carries it."""
    version = text(document, "metadata", "resourceVersion")
    return table_of(text(document, "kind"), [document], version, include)
