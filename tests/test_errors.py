"""The tree of errors and the texts that people read."""

import re

import kproxy_ipt.errors as module
from kproxy_ipt.errors import ConfigError, Finding, KproxyError, RestoreError, Severity

FINDING = Finding(
    object="Service shop/web",
    field="spec.ports[0].port",
    found="0",
    expected="1 to 65535",
    consequence="the Service is set aside",
    severity=Severity.REJECTED,
)


def _errors() -> dict[str, type[BaseException]]:
    found = {name: value for name, value in vars(module).items() if isinstance(value, type)}
    return {name: value for name, value in found.items() if issubclass(value, BaseException)}


def test_every_error_is_a_kproxy_error() -> None:
    """One `except KproxyError` catches everything that is raised on purpose."""
    assert [name for name, error in _errors().items() if not issubclass(error, KproxyError)] == []


def test_tree_in_the_docstring_names_every_error() -> None:
    """The drawing at the top of the module is complete and names nothing else."""
    drawn = set(re.findall(r"(?:^|[ ─])(\w+Error)\b", (module.__doc__ or "").split("`Finding`")[0]))

    assert set(_errors()) == drawn


def test_finding_reads_as_one_line_with_place_and_consequence() -> None:
    """Object, field, what was found, what was expected and what happens now, in this order."""
    expected = "Service shop/web: spec.ports[0].port: found 0, expected 1 to 65535; the Service is set aside"

    assert expected == str(FINDING)


def test_finding_about_a_whole_object_has_no_field() -> None:
    """Without a field only the object is the place."""
    finding = Finding(object="a.yaml", field="", found="x", expected="y", consequence="z", severity=Severity.WARNING)

    assert str(finding) == "a.yaml: found x, expected y; z"


def test_config_error_names_every_problem() -> None:
    """All problems stand in one message."""
    assert str(ConfigError(("a: bad", "b: worse"))) == "a: bad; b: worse"


def test_restore_error_tells_line_rule_and_owner() -> None:
    """What is known of the refused line is in the message."""
    error = RestoreError("no such target", line=7, rule="-A X -j Y", chain="X", owner="shop/web:http", committed=2)

    assert str(error) == "line 7: no such target (rule: -A X -j Y) of service port shop/web:http"
    assert (error.line, error.chain, error.committed) == (7, "X", 2)


def test_restore_error_without_a_place_is_the_message_alone() -> None:
    """Nothing is made up where the program did not tell a line."""
    assert str(RestoreError("resource busy")) == "resource busy"
