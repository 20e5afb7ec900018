"""Run reports as plain documents: the shape of `--output json|yaml`, described in `docs/output.md`."""

from collections.abc import Iterable, Mapping

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.report import FamilyReport, RunReport
from kproxy_ipt.errors import Finding
from kproxy_ipt_cli._failures import describe
from kproxy_ipt_cli._output import Plain, plain, rejected, warnings

_SUMS = (
    "transactions",
    "bytes",
    "chains_written",
    "chains_deleted",
    "rules_written",
    "rules_deleted",
    "chains",
    "rules",
    "endpoints",
    "flows_listed",
    "flows_deleted",
)


def findings_document(findings: Iterable[Finding]) -> dict[str, Plain]:
    """`rejected` and `warnings`, each a list of findings."""
    known = tuple(findings)
    return {"rejected": plain(rejected(known)), "warnings": plain(warnings(known))}


def unavailable_notes(unavailable: Mapping[Family, str]) -> tuple[str, ...]:
    """A line for each family that cannot be served."""
    return tuple(f"{family.api_name} is left out: {reason}" for family, reason in unavailable.items())


def report_notes(report: RunReport) -> tuple[str, ...]:
    """All lines for people, those of single families last."""
    of_families = (note for family in report.families.values() for note in family.notes)
    return (*report.notes, *unavailable_notes(report.unavailable), *of_families)


def report_document(report: RunReport, config_notes: Iterable[str] = ()) -> dict[str, Plain]:
    """
    A report with sums over families at the top and each family below.

    `services` is the larger of the families' numbers, since a dual-stack Service counts in both; `seconds` adds each
    phase up.
    """
    families = report.families.values()
    seconds = dict(report.seconds)
    for phase in ("list", "build", "plan", "restore", "conntrack"):
        seconds[phase] = sum(family.seconds.get(phase, 0.0) for family in families)
    return {
        "node": report.node,
        "backend": str(report.backend),
        "reason": report.reason,
        "dry_run": report.dry_run,
        **{name: sum(int(getattr(family, name)) for family in families) for name in _SUMS},
        "services": max((family.services for family in families), default=0),
        **findings_document(report.findings),
        "notes": [*dict.fromkeys((*config_notes, *report.notes))],
        "unavailable": plain(report.unavailable),
        "seconds": _rounded(seconds),
        "families": {str(family): _family_document(one) for family, one in report.families.items()},
    }


def _family_document(report: FamilyReport) -> dict[str, Plain]:
    return {
        **{name: int(getattr(report, name)) for name in (*_SUMS, "services", "service_ports")},
        "seconds": _rounded(report.seconds),
        "notes": list(report.notes),
        "set_aside": [{"service": one.service, "reason": one.reason, "rules": one.rules} for one in report.set_aside],
        "error": describe(report.error) if report.error else None,
    }


def _rounded(seconds: object) -> Plain:
    assert isinstance(seconds, dict)
    return {phase: round(value, 4) for phase, value in seconds.items()}
