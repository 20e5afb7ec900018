"""What the controllers of a lab want, given the objects: pure functions, no clock, no kernel."""

from collections.abc import Mapping

import pytest

from kproxy_ipt.lab.balancers import balancer_routes, balancer_status, wants_balancer
from kproxy_ipt.lab.deployments import HASH_LABEL, next_step, template_hash
from kproxy_ipt.lab.documents import ApiObject, name_of, objects_in, part, text, texts_in, value_at
from kproxy_ipt.lab.endpoints import wanted_endpoints, wanted_slices
from kproxy_ipt.lab.layout import NODES
from kproxy_ipt.lab.pods import READY_ANNOTATION, chosen_node, owner_uids, ports_of, unreadiness

_ZONES = {"n1": "zone-a", "n2": "zone-b"}


def _deployment(replicas: int = 2, image: str = "one", **spec: object) -> ApiObject:
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "a", "image": image}]}}
    whole = {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template, **spec}
    return {"kind": "Deployment", "metadata": {"name": "web", "namespace": "default", "uid": "d"}, "spec": whole}


def _pod(name: str, **more: object) -> dict[str, object]:
    """A ready pod of the Deployment on n1; *more* are labels, ready, node, ip, deleted, template, owner, ports."""
    labels = more.get("labels", {"app": "web"})
    assert isinstance(labels, Mapping)
    metadata: dict[str, object] = {"name": name, "namespace": "default", "uid": name}
    metadata["labels"] = {**labels, HASH_LABEL: more.get("template", template_hash(_deployment()))}
    if more.get("owner", "d"):
        metadata["ownerReferences"] = [{"uid": "d"}]
    if more.get("deleted"):
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    address = str(more.get("ip", "10.244.1.11"))
    return {
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"nodeName": more.get("node", "n1"), "containers": [{"name": "a", "ports": more.get("ports", [])}]},
        "status": {
            "conditions": [{"type": "Ready", "status": "True" if more.get("ready", True) else "False"}],
            "podIPs": [{"ip": address}, {"ip": f"fd00::{address.rpartition('.')[2]}"}],
        },
    }


def _service(**spec: object) -> dict[str, object]:
    ports = [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080}]
    whole = {"type": "ClusterIP", "selector": {"app": "web"}, "ipFamilies": ["IPv4"], "ports": ports, **spec}
    return {"kind": "Service", "metadata": {"name": "web", "namespace": "default", "uid": "s"}, "spec": whole}


def test_missing_pods_get_the_smallest_free_numbers() -> None:
    """Numbers of pods that terminate, or that belong to nobody, are not free."""
    step = next_step(_deployment(3), [_pod("web-2"), _pod("web-3", deleted=True)])

    assert [name_of(pod) for pod in step.create] == ["web-1", "web-4"]
    assert [owner_uids(pod) for pod in step.create] == [{"d"}, {"d"}]
    assert text(step.create[0], "metadata", "labels", "app") == "web"


def test_surplus_pods_go_that_are_not_ready_then_by_number() -> None:
    """Of four pods, two stay: those with the lowest numbers that are ready."""
    pods = [_pod("web-1", ready=False), _pod("web-2"), _pod("web-10"), _pod("web-9")]

    step = next_step(_deployment(2), pods)

    assert [name_of(pod) for pod in step.delete] == ["web-1", "web-10"]


def test_a_rollout_adds_one_pod_and_waits_for_it() -> None:
    """Old pods stay until enough are ready."""
    new = _deployment(2, image="two")
    old = [_pod("web-1"), _pod("web-2")]

    first = next_step(new, old)
    waiting = next_step(new, [*old, _pod("web-3", template=template_hash(new), ready=False)])
    ready = next_step(new, [*old, _pod("web-3", template=template_hash(new))])

    assert ([name_of(pod) for pod in first.create], first.delete) == (["web-3"], [])
    assert (waiting.create, waiting.delete) == ([], [])
    assert [name_of(pod) for pod in ready.delete] == ["web-1"]


def test_recreate_takes_old_pods_away_first() -> None:
    """New ones come when the last old one has ended."""
    new = _deployment(1, image="two", strategy={"type": "Recreate"})

    first = next_step(new, [_pod("web-1")])
    ending = next_step(new, [_pod("web-1", deleted=True)])
    after = next_step(new, [])

    assert ([name_of(pod) for pod in first.delete], first.create, ending.create) == (["web-1"], [], [])
    assert [name_of(pod) for pod in after.create] == ["web-1"]


