"""
Checking and updating golden cases: what `kproxy-ipt golden` and the pytest plugin do.

A check builds the rules that the objects of a case ask for. Where the text differs from the expected rules, it tells
whether any packet would notice (`kproxy_ipt.trace.equivalence`); flows are walked through the rules that were built.
Cases do not know each other, so that many of them are checked by several processes. Small collections are not: a case
takes some milliseconds, a process a good part of a second.
"""

import difflib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.errors import Finding, RulesetError
from kproxy_ipt.ruleset.canonical import canonical_ruleset
from kproxy_ipt.ruleset.model import Ruleset
from kproxy_ipt.ruleset.parse import parse_save
from kproxy_ipt.testing.flow_table import CaseError, ExpectedFlow
from kproxy_ipt.testing.flows import Fate, expected_text, problems_of
from kproxy_ipt.testing.golden_case import FLOWS_FILE, RULE_FILES, GoldenCase, load_case
from kproxy_ipt.testing.scene import Scene

if TYPE_CHECKING:
    from kproxy_ipt.testing.behaviour import Behaviour

CASES_WORTH_A_PROCESS = 200
"""With fewer cases for each, starting processes costs more than it saves."""

T = TypeVar("T")


class Change(StrEnum):
    """How far built rules are from expected ones."""

    NONE = "none"
    TEXT = "text"
    BEHAVIOUR = "behaviour"


class FamilyResult(msgspec.Struct, frozen=True, kw_only=True):
    """
    Built against expected rules of one family.

    Attributes:
        file: Name of the file with the expected rules.
        change: `text` means that every packet is treated alike.
        diff: Lines of a unified diff from expected to built rules, without line breaks.
        packets: Packets that are treated differently, described; some of them, if there are many.
        cannot_compare: Why *change* had to be taken for a change of behaviour, "" where it is known.
    """

    family: Family
    file: str
    change: Change = Change.NONE
    diff: tuple[str, ...] = ()
    packets: tuple[str, ...] = ()
    cannot_compare: str = ""


class FlowResult(msgspec.Struct, frozen=True, kw_only=True):
    """
    One expected flow: *problems* is empty if all is as expected, *path* tells the rules that its packets met.

    *skipped* says why a flow was not tried, where packets are sent.
    """

    name: str
    expected: str
    found: str
    problems: tuple[str, ...] = ()
    path: tuple[str, ...] = ()
    skipped: str = ""


class CaseResult(msgspec.Struct, frozen=True, kw_only=True):
    """
    One case.

    Attributes:
        folder: Where it is.
        title: One line, "" if it could not be read.
        families: Of the rule files that exist.
        flows: Of the table, in order.
        findings: What is odd about the objects; nothing fails by it.
        errors: Why the case cannot be checked at all.
    """

    folder: Path
    title: str = ""
    families: tuple[FamilyResult, ...] = ()
    flows: tuple[FlowResult, ...] = ()
    findings: tuple[Finding, ...] = ()
    errors: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """That of the folder."""
        return self.folder.name

    def failed(self, *, semantic: bool = False) -> bool:
        """Whether anything differs; with *semantic* only behaviour counts. Errors are another matter."""
        changes = {result.change for result in self.families}
        text_counts = not semantic and Change.TEXT in changes
        return text_counts or Change.BEHAVIOUR in changes or any(flow.problems for flow in self.flows)


class CaseUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """What an update did to a case: names of files written, those that were right already, or errors."""

    folder: Path
    written: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    errors: tuple[str, ...] = ()


def check_cases(folders: Sequence[Path], *, jobs: int = 0) -> tuple[CaseResult, ...]:
    """
    Check cases, in the order given.

    Args:
        folders: One each, as `find_cases` finds them.
        jobs: Number of processes; 0: as many as pay.
    """
    return _each(check_case, folders, jobs)


def update_cases(
    folders: Sequence[Path], *, jobs: int = 0, create: bool = False, dry_run: bool = False
) -> tuple[CaseUpdate, ...]:
    """Write the rules that the objects ask for into the cases, in the order given; see `update_case`."""
    return _each(partial(update_case, create=create, dry_run=dry_run), folders, jobs)


