"""Two sets of objects become the events that lead from one to the other."""

from collections.abc import Iterator, Mapping, Sequence

from kproxy_ipt.errors import Finding
from kproxy_ipt.objects.events import ApiObject, Contact, Event, Gone, Kind, Listed, Put
from kproxy_ipt.objects.model import Objects
from kproxy_ipt.objects.report import object_text

_KINDS_OF_WORDS = {**{kind.api_name: kind for kind in Kind}, "Endpoints": Kind.ENDPOINT_SLICES}


def listed(objects: Objects) -> tuple[Listed, ...]:
    """Everything, kind by kind; findings that belong to no kind are with the Services."""
    return tuple(
        Listed(
            kind,
            values,
            tuple(finding for finding in objects.findings if _kind_of(finding) is kind),
        )
        for kind, values in _by_kind(objects)
    )


def changes(before: Objects, after: Objects) -> tuple[Event, ...]:
    """
    What to say so that who knows *before* knows *after*.

    Returns:
        `Gone` and `Put` for each object that is not equal, with all that *after* finds odd about it; then, if there
        are findings that are new and belong to none of these, a `Contact` with them. Empty if nothing differs.
    """
    by_object: dict[str, list[Finding]] = {}
    for finding in after.findings:
        by_object.setdefault(finding.object, []).append(finding)
    told: set[str] = set()
    events: list[Event] = []
    for (kind, old), (_, new) in zip(_by_kind(before), _by_kind(after), strict=True):
        events += _changes_of_kind(kind, old, new, by_object, told)
    known = frozenset(before.findings)
    left = tuple(finding for finding in after.findings if finding.object not in told and finding not in known)
    return (*events, Contact(Kind.SERVICES, left)) if left else tuple(events)


def _changes_of_kind(
    kind: Kind,
    before: Sequence[ApiObject],
    after: Sequence[ApiObject],
    findings: Mapping[str, Sequence[Finding]],
    told: set[str],
) -> Iterator[Event]:
    old = {(value.metadata.namespace or "", value.metadata.name): value for value in before}
    new = {(value.metadata.namespace or "", value.metadata.name): value for value in after}
    for namespace, name in sorted(old.keys() - new.keys()):
        text = object_text(kind.api_name, namespace, name)
        told.add(text)
        yield Gone(kind, namespace, name, tuple(findings.get(text, ())))
    for key, value in new.items():
        known = old.get(key)
        if known is not value and known != value:
            text = object_text(kind.api_name, *key)
            told.add(text)
            yield Put(kind, value, tuple(findings.get(text, ())))


def _by_kind(objects: Objects) -> tuple[tuple[Kind, tuple[ApiObject, ...]], ...]:
    return (
        (Kind.SERVICES, objects.services),
        (Kind.ENDPOINT_SLICES, objects.endpoint_slices),
        (Kind.NODES, objects.nodes),
    )


def _kind_of(finding: Finding) -> Kind:
    return _KINDS_OF_WORDS.get(finding.object.partition(" ")[0], Kind.SERVICES)
