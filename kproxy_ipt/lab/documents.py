"""Reading API objects that are plain mappings: absent fields are empty, whatever their kind."""

from collections.abc import Mapping

from kproxy_ipt.testing.api_selectors import ApiObject, fields_of

__all__ = [
    "ApiObject",
    "fields_of",
    "matches_labels",
    "name_of",
    "namespace_of",
    "number",
    "objects_in",
    "part",
    "text",
]
__all__ += ["texts_in", "uid_of", "value_at"]


def value_at(document: object, *path: str) -> object:
    """The value at a path of field names; None where there is none."""
    value = document
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def part(document: object, *path: str) -> dict[str, object]:
    """A copy of the mapping at a path; empty where there is none."""
    return fields_of(value_at(document, *path))


def text(document: object, *path: str) -> str:
    """The scalar at a path as text; "" where there is none."""
    value = value_at(document, *path)
    return "" if value is None or isinstance(value, Mapping | list) else str(value)


def number(document: object, *path: str, default: int = 0) -> int:
    """The whole number at a path; *default* where there is none."""
    value = value_at(document, *path)
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def objects_in(document: object, *path: str) -> list[dict[str, object]]:
    """The mappings of the list at a path."""
    value = value_at(document, *path)
    return [fields_of(each) for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


def texts_in(document: object, *path: str) -> list[str]:
    """The texts of the list at a path."""
    value = value_at(document, *path)
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def name_of(document: ApiObject) -> str:
    """`metadata.name`."""
    return text(document, "metadata", "name")


def namespace_of(document: ApiObject) -> str:
    """`metadata.namespace`."""
    return text(document, "metadata", "namespace")


def uid_of(document: ApiObject) -> str:
    """`metadata.uid`."""
    return text(document, "metadata", "uid")


def matches_labels(document: ApiObject, wanted: Mapping[str, object]) -> bool:
    """Whether an object has all of the labels *wanted*; no labels wanted match nothing, as in a Service."""
    labels = part(document, "metadata", "labels")
    return bool(wanted) and all(labels.get(key) == value for key, value in wanted.items())
