"""Decoding of JSON and YAML into checked objects."""

import gc
import json
from collections.abc import Callable

import pytest
import yaml

from kproxy_ipt.errors import Severity
from kproxy_ipt.objects.decode import MAX_FINDINGS, Decoded, decode_document, decode_documents

ServiceYaml = Callable[[str], str]
RecordedBody = Callable[[str], bytes]


def _service(name: str = "web", **spec: object) -> dict[str, object]:
    """The Service `shop/NAME` as plain values."""
    ports = [{"port": 80}]
    metadata = {"name": name, "namespace": "shop"}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": ports, **spec}}


def _slice(api_version: str = "discovery.k8s.io/v1") -> dict[str, object]:
    """A slice of `shop/web` as plain values."""
    metadata = {"name": "web-1", "namespace": "shop", "labels": {"kubernetes.io/service-name": "web"}}
    return {"apiVersion": api_version, "kind": "EndpointSlice", "metadata": metadata, "addressType": "IPv4"}


def _list(*items: object, kind: str = "List", api_version: str = "v1") -> dict[str, object]:
    """A List as plain values."""
    return {"apiVersion": api_version, "kind": kind, "items": list(items)}


def _decode(value: object) -> Decoded:
    """What comes of plain values written as JSON."""
    return decode_document(json.dumps(value).encode(), "input")


def _names(decoded: Decoded) -> list[str]:
    """The names of all Services, in order."""
    return [service.metadata.name for service in decoded.services]


def test_service_of_json_has_typed_fields() -> None:
    """A Service in JSON becomes a typed value."""
    decoded = _decode(_service(clusterIP="10.96.0.10", externalIPs=["192.0.2.1"]))

    assert decoded.findings == ()
    assert decoded.services[0].spec.cluster_ip == "10.96.0.10"
    assert decoded.services[0].spec.external_ips == ("192.0.2.1",)


