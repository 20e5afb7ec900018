"""
One line of a rule -> its value: the walk over the words, for `parse.py`.

Base options (`-s`, `-j` ...) fill the header; every other option goes to a match or target, which keeps its words until
all are sorted. Then those that have a class are read by `match_readers.py` and `target_readers.py`, and the others keep
their text to the letter.

Decided against: a grammar. The syntax has none: what a word means depends on the extension that takes it, and the
number of words that an unknown extension takes is only told by the next option.
"""

import re
from collections.abc import Container
from functools import lru_cache

from kproxy_ipt.addresses import Family
from kproxy_ipt.errors import RulesetError
from kproxy_ipt.ruleset.match_readers import IMPLIED_MATCHES, KNOWN_MATCHES, PORT_OPTIONS
from kproxy_ipt.ruleset.matches import Match, OpaqueMatch
from kproxy_ipt.ruleset.model import Counters, Rule
from kproxy_ipt.ruleset.prefixes import interface_name, printed_prefix, protocol_name
from kproxy_ipt.ruleset.target_readers import KNOWN_TARGETS, TARGET_EXTENSIONS, VERDICTS
from kproxy_ipt.ruleset.targets import Jump, OpaqueTarget, Target, Verdict
from kproxy_ipt.ruleset.words import Word, find_option, read_options, split_words

BASE_OPTIONS = {
    spelling: letter
    for letter, spellings in {
        "A": "-A --append",
        "s": "-s --source --src",
        "d": "-d --destination --dst",
        "i": "-i --in-interface",
        "o": "-o --out-interface",
        "p": "-p --protocol --proto",
        "f": "-f --fragments --fragment",
        "m": "-m --match",
        "j": "-j --jump",
        "g": "-g --goto",
        "c": "-c --set-counters",
    }.items()
    for spelling in spellings.split()
}
"""Spelling -> letter of the options that belong to no match or target."""

_TAKES_WORD = frozenset(
    [
        "--comment",
        "--log-prefix",
        "--nflog-prefix",
        "--ulog-prefix",
        "--string",
        "--hex-string",
        "--name",
        "--helper",
        "--path",
        "--nfacct-name",
        "--hashlimit-name",
        "--set-name",
        "--label",
    ]
)
"""Options whose word is free text: it may begin with a dash."""

_PLAIN_WORD = re.compile(r'[^\s"\\\0]+')


class _Segment:
    """One match or target of a rule while its words are collected, by their places among the words of the rule."""

    def __init__(self, name: str, name_index: int, *, kind: str) -> None:
        self.name = name
        self.name_index = name_index
        self.kind = kind
        self.indices: list[int] = []

    def knows(self, option: str) -> bool:
        """Whether the class of this match or target holds *option*."""
        found = KNOWN_MATCHES.get(self.name) if self.kind == "m" else KNOWN_TARGETS.get(self.name)
        return found is not None and find_option(option, found[0]) is not None

    @property
    def is_known(self) -> bool:
        """Whether the match or target has a class of its own."""
        return self.name in KNOWN_MATCHES if self.kind == "m" else self.name in KNOWN_TARGETS

    @property
    def takes_ports(self) -> bool:
        """Whether the match has port options of its own."""
        return self.kind == "m" and any(self.name == name for name, _ in IMPLIED_MATCHES.values())


@lru_cache(maxsize=32768)
def read_match(name: str, arguments: str, family: Family) -> Match:
    """The value of `-m NAME ARGUMENTS`, opaque where no class holds it."""
    known = KNOWN_MATCHES.get(name)
    options = read_options(split_words(arguments), known[0]) if known else None
    match = known[1](options, family) if known and options is not None else None
    return OpaqueMatch(name, arguments) if match is None else match


@lru_cache(maxsize=32768)
def extension_target(name: str, arguments: str, family: Family) -> Target:
    """The value of `-j NAME ARGUMENTS` for the target extension *name*, opaque where no class holds it."""
    known = KNOWN_TARGETS.get(name)
    options = read_options(split_words(arguments), known[0]) if known else None
    target = known[1](options, family) if known and options is not None else None
    return OpaqueTarget(name, arguments) if target is None else target


