"""The DaemonSet, fact by fact: where it has to be kubeadm's, and where it is better."""

from collections.abc import Mapping
from typing import Any

import pytest

import kproxy_ipt
from kproxy_ipt.config.model import Config

_KUBEADM_LABELS = {"k8s-app": "kube-proxy"}


def test_names_are_those_of_kubeadm(base: Mapping[str, Any]) -> None:
    """The DaemonSet is kube-system/kube-proxy with a container kube-proxy: `kubectl set image` finds it by these."""
    metadata = base["DaemonSet"]["metadata"]
    containers = base["DaemonSet"]["spec"]["template"]["spec"]["containers"]

    assert (metadata["namespace"], metadata["name"]) == ("kube-system", "kube-proxy")
    assert [container["name"] for container in containers] == ["kube-proxy"]


def test_labels_and_selector_are_those_of_kubeadm(base: Mapping[str, Any]) -> None:
    """A selector cannot be changed: with another one kubeadm could not take the DaemonSet over again."""
    daemonset = base["DaemonSet"]

    assert daemonset["metadata"]["labels"] == _KUBEADM_LABELS
    assert daemonset["spec"]["selector"] == {"matchLabels": _KUBEADM_LABELS}
    assert daemonset["spec"]["template"]["metadata"]["labels"] == _KUBEADM_LABELS


def test_nodes_are_updated_one_by_one(base: Mapping[str, Any]) -> None:
    """RollingUpdate with its default limits, as kubeadm has it."""
    assert base["DaemonSet"]["spec"]["updateStrategy"] == {"type": "RollingUpdate"}


def test_command_line_is_that_of_kubeadm(container: Mapping[str, Any]) -> None:
    """The path of kube-proxy, its configuration, the name of the node; and nothing that kubeadm does not have."""
    assert container["command"] == [
        "/usr/local/bin/kube-proxy",
        "--config=/var/lib/kube-proxy/config.conf",
        "--hostname-override=$(NODE_NAME)",
    ]
    assert "args" not in container
    assert container["env"] == [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]


def test_volumes_are_those_of_kubeadm(pod: Mapping[str, Any], container: Mapping[str, Any]) -> None:
    """Configuration, xtables lock, kernel modules; at the same places."""
    volumes = {volume.pop("name"): volume for volume in [dict(volume) for volume in pod["volumes"]]}
    mounts = {mount["name"]: (mount["mountPath"], mount.get("readOnly", False)) for mount in container["volumeMounts"]}

    assert volumes == {
        "kube-proxy": {"configMap": {"name": "kube-proxy"}},
        "xtables-lock": {"hostPath": {"path": "/run/xtables.lock", "type": "FileOrCreate"}},
        "lib-modules": {"hostPath": {"path": "/lib/modules"}},
    }
    assert mounts == {
        "kube-proxy": ("/var/lib/kube-proxy", False),
        "xtables-lock": ("/run/xtables.lock", False),
        "lib-modules": ("/lib/modules", True),
    }


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hostNetwork", True),
        ("priorityClassName", "system-node-critical"),
        ("serviceAccountName", "kube-proxy"),
        ("tolerations", [{"operator": "Exists"}]),
        ("nodeSelector", {"kubernetes.io/os": "linux"}),
        ("dnsPolicy", None),
        ("hostPID", None),
    ],
)
def test_pod_runs_where_and_as_kubeadms_does(pod: Mapping[str, Any], field: str, value: object) -> None:
    """On every Linux node, in its network, before all others; what kubeadm leaves out is left out."""
    assert pod.get(field) == value


def test_container_has_no_privilege_but_two_capabilities(pod: Mapping[str, Any], container: Mapping[str, Any]) -> None:
    """The container of kubeadm is privileged; ours gets what the rules need and no more."""
    assert container["securityContext"] == {
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "runAsUser": 0,
        "capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN", "NET_RAW"]},
    }
    assert pod["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}


@pytest.mark.parametrize(("probe", "path"), [("livenessProbe", "/livez"), ("readinessProbe", "/healthz")])
def test_probes_ask_the_default_health_address(container: Mapping[str, Any], probe: str, path: str) -> None:
    """Paths and port are those that the daemon serves by default, on the address of the node."""
    port = int(Config().healthz_bind_address.rpartition(":")[2])

    assert container[probe]["httpGet"] == {"path": path, "port": port}


def test_restart_comes_too_late_for_a_back_off(container: Mapping[str, Any]) -> None:
    """A container that ran for ten minutes starts again at once: a long absence of the API server costs no more."""
    probe = container["livenessProbe"]
    unhealthy_after_s = 2 * Config().iptables.sync_period_s

    assert "startupProbe" not in container
    assert unhealthy_after_s + (probe["failureThreshold"] - 1) * probe["periodSeconds"] > 600


def test_resources_are_asked_for_and_not_limited(container: Mapping[str, Any]) -> None:
    """A CPU limit would make rules late on a busy node, one on memory would end the daemon of a large cluster."""
    assert container["resources"] == {"requests": {"cpu": "50m", "memory": "160Mi"}}


def test_image_is_this_version_from_no_certain_registry(container: Mapping[str, Any]) -> None:
    """The image is named by the project's version, and is not fetched where the node has it."""
    assert container["image"] == f"kproxy-ipt:{kproxy_ipt.__version__}"
    assert container["imagePullPolicy"] == "IfNotPresent"
