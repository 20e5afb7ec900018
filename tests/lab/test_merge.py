"""What the kinds of patches make of an object."""

import pytest

from kproxy_ipt.lab.json_patch import PatchError, json_patched
from kproxy_ipt.lab.merge import merged, strategically_merged


def test_merge_patch_replaces_lists_and_removes_nulls() -> None:
    """RFC 7386: mappings are merged, all else is replaced."""
    target = {"spec": {"ports": [1, 2], "type": "NodePort"}, "kept": True}

    assert merged(target, {"spec": {"ports": [3], "type": None}}) == {"spec": {"ports": [3]}, "kept": True}


def test_ports_of_a_service_are_merged_by_number() -> None:
    """An entry with a known port changes that entry, others stay."""
    target = {"ports": [{"port": 80, "nodePort": 32080}, {"port": 443}]}
    patch = {"ports": [{"port": 80, "targetPort": "http"}]}

    expected = {"ports": [{"port": 80, "nodePort": 32080, "targetPort": "http"}, {"port": 443}]}
    assert strategically_merged(target, patch, "Service") == expected


def test_ports_of_a_container_are_merged_by_its_number() -> None:
    """The key of `ports` is another one inside of containers, which are merged by name."""
    target = {"containers": [{"name": "a", "image": "x", "ports": [{"containerPort": 80}]}]}
    patch = {"containers": [{"name": "a", "ports": [{"containerPort": 81, "name": "more"}]}, {"name": "b"}]}

    ports = [{"containerPort": 80}, {"containerPort": 81, "name": "more"}]
    expected = {"containers": [{"name": "a", "image": "x", "ports": ports}, {"name": "b"}]}
    assert strategically_merged(target, patch, "Pod") == expected


def test_entries_and_mappings_can_be_deleted() -> None:
    """`$patch: delete` and null remove; the order of elements is no field."""
    target = {"ports": [{"port": 80}, {"port": 81}], "selector": {"a": "b"}, "type": "ClusterIP"}
    patch = {
        "ports": [{"port": 80, "$patch": "delete"}],
        "$setElementOrder/ports": [{"port": 81}],
        "selector": {"$patch": "delete"},
        "type": None,
    }

    assert strategically_merged(target, patch, "Service") == {"ports": [{"port": 81}]}


def test_lists_and_mappings_can_be_replaced() -> None:
    """`$patch: replace` leaves nothing of what was there, and `$retainKeys` only the named fields."""
    target = {"ports": [{"port": 80}], "labels": {"a": "b"}, "strategy": {"type": "RollingUpdate", "rollingUpdate": {}}}
    patch = {
        "ports": [{"port": 81}, {"$patch": "replace"}],
        "labels": {"c": "d", "$patch": "replace"},
        "strategy": {"$retainKeys": ["type"], "type": "Recreate"},
    }

    expected = {"ports": [{"port": 81}], "labels": {"c": "d"}, "strategy": {"type": "Recreate"}}
    assert strategically_merged(target, patch, "Service") == expected


def test_finalizers_are_a_set() -> None:
    """New ones are added; a directive removes."""
    target = {"finalizers": ["a", "b"]}

    added = strategically_merged(target, {"finalizers": ["b", "c"]}, "Pod")
    removed = strategically_merged(target, {"$deleteFromPrimitiveList/finalizers": ["a"]}, "Pod")

    assert (added, removed) == ({"finalizers": ["a", "b", "c"]}, {"finalizers": ["b"]})


def test_slices_and_addresses_are_replaced() -> None:
    """Lists without a merge key, and those of EndpointSlices."""
    assert strategically_merged({"ports": [{"port": 1}]}, {"ports": [{"port": 2}]}, "EndpointSlice") == {
        "ports": [{"port": 2}]
    }
    assert strategically_merged({"clusterIPs": ["a"]}, {"clusterIPs": ["b"]}, "Service") == {"clusterIPs": ["b"]}


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ({"op": "add", "path": "/list/0", "value": 0}, {"list": [0, 1, 2], "a/b": {"c": 1}}),
        ({"op": "add", "path": "/list/-", "value": 3}, {"list": [1, 2, 3], "a/b": {"c": 1}}),
        ({"op": "replace", "path": "/list/1", "value": 9}, {"list": [1, 9], "a/b": {"c": 1}}),
        ({"op": "remove", "path": "/list/0"}, {"list": [2], "a/b": {"c": 1}}),
        ({"op": "replace", "path": "/a~1b/c", "value": 2}, {"list": [1, 2], "a/b": {"c": 2}}),
        ({"op": "remove", "path": "/a~1b"}, {"list": [1, 2]}),
        ({"op": "test", "path": "/list/0", "value": 1}, {"list": [1, 2], "a/b": {"c": 1}}),
        ({"op": "test", "path": "/a~1b/c", "value": 1}, {"list": [1, 2], "a/b": {"c": 1}}),
    ],
)
def test_json_patch_does_what_it_says(operation: dict[str, object], expected: object) -> None:
    """Each operation on lists and mappings; the object itself is not changed."""
    document = {"list": [1, 2], "a/b": {"c": 1}}

    assert json_patched(document, [operation]) == expected
    assert document == {"list": [1, 2], "a/b": {"c": 1}}


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        ({"op": "remove", "path": "/nothing"}, "nothing at /nothing"),
        ({"op": "remove", "path": "/list/7"}, "nothing at /list/7"),
        ({"op": "add", "path": "/nothing/a", "value": 1}, "nothing at /nothing/a"),
        ({"op": "add", "path": "/number/a", "value": 1}, "nothing at /number/a"),
        ({"op": "test", "path": "/number", "value": 2}, "the test of /number failed"),
        ({"op": "test", "path": "/list/0", "value": 2}, "the test of /list/0 failed"),
        ({"op": "move", "path": "/number"}, "unknown operation 'move'"),
        ({"op": "copy", "path": "/list/0"}, "unknown operation 'copy'"),
        ({"op": "add", "path": "number"}, "a path begins with a slash: 'number'"),
    ],
)
def test_json_patch_says_what_it_cannot_do(operation: dict[str, object], message: str) -> None:
    """Pointers to nothing, failed tests, unknown operations."""
    with pytest.raises(PatchError) as caught:
        json_patched({"list": [1], "number": 1}, [operation])

    assert str(caught.value) == message