def _each(work: Callable[[Path], T], folders: Sequence[Path], jobs: int) -> tuple[T, ...]:
    jobs = jobs or min(os.cpu_count() or 1, len(folders) // CASES_WORTH_A_PROCESS)
    if jobs <= 1:
        return tuple(map(work, folders))
    with ProcessPoolExecutor(max_workers=jobs) as pool:
        return tuple(pool.map(work, folders, chunksize=max(1, len(folders) // (4 * jobs))))


def check_case(folder: Path) -> CaseResult:
    """Check the case in *folder*; what is wrong with the case itself stands in `errors`."""
    try:
        case = load_case(folder)
        if not case.expected and case.flows is None:
            names = " nor ".join((*RULE_FILES.values(), FLOWS_FILE))
            raise CaseError((f"{folder}: nothing is expected: neither {names} is there; update writes rules",))
        rulesets = {family: case.ruleset(family) for family in Family}
        return CaseResult(
            folder=folder,
            title=case.title,
            families=tuple(check_family(case, family, rulesets[family]) for family in case.expected),
            flows=check_flows(case, case.scene(rulesets)),
            findings=case.findings,
        )
    except CaseError as error:
        return CaseResult(folder=folder, errors=error.problems)


def check_family(case: GoldenCase, family: Family, built: Ruleset) -> FamilyResult:
    """Compare *built* rules with those that the case expects for *family*, which it must."""
    expected, text, name = case.expected[family], canonical_ruleset(built), RULE_FILES[family]
    if expected == text:
        return FamilyResult(family=family, file=name)
    old, new = (f"{case.name}/{name} ({word})" for word in ("expected", "built"))
    diff = difflib.unified_diff(expected.splitlines(), text.splitlines(), old, new, lineterm="")
    behaviour = _behaviour(case, family, built)
    is_text = not behaviour.packets and not behaviour.unknown
    return FamilyResult(
        family=family,
        file=name,
        change=Change.TEXT if is_text else Change.BEHAVIOUR,
        diff=tuple(diff),
        packets=behaviour.packets,
        cannot_compare=behaviour.unknown,
    )


def _behaviour(case: GoldenCase, family: Family, built: Ruleset) -> "Behaviour":
    from kproxy_ipt.testing.behaviour import Behaviour, behaviour_changes  # most checks do without

    try:
        return behaviour_changes(parse_save(case.expected[family], family), built, case.scene({family: built}).host)
    except RulesetError as error:
        return Behaviour(unknown=f"the expected rules cannot be read: {error}")


def check_flows(case: GoldenCase, scene: Scene) -> tuple[FlowResult, ...]:
    """
    Walk every flow of the case's table.

    Raises:
        CaseError: A source has no address of the family of a destination.
    """
    return tuple(check_flow(flow, scene) for flow in (case.flows.flows if case.flows else ()))


def check_flow(expected: ExpectedFlow, scene: Scene) -> FlowResult:
    """
    Walk one flow.

    Raises:
        CaseError: Its source has no address of the family of its destination.
    """
    try:
        fate = scene.fate(expected.flow)
    except CaseError as error:
        origin = f"flows[{expected.index}]"
        raise CaseError(tuple(f"{FLOWS_FILE}: {origin}: {problem}" for problem in error.problems)) from error
    problems = problems_of(expected.expectation, fate)
    return FlowResult(
        name=expected.name,
        expected=expected_text(expected.expectation),
        found=str(fate),
        problems=problems,
        path=tuple(path_lines(fate)) if problems else (),
    )


def path_lines(fate: Fate) -> Iterator[str]:
    """The rules that the packets of a flow met, a line each, every one once."""
    steps = (step for outcome in fate.outcomes for step in outcome.path)
    lines = dict.fromkeys(f"{step.hook} {step.table}: {step.line}" for step in steps)
    assumptions = dict.fromkeys(text for outcome in fate.outcomes for text in outcome.assumptions)
    yield from (*lines, *(f"assumed: {text}" for text in assumptions))


def update_case(folder: Path, *, create: bool = False, dry_run: bool = False) -> CaseUpdate:
    """
    Write the rules that the objects of a case ask for.

    Files that are there are brought up to date. Where there is none, both are made, unless the case has flows: a case
    of flows alone stays one. With *create* files that are missing are made in any case; with *dry_run* nothing is
    written.
    """
    try:
        case = load_case(folder)
    except CaseError as error:
        return CaseUpdate(folder=folder, errors=error.problems)
    is_new = not case.expected and case.flows is None
    families: Iterable[Family] = Family if create or is_new else case.expected
    built = {family: canonical_ruleset(case.ruleset(family)) for family in families}
    stale = {family: text for family, text in built.items() if case.expected.get(family) != text}
    try:
        for family, text in () if dry_run else stale.items():
            (folder / RULE_FILES[family]).write_text(text, encoding="utf-8")
    except OSError as error:
        return CaseUpdate(folder=folder, errors=(f"{error.filename}: {error.strerror}",))
    return CaseUpdate(
        folder=folder,
        written=tuple(RULE_FILES[family] for family in stale),
        unchanged=tuple(RULE_FILES[family] for family in built if family not in stale),
        findings=case.findings,
    )
