"""Texts become plain values by the rules of Go's YAML and JSON readers, and no text exhausts the process."""

import json

import pytest

from kproxy_ipt.config.document_text import MAX_BYTES, plain_document, plain_integer
from kproxy_ipt.errors import ConfigError

SCALARS = {
    "~": None,
    "": None,
    "null": None,
    "yes": True,
    "Off": False,
    "1:30": "1:30",
    "2001-01-01": "2001-01-01",
    "0x1f": 31,
    "017": 15,
    "0o17": 15,
    "08": 8,
    "0b101": 5,
    "1_000": 1000,
    "+5": 5,
    "1e3": 1000,
    "2.5": 2.5,
    "1.2.3.4": "1.2.3.4",
    "'5'": "5",
    "!!str 5": "5",
    "! 5": "5",
    "!!int '5'": 5,
    '"::"': "::",
}

BOMBS = {
    "nested flow lists": b"a: " + b"[" * 900_000,
    "nested block lists": b"a:\n" + b"- " * 450_000,
    "nested JSON": b'{"a":' * 150_000,
    "nested JSON lists": b'{"a":' + b"[" * 900_000,
    "many values": b"a: [" + b"1," * 400_000 + b"1]",
    "merges": b"m: &m {" + b",".join(b"k%d: 1" % n for n in range(20_000)) + b"}\n<<: [" + b"*m," * 20_000 + b"*m]",
    "too large": b"#" * (MAX_BYTES + 1),
}

BAD_TEXTS = {
    b"\xff\xfe": "not UTF-8",
    b"a: [": "bad YAML: line",
    b"a: \x00": "bad YAML",
    b"a: *b": 'unknown alias "b"',
    b"a: &b [*b]": 'unknown alias "b"',
    b"a: !!binary aGk=": "is not supported",
    b"a: !foo [1]": "is not supported",
    b"[1]: 2": "the name of a field must be a word",
    b"<<: 5": "merge key",
    b"{a: 1}": "bad JSON",
    b'{"a": ["\\ud800"]}': "half of a surrogate pair",
    b'{"\\uDFFF": 1}': "half of a surrogate pair",
    b'{"a": NaN}': "bad JSON",
    b'{"a": 1} x': "bad JSON",
    b'{"a": ' + b"9" * 5000 + b"}": "bad JSON",
}


@pytest.mark.parametrize(("text", "value"), SCALARS.items())
def test_scalar_has_the_type_that_go_gives_it(text: str, value: object) -> None:
    """Words, numbers, quotes and tags mean what they mean to kube-proxy."""
    actual = plain_document(f"a: {text}".encode()).value

    assert actual == {"a": value}
    assert isinstance(actual, dict)
    assert type(actual["a"]) is type(value)


@pytest.mark.parametrize("name", BOMBS)
def test_bomb_is_refused(name: str) -> None:
    """Depth, size and number of values are bounded."""
    with pytest.raises(ConfigError):
        plain_document(BOMBS[name])


@pytest.mark.parametrize(("text", "problem"), BAD_TEXTS.items())
def test_bad_text_is_refused_with_the_reason(text: bytes, problem: str) -> None:
    """What is neither YAML nor JSON is one problem that says why."""
    with pytest.raises(ConfigError) as caught:
        plain_document(text)

    assert problem in caught.value.problems[0]


def test_exponential_alias_costs_nothing() -> None:
    """An alias stands for the same value, never for a copy."""
    lines = ["a0: &a0 [1, 1]"] + [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 200)]

    value = plain_document("\n".join(lines).encode()).value

    assert isinstance(value, dict)
    assert len(value) == 200


def test_merge_key_fills_in_what_is_missing() -> None:
    """Fields of the mapping itself win over merged ones."""
    value = plain_document(b"base: &b {x: 1, y: 2}\nuse:\n  <<: *b\n  y: 3\n").value

    assert value == {"base": {"x": 1, "y": 2}, "use": {"x": 1, "y": 3}}


def test_alias_may_name_a_field() -> None:
    """It stands for the word behind its anchor."""
    assert plain_document(b"a: &word b\n*word : 1\n").value == {"a": "b", "b": 1}


def test_broken_text_behind_the_first_document_is_not_read() -> None:
    """It may be anything; that there is more is noted."""
    document = plain_document(b"a: 1\n---\nb: [\n")

    assert (document.value, document.notes) == ({"a": 1}, ("only the first YAML document is read",))


def test_only_the_first_document_counts() -> None:
    """Later documents are not even parsed, but noted."""
    document = plain_document(b"---\na: 1\n---\nb: [\n")

    assert document.value == {"a": 1}
    assert document.notes == ("only the first YAML document is read",)


@pytest.mark.parametrize("text", [b"a: 1\nb: 2\na: 3\n", b'{"a": 1, "b": 2, "a": 3}'])
def test_last_duplicate_wins_and_is_noted(text: bytes) -> None:
    """YAML and JSON alike."""
    document = plain_document(text)

    assert document.value == {"a": 3, "b": 2}
    assert len(document.notes) == 1
    assert 'duplicate field "a"' in document.notes[0]


def test_json_is_read_with_all_its_escapes() -> None:
    """Text that begins with a brace is JSON, with a byte order mark or without."""
    value = {"a": "\u00e4\U0001f600/", "b": [None, 1.5]}

    assert plain_document(b"\xef\xbb\xbf" + json.dumps(value).replace("/", "\\/").encode()).value == value


def test_integer_too_long_for_python_is_no_integer() -> None:
    """Numbers of thousands of digits are not even tried."""
    assert plain_integer("9" * 5000) is None
