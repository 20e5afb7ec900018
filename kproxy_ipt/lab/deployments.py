"""
What a Deployment wants: pods to create and to delete, whom it owns, and its status.

Pods are owned directly and numbered: `web-1`, `web-2`. A changed template is rolled out one by one: a new pod comes
first, an old one goes when enough are ready. A pod whose labels stop matching is released and replaced; one that
matches again is adopted.

Source: Kubernetes, "Deployments"; `pkg/controller/deployment`, `pkg/controller/replicaset`.
"""

import hashlib
from collections.abc import Iterable, Sequence

import msgspec

from kproxy_ipt.lab.documents import (
    ApiObject,
    matches_labels,
    name_of,
    namespace_of,
    number,
    part,
    text,
    uid_of,
    value_at,
)
from kproxy_ipt.lab.pods import is_ready, is_terminating, owner_uids

HASH_LABEL = "pod-template-hash"


class DeploymentStep(msgspec.Struct, frozen=True, kw_only=True):
    """
    The next step towards what a Deployment wants.

    Attributes:
        create: New pods.
        delete: Pods that are to go.
        replace: Pods with another owner, or none.
        status: Status of the Deployment, without the times of its conditions.
    """

    create: Sequence[ApiObject] = ()
    delete: Sequence[ApiObject] = ()
    replace: Sequence[ApiObject] = ()
    status: ApiObject


def next_step(deployment: ApiObject, pods: Sequence[ApiObject]) -> DeploymentStep:
    """The next step, given all pods of the namespace of the Deployment."""
    uid = uid_of(deployment)
    selector = part(deployment, "spec", "selector", "matchLabels")
    template = template_hash(deployment)
    replaced = [_disowned(pod) for pod in pods if uid in owner_uids(pod) and not matches_labels(pod, selector)]
    for pod in pods:
        is_orphan = not owner_uids(pod) and not is_terminating(pod) and text(pod, "metadata", "labels", HASH_LABEL)
        if is_orphan and matches_labels(pod, selector):
            replaced.append(_owned(pod, deployment))
    own = [pod for pod in pods if uid in owner_uids(pod) and matches_labels(pod, selector)]
    present = [pod for pod in own if not is_terminating(pod)]
    status = _status(deployment, present, template)
    if replaced:
        return DeploymentStep(replace=replaced, status=status)
    replicas = number(deployment, "spec", "replicas")
    current = [pod for pod in present if _hash(pod) == template]
    old = [pod for pod in present if _hash(pod) != template]
    if text(deployment, "spec", "strategy", "type") == "Recreate":
        blocked = any(_hash(pod) != template for pod in own)
        missing, surplus = (0 if blocked else replicas - len(current)), old
    else:
        missing, surplus = _rolling(replicas, current, old)
    surplus = [*surplus, *_surplus(current, len(current) - replicas)]
    return DeploymentStep(create=_new_pods(deployment, template, pods, missing), delete=surplus, status=status)


def template_hash(deployment: ApiObject) -> str:
    """A short hash of the template of a Deployment."""
    encoded = msgspec.json.encode(value_at(deployment, "spec", "template"), order="deterministic")
    return hashlib.sha256(encoded).hexdigest()[:8]


def _rolling(replicas: int, current: Sequence[ApiObject], old: Sequence[ApiObject]) -> tuple[int, list[ApiObject]]:
    """How many pods to create now, and which old ones to delete."""
    room = replicas - len(current)
    if old:
        room = min(room, replicas + 1 - len(current) - len(old))
    unready = [pod for pod in old if not is_ready(pod)]
    ready = [pod for pod in old if is_ready(pod)]
    spare = sum(is_ready(pod) for pod in current) + len(ready) - replicas
    return room, unready + ready[: max(0, spare)]


def _surplus(pods: Sequence[ApiObject], count: int) -> list[ApiObject]:
    """Which pods to delete: those that are not ready first, then the highest numbers."""
    ranked = sorted(pods, key=lambda pod: (is_ready(pod), -_pod_number(pod)))
    return ranked[: max(0, count)]


def _pod_number(pod: ApiObject) -> int:
    last = name_of(pod).rpartition("-")[2]
    return int(last) if last.isdecimal() else 0


def _hash(pod: ApiObject) -> str:
    return text(pod, "metadata", "labels", HASH_LABEL)


def _new_pods(deployment: ApiObject, template_id: str, pods: Iterable[ApiObject], count: int) -> list[ApiObject]:
    taken = {name_of(pod) for pod in pods}
    template = part(deployment, "spec", "template")
    created: list[ApiObject] = []
    index = 0
    while len(created) < count:
        index += 1
        name = f"{name_of(deployment)}-{index}"
        if name in taken:
            continue
        metadata = part(template, "metadata") | {"name": name, "namespace": namespace_of(deployment)}
        metadata["labels"] = part(metadata, "labels") | {HASH_LABEL: template_id}
        pod: dict[str, object] = {
            "kind": "Pod",
            "apiVersion": "v1",
            "metadata": metadata,
            "spec": part(template, "spec"),
        }
        created.append(_owned(pod, deployment))
    return created


def _owned(pod: ApiObject, deployment: ApiObject) -> dict[str, object]:
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": name_of(deployment), "uid": uid_of(deployment)}
    metadata = part(pod, "metadata") | {"ownerReferences": [{**reference, "controller": True}]}
    return {**pod, "metadata": metadata}


def _disowned(pod: ApiObject) -> dict[str, object]:
    metadata = {key: value for key, value in part(pod, "metadata").items() if key != "ownerReferences"}
    return {**pod, "metadata": metadata}


def _status(deployment: ApiObject, present: Sequence[ApiObject], template: str) -> dict[str, object]:
    replicas = number(deployment, "spec", "replicas")
    ready = sum(is_ready(pod) for pod in present)
    updated = sum(_hash(pod) == template for pod in present)
    available = {"type": "Available", "status": "True" if ready >= replicas else "False"}
    available["reason"] = "MinimumReplicasAvailable" if ready >= replicas else "MinimumReplicasUnavailable"
    progressing = {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"}
    counts = {
        "replicas": len(present),
        "updatedReplicas": updated,
        "readyReplicas": ready,
        "availableReplicas": ready,
        "unavailableReplicas": max(0, replicas - ready),
    }
    return {
        "observedGeneration": number(deployment, "metadata", "generation"),
        **{name: count for name, count in counts.items() if count},
        "conditions": [available, progressing],
    }
