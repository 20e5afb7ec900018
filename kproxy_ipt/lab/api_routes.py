"""
What the API of a lab answers to a request that is no watch. No sockets here.

Source: API concepts of Kubernetes; KEP-555 (server-side apply), of which ownership of fields is left out.
"""

from collections.abc import Mapping

import msgspec
import yaml

from kproxy_ipt.lab.cluster import Cluster, RefusedError
from kproxy_ipt.lab.documents import ApiObject, fields_of, name_of, number, part, text, uid_of
from kproxy_ipt.lab.json_patch import PatchError, json_patched
from kproxy_ipt.lab.merge import merged, strategically_merged
from kproxy_ipt.lab.protobuf import CONTENT_TYPE, ProtobufError, decode_protobuf
from kproxy_ipt.lab.resources import Route, discovery, route_of
from kproxy_ipt.lab.tables import table_of, wants_table
from kproxy_ipt.testing.api_replies import Reply, status_reply
from kproxy_ipt.testing.api_selectors import selection
from kproxy_ipt.testing.api_store import Target

_HEALTH = ("/healthz", "/livez", "/readyz")
_APPLY = "application/apply-patch"
# An empty document is one without schemas, and kubectl validates only what has one.
_OPENAPI = Reply(status=200, body=b"", content_type="application/com.github.proto-openapi.spec.v2.v1.0+protobuf")


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request: query decoded, the two headers that matter."""

    method: str
    path: str
    query: Mapping[str, str]
    accept: str = ""
    content_type: str = ""
    body: bytes = b""

    @property
    def is_dry_run(self) -> bool:
        """Whether nothing is to be stored."""
        return self.query.get("dryRun") == "All"

    @property
    def include(self) -> str:
        """What rows of a table hold beside their cells."""
        return self.query.get("includeObject", "")


def _decoded(request: Request) -> dict[str, object]:
    """
    The object in the body of a request.

    Raises:
        RefusedError: 400: it is none.
    """
    try:
        if request.content_type == CONTENT_TYPE:
            return decode_protobuf(request.body)
        return msgspec.json.decode(request.body, type=dict[str, object])
    except (msgspec.MsgspecError, ProtobufError) as error:
        raise RefusedError(status_reply(400, "BadRequest", f"the object provided is unrecognized: {error}")) from error


def answer(cluster: Cluster, request: Request) -> Reply:
    """Answer a request that is no watch."""
    if request.path in _HEALTH:
        return Reply(status=200, body=b"ok", content_type="text/plain")
    if request.path == "/openapi/v2":
        return _OPENAPI
    route = route_of(request.path)
    if route is None:
        document = discovery(request.path.rstrip("/"))
        return _not_here(request.path) if document is None else _json(document)
    try:
        return _answer_route(cluster, request, route)
    except RefusedError as refused:
        return refused.reply


def _answer_route(cluster: Cluster, request: Request, route: Route) -> Reply:
    target = route.target
    match request.method:
        case "GET" if target.name and route.subresource != "scale":
            return _shown(request, cluster.get(target))
        case "GET" if not target.name:
            return _listed(cluster, request, route)
        case "POST" if not target.name:
            return _shown(request, cluster.create(target, _decoded(request), dry_run=request.is_dry_run), status=201)
        case "DELETE":
            return _deleted(cluster, request, route)
    if route.subresource == "scale":
        return _scaled(cluster, request, target)
    match request.method:
        case "PUT" if target.name:
            return _updated(cluster, request, route, _decoded(request))
        case "PATCH" if target.name:
            return _patched(cluster, request, route)
    return status_reply(405, "MethodNotAllowed", f"{request.method} is not possible here: {request.path}")


def _listed(cluster: Cluster, request: Request, route: Route) -> Reply:
    target = route.target
    matches = selection(request.query.get("labelSelector", ""), request.query.get("fieldSelector", ""))
    if route.is_core_event:
        found: list[ApiObject] = [
            each for each in map(_core_event, cluster.objects("Event", target.namespace)) if matches(each)
        ]
    else:
        found = cluster.store.objects(target, matches)
    version = str(cluster.store.resource_version)
    if wants_table(request.accept):
        shown = cluster.store.objects(target, matches) if route.is_core_event else found
        return _json(table_of(target.kind, shown, version, request.include))
    api_version = "v1" if route.is_core_event else target.api_version
    entries = [{key: value for key, value in each.items() if key not in ("kind", "apiVersion")} for each in found]
    document = {"kind": f"{target.kind}List", "apiVersion": api_version, "metadata": {"resourceVersion": version}}
    return _json({**document, "items": entries})


def _core_event(event: ApiObject) -> dict[str, object]:
    """An Event of events.k8s.io in its older form."""
    when = text(event, "eventTime")
    reporter = text(event, "reportingController")
    return {
        "metadata": event["metadata"],
        "involvedObject": part(event, "regarding"),
        "reason": text(event, "reason"),
        "message": text(event, "note"),
        "type": text(event, "type"),
        "source": {"component": reporter},
        "firstTimestamp": when[:19] + "Z" if when else None,
        "lastTimestamp": (text(event, "series", "lastObservedTime") or when)[:19] + "Z" if when else None,
        "count": number(event, "series", "count", default=1),
        "eventTime": when or None,
        "reportingComponent": reporter,
        "reportingInstance": text(event, "reportingInstance"),
    }


def _deleted(cluster: Cluster, request: Request, route: Route) -> Reply:
    target = route.target
    options = _decoded(request) if request.body.strip() else {}
    sent = options.get("gracePeriodSeconds", request.query.get("gracePeriodSeconds"))
    grace_s = int(sent) if isinstance(sent, int | str) else None
    if not target.name:
        matches = selection(request.query.get("labelSelector", ""), request.query.get("fieldSelector", ""))
        for document in cluster.store.objects(target, matches):
            found = Target(
                collection=target.collection, namespace=text(document, "metadata", "namespace"), name=name_of(document)
            )
            cluster.delete(found, grace_s)
        return _json({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"})
    found_object = cluster.get(target) if request.is_dry_run else cluster.delete(target, grace_s)
    if target.kind == "Pod":
        return _json(found_object)
    details = {"name": target.name, "kind": target.plural, "uid": uid_of(found_object)}
    return _json({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})


def _updated(cluster: Cluster, request: Request, route: Route, document: ApiObject) -> Reply:
    is_status = route.subresource == "status"
    return _shown(request, cluster.update(route.target, document, dry_run=request.is_dry_run, status=is_status))


def _patched(cluster: Cluster, request: Request, route: Route) -> Reply:
    if request.content_type.startswith(_APPLY):
        return _applied(cluster, request, route)
    patched = _with_patch(cluster.get(route.target), request, route.target.kind)
    return _updated(cluster, request, route, patched)


def _with_patch(document: ApiObject, request: Request, kind: str) -> dict[str, object]:
    """
    The object after the patch of the request.

    Raises:
        RefusedError: 400, 415 or 422: it is no patch, of an unknown kind, or cannot be applied.
    """
    if request.content_type == "application/json-patch+json":
        try:
            operations = msgspec.json.decode(request.body, type=list[dict[str, object]])
            return fields_of(json_patched(document, operations))
        except msgspec.MsgspecError as error:
            raise RefusedError(status_reply(400, "BadRequest", f"no JSON patch: {error}")) from error
        except PatchError as error:
            reply = status_reply(422, "Invalid", f"the server rejected our request: {error}")
            raise RefusedError(reply) from error
    if request.content_type == "application/merge-patch+json":
        return fields_of(merged(document, _decoded(request)))
    if request.content_type == "application/strategic-merge-patch+json":
        return strategically_merged(document, _decoded(request), kind)
    message = f"the body of the request was in an unknown format: {request.content_type}"
    raise RefusedError(status_reply(415, "UnsupportedMediaType", message))


def _applied(cluster: Cluster, request: Request, route: Route) -> Reply:
    """Server-side apply: who owns which field is not kept, so that fields left out stay."""
    try:
        document = fields_of(yaml.safe_load(request.body))
    except yaml.YAMLError as error:
        raise RefusedError(status_reply(400, "BadRequest", f"error decoding YAML: {error}")) from error
    target = route.target
    if cluster.store.find(target) is None:
        return _shown(request, cluster.create(target, document, dry_run=request.is_dry_run), status=201)
    return _updated(cluster, request, route, strategically_merged(cluster.get(target), document, target.kind))


def _scaled(cluster: Cluster, request: Request, target: Target) -> Reply:
    document = cluster.get(target)
    scale = _scale_of(document)
    if request.method in ("PUT", "PATCH"):
        is_patch = request.method == "PATCH"
        wanted = _with_patch(scale, request, "Scale") if is_patch else _decoded(request)
        replicas = max(0, number(wanted, "spec", "replicas"))
        spec = part(document, "spec") | {"replicas": replicas}
        sent = {**document, "spec": spec}
        if version := text(wanted, "metadata", "resourceVersion"):
            sent["metadata"] = part(document, "metadata") | {"resourceVersion": version}
        scale = _scale_of(cluster.update(target, sent, dry_run=request.is_dry_run))
    return _json(scale)


def _scale_of(deployment: ApiObject) -> dict[str, object]:
    metadata = part(deployment, "metadata")
    kept = {key: metadata[key] for key in ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")}
    labels = part(deployment, "spec", "selector", "matchLabels")
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": kept,
        "spec": {"replicas": number(deployment, "spec", "replicas")},
        "status": {
            "replicas": number(deployment, "status", "replicas"),
            "selector": ",".join(f"{key}={value}" for key, value in labels.items()),
        },
    }


def _shown(request: Request, document: ApiObject, status: int = 200) -> Reply:
    if wants_table(request.accept):
        kind = text(document, "kind")
        return _json(table_of(kind, [document], text(document, "metadata", "resourceVersion"), request.include), status)
    return _json(document, status)


def _not_here(path: str) -> Reply:
    return status_reply(404, "NotFound", f"the server could not find the requested resource: {path}")


def _json(document: ApiObject, status: int = 200) -> Reply:
    return Reply(status=status, body=msgspec.json.encode(document))
