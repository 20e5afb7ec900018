"""
Label and field selectors of the test API server, as far as clients of proxies use them.

Source: API concepts of Kubernetes; `k8s.io/apimachinery/pkg/labels`, `pkg/fields`.
"""

import operator
import re
from collections.abc import Callable, Mapping

ApiObject = Mapping[str, object]
Selection = Callable[[ApiObject], bool]
_OUTSIDE_SETS = re.compile(r",(?![^(]*\))")
_SET = re.compile(r"(\S+)\s+(in|notin)\s+\((.*)\)")


def selection(label_selector: str, field_selector: str) -> Selection:
    """Whether an object is among those that both selectors choose; empty texts choose everything."""
    labels = [_label_requirement(text.strip()) for text in _OUTSIDE_SETS.split(label_selector) if text]
    fields = [_field_requirement(text) for text in field_selector.split(",") if text]
    requirements = (*labels, *fields)
    return lambda document: all(requirement(document) for requirement in requirements)


def fields_of(value: object) -> dict[str, object]:
    """*value* as a mapping of texts; empty if it is none."""
    return {str(key): field for key, field in value.items()} if isinstance(value, Mapping) else {}


def _label_requirement(text: str) -> Selection:
    """`key`, `!key`, `key=value`, `key!=value`, `key in (a,b)`, `key notin (a,b)`."""
    if found := _SET.fullmatch(text):
        values = {value.strip() for value in found[3].split(",")}
        return lambda document: (_labels(document).get(found[1]) in values) is (found[2] == "in")
    if "=" not in text:
        key = text.removeprefix("!")
        return lambda document: (key in _labels(document)) is not text.startswith("!")
    key, wanted, compare = _comparison(text)
    return lambda document: compare(_labels(document).get(key), wanted)


def _field_requirement(text: str) -> Selection:
    """`path=value`, `path!=value`; a field that is absent counts as empty."""
    path, wanted, compare = _comparison(text)
    return lambda document: compare(_field(document, path), wanted)


def _comparison(text: str) -> tuple[str, str, Callable[[object, object], bool]]:
    if "!=" in text:
        name, _, wanted = text.partition("!=")
        return name, wanted, operator.ne
    name, _, wanted = text.replace("==", "=").partition("=")
    return name, wanted, operator.eq


def _labels(document: ApiObject) -> dict[str, object]:
    return fields_of(fields_of(document.get("metadata")).get("labels"))


def _field(document: ApiObject, path: str) -> str:
    value: object = document
    for name in path.split("."):
        value = fields_of(value).get(name)
    return "" if value is None else str(value)
