"""What the API of a lab answers: no sockets, real objects."""

from collections.abc import Mapping

import msgspec
import pytest

from kproxy_ipt.lab.api_routes import Request, answer
from kproxy_ipt.lab.cluster import Cluster
from kproxy_ipt.lab.demo import fill
from kproxy_ipt.lab.documents import objects_in, part, text, texts_in, value_at
from kproxy_ipt.testing.api_replies import Reply

_SERVICES = "/api/v1/namespaces/default/services"
_TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"


@pytest.fixture
def cluster() -> Cluster:
    """Nodes, namespaces and the Service `web`, as in a new lab."""
    made = Cluster()
    fill(made, with_web=True)
    return made


def _ask(cluster: Cluster, method: str, path: str, body: object = None, **more: object) -> Reply:
    query = more.get("query", {})
    assert isinstance(query, Mapping)
    return answer(
        cluster,
        Request(
            method=method,
            path=path,
            query=query,
            accept=str(more.get("accept", "application/json")),
            content_type=str(more.get("content_type", "application/json")),
            body=b"" if body is None else msgspec.json.encode(body),
        ),
    )


def _document(reply: Reply) -> dict[str, object]:
    return msgspec.json.decode(reply.body, type=dict[str, object])


def _service(_name: str = "shop", /, **spec: object) -> dict[str, object]:
    return {"metadata": {"name": _name}, "spec": {"ports": [{"port": 80}], **spec}}


def _pod(name: str = "a", port: int = 80) -> dict[str, object]:
    container = {"name": name, "ports": [{"containerPort": port}]}
    return {"metadata": {"name": "p"}, "spec": {"containers": [container]}}


def _created(cluster: Cluster, **spec: object) -> dict[str, object]:
    reply = _ask(cluster, "POST", _SERVICES, _service("shop", **spec))
    assert reply.status == 201, reply.body
    return _document(reply)


def _message(reply: Reply) -> str:
    return text(_document(reply), "message")


def test_a_service_gets_what_its_author_left_out(cluster: Cluster) -> None:
    """Type, address, family, protocol, target port and policies."""
    spec = part(_created(cluster), "spec")

    assert spec == {
        "type": "ClusterIP",
        "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}],
        "clusterIP": "10.96.0.11",
        "clusterIPs": ["10.96.0.11"],
        "ipFamilies": ["IPv4"],
        "ipFamilyPolicy": "SingleStack",
        "sessionAffinity": "None",
        "internalTrafficPolicy": "Cluster",
    }


def test_dual_stack_gets_an_address_of_each_family(cluster: Cluster) -> None:
    """The first family is the one that is named first."""
    created = _created(cluster, ipFamilyPolicy="PreferDualStack", ipFamilies=["IPv6"])

    assert texts_in(created, "spec", "clusterIPs") == ["fd00:10:96::b", "10.96.0.11"]


def test_a_load_balancer_with_local_policy_gets_ports(cluster: Cluster) -> None:
    """A node port for each port, and one for health checks."""
    spec = part(_created(cluster, type="LoadBalancer", externalTrafficPolicy="Local"), "spec")

    assert [port["nodePort"] for port in objects_in(spec, "ports")] == [30000]
    assert spec["healthCheckNodePort"] == 30001


def test_node_ports_stay_until_the_type_has_none(cluster: Cluster) -> None:
    """An update without the node port keeps it; ClusterIP takes it away, and policy and health check with it."""
    _created(cluster, type="NodePort")
    path = f"{_SERVICES}/shop"

    kept = _document(_ask(cluster, "PUT", path, _service(type="NodePort")))
    gone = _document(_ask(cluster, "PUT", path, _service(type="ClusterIP")))

    assert value_at(kept, "spec", "ports") == [{"port": 80, "protocol": "TCP", "targetPort": 80, "nodePort": 30000}]
    assert value_at(gone, "spec", "ports") == [{"port": 80, "protocol": "TCP", "targetPort": 80}]
    assert text(gone, "spec", "clusterIP") == text(kept, "spec", "clusterIP") == "10.96.0.11"
    assert "externalTrafficPolicy" not in part(gone, "spec")


