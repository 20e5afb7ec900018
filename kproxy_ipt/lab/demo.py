"""What a new lab holds: its nodes and namespaces, and a Service `web` with three pods."""

import platform
from collections.abc import Iterator

from kproxy_ipt.lab.cluster import Cluster, now_text
from kproxy_ipt.lab.documents import ApiObject
from kproxy_ipt.lab.layout import NODES, LabNode
from kproxy_ipt.lab.resources import GIT_VERSION, target_for

NAMESPACES = ("default", "demo", "kube-system")


def fill(cluster: Cluster, *, with_web: bool) -> None:
    """Create the nodes and namespaces, and the Service `web` if wanted."""
    for name in NAMESPACES:
        cluster.create(target_for("Namespace"), {"metadata": {"name": name}})
    for node in NODES:
        cluster.create(target_for("Node"), node_object(node))
    for document in web_objects() if with_web else ():
        cluster.create(target_for(str(document["kind"]), "default"), document)


def node_object(node: LabNode) -> dict[str, object]:
    """The Node object of a node."""
    labels = {
        "kubernetes.io/hostname": node.name,
        "kubernetes.io/os": "linux",
        "topology.kubernetes.io/zone": node.zone,
    }
    cidrs = list(node.pod_cidrs.values())
    condition = {"type": "Ready", "status": "True", "reason": "LabReady", "lastTransitionTime": now_text()}
    addresses = [{"type": "InternalIP", "address": address} for address in node.addresses.values()]
    return {
        "metadata": {"name": node.name, "labels": labels},
        "spec": {"podCIDR": cidrs[0], "podCIDRs": cidrs},
        "status": {
            "addresses": [*addresses, {"type": "Hostname", "address": node.name}],
            "conditions": [condition],
            "nodeInfo": {
                "kubeletVersion": GIT_VERSION,
                "kernelVersion": platform.release(),
                "osImage": "network namespace",
                "containerRuntimeVersion": "none",
            },
        },
    }


def web_objects() -> Iterator[ApiObject]:
    """A Deployment of three pods, and the Service in front of it."""
    labels = {"app": "web"}
    container = {"name": "web", "image": "lab", "ports": [{"name": "http", "containerPort": 8080}]}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    yield {
        "kind": "Deployment",
        "metadata": {"name": "web", "labels": labels},
        "spec": {"replicas": 3, "selector": {"matchLabels": labels}, "template": template},
    }
    yield {
        "kind": "Service",
        "metadata": {"name": "web", "labels": labels},
        "spec": {
            "type": "NodePort",
            "selector": labels,
            "ipFamilyPolicy": "RequireDualStack",
            "ports": [{"name": "http", "port": 80, "targetPort": "http", "nodePort": 32080}],
        },
    }
