"""
Text -> Rule and Ruleset: the only full reader of iptables syntax.

What comes in is text of `iptables-save` and for `iptables-restore` of any origin and version: long and short options in
any order, any quoting, masks in any form, matches that `-p` implies. What goes out are the values whose text
`render.py` writes as `iptables-save` 1.8.9 prints them. A match or target that has no class, or has options that its
class does not hold, keeps its text to the letter; so foreign rules come back unchanged.

How a rule is read stands in `rule_reader.py` and, for the usual spelling, in `saved_rule.py`; here are the lines
around the rules.
"""

import re
from collections.abc import Container

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.errors import RulesetError
from kproxy_ipt.ruleset.model import Chain, Counters, Rule, Ruleset, Table
from kproxy_ipt.ruleset.rule_reader import RuleReader
from kproxy_ipt.ruleset.saved_rule import read_saved_rule
from kproxy_ipt.ruleset.scan import unexpected

_COUNTED_RULE = re.compile(r"\[(\d+):(\d+)\]\s*(.*)", re.ASCII)
_CHAIN = re.compile(r":(\S+)\s+(\S+)(?:\s+\[(\d+):(\d+)\])?", re.ASCII)
_TABLE = re.compile(r"\*(\S+)")
_NEW_CHAIN = re.compile(r"(?:-N|--new-chain)\s+(\S+)")

_BUILT_IN = frozenset({"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"})


def parse_rule(line: str, chains: Container[str] = (), *, family: Family = Family.IPV4) -> tuple[str, Rule]:
    """
    Read one rule.

    Args:
        line: `-A CHAIN ...`, counters in front (`[1:2] -A ...`) or with `-c` are kept.
        chains: The chains of the table: a name after `-j` that is one of them is a Jump even if an extension has it.
        family: For what is left out in the text: the default of REJECT, the mask of recent.

    Returns:
        The name of the chain, and the rule.

    Raises:
        RulesetError: The text is no rule; it is told what was expected.
    """
    if not line.startswith("["):
        return _read_rule(line, chains, family)
    counted = _COUNTED_RULE.fullmatch(line)
    if not counted:
        raise RulesetError(f"found {line!r}, expected `[PACKETS:BYTES] -A CHAIN ...`")
    chain, rule = _read_rule(counted[3], chains, family)
    return chain, msgspec.structs.replace(rule, counters=Counters(int(counted[1]), int(counted[2])))


def _read_rule(line: str, chains: Container[str], family: Family) -> tuple[str, Rule]:
    saved = read_saved_rule(line, chains, family)
    if saved is not None:
        return saved
    reader = RuleReader(line, chains, family)
    reader.read()
    chain = reader.header.get("A", "")
    if not chain or "A" in reader.negated:
        raise reader.fail("`-A CHAIN`")
    return chain, reader.rule()


class _TableReader:
    """The lines of one table, in any number of sections; rules are parsed once all chains are known."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.chains: dict[str, tuple[str, Counters | None]] = {}
        self.rules: list[tuple[int, str]] = []

    def problem(self, number: int, line: str) -> str:
        """Take in *line*; what was expected in its place if it does not fit, "" otherwise."""
        if line.startswith(("-A ", "--append ", "[")):
            self.rules.append((number, line))
        elif line.startswith(":"):
            found = _CHAIN.fullmatch(line)
            if not found:
                return "a chain: `:NAME POLICY [PACKETS:BYTES]`"
            counters = Counters(int(found[3]), int(found[4])) if found[3] else None
            self.chains[found[1]] = (found[2], counters)
        elif created := _NEW_CHAIN.fullmatch(line):
            self.chains.setdefault(created[1], ("-", None))
        else:
            return "a rule (`-A CHAIN ...`), a chain (`:NAME POLICY`) or `COMMIT`"
        return ""

    def table(self, family: Family) -> Table:
        """
        The table with all rules parsed.

        Raises:
            RulesetError: A line is no rule, or the table has no such chain.
        """
        rules: dict[str, list[Rule]] = {name: [] for name in self.chains}
        for number, line in self.rules:
            try:
                chain, rule = parse_rule(line, self.chains, family=family)
            except RulesetError as error:
                raise RulesetError(f"line {number}: {error}") from error
            if chain not in rules:
                if chain not in _BUILT_IN:
                    raise unexpected(number, line, f"a rule of a chain that is declared in table {self.name}")
                self.chains[chain], rules[chain] = ("ACCEPT", None), []
            rules[chain].append(rule)
        return Table(
            self.name,
            {
                name: Chain(name, tuple(rules[name]), policy, counters)
                for name, (policy, counters) in self.chains.items()
            },
        )


def parse_save(text: str, family: Family) -> Ruleset:
    """
    Read the output of `iptables-save`, or a file for `iptables-restore`, completely.

    Comment lines are dropped, counters kept. Several sections of one table are read as one. Rules of built-in chains
    are read even if the chain is not declared (its policy is then ACCEPT), as restore files for `--noflush` have them.

    Raises:
        RulesetError: Number and text of the first line that does not fit, and what was expected; a table that does not
            end with `COMMIT`.
    """
    if "\0" in text:
        raise RulesetError(f"line {text.count(chr(10), 0, text.index(chr(0))) + 1}: found NUL, expected printable text")
    tables: dict[str, _TableReader] = {}
    table: _TableReader | None = None
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.strip(" \t\r")
        if not line or line.startswith("#"):
            continue
        if table is None:
            opened = _TABLE.fullmatch(line)
            if not opened:
                raise unexpected(number, line, "a table (`*NAME`) or a comment")
            table = tables.setdefault(opened[1], _TableReader(opened[1]))
        elif line == "COMMIT":
            table = None
        elif problem := table.problem(number, line):
            raise unexpected(number, line, problem)
    if table is not None:
        raise RulesetError(f"the text ends inside of table {table.name}, expected `COMMIT`")
    return Ruleset(family, {name: reader.table(family) for name, reader in tables.items()})