def test_a_headless_service_has_no_address(cluster: Cluster) -> None:
    """And an ExternalName has neither address nor family."""
    assert text(_created(cluster, clusterIP="None"), "spec", "clusterIP") == "None"
    reply = _ask(cluster, "POST", _SERVICES, _service("out", type="ExternalName", externalName="a.example"))
    assert "clusterIPs" not in part(_document(reply), "spec")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"clusterIP": "10.96.0.10"}, "provided IP is already allocated"),
        ({"clusterIP": "10.1.2.3"}, "The range of valid IPs is 10.96.0.0/16"),
        ({"clusterIP": "nonsense"}, "must be a valid IP address"),
        ({"type": "NodePort", "ports": [{"port": 1, "nodePort": 32080}]}, "provided port is already allocated"),
        ({"type": "NodePort", "ports": [{"port": 1, "nodePort": 80}]}, "The range of valid ports is 30000-32767"),
        ({"type": "Odd"}, 'spec.type: Unsupported value: "Odd"'),
        ({"ports": []}, "spec.ports: Required value"),
        ({"ports": [{"port": 0}]}, "spec.ports[0].port: Invalid value: 0"),
        ({"ports": [{"port": 1}, {"port": 2}]}, "spec.ports[0].name: Required value"),
        ({"type": "ExternalName"}, "spec.externalName: Required value"),
    ],
)
def test_a_wrong_service_is_refused_by_field(cluster: Cluster, spec: dict[str, object], message: str) -> None:
    """422 with the words of the real API, and nothing is stored."""
    reply = _ask(cluster, "POST", _SERVICES, _service("shop", **spec))

    assert reply.status == 422
    assert message in _message(reply)
    assert cluster.find("Service", "shop") is None


@pytest.mark.parametrize(
    ("path", "document", "status", "message"),
    [
        (_SERVICES, _service("web"), 409, 'services "web" already exists'),
        (_SERVICES, _service("Web"), 422, 'metadata.name: Invalid value: "Web"'),
        (_SERVICES, _service(""), 422, "name or generateName is required"),
        ("/api/v1/namespaces/no/services", _service(), 404, 'namespaces "no" not found'),
        ("/api/v1/namespaces/default/pods", {"metadata": {"name": "p"}, "spec": {}}, 422, "spec.containers: Required"),
        (
            "/api/v1/namespaces/default/pods",
            _pod(port=0),
            422,
            "spec.containers[0].ports[0].containerPort: Invalid value",
        ),
        ("/api/v1/namespaces/default/pods", _pod(name=""), 422, "spec.containers[0].name: Required value"),
        ("/api/v1/namespaces/default/secrets", {}, 404, "could not find the requested resource"),
        (f"{_SERVICES}/web", {}, 405, "POST is not possible here"),
        (
            "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices",
            {"metadata": {"name": "s"}},
            422,
            "addressType",
        ),
    ],
)
def test_a_wrong_object_is_refused(cluster: Cluster, path: str, document: object, status: int, message: str) -> None:
    """Each with its status and words."""
    reply = _ask(cluster, "POST", path, document)

    assert (reply.status, message in _message(reply)) == (status, True), reply.body


def test_a_deployment_must_select_its_pods(cluster: Cluster) -> None:
    """A selector that does not match the labels of the template is refused, and so is none."""
    path = "/apis/apps/v1/namespaces/default/deployments"
    template = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "a"}]}}
    mismatch = {"metadata": {"name": "a"}, "spec": {"selector": {"matchLabels": {"app": "b"}}, "template": template}}
    missing = {"metadata": {"name": "a"}, "spec": {"template": template}}

    assert "selector` does not match" in _message(_ask(cluster, "POST", path, mismatch))
    assert "spec.selector: Required value" in _message(_ask(cluster, "POST", path, missing))


def test_an_update_of_an_old_version_is_a_conflict(cluster: Cluster) -> None:
    """The resource version that was read must be the newest one."""
    created = _created(cluster)
    _ask(cluster, "PATCH", f"{_SERVICES}/shop", {"metadata": {"labels": {"a": "b"}}}, content_type=_merge_type())

    reply = _ask(cluster, "PUT", f"{_SERVICES}/shop", created)

    assert reply.status == 409
    assert "the object has been modified" in _message(reply)


def _merge_type(kind: str = "merge-patch") -> str:
    return f"application/{kind}+json"


