"""
What the checks say about one object, and the checks that all kinds share.

A clean object costs next to nothing: texts are made only when there is something to say. What one object can say is
bounded, so that a slice with a thousand bad addresses does not flood a log.
"""

import json
import re

from kproxy_ipt.addresses import canonical_address
from kproxy_ipt.errors import Finding, Severity
from kproxy_ipt.objects.model import ObjectMeta

MAX_FINDINGS = 20
"""Findings of one severity that one object may have; a last one counts the others."""
MAX_PORT = 65535
PROTOCOLS = frozenset({None, "", "TCP", "UDP", "SCTP"})

_MAX_PRINTED = 80
_LABEL = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_SUBDOMAIN = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*", re.ASCII)
_MAX_SUBDOMAIN = 253
_PADDED = re.compile(r"(?:^|:)0\d+\.|\.0\d|/0\d", re.ASCII)


def printable(value: object) -> str:
    """*value* as one short printable line: JSON for scalars, `a list` or `a mapping` for what contains others."""
    if isinstance(value, list | tuple):
        return "a list" if value else "an empty list"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, str):
        text = json.dumps(value[:_MAX_PRINTED], ensure_ascii=False)
    else:
        text = json.dumps(value) if isinstance(value, bool | int | float | None) else "something else"
    if not text.isprintable():
        text = text.encode("unicode_escape").decode("ascii")
    return text if len(text) <= _MAX_PRINTED else f"{text[:_MAX_PRINTED]}…"


def printable_word(text: str) -> str:
    """*text* without quotes if it is short and printable, else as `printable` has it: for keys and other words."""
    return text if 0 < len(text) <= _MAX_PRINTED and text.isprintable() else printable(text)


def object_text(kind: str, namespace: object, name: object) -> str:
    """`Service shop/web`; odd names are printed so that they stay on one line."""
    parts = [part if part.isprintable() else printable(part) for part in (namespace, name) if isinstance(part, str)]
    if not isinstance(name, str) or not name:
        parts = [*parts, "(no name)"]
    return f"{kind} {'/'.join(part[:_MAX_SUBDOMAIN] for part in parts if part)}"


def is_label(text: str) -> bool:
    """Whether *text* is a DNS label as Kubernetes wants it: lower case letters, digits, inner hyphens, 1 to 63."""
    return _LABEL.fullmatch(text) is not None


def is_subdomain(text: str) -> bool:
    """Whether *text* is a DNS subdomain name of 1 to 253 characters in lower case."""
    return len(text) <= _MAX_SUBDOMAIN and _SUBDOMAIN.fullmatch(text) is not None


class Report:
    """The findings of one object, in the order of checking."""

    __slots__ = ("_counts", "_findings", "_kind", "_metadata")

    def __init__(self, kind: str, metadata: ObjectMeta) -> None:
        self._kind = kind
        self._metadata = metadata
        self._findings: list[Finding] = []
        self._counts: dict[Severity, int] = {}

    def reject(self, field: str, found: object, expected: str) -> None:
        """Note what sets the object aside; *found* is a value of the object, or None for nothing."""
        text = "nothing" if found is None else printable(found)
        self._add(field, text, expected, f"this {self._kind} is set aside", Severity.REJECTED)

    def warn(self, field: str, found: object, expected: str, consequence: str) -> None:
        """Note what is odd, and what happens; the object is kept."""
        text = "nothing" if found is None else printable(found)
        self._add(field, text, expected, consequence, Severity.WARNING)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings; where there were too many, one more that counts the rest."""
        if not self._findings:
            return ()
        more = tuple(
            Finding(
                object=self._object,
                field="",
                found=f"{count - MAX_FINDINGS} more oddities",
                expected="none",
                consequence="they are not listed",
                severity=severity,
            )
            for severity, count in self._counts.items()
            if count > MAX_FINDINGS
        )
        return (*self._findings, *more)

    @property
    def _object(self) -> str:
        return object_text(self._kind, self._metadata.namespace, self._metadata.name)

    def _add(self, field: str, found: str, expected: str, consequence: str, severity: Severity) -> None:
        count = self._counts[severity] = self._counts.get(severity, 0) + 1
        if count <= MAX_FINDINGS:
            self._findings.append(
                Finding(
                    object=self._object,
                    field=field,
                    found=found,
                    expected=expected,
                    consequence=consequence,
                    severity=severity,
                )
            )


def check_namespace(report: Report, metadata: ObjectMeta) -> None:
    """The namespace: a DNS label."""
    if not is_label(metadata.namespace or ""):
        report.reject("metadata.namespace", metadata.namespace, "a DNS label of at most 63 characters")


def check_label_name(report: Report, metadata: ObjectMeta) -> None:
    """The name of a Service: a DNS label."""
    if not is_label(metadata.name):
        report.reject("metadata.name", metadata.name or None, "a DNS label of at most 63 characters")


def check_subdomain_name(report: Report, metadata: ObjectMeta) -> None:
    """The name of most other kinds: a DNS subdomain."""
    if not is_subdomain(metadata.name):
        report.reject("metadata.name", metadata.name or None, "a DNS subdomain name of at most 253 characters")


def check_protocol(report: Report, field: str, protocol: str | None) -> None:
    """A protocol: absent means TCP."""
    if protocol not in PROTOCOLS:
        report.reject(field, protocol, "TCP, UDP or SCTP")


def check_padding(report: Report, field: str, text: str, canonical: str) -> None:
    """Zero-padded parts are read as decimal by us and by Kubernetes, as octal by some others."""
    if canonical != text and _PADDED.search(text):
        report.warn(field, text, "an address without leading zeros", f"it is read as {canonical}")


def check_address(report: Report, field: str, text: str, consequence: str) -> str | None:
    """Warn with *consequence* unless *text* is an address; blank texts are passed over. Returns the canonical text."""
    canonical = canonical_address(text)
    if canonical is not None:
        check_padding(report, field, text, canonical)
    elif text.strip():
        report.warn(field, text, "an IP address", consequence)
    return canonical
