"""What the lint modules say things with: a finding in one call."""

from kproxy_ipt.errors import Finding, Severity
from kproxy_ipt.objects.model import EndpointSlice, Service
from kproxy_ipt.objects.report import object_text


def finding(
    about: Service | EndpointSlice,
    field: str,
    found: str,
    expected: str,
    consequence: str,
    severity: Severity = Severity.WARNING,
) -> Finding:
    """A finding about one object; see `Finding` for what each text says."""
    kind = "Service" if isinstance(about, Service) else "EndpointSlice"
    return Finding(
        object=object_text(kind, about.metadata.namespace, about.metadata.name),
        field=field,
        found=_line(found),
        expected=_line(expected),
        consequence=_line(consequence),
        severity=severity,
    )


def _line(text: str) -> str:
    """Names of objects that no API server checked may hold anything."""
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def note(about: Service | EndpointSlice, field: str, found: str, expected: str, consequence: str) -> Finding:
    """A finding that costs nothing, but is good to know."""
    return finding(about, field, found, expected, consequence, Severity.NOTE)