def test_generation_counts_changes_of_the_spec(cluster: Cluster) -> None:
    """Labels do not count; the cluster IP cannot be changed."""
    _created(cluster)
    path = f"{_SERVICES}/shop"

    labelled = _ask(cluster, "PATCH", path, {"metadata": {"labels": {"a": "b"}}}, content_type=_merge_type())
    changed = _ask(cluster, "PATCH", path, {"spec": {"sessionAffinity": "ClientIP"}}, content_type=_merge_type())
    fixed = _ask(cluster, "PATCH", path, {"spec": {"clusterIPs": ["10.96.0.77"]}}, content_type=_merge_type())

    assert value_at(_document(labelled), "metadata", "generation") == 1
    assert value_at(_document(changed), "metadata", "generation") == 2
    assert value_at(_document(changed), "spec", "sessionAffinityConfig", "clientIP", "timeoutSeconds") == 10800
    assert "field is immutable" in _message(fixed)


@pytest.mark.parametrize(
    ("kind", "body", "status", "message"),
    [
        ("json-patch", [{"op": "remove", "path": "/spec/nothing"}], 422, "nothing at /spec/nothing"),
        ("json-patch", {}, 400, "no JSON patch"),
        ("odd-patch", {}, 415, "unknown format"),
        ("merge-patch", [], 400, "unrecognized"),
    ],
)
def test_a_wrong_patch_is_refused(cluster: Cluster, kind: str, body: object, status: int, message: str) -> None:
    """Bodies and types that cannot be applied."""
    reply = _ask(cluster, "PATCH", f"{_SERVICES}/web", body, content_type=_merge_type(kind))

    assert (reply.status, message in _message(reply)) == (status, True), reply.body


def test_a_dry_run_stores_nothing(cluster: Cluster) -> None:
    """The answer is as if it did."""
    before = cluster.store.resource_version

    reply = _ask(cluster, "POST", _SERVICES, _service(), query={"dryRun": "All"})

    assert text(_document(reply), "spec", "clusterIP") == "10.96.0.11"
    assert (cluster.find("Service", "shop"), cluster.store.resource_version) == (None, before)


def test_server_side_apply_creates_and_merges(cluster: Cluster) -> None:
    """A document in YAML; applied again it changes what it names."""
    path, kind = f"{_SERVICES}/shop", "application/apply-patch+yaml"

    first = _ask(cluster, "PATCH", path, _service(), content_type=kind)
    second = _ask(cluster, "PATCH", path, _service(sessionAffinity="ClientIP"), content_type=kind)

    assert (first.status, second.status) == (201, 200)
    assert text(_document(second), "spec", "sessionAffinity") == "ClientIP"
    assert text(_document(second), "spec", "clusterIP") == "10.96.0.11"


def test_a_new_service_brings_no_status_along(cluster: Cluster) -> None:
    """Addresses of a balancer in a manifest are those of another cluster."""
    sent = {**_service(type="LoadBalancer"), "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.200"}]}}}

    assert _document(_ask(cluster, "POST", _SERVICES, sent))["status"] == {"loadBalancer": {}}


def test_scale_is_a_view_of_a_deployment(cluster: Cluster) -> None:
    """Read, replaced and patched; the Deployment follows."""
    path = "/apis/apps/v1/namespaces/default/deployments/web/scale"

    read = _document(_ask(cluster, "GET", path))
    _ask(cluster, "PUT", path, {**read, "spec": {"replicas": 5}})
    patched = _document(_ask(cluster, "PATCH", path, {"spec": {"replicas": 7}}, content_type=_merge_type()))

    assert (value_at(read, "spec", "replicas"), value_at(patched, "spec", "replicas")) == (3, 7)
    assert value_at(cluster.find("Deployment", "web"), "spec", "replicas") == 7


def test_status_is_written_apart_from_the_spec(cluster: Cluster) -> None:
    """A write of the status changes no spec, one of the object no status."""
    path = "/api/v1/nodes/n1"
    node = _document(_ask(cluster, "GET", path))

    _ask(cluster, "PUT", f"{path}/status", {**node, "spec": {}, "status": {"conditions": []}})

    changed = _document(_ask(cluster, "PUT", path, {"spec": node["spec"], "status": {"odd": 1}}))
    assert (changed["spec"], changed["status"]) == (node["spec"], {"conditions": []})


def test_lists_are_tables_for_who_wants_them(cluster: Cluster) -> None:
    """Columns and cells, and rows with the metadata or the whole object."""
    table = _document(_ask(cluster, "GET", _SERVICES, accept=_TABLE))
    whole = _document(_ask(cluster, "GET", f"{_SERVICES}/web", accept=_TABLE, query={"includeObject": "Object"}))

    [row] = objects_in(table, "rows")
    assert value_at(row, "cells") == ["web", "NodePort", "10.96.0.10", "<none>", "80:32080/TCP", "0s", "app=web"]
    assert text(row, "object", "kind") == "PartialObjectMetadata"
    assert text(objects_in(whole, "rows")[0], "object", "spec", "type") == "NodePort"


