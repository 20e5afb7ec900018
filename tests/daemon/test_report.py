"""Reports: the first error, and the sums that commands print."""

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.report import FamilyReport, RunReport
from kproxy_ipt.errors import Finding, LockTimeoutError, RestoreError, Severity
from kproxy_ipt_cli._reports import report_document, report_notes

_V4 = FamilyReport(
    transactions=2, bytes=10, services=5, endpoints=7, seconds={"plan": 0.25, "total": 0.5}, notes=("x",)
)
_V6 = FamilyReport(transactions=1, bytes=3, services=9, endpoints=1, seconds={"plan": 0.5, "total": 1.0})


def _report(ipv4: FamilyReport = _V4, ipv6: FamilyReport = _V6) -> RunReport:
    return RunReport(
        backend="nft", reason="why", families={Family.IPV4: ipv4, Family.IPV6: ipv6}, seconds={"total": 2.0}
    )


def test_numbers_add_up_over_families() -> None:
    """Sums everywhere but for Services, of which a dual-stack one would count twice."""
    document = report_document(_report())

    assert (document["transactions"], document["bytes"], document["endpoints"]) == (3, 13, 8)
    assert document["services"] == 9


def test_seconds_add_up_by_phase() -> None:
    """Phases of families are added, those of the run stay, and what never ran is 0."""
    seconds = report_document(_report())["seconds"]

    assert seconds == {"total": 2.0, "list": 0.0, "build": 0.0, "plan": 0.75, "restore": 0.0, "conntrack": 0.0}


def test_first_error_counts() -> None:
    """The error of a run is that of the first family that has one."""
    lock, refusal = LockTimeoutError("held"), RestoreError("refused")

    assert _report().error is None
    assert _report(ipv6=FamilyReport(error=lock)).error is lock
    assert _report(FamilyReport(error=refusal), FamilyReport(error=lock)).error is refusal


def test_error_is_an_object_with_its_place() -> None:
    """A refused rule has line, rule, chain and owner; what is unknown is left out."""
    error = RestoreError("no", line=4, rule="-A X -j Y", chain="X", owner="shop/web:http")
    families = report_document(_report(FamilyReport(error=error)))["families"]

    assert isinstance(families, dict)
    described = families["ipv4"]["error"]
    assert described["kind"] == "RestoreError"
    assert (described["line"], described["chain"], described["owner"]) == (4, "X", "shop/web:http")
    assert families["ipv6"]["error"] is None


def test_findings_are_sorted_by_what_they_cost() -> None:
    """Rejections and warnings are two lists."""
    values = {"field": "f", "found": "a", "expected": "b", "consequence": "c"}
    findings = [Finding(object=f"Service {one}", severity=one, **values) for one in Severity]
    document = report_document(RunReport(backend="", reason="", findings=tuple(findings)))

    named = {word: [found["object"] for found in _list(document[word])] for word in ("rejected", "warnings")}
    assert named == {"rejected": ["Service rejected"], "warnings": ["Service warning"]}


def _list(value: object) -> list[dict[str, str]]:
    return msgspec.convert(value, list[dict[str, str]])


def test_notes_name_families_that_are_left_out() -> None:
    """Lines of the run, of families that cannot be served, and of single families."""
    report = RunReport(
        backend="", reason="", notes=("a",), families={Family.IPV4: _V4}, unavailable={Family.IPV6: "no nat"}
    )

    assert report_notes(report) == ("a", "IPv6 is left out: no nat", "x")
