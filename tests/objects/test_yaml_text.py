"""YAML becomes JSON within limits."""

import json
import re
from typing import Any

import pytest

from kproxy_ipt.objects.yaml_text import MAX_DEPTH, TextError, json_of_yaml, plain_scalar


def _values(text: str) -> list[Any]:
    """The documents of a YAML text as plain values."""
    return [json.loads(document) for document in json_of_yaml(text.encode())]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("~", None),
        ("null", None),
        ("yes", True),
        ("Off", False),
        ("y", True),
        ("yEs", "yEs"),
        ("80", 80),
        ("-80", -80),
        ("+80", 80),
        ("0", 0),
        ("0100", 64),
        ("0o100", 64),
        ("0x10", 16),
        ("0b11", 3),
        ("08", 8),
        ("1_000", 1000),
        ("80.0", 80),
        ("80.5", 80.5),
        ("1e3", 1000),
        ("1e999", "1e999"),
        (".5", 0.5),
        (".inf", ".inf"),
        (".nan", ".nan"),
        ("1:30", "1:30"),
        ("2026-11-30", "2026-11-30"),
        ("2026-11-30T06:39:59Z", "2026-11-30T06:39:59Z"),
        ("10.96.0.10", "10.96.0.10"),
        ("fd00::1", "fd00::1"),
        ("-", "-"),
        ("9" * 30, 1e30),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_plain_scalar_means_what_it_means_to_kubectl(text: str, value: object) -> None:
    """Unquoted text is read as YAML 1.1 by go-yaml does it."""
    found = plain_scalar(text)

    assert (type(found), found) == (type(value), value)


def test_tags_of_json_types_are_read() -> None:
    """Where the text fits to them; dates are text."""
    text = "[!!int 5, !!float 1.5, !!bool true, !!null ~, !!str 5, !!timestamp 2001-01-01]"

    assert _values(text) == [[5, 1.5, True, None, "5", "2001-01-01"]]


def test_large_text_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading YAML takes long: dumps of whole clusters come as JSON."""
    monkeypatch.setattr("kproxy_ipt.objects.yaml_text.MAX_BYTES", 10)

    with pytest.raises(TextError, match="11 bytes of YAML"):
        _values("a: 12345678")


def test_quoted_scalars_and_block_scalars_are_text() -> None:
    """Quotes keep numbers and booleans from being read as such."""
    assert _values("""{a: "80", b: 'yes', c: !!str 80, d: ! 80}""") == [{"a": "80", "b": "yes", "c": "80", "d": "80"}]
    assert _values("a: |\n  80\n") == [{"a": "80\n"}]


def test_keys_become_text() -> None:
    """JSON has text keys only."""
    assert _values("{80: a, true: b, 1.5: c}") == [{"80": "a", "true": "b", "1.5": "c"}]


def test_aliases_repeat_their_value() -> None:
    """An alias stands for all of its value."""
    assert _values("a: &x [1, {b: &y 2}]\nc: *x\nd: *y") == [{"a": [1, {"b": 2}], "c": [1, {"b": 2}], "d": 2}]


def test_merge_key_fills_in_what_is_missing() -> None:
    """Own keys win over merged ones, earlier sources over later ones."""
    text = "x: &x {a: 1, b: 1}\ny: &y {b: 2, c: 2}\nz: {b: 0, <<: [*x, *y]}\nw: {<<: *y}\nv: {<<: {a: 3}}"

    (value,) = _values(text)

    assert value["z"] == {"b": 0, "a": 1, "c": 2}
    assert value["w"] == {"b": 2, "c": 2}
    assert value["v"] == {"a": 3}


def test_quoted_merge_key_is_a_key() -> None:
    """Only the plain `<<` merges; as a value it is text."""
    assert _values("""{"<<": 1, a: <<}""") == [{"<<": 1, "a": "<<"}]


def test_anchors_end_with_their_document() -> None:
    """A later document cannot use the anchors of an earlier one."""
    with pytest.raises(TextError, match=r"alias \*x"):
        _values("a: &x 1\n---\nb: *x\n")


def test_nesting_up_to_the_limit_is_read() -> None:
    """Depth is bounded, but far beyond what Kubernetes objects need."""
    assert len(_values("[" * MAX_DEPTH + "]" * MAX_DEPTH)) == 1
    with pytest.raises(TextError, match="nesting deeper than 64"):
        _values("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1))


def _alias_bomb() -> str:
    """A short text whose aliases stand for 10^12 values."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("&a [*a]", "refers to itself"),
        ("a: &a {b: *a}", "refers to itself"),
        ("a: &a {<<: *a}", "refers to itself"),
        ("a: *nothing", "or to nothing"),
        (_alias_bomb(), "values, aliases expanded"),
        ("a: &a " + "x" * 1_000_000 + "\nb: [" + "*a, " * 300 + "]", "values, aliases expanded"),
        ("[" * 5_000_000, "nesting"),
        ("- " * 1_000_000, "nesting deeper"),
        ("a: 1\nb: 2\na: 3", "'a' twice in line 3"),
        ("{<<: 1}", "merge key"),
        ("[a]: b", "key that is no text"),
        ("? {a: b}", "key that is no text"),
        ("null: b", "key that is no text"),
        ("a: \x00", "control characters"),
        ("a:\n\tb: 1", "line 2"),
        ("a: !!python/object:os.system x", "python/object"),
        ("a: !!binary aGk=", "binary"),
        ("a: !!int x", "tag"),
        ("a: !!set {x}", "set"),
        ("a: 'x", "line 1"),
        ("a: [", "line 2"),
    ],
)
def test_text_beyond_the_limits_is_an_error_with_a_reason(text: str, reason: str) -> None:
    """What could hurt, and what means nothing, is refused before a value is made of it."""
    with pytest.raises(TextError, match=re.escape(reason)):
        _values(text)


def test_bytes_that_are_not_utf8_are_an_error_with_line() -> None:
    """The line number counts from the first line of the file."""
    with pytest.raises(TextError, match="line 11"):
        list(json_of_yaml(b"a: 1\nb: \xff", first_line=10))


def test_documents_before_an_error_are_kept() -> None:
    """What was complete before the error was already handed out."""
    documents = json_of_yaml(b"a: 1\n---\nb: [")

    assert next(documents) == b'{"a":1}'
    with pytest.raises(TextError):
        next(documents)
