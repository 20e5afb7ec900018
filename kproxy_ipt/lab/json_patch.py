"""
JSON patches: add, replace, remove and test at a pointer.

Source: RFC 6902, RFC 6901.
"""

from collections.abc import Mapping, Sequence

import msgspec


class PatchError(ValueError):
    """An operation that cannot be done; the text says which and why."""


def json_patched(document: object, operations: Sequence[Mapping[str, object]]) -> object:
    """
    A copy of *document* with all operations done, in order.

    Raises:
        PatchError: One of them cannot be done; `move` and `copy` never can.
    """
    result: object = msgspec.json.decode(msgspec.json.encode(document))
    for operation in operations:
        pointer = str(operation.get("path", ""))
        if not pointer.startswith("/"):
            raise PatchError(f"a path begins with a slash: {pointer!r}")
        steps = [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]
        _apply(result, steps, str(operation.get("op", "")), operation.get("value"), pointer)
    return result


def _apply(document: object, steps: Sequence[str], name: str, value: object, pointer: str) -> None:
    for step in steps[:-1]:
        document = _child(document, step, pointer)
    if isinstance(document, dict):
        _apply_to_mapping(document, steps[-1], name, value, pointer)
    elif isinstance(document, list):
        _apply_to_list(document, steps[-1], name, value, pointer)
    else:
        raise PatchError(f"nothing at {pointer}")


def _apply_to_mapping(document: dict[str, object], key: str, name: str, value: object, pointer: str) -> None:
    if name == "add":
        document[key] = value
        return
    if key not in document:
        raise PatchError(f"nothing at {pointer}")
    if name == "replace":
        document[key] = value
    elif name == "remove":
        del document[key]
    elif name != "test":
        raise PatchError(f"unknown operation {name!r}")
    elif document[key] != value:
        raise PatchError(f"the test of {pointer} failed")


def _apply_to_list(document: list[object], key: str, name: str, value: object, pointer: str) -> None:
    if name == "add":
        document.insert(len(document) if key == "-" else _index(key, len(document) + 1, pointer), value)
        return
    index = _index(key, len(document), pointer)
    if name == "replace":
        document[index] = value
    elif name == "remove":
        del document[index]
    elif name != "test":
        raise PatchError(f"unknown operation {name!r}")
    elif document[index] != value:
        raise PatchError(f"the test of {pointer} failed")


def _child(document: object, step: str, pointer: str) -> object:
    child: object = None
    if isinstance(document, dict):
        child = document.get(step)
    elif isinstance(document, list):
        child = document[_index(step, len(document), pointer)]
    if child is None:
        raise PatchError(f"nothing at {pointer}")
    return child


def _index(step: str, end: int, pointer: str) -> int:
    if not step.isdecimal() or int(step) >= end:
        raise PatchError(f"nothing at {pointer}")
    return int(step)
