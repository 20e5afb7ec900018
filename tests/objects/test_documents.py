"""Cutting a text into documents."""

import pytest

from kproxy_ipt.objects.documents import MAX_DOCUMENTS, Document, split_documents
from kproxy_ipt.objects.yaml_text import TextError


def test_documents_know_their_first_line() -> None:
    """Line numbers of messages count from the start of the file."""
    assert split_documents(b"# x\n---\na: 1\n\n--- # y\nb: 2\n--- c\n") == (
        Document(b"a: 1\n\n", 3),
        Document(b"b: 2\n", 6),
        Document(b"--- c\n", 7),
    )


@pytest.mark.parametrize("text", [b"a: ---\n", b"a:\n ---\n", b"a:\n----\n", b"a:\n---b\n", b"'\n --- '"])
def test_dashes_elsewhere_do_not_separate(text: bytes) -> None:
    """Only a line that starts with three dashes and goes on with white space separates."""
    assert [document.text for document in split_documents(text)] == [text]


def test_carriage_returns_are_white_space() -> None:
    """Files of other systems are cut in the same places."""
    assert [document.text for document in split_documents(b"a\r\n---\r\nb\r\n")] == [b"a\r\n", b"b\r\n"]


@pytest.mark.parametrize("blank", [b"", b"\n" * 1_000_000, b"# c\n" * 100_000, b"%YAML 1.1\n", b"...\n", b" \t\r\n#"])
def test_blank_documents_are_left_out(blank: bytes) -> None:
    """Comments, directives and white space are no document."""
    assert split_documents(blank + b"\n---\n" + blank) == ()


def test_too_many_documents_are_an_error() -> None:
    """The number of documents is bounded."""
    with pytest.raises(TextError, match="more than 100000 documents"):
        split_documents(b"---\n" * (MAX_DOCUMENTS + 1))
