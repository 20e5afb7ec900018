"""
What a strategic merge patch means: mappings are merged, lists of named entries entry by entry, other lists replaced.

Known are the lists of the kinds that a lab holds. Which field names an entry depends on the name of the list, and for
`ports` on whether the entries belong to containers; lists of EndpointSlices and of Ingress points are replaced.

Source: API concepts of Kubernetes, "Strategic merge patch"; `patchMergeKey` in the types of k8s.io/api.
"""

from collections.abc import Mapping

from kproxy_ipt.lab.documents import fields_of

_MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "imagePullSecrets": "name",
    "volumeMounts": "mountPath",
    "hostAliases": "ip",
    "podIPs": "ip",
    "conditions": "type",
    "ownerReferences": "uid",
    "taints": "key",
}
_PRIMITIVE_LISTS = frozenset({"finalizers"})
_DIRECTIVE = "$"
_PATCH, _RETAIN, _DELETE_FROM = "$patch", "$retainKeys", "$deleteFromPrimitiveList/"


def merged(target: object, patch: object) -> object:
    """RFC 7386: mappings are merged, null removes, everything else is replaced."""
    if not isinstance(patch, Mapping):
        return patch
    result = fields_of(target)
    for key, value in fields_of(patch).items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def strategically_merged(target: object, patch: Mapping[str, object], kind: str) -> dict[str, object]:
    """*target*, an object of *kind*, with a strategic merge patch applied."""
    if patch.get(_PATCH) == "replace":
        return _without_directives(patch)
    retained = patch.get(_RETAIN)
    result = fields_of(target)
    if isinstance(retained, list):
        result = {key: value for key, value in result.items() if key in retained}
    for key, value in patch.items():
        if key.startswith(_DELETE_FROM):
            _remove_primitives(result, key.removeprefix(_DELETE_FROM), value)
        elif key.startswith(_DIRECTIVE):
            continue
        elif value is None or value == {_PATCH: "delete"}:
            result.pop(key, None)
        else:
            result[key] = _merged_field(key, result.get(key), value, kind)
    return result


def _merged_field(key: str, target: object, value: object, kind: str) -> object:
    if isinstance(value, Mapping):
        return strategically_merged(target, fields_of(value), kind)
    if not isinstance(value, list) or kind == "EndpointSlice":
        return value
    if key in _PRIMITIVE_LISTS:
        present = list(target) if isinstance(target, list) else []
        return [*present, *(each for each in value if each not in present)]
    merge_key = _merge_key(key, value, target)
    if not merge_key:
        return value
    return _merged_list(merge_key, target if isinstance(target, list) else [], value, kind)


def _merge_key(key: str, *lists: object) -> str:
    if key != "ports":
        return _MERGE_KEYS.get(key, "")
    entries = [each for entries in lists if isinstance(entries, list) for each in entries if isinstance(each, Mapping)]
    return "containerPort" if any("containerPort" in each for each in entries) else "port"


def _merged_list(merge_key: str, target: list[object], patch: list[object], kind: str) -> list[object]:
    result = [fields_of(each) for each in target]
    for entry in (fields_of(each) for each in patch):
        if entry.get(_PATCH) == "replace":
            return [_without_directives(fields_of(each)) for each in patch if _is_entry(each)]
        found = next((each for each in result if each.get(merge_key) == entry.get(merge_key)), None)
        if entry.get(_PATCH) == "delete":
            result = [each for each in result if each is not found]
        elif found is None:
            result.append(strategically_merged({}, entry, kind))
        else:
            result[result.index(found)] = strategically_merged(found, entry, kind)
    return list(result)


def _is_entry(entry: object) -> bool:
    return set(fields_of(entry)) != {_PATCH}


def _remove_primitives(result: dict[str, object], key: str, values: object) -> None:
    present = result.get(key)
    if isinstance(present, list) and isinstance(values, list):
        result[key] = [each for each in present if each not in values]


def _without_directives(patch: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in patch.items() if not key.startswith(_DIRECTIVE)}