def test_selectors_choose(cluster: Cluster) -> None:
    """By labels, sets of labels and fields."""
    for selector, count in (("app=web", 1), ("app in (web, x)", 1), ("app notin (web),app", 0), ("!app", 0)):
        found = _document(_ask(cluster, "GET", _SERVICES, query={"labelSelector": selector}))
        assert len(objects_in(found, "items")) == count, selector
    nodes = _document(_ask(cluster, "GET", "/api/v1/nodes", query={"fieldSelector": "metadata.name=n2"}))
    assert [text(each, "metadata", "name") for each in objects_in(nodes, "items")] == ["n2"]


def test_events_have_two_forms(cluster: Cluster) -> None:
    """One that was written in the newer form is listed in the older one, and chosen by its fields."""
    event = {
        "metadata": {"name": "e"},
        "regarding": {"kind": "Service", "name": "web", "uid": "u"},
        "reason": "Odd",
        "note": "something",
        "type": "Warning",
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "me",
    }
    _ask(cluster, "POST", "/apis/events.k8s.io/v1/namespaces/default/events", event)
    path = "/api/v1/namespaces/default/events"

    found = _document(_ask(cluster, "GET", path, query={"fieldSelector": "involvedObject.uid=u"}))
    none = _document(_ask(cluster, "GET", path, query={"fieldSelector": "involvedObject.uid=v"}))

    [listed] = objects_in(found, "items")
    assert (listed["message"], listed["firstTimestamp"], listed["count"]) == ("something", "2026-01-01T00:00:00Z", 1)
    assert none["items"] == []


def test_deleting_a_collection_takes_what_is_selected(cluster: Cluster) -> None:
    """Others stay."""
    _created(cluster)

    reply = _ask(cluster, "DELETE", _SERVICES, query={"labelSelector": "app=web"})

    assert reply.status == 200
    assert [text(each, "metadata", "name") for each in cluster.objects("Service")] == ["shop"]


def test_a_running_pod_is_marked_before_it_goes(cluster: Cluster) -> None:
    """The grace period can be shortened, not lengthened; 0 ends it at once."""
    pods = "/api/v1/namespaces/default/pods"
    spec = {"nodeName": "n1", "containers": [{"name": "a"}]}
    _ask(cluster, "POST", pods, {"metadata": {"name": "p"}, "spec": spec})

    grace = [
        value_at(_document(_ask(cluster, "DELETE", f"{pods}/p", body)), "metadata", "deletionGracePeriodSeconds")
        for body in (None, {"gracePeriodSeconds": 60}, {"gracePeriodSeconds": 1})
    ]
    _ask(cluster, "DELETE", f"{pods}/p", query={"gracePeriodSeconds": "0"})

    assert grace == [2, 2, 1]
    assert cluster.find("Pod", "p") is None


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/api", ("APIVersions", "versions", ["v1"])),
        ("/version", ("", "gitVersion", "v1.36.2")),
        ("/apis/apps/v1", ("APIResourceList", "groupVersion", "apps/v1")),
        ("/apis/apps", ("APIGroup", "name", "apps")),
    ],
)
def test_discovery_answers(cluster: Cluster, path: str, expected: tuple[str, str, object]) -> None:
    """What clients look for before they ask anything."""
    found = _document(_ask(cluster, "GET", path))

    assert (text(found, "kind"), expected[1], found[expected[1]]) == expected


def test_health_and_schemas_are_answered(cluster: Cluster) -> None:
    """`ok`, and a document without schemas in a media type that can be parsed; the newer form of it is not known."""
    assert _ask(cluster, "GET", "/readyz").body == b"ok"
    assert _ask(cluster, "GET", "/openapi/v2").content_type.count("@") == 0
    assert _ask(cluster, "GET", "/openapi/v3").status == 404


def test_watches_are_told_of_every_change(cluster: Cluster) -> None:
    """Whoever listens is called once for each write."""
    calls: list[int] = []
    cluster.listen(lambda: calls.append(1))

    _created(cluster)
    _ask(cluster, "DELETE", f"{_SERVICES}/shop")

    assert len(calls) == 2