def test_pods_are_released_and_adopted_by_their_labels() -> None:
    """One that stops matching loses its owner, one that matches again gets it."""
    step = next_step(_deployment(), [_pod("web-1", labels={"app": "x"}), _pod("web-2", owner="")])

    assert [(name_of(pod), owner_uids(pod)) for pod in step.replace] == [("web-1", set()), ("web-2", {"d"})]


def test_status_counts_what_rollout_status_waits_for() -> None:
    """Replicas, updated and ready ones; zeros are left out."""
    status = next_step(_deployment(3), [_pod("web-1"), _pod("web-2", ready=False, template="old")]).status

    shown = {key: value for key, value in status.items() if key != "conditions"}
    assert shown == {
        "observedGeneration": 0,
        "replicas": 2,
        "updatedReplicas": 1,
        "readyReplicas": 1,
        "availableReplicas": 1,
        "unavailableReplicas": 2,
    }


def test_pods_are_spread_over_nodes() -> None:
    """Fewest pods of the same owner first, then fewest pods; selectors and cordons count."""
    nodes: list[ApiObject] = [
        {"metadata": {"name": name, "labels": {"zone": name}}, "spec": {}} for name in ("n1", "n2")
    ]
    new = _pod("web-9", node="")
    picky = {**new, "spec": {"nodeSelector": {"zone": "n1"}}}
    cordoned: list[ApiObject] = [{**nodes[0], "spec": {"unschedulable": True}}, nodes[1]]

    assert chosen_node(new, nodes, [_pod("web-1")]) == "n2"
    assert chosen_node(new, nodes, [_pod("other", node="n1", owner="")]) == "n2"
    assert chosen_node(picky, nodes, [_pod("web-1")]) == "n1"
    assert chosen_node(new, cordoned, [_pod("a", node="n2"), _pod("b", node="n2")]) == "n2"
    assert chosen_node(picky, nodes[1:], []) == ""
    assert chosen_node(new, nodes[1:], [_pod(f"p{number}", node="n2") for number in range(89)]) == ""


def test_a_slice_for_each_family_holds_the_selected_pods() -> None:
    """With node, zone and conditions, and the labels that kube-proxy looks for."""
    pods = [_pod("web-1"), _pod("x", labels={"app": "x"}), _pod("web-2", node="n2", ip="10.244.2.12", ready=False)]

    slices = wanted_slices(_service(ipFamilies=["IPv4", "IPv6"]), pods, _ZONES)

    by_type = {text(each, "addressType"): each for each in slices}
    endpoints = objects_in(by_type["IPv4"], "endpoints")
    assert [texts_in(each, "addresses") for each in endpoints] == [["10.244.1.11"], ["10.244.2.12"]]
    assert [value_at(each, "conditions", "ready") for each in endpoints] == [True, False]
    assert [text(each, "zone") for each in endpoints] == ["zone-a", "zone-b"]
    assert text(by_type["IPv6"], "metadata", "labels", "kubernetes.io/service-name") == "web"
    assert by_type["IPv6"]["ports"] == [{"name": "http", "protocol": "TCP", "port": 8080}]


