"""
The objects of a lab; every write goes through here, from kubectl and from the controllers alike.

A write is completed, checked, stored, and told to whoever listens. Nothing here waits: one event loop owns a cluster.

Source: API concepts of Kubernetes; `pkg/registry` for what a write keeps of the object before.
"""

import secrets
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

from kproxy_ipt.lab.cells import TIME_FORMAT
from kproxy_ipt.lab.defaults import causes_of, completed, name_causes
from kproxy_ipt.lab.documents import ApiObject, fields_of, name_of, namespace_of, number, part, text, uid_of, value_at
from kproxy_ipt.lab.resources import target_for
from kproxy_ipt.lab.service_defaults import Cause, InvalidServiceError, complete_service
from kproxy_ipt.testing.api_replies import Reply, invalid, not_found, status_reply
from kproxy_ipt.testing.api_selectors import selection
from kproxy_ipt.testing.api_store import CLUSTER_KINDS, ApiStore, Target

_KEPT_CHANGES = 2000
"""So many versions of history stay for watches; older ones are answered 410."""
_EVERYTHING = selection("", "")
_WITH_STATUS = frozenset({"Service", "Pod", "Deployment", "Node", "Namespace"})
_STATUS_IS_OURS = frozenset({"Service", "Pod", "Deployment"})
"""Kinds whose status a new object cannot bring along: controllers write it."""
_OWN_METADATA = ("uid", "creationTimestamp", "namespace", "name", "deletionTimestamp", "deletionGracePeriodSeconds")


