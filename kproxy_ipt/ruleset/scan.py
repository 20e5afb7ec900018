"""
Save text -> lines of each chain: the fast, shallow reader for comparing texts.

It knows the line structure of `iptables-save` alone. What a rule means is read by `parse_rule`, only where it is
needed: 115,000 lines take some 60 ms here and a second there.

A broken listing must never be mistaken for an empty one: a table without its `COMMIT`, a rule of a chain that was not
declared, or any line of another kind is an error.
"""

import re
from collections.abc import Mapping

import msgspec

from kproxy_ipt.errors import RulesetError


class SavedChain(msgspec.Struct, frozen=True, gc=False):
    """
    One chain as it was printed.

    Attributes:
        name: The chain.
        policy: `ACCEPT` or `DROP` for a built-in chain, `-` for all others.
        lines: Its `-A ...` lines in order, without counters.
    """

    name: str
    policy: str
    lines: tuple[str, ...]


class SavedTables(msgspec.Struct, frozen=True):
    """The tables of one save text by name, in the order of the text; of each the chains by name, also in order."""

    tables: Mapping[str, Mapping[str, SavedChain]]

    def chain(self, table: str, name: str) -> SavedChain | None:
        """The chain *name* of *table*, or None."""
        return self.tables.get(table, {}).get(name)


_NEEDED_TABLES = frozenset({"filter", "nat", "mangle"})

_INCOMPATIBLE = re.compile(r"# Table [`'](\w+)' is incompatible")
"""What `iptables-nft-save` prints instead of a table in which another program keeps rules that it cannot print."""

_RUN = re.compile(r"\n(-A ([^ \n]+)[^\n]*(?:\n-A \2 [^\n]*)*)")
"""Rules of one chain that follow each other: a save prints them together, so most lines cost no Python at all."""

_COUNTERS = re.compile(r"^[ \t]*\[\d+:\d+\][ \t]*(?=-A )", re.ASCII | re.MULTILINE)
_COUNTED = re.compile(r"\n[ \t]*\[")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')


def unexpected(number: int, line: str, expected: str) -> RulesetError:
    """The error for line *number* (from 1) of a text, which is not *expected*."""
    shown = line if len(line) <= 300 else f"{line[:300]}..."
    return RulesetError(f"line {number}: found {shown!r}, expected {expected}")


class _Scanner:
    """What was read so far: of each table the policies and the lines of its chains; and the table that is open."""

    def __init__(self) -> None:
        self.tables: dict[str, tuple[dict[str, str], dict[str, tuple[str, ...] | list[str]]]] = {}
        self.table = ""
        self.policies: dict[str, str] = {}
        self.lines: dict[str, tuple[str, ...] | list[str]] = {}

    def structure(self, text: str, start: int, end: int) -> None:
        """
        Take in the lines between two positions of *text*, none of which is a rule.

        Raises:
            RulesetError: A line is nothing that a save text may hold at this place.
        """
        for offset, line in enumerate(text[start:end].split("\n")):
            if line.startswith(":") and line.endswith(" - [0:0]") and self.table:
                self.policies[line[1:-8]] = "-"
            elif problem := self._problem(line.strip()):
                raise unexpected(_number(text, start) + offset, line, problem)

    def _problem(self, line: str) -> str:
        """Take in *line*; what was expected in its place if it does not fit, "" otherwise."""
        if not line or line.startswith("#"):
            found = _INCOMPATIBLE.match(line)
            return f"the chains of table {found[1]}" if found and found[1] in _NEEDED_TABLES else ""
        if line.startswith("*"):
            return self._open(line[1:])
        if not self.table:
            return "a table (`*NAME`) or a comment"
        if line.startswith(":"):
            return self._declare(line[1:].split())
        if line == "COMMIT":
            self.table, self.policies, self.lines = "", {}, {}
            return ""
        return "a rule (`-A CHAIN ...`), a chain (`:NAME POLICY`) or `COMMIT`"

    def _open(self, name: str) -> str:
        if self.table:
            return f"`COMMIT` of table {self.table} before the next table"
        if len(name.split()) != 1:
            return "the name of a table"
        self.table = name
        self.policies, self.lines = self.tables.setdefault(name, ({}, {}))
        return ""

    def _declare(self, words: list[str]) -> str:
        if len(words) not in (2, 3):
            return "a chain: `:NAME POLICY [PACKETS:BYTES]`"
        self.policies[words[0]] = words[1]
        return ""

    def rules(self, text: str, start: int, chain: str, lines: tuple[str, ...]) -> None:
        """
        Take in *lines* of *chain*, which stand at position *start* of *text*.

        Raises:
            RulesetError: Outside of a table, or the table does not declare the chain.
        """
        if chain not in self.policies:
            place = f"declared in table {self.table}" if self.table else "of an open table"
            raise unexpected(_number(text, start), lines[0], f"a rule of a chain {place}")
        before = self.lines.setdefault(chain, [])
        if isinstance(before, list):
            before.extend(lines)
        else:
            self.lines[chain] = [*before, *lines]

    def result(self) -> SavedTables:
        """
        Everything that was read, as values.

        Raises:
            RulesetError: The text ended inside of a table.
        """
        if self.table:
            raise RulesetError(f"the text ends inside of table {self.table}, expected `COMMIT`")
        return SavedTables(
            {
                table: {name: SavedChain(name, policy, tuple(lines.get(name, ()))) for name, policy in policies.items()}
                for table, (policies, lines) in self.tables.items()
            }
        )


def scan_save(text: str) -> SavedTables:
    """
    Split the output of `iptables-save` (or a golden file) into the lines of each chain.

    Counters and comments are dropped. Several sections of one table are read as one. An empty text has no tables: so
    says a kernel that has none. Lines end at line feeds alone, as other separators may stand inside comments.

    Raises:
        RulesetError: Number and text of the first line that does not fit; a table that does not end with `COMMIT`; a
            table that the program could not print.
    """
    if "\r" in text:
        text = text.replace("\r\n", "\n")
    if _COUNTED.search(text):
        text = _COUNTERS.sub("", text)
    scanner = _Scanner()
    policies, saved, end = scanner.policies, scanner.lines, 0
    for run in _RUN.finditer(text):
        start = run.start()
        if start != end:
            scanner.structure(text, end, start)
            policies, saved = scanner.policies, scanner.lines
        chain, lines = run[2], tuple(run[1].split("\n"))
        if chain in policies and chain not in saved:
            saved[chain] = lines
        else:
            scanner.rules(text, run.start(1), chain, lines)
        end = run.end()
    scanner.structure(text, end, len(text))
    return scanner.result()


def _number(text: str, position: int) -> int:
    """The number of the line (from 1) that begins at *position*."""
    return text.count("\n", 0, position) + 1


def _after(line: str, start: int) -> str:
    end = line.find(" ", start + 4)
    return line[start + 4 : end] if end >= 0 else line[start + 4 :]


def jumps_to(line: str) -> str | None:
    """
    The name after the last `-j` or `-g` of a saved line, or None for a rule without target.

    It can be that of a target extension (`DNAT`): whether it is a chain is for the caller to look up.
    """
    start = line.rfind(" -j ")
    if start < 0:
        start = line.rfind(" -g ")
    if start < 0:
        return None
    if line.find('"', start) < 0:
        return _after(line, start)
    return jumps_to(_QUOTED.sub("_", line)) if _QUOTED.search(line) else _after(line, start)