class RuleReader:
    """Walks over the words of one rule; `chain` and `rule()` are what it found."""

    def __init__(self, line: str, chains: Container[str], family: Family) -> None:
        self.line = line
        self.words = split_words(line)
        self.chains = chains
        self.family = family
        self.chain = ""
        self.header: dict[str, str] = {}
        self.negated: set[str] = set()
        self.counters: Counters | None = None
        self.segments: list[_Segment] = []

    def fail(self, expected: str) -> RulesetError:
        """The error for this rule."""
        return RulesetError(f"found {self.line!r}, expected {expected}")

    def read(self) -> None:
        """
        Sort all words into header, matches and target.

        Raises:
            RulesetError: A word does not fit.
        """
        index, count, words = 0, len(self.words), self.words
        while index < count:
            start = index
            if words[index].is_not:
                index += 1
            if index == count or not words[index].is_option:
                raise self.fail(f"an option in the place of {words[start].text!r}")
            letter = self._base_letter(words[index].text)
            if letter is None:
                index = self._extension_option(start, index)
            else:
                index = self._base_option(letter, index, negated=index != start)

    def _base_letter(self, option: str) -> str | None:
        """Which base option *option* is; `--proto` after `-m policy` is that match's own."""
        if option == "--proto" and self.segments and self.segments[-1].name == "policy":
            return None
        return BASE_OPTIONS.get(option)

    def _word(self, index: int) -> Word:
        if index >= len(self.words):
            raise self.fail(f"a word after {self.words[-1].text!r}")
        return self.words[index]

    def _base_option(self, letter: str, index: int, *, negated: bool) -> int:
        """Take in the option at *index*; the index of the next one."""
        if letter == "f":
            self._set("f", "-f", negated=negated)
            return index + 1
        if self._word(index + 1).is_not and letter in "sdiop":
            negated, index = True, index + 1
        word = self._word(index + 1)
        if not _PLAIN_WORD.fullmatch(word.text):  # printed without quotes, it would read as something else
            raise self.fail(f"a word without blanks and quotes after {self.words[index].text!r}")
        if letter in "mjg":
            self._add_segment(letter, word.text, index + 1, negated=negated)
        elif letter == "c":
            self.counters = self._read_counters(word.text, self._word(index + 2).text)
            return index + 3
        else:
            self._set(letter, word.text, negated=negated)
        return index + 2

    def _set(self, letter: str, text: str, *, negated: bool) -> None:
        if letter in self.header:
            raise self.fail(f"one -{letter}")
        self.header[letter] = text
        if negated:
            self.negated.add(letter)

    def _read_counters(self, packets: str, octets: str) -> Counters:
        if not (packets + octets).isdigit():
            raise self.fail("two numbers after -c")
        return Counters(int(packets), int(octets))

    def _add_segment(self, letter: str, name: str, index: int, *, negated: bool) -> None:
        is_second_target = letter != "m" and any(segment.kind != "m" for segment in self.segments)
        if negated or is_second_target:
            raise self.fail("`-m`, `-j` and `-g` without `!`" if negated else "one target")
        self.segments.append(_Segment(name, index, kind=letter))

    def _extension_option(self, start: int, index: int) -> int:
        """Give the option at *index* (its `!` at *start*) with its words to a match or target; the next index."""
        words, count = self.words, len(self.words)
        end = index + 1
        if words[index].text in _TAKES_WORD and end < count and not words[end].is_not:
            end += 1
        elif end + 1 < count and words[end].is_not and not words[end + 1].is_option:
            end += 2
        while end < count and not words[end].is_option and not words[end].is_not:
            end += 1
        self._owner(words[index].text).indices.extend(range(start, end))
        return end

    def _owner(self, option: str) -> _Segment:
        """The match or target that takes *option*: the last one, else one that knows it, or an implied one."""
        last = self.segments[-1] if self.segments else None
        implied = IMPLIED_MATCHES.get(protocol_name(self.header.get("p", "")))
        is_implied = implied is not None and option in implied[1] and not (last and last.takes_ports)
        if last and (last.knows(option) or not (last.is_known or is_implied or option in PORT_OPTIONS)):
            return last
        for segment in reversed(self.segments):
            if segment.knows(option) or (implied and is_implied and segment.name == implied[0]):
                return segment
        if implied and is_implied:
            segment = _Segment(implied[0], -1, kind="m")
            self.segments.append(segment)
            return segment
        if last is None:
            raise self.fail(f"a match or target before its option {option!r}")
        return last

    def _arguments(self, segment: _Segment) -> str:
        """The text of the words of *segment*, to the letter where they follow each other."""
        parts: list[str] = []
        previous = segment.name_index
        start = self.words[previous].end + 1 if previous >= 0 else -1
        for index in segment.indices:
            if index != previous + 1 or start < 0:
                if start >= 0:
                    parts.append(self.line[start : self._stop(previous)])
                start = self.words[index].start
            previous = index
        parts.append(self.line[start : self._stop(previous)])
        return " ".join(part for part in parts if part)

    def _stop(self, index: int) -> int:
        """Where the text of the word at *index* ends: before the single space in front of the next one."""
        if index + 1 < len(self.words):
            return self.words[index + 1].start - 1
        return self.words[index].end

    def _target(self, segment: _Segment) -> Target:
        name, arguments = segment.name, self._arguments(segment)
        is_jump = segment.kind == "g" or (name in self.chains and name not in VERDICTS)
        if arguments and is_jump:
            raise self.fail(f"no options of the chain {name}")
        if is_jump:
            return Jump(name, goto=segment.kind == "g")
        if name in VERDICTS and not arguments:
            return Verdict(name)
        if arguments or name in TARGET_EXTENSIONS:
            return extension_target(name, arguments, self.family)
        return Jump(name)

    def rule(self) -> Rule:
        """The rule that was read."""
        header, negated = self.header, self.negated
        matches: list[Match] = []
        target: Target | None = None
        for segment in self.segments:
            if segment.kind == "m":
                matches.append(read_match(segment.name, self._arguments(segment), self.family))
            else:
                target = self._target(segment)
        return Rule(
            source=printed_prefix(header["s"], negated="s" in negated) if "s" in header else "",
            destination=printed_prefix(header["d"], negated="d" in negated) if "d" in header else "",
            in_interface=interface_name(header.get("i", "")),
            out_interface=interface_name(header.get("o", "")),
            protocol=protocol_name(header.get("p", "")),
            fragment=("! -f" if "f" in negated else "-f") if "f" in header else "",
            source_negated="s" in negated,
            destination_negated="d" in negated,
            in_interface_negated="i" in negated,
            out_interface_negated="o" in negated,
            protocol_negated="p" in negated,
            matches=tuple(matches),
            target=target,
            counters=self.counters,
        )
