"""
Answers of the test API server before they go on the wire.

Source: answers recorded from a kube-apiserver v1.36.2.
"""

from collections.abc import Mapping, Sequence

import msgspec


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """An answer before it goes on the wire; *retry_after* is the header, "" for none."""

    status: int
    body: bytes
    content_type: str = "application/json"
    retry_after: str = ""


def status_reply(
    status: int,
    reason: str,
    message: str,
    *,
    details: Mapping[str, object] | None = None,
    retry_after_s: int | None = None,
) -> Reply:
    """A v1 Status as the body of a refusal."""
    all_details = dict(details or {}) | ({} if retry_after_s is None else {"retryAfterSeconds": retry_after_s})
    retry_after = "" if retry_after_s is None else str(retry_after_s)
    document = status_document(status, reason, message, details=all_details)
    return Reply(status=status, body=msgspec.json.encode(document), retry_after=retry_after)


def status_document(
    code: int, reason: str, message: str, *, details: Mapping[str, object] | None = None
) -> dict[str, object]:
    """A v1 Status that says no."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        **({"details": dict(details)} if details else {}),
        "code": code,
    }


def not_found(plural: str, name: str) -> Reply:
    """404 for one object."""
    return status_reply(404, "NotFound", f'{plural} "{name}" not found', details={"name": name, "kind": plural})


def invalid(kind: str, name: str, causes: Sequence[tuple[str, str, str]]) -> Reply:
    """422 for an object with the *causes* (reason, message, field), in the words of the real server."""
    told = [f"{field}: {message}" for _, message, field in causes]
    text = told[0] if len(told) == 1 else f"[{', '.join(told)}]"
    details = {
        "name": name,
        "kind": kind,
        "causes": [{"reason": reason, "message": message, "field": field} for reason, message, field in causes],
    }
    return status_reply(422, "Invalid", f'{kind} "{name}" is invalid: {text}', details=details)
