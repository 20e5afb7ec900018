"""
Writes to the test API server: create, replace, patch, delete.

Source: API concepts of Kubernetes; RFC 7386 for merge patches; answers recorded from a kube-apiserver v1.36.2.
"""

import secrets
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from kproxy_ipt.testing.api_replies import Reply, invalid, not_found, status_reply
from kproxy_ipt.testing.api_selectors import ApiObject, fields_of
from kproxy_ipt.testing.api_store import ApiStore, Target, encoded

_PATCH_TYPES = ("application/merge-patch+json", "application/strategic-merge-patch+json")
_NAME_RULE = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_MAX_NOTE = 1024


def write(store: ApiStore, method: str, target: Target, body: bytes, content_type: str = "application/json") -> Reply:
    """Change *store* as a request with POST, PUT, PATCH or DELETE wants it, and answer."""
    if method == "DELETE":
        return _delete(store, target)
    try:
        document = msgspec.json.decode(body, type=dict[str, object])
    except msgspec.MsgspecError as error:
        return status_reply(400, "BadRequest", f"the object provided is unrecognized: {error}")
    if method == "POST":
        return _create(store, target, document)
    found = store.find(target)
    if found is None:
        return not_found(target.plural, target.name)
    if method == "PUT":
        return _replace(store, target, found, document)
    if content_type not in _PATCH_TYPES:
        return status_reply(
            415, "UnsupportedMediaType", f"the body of the request was in an unknown format: {content_type}"
        )
    return Reply(status=200, body=encoded(store.put(fields_of(_merged(found, document)))))


def _create(store: ApiStore, target: Target, document: ApiObject) -> Reply:
    metadata = fields_of(document.get("metadata"))
    name = str(metadata.get("name") or f"{metadata.get('generateName', '')}{secrets.token_hex(3)[:5]}")
    if target.kind == "Event" and (causes := _event_causes(document)):
        return invalid("Event", name, causes)
    created = Target(collection=target.collection, namespace=target.namespace, name=name)
    if store.find(created) is not None:
        message = f'{target.plural} "{name}" already exists'
        return status_reply(409, "AlreadyExists", message, details={"name": name, "kind": target.plural})
    metadata["name"] = name
    if target.namespace:
        metadata["namespace"] = target.namespace
    metadata["uid"] = str(uuid.uuid4())
    metadata["creationTimestamp"] = datetime.now(tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    typed = fields_of({"kind": target.kind, "apiVersion": target.api_version, **document, "metadata": metadata})
    return Reply(status=201, body=encoded(store.put(typed)))


def _replace(store: ApiStore, target: Target, found: ApiObject, document: ApiObject) -> Reply:
    known, sent = (fields_of(version.get("metadata")) for version in (found, document))
    if sent.get("resourceVersion") not in (None, "", known["resourceVersion"]):
        message = (
            f'Operation cannot be fulfilled on {target.plural} "{target.name}": the object has been modified; please '
            "apply your changes to the latest version and try again"
        )
        return status_reply(409, "Conflict", message, details={"name": target.name, "kind": target.plural})
    kept = {key: known[key] for key in ("uid", "creationTimestamp", "namespace", "name") if key in known}
    typed = {"kind": target.kind, "apiVersion": target.api_version, **fields_of(document), "metadata": sent | kept}
    return Reply(status=200, body=encoded(store.put(typed)))


def _delete(store: ApiStore, target: Target) -> Reply:
    found = store.find(target)
    if found is None:
        return not_found(target.plural, target.name)
    store.delete(target.kind, target.name, target.namespace)
    details = {"name": target.name, "kind": target.plural, "uid": fields_of(found.get("metadata")).get("uid")}
    document = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
    return Reply(status=200, body=encoded(document))


def _merged(target: object, patch: object) -> object:
    """RFC 7386."""
    if not isinstance(patch, Mapping):
        return patch
    merged = fields_of(target)
    for key, value in fields_of(patch).items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merged(merged.get(key), value)
    return merged


def _event_causes(document: ApiObject) -> list[tuple[str, str, str]]:
    """What is wrong with an Event: reason, message, field."""
    causes: list[tuple[str, str, str]] = []
    if not document.get("eventTime"):
        causes.append(("FieldValueRequired", "Required value", "eventTime"))
    if not document.get("reportingController"):
        field = "reportingController"
        causes += [
            ("FieldValueRequired", "Required value", field),
            ("FieldValueInvalid", 'Invalid value: "": name part must be non-empty', field),
            ("FieldValueInvalid", f'Invalid value: "": {_NAME_RULE}', field),
        ]
    for field in ("reportingInstance", "action", "reason"):
        value = str(document.get(field) or "")
        if not value:
            causes.append(("FieldValueRequired", "Required value", field))
        elif len(value) > 128:
            causes.append(("FieldValueInvalid", f'Invalid value: "{value}": can have at most 128 characters', field))
    if document.get("type") not in ("Normal", "Warning"):
        causes.append(("FieldValueInvalid", f'Invalid value: "{document.get("type")}": has invalid value', "type"))
    if len(str(document.get("note") or "").encode()) > _MAX_NOTE:
        causes.append(("FieldValueInvalid", "Invalid value: can have at most 1024 bytes", "note"))
    return causes