def test_yaml_and_json_of_the_same_objects_decode_alike() -> None:
    """The form of the text makes no difference."""
    value = _list(_service(), _slice(), {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node1"}})

    assert decode_document(yaml.safe_dump(value).encode(), "input") == _decode(value)


def test_documents_are_numbered_only_where_there_are_several(service_yaml: ServiceYaml) -> None:
    """The origin names the document of a text of several; blank ones do not count."""
    several = decode_documents(f"# c\n---\n{service_yaml('a')}---\n\n---\n{service_yaml('b')}".encode(), "web.yaml")
    single = decode_documents(f"---\n{service_yaml('a')}---\n".encode(), "web.yaml")

    assert [part.origin for part in several] == ["web.yaml, document 1", "web.yaml, document 2"]
    assert [part.origin for part in single] == ["web.yaml"]


@pytest.mark.parametrize("separator", ["---\n", "--- # comment\n", "---   \r\n", "...\n---\n", "---\n%YAML 1.1\n---\n"])
def test_every_kind_of_document_marker_separates(service_yaml: ServiceYaml, separator: str) -> None:
    """Documents are separated by `---` with blanks or comments, after `...` too."""
    decoded = decode_document(f"{service_yaml('a')}{separator}{service_yaml('b')}".encode(), "input")

    assert decoded.findings == ()
    assert _names(decoded) == ["a", "b"]


def test_document_on_its_marker_line_is_read() -> None:
    """`--- {…}` holds content on the line of the marker."""
    decoded = decode_document(b"--- {apiVersion: v1, kind: Pod}\n--- {apiVersion: v1, kind: Pod}", "input")

    assert decoded.ignored == {"Pod": 2}


def test_json_documents_between_markers_are_read() -> None:
    """A text may hold several JSON documents, separated as in YAML."""
    text = f"{json.dumps(_service('a'), indent=1)}\n---\n{json.dumps(_service('b'))}\n"

    assert _names(decode_document(text.encode(), "input")) == ["a", "b"]


def test_broken_document_costs_no_other_one(service_yaml: ServiceYaml) -> None:
    """A syntax error rejects its document alone, with its number and line."""
    text = f"{service_yaml('a')}---\nmetadata: [\n---\n{service_yaml('b')}"

    decoded = decode_document(text.encode(), "web.yaml")

    assert _names(decoded) == ["a", "b"]
    assert [finding.object for finding in decoded.findings] == ["web.yaml, document 2"]
    assert "line 7" in decoded.findings[0].found


def test_bad_object_of_a_list_is_rejected_alone() -> None:
    """One entry of the wrong type costs only itself and is named."""
    decoded = _decode(_list(_service("a"), _service("b", ports=[{"port": "80"}]), _service("c")))
    finding = decoded.findings[0]

    assert _names(decoded) == ["a", "c"]
    assert (finding.object, finding.field, finding.found) == ("Service shop/b", "spec.ports[0].port", '"80"')
    assert finding.expected == "a number from 1 to 65535"
    assert finding.severity is Severity.REJECTED


@pytest.mark.parametrize(
    ("line", "field", "found"),
    [
        ("spec: {clusterIP: 10}", "spec.clusterIP", "10"),
        ("spec: {clusterIP: yes}", "spec.clusterIP", "true"),
        ("spec: {clusterIP: 10.5}", "spec.clusterIP", "10.5"),
        ("spec: {ports: {port: 80}}", "spec.ports", "a mapping"),
        ("spec: {ports: [{port: 1e999}]}", "spec.ports[0].port", '"1e999"'),
        ("spec: {ports: [{port: 80.5}]}", "spec.ports[0].port", "80.5"),
        ("spec: {externalIPs: [1]}", "spec.externalIPs[0]", "1"),
        ("spec: ", "spec", "null"),
        ("{}", "spec", "nothing"),
    ],
)
def test_value_of_wrong_type_is_named_with_field_and_value(line: str, field: str, found: str) -> None:
    """The finding says where a value of the wrong type stands and what it is."""
    body = "" if line == "{}" else line
    text = f"apiVersion: v1\nkind: Service\nmetadata: {{name: web, namespace: shop}}\n{body}\n"

    (finding,) = decode_document(text.encode(), "input").findings

    assert (finding.object, finding.field, finding.found) == ("Service shop/web", field, found)


def test_number_as_name_is_rejected_at_its_place() -> None:
    """A Service without a usable name is found by its place."""
    text = b"items:\n- {kind: Service, apiVersion: v1, metadata: {name: 123}, spec: {}}\nkind: List\napiVersion: v1"

    (finding,) = decode_document(text, "web.yaml").findings

    assert str(finding).startswith("Service in web.yaml, items[0]: metadata.name: found 123, expected text, in quotes")


def test_object_without_a_name_is_found_by_its_place() -> None:
    """A check that fails for want of a name says where the object stands."""
    decoded = _decode(_list(_service("a"), _service("")))

    assert [finding.object for finding in decoded.findings] == ["Service in input, items[1]"]


def test_number_as_label_is_named_by_its_key() -> None:
    """The decoder does not name the key of a label; the finding does."""
    service = _service() | {"metadata": {"name": "web", "namespace": "shop", "labels": {"a": "b", "tier": 1}}}

    assert [finding.field for finding in _decode(service).findings] == ["metadata.labels[tier]"]


def test_null_label_is_an_empty_text() -> None:
    """Labels and annotations that are null are read as "", as the API server does."""
    metadata = {"name": "web", "namespace": "shop", "labels": {"a": None}, "annotations": {"b": None}}

    decoded = _decode(_service() | {"metadata": metadata})

    assert decoded.findings == ()
    assert decoded.services[0].metadata.labels == {"a": ""}
    assert decoded.services[0].metadata.annotations == {"b": ""}


@pytest.mark.parametrize(
    ("name", "count"), [("list-services", 4), ("list-endpointslices", 4), ("get-node", 1), ("list-page-1", 2)]
)
def test_recorded_list_decodes_without_findings(recorded_body: RecordedBody, name: str, count: int) -> None:
    """Typed lists of a real API server, whose entries have no kind, are read completely."""
    decoded = decode_document(recorded_body(name), name)
    found = len(decoded.services) + len(decoded.endpoint_slices) + len(decoded.nodes)

    assert decoded.findings == ()
    assert decoded.ignored == {}
    assert found == count


def test_lists_in_lists_are_flattened() -> None:
    """`kubectl get` output that was put into another List is read too."""
    typed = _list({"metadata": _service("b")["metadata"], "spec": {}}, kind="ServiceList")

    assert _names(_decode(_list(_list(_service("a")), typed))) == ["a", "b"]


def test_lists_nested_without_end_are_rejected() -> None:
    """Nesting of Lists is bounded."""
    value = _list(_service())
    for _ in range(20):
        value = _list(value)

    decoded = _decode(value)

    assert decoded.services == ()
    assert "Lists in Lists" in decoded.findings[0].found


@pytest.mark.parametrize("items", [None, []])
def test_list_without_entries_is_empty(items: object) -> None:
    """`items: null` is how Go writes an empty list."""
    decoded = _decode({"apiVersion": "v1", "kind": "ServiceList", "items": items})

    assert decoded == Decoded(origin="input")


def test_list_whose_items_are_no_list_is_rejected() -> None:
    """`items` must be a list."""
    decoded = _decode({"apiVersion": "v1", "kind": "List", "items": {"a": 1}})

    assert [finding.object for finding in decoded.findings] == ["input, items"]


def test_entries_that_are_no_objects_are_rejected_alone() -> None:
    """Scalars in a List cost only themselves."""
    decoded = _decode(_list(1, None, _service("a"), [], "x"))

    assert _names(decoded) == ["a"]
    assert [finding.object for finding in decoded.findings] == [f"input, items[{index}]" for index in (0, 1, 3, 4)]


def test_other_kinds_are_counted_and_no_error() -> None:
    """Pods and the like play no part, alone, in Lists and in typed lists."""
    pod = {"apiVersion": "v1", "kind": "Pod"}

    decoded = _decode(_list(pod, pod, _service("a"), _list({}, {}, kind="PodList"), {**pod, "kind": "AllowList"}))

    assert decoded.findings == ()
    assert decoded.ignored == {"Pod": 4, "AllowList": 1}


def test_words_from_outside_are_quoted_where_they_break_a_line() -> None:
    """Version, address type and the key of a label stand in findings, on one printable line of bounded length."""
    broken = "x\n" + "y" * 10_000
    slices = _slice() | {"addressType": broken, "endpoints": [{"addresses": ["10.0.0.1"]}]}
    labelled = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a", "labels": {broken: 1}}}

    findings = _decode(_list(_service() | {"apiVersion": broken}, slices, labelled)).findings

    assert len(findings) == 3
    assert all(str(finding).isprintable() and len(str(finding)) < 400 for finding in findings)


def test_kind_of_another_group_is_another_kind() -> None:
    """A Knative Service is no Service of ours, and no error."""
    decoded = _decode(_service() | {"apiVersion": "serving.knative.dev/v1"})

    assert decoded == Decoded(origin="input", ignored={"Service.serving.knative.dev": 1})


@pytest.mark.parametrize(
    "value",
    [_slice("discovery.k8s.io/v1beta1"), _list(kind="EndpointSliceList", api_version="discovery.k8s.io/v1beta1")],
)
def test_old_version_of_slices_is_rejected(value: object) -> None:
    """`discovery.k8s.io/v1beta1` has other fields; the finding says which version is read."""
    (finding,) = _decode(value).findings

    assert (finding.field, finding.found) == ("apiVersion", "discovery.k8s.io/v1beta1")
    assert finding.expected == "discovery.k8s.io/v1"


@pytest.mark.parametrize("value", [{"kind": "Service"}, {"apiVersion": "v1"}, {"a": 1}])
def test_mapping_without_kind_or_version_is_rejected(value: object) -> None:
    """What does not say what it is cannot be used."""
    assert [finding.expected for finding in _decode(value).findings] == ["kind and apiVersion"]


def test_flow_yaml_that_starts_like_json_is_read() -> None:
    """YAML in braces is no JSON, but good YAML."""
    assert decode_document(b"{apiVersion: v1, kind: Pod}", "input").ignored == {"Pod": 1}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"[" * 1_000_000, "a list"),
        (b'{"a":' * 1_000_000, "nesting too deep to be read"),
        (b'{"kind":"List","apiVersion":"v1","items":[', "Input data was truncated"),
        (b'{"kind":"\xff","apiVersion":"v1"}', "Invalid UTF-8"),
        (b'{"a":1}{"b":2}', "trailing characters"),
        (b'{"kind":1,"apiVersion":"v1"}', "1"),
        ('{"a": 1}'.encode("utf-16"), "UTF-16"),
        (b"hello", '"hello"'),
    ],
)
def test_text_that_is_no_object_is_one_rejected_document(text: bytes, found: str) -> None:
    """Whatever stands there instead of objects costs the document, with a reason."""
    (finding,) = decode_document(text, "input").findings

    assert finding.object == "input"
    assert found in finding.found
    assert finding.severity is Severity.REJECTED