def test_named_target_ports_make_a_slice_for_each_number() -> None:
    """Pods may disagree about the number of a name; one that does not know it has no port at all."""
    named = [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": "http"}]
    pods = [
        _pod(f"web-{number}", ip=f"10.244.1.{number}", ports=[{"name": "http", "containerPort": port}])
        for number, port in ((1, 8080), (2, 8081), (3, 8080))
    ]

    slices = wanted_slices(_service(ports=named), [*pods, _pod("web-4")], _ZONES)

    found = {text(objects_in(each, "ports")[0], "port") if each["ports"] else "": each for each in slices}
    assert {port: len(objects_in(each, "endpoints")) for port, each in found.items()} == {"8080": 2, "8081": 1, "": 1}
    assert len({name_of(each) for each in slices}) == 3


@pytest.mark.parametrize(
    ("publish", "ready", "deleted", "expected"),
    [
        (False, True, False, (True, True, False)),
        (False, False, False, (False, False, False)),
        (False, True, True, (False, True, True)),
        (True, False, True, (True, True, True)),
    ],
)
def test_conditions_follow_the_pod(*, publish: bool, ready: bool, deleted: bool, expected: tuple[bool, ...]) -> None:
    """Ready, serving, terminating; a Service may publish pods that are not ready."""
    service = _service(publishNotReadyAddresses=publish)

    [found] = wanted_slices(service, [_pod("web-1", ready=ready, deleted=deleted)], _ZONES)

    conditions = part(objects_in(found, "endpoints")[0], "conditions")
    assert tuple(conditions.values()) == expected


def test_traffic_distribution_gives_hints() -> None:
    """For the own zone, or for the own node too."""
    zone, node = (
        value_at(
            objects_in(wanted_slices(_service(trafficDistribution=wish), [_pod("web-1")], _ZONES)[0], "endpoints")[0],
            "hints",
        )
        for wish in ("PreferSameZone", "PreferSameNode")
    )

    assert zone == {"forZones": [{"name": "zone-a"}]}
    assert node == {"forZones": [{"name": "zone-a"}], "forNodes": [{"name": "n1"}]}


def test_a_service_without_pods_has_an_empty_slice() -> None:
    """And empty Endpoints."""
    [found] = wanted_slices(_service(), [], _ZONES)

    assert (found["endpoints"], found["ports"]) == ([], [])
    assert wanted_endpoints(_service(), [])["subsets"] == []


def test_endpoints_part_ready_from_other_pods() -> None:
    """Terminating ones are in neither list."""
    pods = [_pod("web-1"), _pod("web-2", ip="10.244.1.12", ready=False), _pod("web-3", deleted=True)]

    [subset] = objects_in(wanted_endpoints(_service(), pods), "subsets")

    assert [text(each, "ip") for each in objects_in(subset, "addresses")] == ["10.244.1.11"]
    assert [text(each, "ip") for each in objects_in(subset, "notReadyAddresses")] == ["10.244.1.12"]


def test_balancers_get_free_addresses_of_their_families() -> None:
    """The first ones that no Service has."""
    other = {"status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.10"}]}}, "spec": {}}
    service = _service(type="LoadBalancer", ipFamilies=["IPv4", "IPv6"])

    status = balancer_status(service, [other])

    assert [text(each, "ip") for each in objects_in(status, "loadBalancer", "ingress")] == [
        "203.0.113.11",
        "2001:db8:203::a",
    ]
    assert wants_balancer(service)
    assert not wants_balancer({**service, "status": status})


def test_balancers_spare_nodes_without_endpoints_if_the_policy_is_local() -> None:
    """Otherwise all nodes share."""
    status = {"loadBalancer": {"ingress": [{"ip": "203.0.113.10"}]}}
    pods = [_pod("web-1", node="n2"), _pod("web-2", ready=False)]
    anywhere = _service(type="LoadBalancer") | {"status": status}
    local = _service(type="LoadBalancer", externalTrafficPolicy="Local") | {"status": status}
    slices = wanted_slices(local, pods, _ZONES)

    assert balancer_routes([anywhere], slices) == {"203.0.113.10": NODES}
    assert balancer_routes([local], slices) == {"203.0.113.10": (NODES[1],)}
    assert balancer_routes([local], []) == {"203.0.113.10": ()}


def test_readiness_depends_on_annotation_port_and_delay() -> None:
    """Each reason in words; a probe by the name of a port, and one without a port, are fine."""

    def pod(probe: ApiObject, annotation: str = "") -> ApiObject:
        container = {"name": "a", "ports": [{"name": "http", "containerPort": 80}], "readinessProbe": probe}
        return {"metadata": {"annotations": {READY_ANNOTATION: annotation}}, "spec": {"containers": [container]}}

    assert unreadiness(pod({"httpGet": {"port": "http"}}), 0.0) == ""
    assert unreadiness(pod({"exec": {}}), 0.0) == ""
    assert unreadiness(pod({"tcpSocket": {"port": 81}}), 0.0) == "readiness probe failed: nothing listens on port 81"
    assert "delay" in unreadiness(pod({"initialDelaySeconds": 5}), 4.0)
    assert unreadiness(pod({"initialDelaySeconds": 5}), 5.0) == ""
    assert READY_ANNOTATION in unreadiness(pod({}, "false"), 0.0)


def test_a_pod_without_ports_answers_on_the_usual_one() -> None:
    """8080, TCP."""
    assert [(each.port, each.protocol) for each in ports_of(_pod("web-1"))] == [(8080, "TCP")]
