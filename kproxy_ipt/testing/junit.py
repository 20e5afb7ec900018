"""
JUnit XML of checked cases, as CI systems read it.

A case is a `testsuite`; each rule file and each flow is a `testcase` of it. Differences are failures, cases that cannot
be checked are errors, flows that were not sent are skipped.
"""

import re
from collections.abc import Iterable, Sequence
from xml.etree import ElementTree as ET

import msgspec

from kproxy_ipt.testing.golden import CaseResult, Change, FamilyResult, FlowResult

_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class _Entry(msgspec.Struct, frozen=True):
    """A `testcase`: *kind* is "" if it passed, else `failure`, `error` or `skipped`."""

    name: str
    kind: str = ""
    message: str = ""
    text: str = ""


def junit_xml(results: Sequence[CaseResult], *, command: str = "golden", semantic: bool = False) -> str:
    """
    The report of *results*.

    Args:
        results: In the order of the report.
        command: What checked them; names the report, and the classes in it.
        semantic: Whether only changes of behaviour are failures.
    """
    suites = [(result.name, tuple(_entries(result, semantic=semantic))) for result in results]
    root = ET.Element(
        "testsuites", {"name": f"kproxy-ipt {command}", **_counts([one for _, some in suites for one in some])}
    )
    for name, entries in suites:
        suite = ET.SubElement(root, "testsuite", {"name": name, **_counts(entries)})
        for entry in entries:
            _add(suite, f"{command}.{name}", entry)
    ET.indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _counts(entries: Sequence[_Entry]) -> dict[str, str]:
    kinds = [entry.kind for entry in entries]
    found = {"failures": kinds.count("failure"), "errors": kinds.count("error"), "skipped": kinds.count("skipped")}
    return {"tests": f"{len(kinds)}", **{name: f"{count}" for name, count in found.items()}}


def _add(suite: ET.Element, class_name: str, entry: _Entry) -> None:
    element = ET.SubElement(suite, "testcase", {"classname": class_name, "name": _clean(entry.name)})
    if entry.kind:
        ET.SubElement(element, entry.kind, {"message": _clean(entry.message)}).text = _clean(entry.text)


def _clean(text: str) -> str:
    """Without characters that no XML may hold, however they are written."""
    return _NOT_IN_XML.sub("?", text)


def _entries(result: CaseResult, *, semantic: bool) -> Iterable[_Entry]:
    if result.errors:
        yield _Entry("case", "error", result.errors[0], "\n".join(result.errors))
    yield from (_rules_entry(family, semantic=semantic) for family in result.families)
    yield from (_flow_entry(flow) for flow in result.flows)


def _rules_entry(result: FamilyResult, *, semantic: bool) -> _Entry:
    if result.change is Change.NONE or (semantic and result.change is Change.TEXT):
        return _Entry(result.file)
    text = "\n".join((*result.packets, result.cannot_compare, *result.diff))
    return _Entry(result.file, "failure", change_text(result), text)


def _flow_entry(result: FlowResult) -> _Entry:
    if result.skipped:
        return _Entry(result.name, "skipped", result.skipped)
    if not result.problems:
        return _Entry(result.name)
    text = "\n".join((f"expected: {result.expected}", f"found: {result.found}", *result.path))
    return _Entry(result.name, "failure", "; ".join(result.problems), text)


def change_text(result: FamilyResult) -> str:
    """How much the difference of a rule file means, as a sentence."""
    if result.cannot_compare and not result.packets:
        return f"the rules differ, and whether behaviour changed cannot be told: {result.cannot_compare}"
    words = {
        Change.NONE: "as expected",
        Change.TEXT: "only the text differs: every packet is treated alike",
        Change.BEHAVIOUR: "behaviour changed: some packets are treated differently",
    }
    return words[result.change]