def test_number_out_of_range_costs_only_its_object() -> None:
    """`1e999` in JSON rejects the object that holds it."""
    text = json.dumps(_list(_service("a"), _service("b"))).replace("80", "1e999", 1).encode()

    decoded = decode_document(text, "input")

    assert _names(decoded) == ["b"]
    assert [finding.object for finding in decoded.findings] == ["Service shop/a"]


def test_findings_of_one_document_are_bounded() -> None:
    """A million bad entries do not fill the memory with findings; the rest is counted."""
    text = b'{"kind":"List","apiVersion":"v1","items":[' + b"1," * (MAX_FINDINGS + 6) + b"1]}"

    findings = decode_document(text, "input").findings

    assert len(findings) == MAX_FINDINGS + 1
    assert findings[-1].found == "7 more oddities"


@pytest.mark.parametrize("text", [b"", b"\n\n", b"# only\n# comments\n", b"---\n---\n...\n", b"null", b"~"])
def test_text_without_content_gives_nothing(text: bytes) -> None:
    """Blank texts, comments and null documents are no error."""
    decoded = decode_document(text, "input")

    assert decoded == Decoded(origin="input")


def test_byte_order_mark_is_passed_over(service_yaml: ServiceYaml) -> None:
    """Editors on other systems put a mark in front."""
    assert _names(decode_document(b"\xef\xbb\xbf" + service_yaml("a").encode(), "input")) == ["a"]


def test_nothing_else_holds_what_was_read_though_garbage_is_not_collected() -> None:
    """Commands run with the garbage collector off: a cycle would keep all objects for good."""
    gc.disable()
    try:
        (decoded,) = decode_documents(json.dumps(_list(_service("a"))).encode(), "input")
        holders = [holder for holder in gc.get_referrers(*decoded.services) if isinstance(holder, list)]
    finally:
        gc.enable()

    assert holders == []