class RefusedError(Exception):
    """A request that is answered with *reply*, a refusal."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.body.decode())
        self.reply = reply


class Cluster:
    """
    All objects of a lab.

    Attributes:
        store: The objects and their history; only to be read.
    """

    def __init__(self) -> None:
        self.store = ApiStore()
        self._listeners: list[Callable[[], None]] = []

    def listen(self, listener: Callable[[], None]) -> None:
        """Call *listener* after each change; it must not wait, nor write."""
        self._listeners.append(listener)

    def objects(self, kind: str, namespace: str = "") -> list[ApiObject]:
        """All objects of a kind, or those of a namespace, by namespace and name."""
        return self.store.objects(target_for(kind, namespace), _EVERYTHING)

    def find(self, kind: str, name: str, namespace: str = "default") -> ApiObject | None:
        """One object, or None."""
        return self.store.find(target_for(kind, namespace, name))

    def get(self, target: Target) -> ApiObject:
        """
        One object.

        Raises:
            RefusedError: 404.
        """
        found = self.store.find(target)
        if found is None:
            raise RefusedError(not_found(_resource(target), target.name))
        return found

    def create(self, target: Target, document: ApiObject, *, dry_run: bool = False) -> ApiObject:
        """
        Create an object in a collection, or in a namespace of it.

        Raises:
            RefusedError: It exists, its namespace does not, or something is wrong with it.
        """
        metadata = part(document, "metadata")
        prefix = text(metadata, "generateName")
        name = text(metadata, "name") or (f"{prefix}{secrets.token_hex(3)[:5]}" if prefix else "")
        created = Target(collection=target.collection, namespace=_namespace(target, metadata), name=name)
        self._check_new(created)
        metadata["name"] = name
        if created.namespace:
            metadata["namespace"] = created.namespace
        metadata["uid"] = str(uuid.uuid4())
        metadata["creationTimestamp"] = now_text()
        if "spec" in document:
            metadata["generation"] = 1
        typed = {"apiVersion": target.api_version, "kind": target.kind, **document, "metadata": metadata}
        if target.kind in _STATUS_IS_OURS:
            typed.pop("status", None)
        return self._store(self._complete(typed, None), dry_run=dry_run)

    def update(self, target: Target, document: ApiObject, *, dry_run: bool = False, status: bool = False) -> ApiObject:
        """
        Replace an object, or its *status* alone; what only the API decides is kept.

        Raises:
            RefusedError: There is none, it has changed meanwhile, or something is wrong with it.
        """
        before = self.get(target)
        version = text(document, "metadata", "resourceVersion")
        if version not in ("", text(before, "metadata", "resourceVersion")):
            raise RefusedError(_conflict(target))
        if status:
            after: dict[str, object] = {**before, "status": part(document, "status")}
        else:
            after = self._complete(_replaced(before, document), before)
        if _without_version(after) == _without_version(before):
            return before
        if after.get("spec") != before.get("spec"):
            generation = number(before, "metadata", "generation") + 1
            after["metadata"] = part(after, "metadata") | {"generation": generation}
        return self._store(after, dry_run=dry_run)

    def delete(self, target: Target, grace_s: int | None = None) -> ApiObject:
        """
        Delete an object; a pod that runs is only marked, and deleted at the end of its grace period.

        Args:
            target: The object.
            grace_s: Grace period of a pod, None for its own; 0 deletes it at once.

        Returns:
            The object as it was, or as it is marked.

        Raises:
            RefusedError: There is none.
        """
        found = self.get(target)
        if target.kind == "Pod" and text(found, "spec", "nodeName"):
            seconds = number(found, "spec", "terminationGracePeriodSeconds") if grace_s is None else grace_s
            if seconds > 0:
                return self._mark(found, seconds)
        self._remove(target)
        return found

    def set_status(self, document: ApiObject, status: Mapping[str, object]) -> None:
        """Set the status of an object, if it is still there."""
        target = target_of_object(document)
        found = self.store.find(target)
        if found is not None and uid_of(found) == uid_of(document):
            self.update(target, {"status": dict(status)}, status=True)

    def _check_new(self, target: Target) -> None:
        if not target.name:
            message = "Required value: name or generateName is required"
            raise RefusedError(invalid(target.kind, "", [("FieldValueRequired", message, "metadata.name")]))
        if causes := name_causes(target.kind, target.name) if target.kind != "Event" else []:
            raise RefusedError(invalid(target.kind, target.name, causes))
        if target.namespace and self.find("Namespace", target.namespace) is None:
            raise RefusedError(not_found("namespaces", target.namespace))
        if self.store.find(target) is not None:
            message = f'{_resource(target)} "{target.name}" already exists'
            details = {"name": target.name, "kind": target.plural}
            raise RefusedError(status_reply(409, "AlreadyExists", message, details=details))

    def _complete(self, document: ApiObject, before: ApiObject | None) -> dict[str, object]:
        kind, name = text(document, "kind"), name_of(document)
        causes: list[Cause]
        try:
            if kind == "Service":
                others = [each for each in self.objects("Service") if uid_of(each) != uid_of(document)]
                return complete_service(document, before, others)
            whole = completed(document)
            causes = causes_of(whole)
        except InvalidServiceError as error:
            causes = list(error.causes)
        if causes:
            raise RefusedError(invalid(kind, name, causes))
        return whole

    def _store(self, document: ApiObject, *, dry_run: bool) -> ApiObject:
        if dry_run:
            return document
        stored = self.store.put(document)
        self._changed()
        return stored

    def _mark(self, pod: ApiObject, seconds: int) -> ApiObject:
        """Begin the grace period of a pod; it can be shortened later."""
        end = datetime.now(tz=UTC) + timedelta(seconds=seconds)
        metadata = part(pod, "metadata")
        if value_at(metadata, "deletionTimestamp") and number(metadata, "deletionGracePeriodSeconds") <= seconds:
            return pod
        metadata |= {"deletionTimestamp": end.strftime(TIME_FORMAT), "deletionGracePeriodSeconds": seconds}
        return self._store({**pod, "metadata": metadata}, dry_run=False)

    def _remove(self, target: Target) -> None:
        self.store.delete(target.kind, target.name, target.namespace)
        if target.kind == "Namespace":
            for kind in ("Deployment", "Pod", "Service", "EndpointSlice", "Endpoints", "Event"):
                for document in self.objects(kind, target.name):
                    self.store.delete(kind, name_of(document), target.name)
        self._changed()

    def _changed(self) -> None:
        oldest = self.store.resource_version - _KEPT_CHANGES
        if oldest - self.store.oldest_version > _KEPT_CHANGES:
            self.store.forget_before(oldest)
        for listener in self._listeners:
            listener()


def now_text() -> str:
    """This second as the API writes it."""
    return datetime.now(tz=UTC).strftime(TIME_FORMAT)


def target_of_object(document: ApiObject) -> Target:
    """Where an object is."""
    return target_for(text(document, "kind"), namespace_of(document), name_of(document))


def _namespace(target: Target, metadata: ApiObject) -> str:
    return "" if target.kind in CLUSTER_KINDS else target.namespace or text(metadata, "namespace") or "default"


def _resource(target: Target) -> str:
    """`services`, `deployments.apps`: how messages name a resource."""
    group, _, version = target.api_version.partition("/")
    return f"{target.plural}.{group}" if version else target.plural


def _conflict(target: Target) -> Reply:
    message = (
        f'Operation cannot be fulfilled on {_resource(target)} "{target.name}": the object has been modified; please '
        "apply your changes to the latest version and try again"
    )
    return status_reply(409, "Conflict", message, details={"name": target.name, "kind": target.plural})


def _replaced(before: ApiObject, document: ApiObject) -> dict[str, object]:
    """*document* with what is not its author's to change."""
    kept = part(before, "metadata")
    metadata = part(document, "metadata")
    for name in (*_OWN_METADATA, "generation"):
        metadata.pop(name, None)
        if name in kept:
            metadata[name] = kept[name]
    typed = {"apiVersion": before["apiVersion"], "kind": before["kind"], **fields_of(document), "metadata": metadata}
    if text(before, "kind") in _WITH_STATUS and "status" in before:
        typed["status"] = before["status"]
    return typed


def _without_version(document: ApiObject) -> dict[str, object]:
    metadata = {key: value for key, value in part(document, "metadata").items() if key != "resourceVersion"}
    return {**document, "metadata": metadata}
