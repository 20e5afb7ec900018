"""
A text is cut into documents at its lines `---`, before anybody parses it.

So one broken document costs no other one: a YAML parser cannot go on after an error. No document can hold such a line
itself: JSON has no line breaks inside texts, YAML forbids it in all of its forms.
"""

import re
from itertools import pairwise

import msgspec

from kproxy_ipt.objects.yaml_text import TextError

MAX_DOCUMENTS = 100_000

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_SEPARATOR = re.compile(rb"\n---(?=[ \t\r\n]|\Z)")
_MARKER_LINE = re.compile(rb"---(?:[ \t]+#[^\n]*|[ \t]*)\r?(?:\n|\Z)")
_BLANK = re.compile(rb"(?:[ \t\r\n]++|[#%][^\n]*+|\.\.\.(?=[ \t\r\n]|\Z))*+")
_JSON_START = re.compile(rb"[ \t\r\n]*[{\[]")


class Document(msgspec.Struct, frozen=True):
    """The text of one document, without its line `---`, and the 1-based number of its first line."""

    text: bytes
    first_line: int

    @property
    def looks_like_json(self) -> bool:
        """Whether it starts with a brace or bracket, as YAML seldom does."""
        return _JSON_START.match(self.text) is not None


def split_documents(text: bytes) -> tuple[Document, ...]:
    """
    Cut *text* into its documents, without those that hold nothing but white space, comments and directives.

    Raises:
        TextError: Another encoding than UTF-8 by its byte order mark, or too many documents.
    """
    if text.startswith(_UTF16_MARKS):
        raise TextError("text in UTF-16", "text in UTF-8")
    text = text.removeprefix(_BYTE_ORDER_MARK)
    if text.count(b"\n---") >= MAX_DOCUMENTS:
        raise TextError(f"more than {MAX_DOCUMENTS} documents", "a List")
    starts = [0, *(match.start() + 1 for match in _SEPARATOR.finditer(text)), len(text)]
    documents: list[Document] = []
    line = 1
    for start, end in pairwise(starts):
        document = _without_marker(text[start:end], line)
        if not _BLANK.fullmatch(document.text):
            documents.append(document)
        line += text.count(b"\n", start, end)
    return tuple(documents)


def _without_marker(text: bytes, line: int) -> Document:
    """The text after a marker line; a marker with content on its line is left to the parser."""
    marker = _MARKER_LINE.match(text)
    return Document(text[marker.end() :], line + 1) if marker else Document(text, line)
