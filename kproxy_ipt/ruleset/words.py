"""
The words of a rule, as `iptables-restore` splits and unquotes them.

White space separates words; a double quote opens a stretch in which white space counts as text and a backslash takes
the next character as it is; the closing quote ends the word. Single quotes are ordinary characters.

Source: `add_param_to_argv` of iptables 1.8.9.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kproxy_ipt.errors import RulesetError

_WORD = re.compile(r'([^ \t"]*)"((?:[^"\\]|\\.)*)"|[^ \t"]+')
_ESCAPE = re.compile(r"\\(.)")


class Word(NamedTuple):
    """One word: its *text* without quotes, and where it stands in the line (*start* inclusive, *end* exclusive)."""

    text: str
    start: int
    end: int
    is_quoted: bool = False

    @property
    def is_option(self) -> bool:
        """Whether the word can begin an option: `-m`, `--dport`, but not `-`, `-5` and nothing quoted."""
        text = self.text
        return text.startswith("-") and len(text) > 1 and not self.is_quoted and not text[1].isdigit()

    @property
    def is_not(self) -> bool:
        """Whether the word is the `!` that negates an option."""
        return self.text == "!" and not self.is_quoted


def _unquoted(found: re.Match[str]) -> str:
    inner = found[2]
    return found[1] + (_ESCAPE.sub(r"\1", inner) if "\\" in inner else inner)


def split_words(line: str) -> list[Word]:
    """
    Split *line* into words.

    Raises:
        RulesetError: A quotation is not closed.
    """
    words = [
        Word(found[0], found.start(), found.end())
        if found[2] is None
        else Word(_unquoted(found), found.start(), found.end(), is_quoted=True)
        for found in _WORD.finditer(line)
    ]
    if line.count('"') % 2 and _WORD.sub("", line).strip():
        raise RulesetError(f'found {line!r}, expected a closing `"`')
    return words


class Option(NamedTuple):
    """What was said with one option: whether it was negated, and its word ("" for an option without)."""

    negated: bool = False
    argument: str = ""


Options = Mapping[str, Option]
"""The options of one match or target by their full names."""

Known = Mapping[str, tuple[str, bool]]
"""Spelling -> full name of the option, and whether a word follows it."""


def known_options(flags: str = "", *, words: str = "", aliases: Mapping[str, str] | None = None) -> Known:
    """
    The options of a match or target.

    Args:
        flags: Options that stand alone, separated by spaces.
        words: Options that a word follows, separated by spaces.
        aliases: Other spelling -> one of the above.
    """
    known = {name: (name, False) for name in flags.split()} | {name: (name, True) for name in words.split()}
    for spelling, name in (aliases or {}).items():
        known[spelling] = known[name]
    return known


def find_option(spelling: str, known: Known) -> tuple[str, bool] | None:
    """The option that *spelling* means: itself, or the only one that begins so, as getopt_long has it."""
    if spelling in known:
        return known[spelling]
    if not spelling.startswith("--") or len(spelling) < 4:
        return None
    found = {option for name, option in known.items() if name.startswith(spelling)}
    return found.pop() if len(found) == 1 else None


def read_options(words: Sequence[Word], known: Known) -> Options | None:
    """
    Group *words* into options; None as soon as one is not *known*, comes twice or lacks its word.

    Both `! --option word` and the old `--option ! word` negate.
    """
    options: dict[str, Option] = {}
    rest = iter(words)
    negated = False
    for word in rest:
        if word.is_not:
            negated = True
            continue
        found = find_option(word.text, known) if not word.is_quoted else None
        if found is None or found[0] in options:
            return None
        name, takes_word = found
        argument = next(rest, None) if takes_word else Word("", 0, 0)
        if argument is not None and argument.is_not:
            negated, argument = True, next(rest, None)
        if argument is None:
            return None
        options[name] = Option(negated, argument.text)
        negated = False
    return None if negated else options
