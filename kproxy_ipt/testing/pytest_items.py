"""Golden cases as pytest sees them: a file for each `case.yaml`, in it a test for each rule file and each flow."""

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.ruleset.model import Ruleset
from kproxy_ipt.testing.flow_table import CaseError, ExpectedFlow
from kproxy_ipt.testing.golden import Change, check_family, check_flow
from kproxy_ipt.testing.golden_case import RULE_FILES, GoldenCase, load_case
from kproxy_ipt.testing.junit import change_text
from kproxy_ipt.testing.scene import Scene


class GoldenFailure(Exception):  # noqa: N818 - shown to people as it is
    """A case is not as expected; the text is the whole report."""


class GoldenFile(pytest.File):
    """A case; it is read when it is collected, its rules are built when its first test runs."""

    @cached_property
    def case(self) -> GoldenCase:
        """
        The case, decoded.

        Raises:
            CollectError: It cannot be read.
        """
        try:
            return load_case(self.path.parent)
        except CaseError as error:
            raise self.CollectError(str(error)) from error

    @cached_property
    def rulesets(self) -> dict[Family, Ruleset]:
        """The rules of both families."""
        return {family: self.case.ruleset(family) for family in Family}

    @cached_property
    def scene(self) -> Scene:
        """The node with the rules in force."""
        return self.case.scene(self.rulesets)

    def collect(self) -> Iterable["RulesItem | FlowItem"]:
        """
        One test for each rule file and each flow.

        Raises:
            CollectError: The case cannot be read, or nothing is expected of it.
        """
        items = tuple(self._items())
        if not items:
            raise self.CollectError(f"{self.path.parent}: nothing is expected; `kproxy-ipt golden update` writes rules")
        return items

    def _items(self) -> Iterator["RulesItem | FlowItem"]:
        for family in self.case.expected:
            yield RulesItem.from_parent(self, name=RULE_FILES[family], family=family)
        for expected in self.case.flows.flows if self.case.flows else ():
            # Without brackets, which mean parameters in the names of tests.
            title = f" ({expected.title})" if expected.title else ""
            yield FlowItem.from_parent(self, name=f"flow {expected.index}: {expected.flow}{title}", expected=expected)


class _Item(pytest.Item):
    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Our reports as they are; a bug with its traceback."""
        if isinstance(excinfo.value, (GoldenFailure, CaseError)):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    @property
    def golden(self) -> GoldenFile:
        """The file that the test is of."""
        assert isinstance(self.parent, GoldenFile)
        return self.parent

    def reportinfo(self) -> tuple[str, None, str]:
        """File and heading of a report."""
        return str(self.path), None, f"{self.path.parent.name}: {self.name}"


class RulesItem(_Item):
    """The expected rules of one family."""

    def __init__(self, *, family: Family, **known: Any) -> None:
        super().__init__(**known)
        self._family = family

    def runtest(self) -> None:
        """
        Build and compare.

        Raises:
            GoldenFailure: They differ; with `--golden-semantic`: a packet notices.
        """
        result = check_family(self.golden.case, self._family, self.golden.rulesets[self._family])
        text_may_differ = bool(self.config.getoption("kproxy_golden_semantic"))
        if result.change is Change.NONE or (text_may_differ and result.change is Change.TEXT):
            return
        raise GoldenFailure("\n".join((change_text(result), *result.packets, *result.diff)))


class FlowItem(_Item):
    """One expected flow."""

    def __init__(self, *, expected: ExpectedFlow, **known: Any) -> None:
        super().__init__(**known)
        self._expected = expected

    def runtest(self) -> None:
        """
        Walk the flow.

        Raises:
            GoldenFailure: Not what is expected becomes of it.
            CaseError: Its source has no address of the right family.
        """
        result = check_flow(self._expected, self.golden.scene)
        if result.problems:
            rules = ("rules that were met:", *(f"  {line}" for line in result.path))
            raise GoldenFailure(
                "\n".join((*result.problems, f"expected: {result.expected}", f"found:    {result.found}", *rules))
            )
