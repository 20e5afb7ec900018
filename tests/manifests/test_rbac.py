"""What the ServiceAccount may do: no more than the daemon asks for, and nothing that kubeadm's own may not."""

from collections.abc import Mapping
from typing import Any

# The ClusterRole system:node-proxier of Kubernetes 1.36: (group, resource) to verbs.
_NODE_PROXIER = {
    ("", "services"): {"list", "watch"},
    ("", "endpoints"): {"list", "watch"},
    ("", "nodes"): {"get", "list", "watch"},
    ("", "events"): {"create", "patch", "update"},
    ("events.k8s.io", "events"): {"create", "patch", "update"},
    ("networking.k8s.io", "servicecidrs"): {"list", "watch"},
    ("discovery.k8s.io", "endpointslices"): {"list", "watch"},
}


def _allowed(role: Mapping[str, Any]) -> dict[tuple[str, str], set[str]]:
    allowed: dict[tuple[str, str], set[str]] = {}
    for rule in role["rules"]:
        assert set(rule) == {"apiGroups", "resources", "verbs"}
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                allowed.setdefault((group, resource), set()).update(rule["verbs"])
    return allowed


def test_role_allows_what_is_watched_and_events(base: Mapping[str, Any]) -> None:
    """Services, EndpointSlices, the Node, Events; no secrets, no Endpoints, nothing by wildcard."""
    assert _allowed(base["ClusterRole"]) == {
        ("", "services"): {"list", "watch"},
        ("discovery.k8s.io", "endpointslices"): {"list", "watch"},
        ("", "nodes"): {"get", "list", "watch"},
        ("events.k8s.io", "events"): {"create", "patch", "update"},
    }


def test_role_is_part_of_what_kube_proxy_may_do(base: Mapping[str, Any]) -> None:
    """So the rights of an existing kube-proxy are enough, and a switch of its image alone works."""
    beyond = {
        key: verbs - _NODE_PROXIER.get(key, set())
        for key, verbs in _allowed(base["ClusterRole"]).items()
        if not verbs <= _NODE_PROXIER.get(key, set())
    }

    assert beyond == {}


def test_role_is_bound_to_the_account_of_the_pod_alone(base: Mapping[str, Any], pod: Mapping[str, Any]) -> None:
    """Binding, ServiceAccount and pod agree on the name."""
    account = base["ServiceAccount"]["metadata"]
    binding = base["ClusterRoleBinding"]

    assert pod["serviceAccountName"] == account["name"] == "kube-proxy"
    assert binding["subjects"] == [{"kind": "ServiceAccount", **account}]
    assert binding["roleRef"] == {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole",
        "name": base["ClusterRole"]["metadata"]["name"],
    }


def test_names_of_the_addons_role_and_binding_stay_free(base: Mapping[str, Any]) -> None:
    """The addon may write its own binding beside ours, and ours can be removed without touching it."""
    names = {base[kind]["metadata"]["name"] for kind in ("ClusterRole", "ClusterRoleBinding")}

    assert names == {"kproxy-ipt"}
