"""
One line of a rule -> its value, the short way: for lines spelled exactly as `iptables-save` prints them.

One regular expression takes the whole line apart; what repeats between rules (matches, prefixes) is read once. A line
that is spelled in any other way is None here, and read by `rule_reader.py`; both give the same values, which a property
test holds them to. This is two to three times as fast, and nearly all rules that are ever parsed come from a save.
"""

import re
from collections.abc import Container

from kproxy_ipt.addresses import Family
from kproxy_ipt.ruleset.match_readers import KNOWN_MATCHES, PORT_OPTIONS
from kproxy_ipt.ruleset.matches import Comment, Match, OpaqueMatch
from kproxy_ipt.ruleset.model import Rule
from kproxy_ipt.ruleset.prefixes import interface_name, printed_prefix, protocol_name
from kproxy_ipt.ruleset.rule_reader import BASE_OPTIONS, extension_target, read_match
from kproxy_ipt.ruleset.target_readers import KNOWN_TARGETS, TARGET_EXTENSIONS, VERDICTS
from kproxy_ipt.ruleset.targets import Dnat, Jump, OpaqueTarget, Target, Verdict

_OPTION = r"(?:! {1,2})?--[a-z0-9-]+(?= |$)"
_WORDS = rf'(?: {{1,2}}{_OPTION}(?: {{1,2}}(?:{_OPTION}|"(?:[^"\\]|\\.)*"(?= |$)|[^\s"!-][^\s"]*))*)?'
"""Options of a match or target, each with its `!`, and their words: quoted texts, or such as begin with no dash."""

_LINE = re.compile(
    r"-A ([^\s\"!-][^\s\"]*)"
    r"(?: (! )?-s ([0-9a-f.:/]+))?(?: (! )?-d ([0-9a-f.:/]+))?"
    r"(?: (! )?-i ([^\s\"!-][^\s\"]*))?(?: (! )?-o ([^\s\"!-][^\s\"]*))?(?: (! )?-p ([a-z0-9-]+))?( ! -f| -f)?"
    rf"((?: -m [a-zA-Z0-9_]+{_WORDS})*)"
    rf"(?: -([jg]) ([^\s\"!-][^\s\"]*)({_WORDS}))?"
)
_MATCH = re.compile(rf" -m ([a-zA-Z0-9_]+)({_WORDS})")
_PLAIN_COMMENT = re.compile(r' --comment "([^"\\]*)"')
_PLAIN_DNAT = re.compile(r" --to-destination ([^\s\"!-][^\s\"]*)")


def _is_settled(arguments: str) -> bool:
    """Whether no word of *arguments* could belong to another part of the rule."""
    words = set(arguments.split())
    return not (words & PORT_OPTIONS or words & BASE_OPTIONS.keys())


def _saved_match(name: str, arguments: str, family: Family) -> Match | None:
    if name == "comment" and (plain := _PLAIN_COMMENT.fullmatch(arguments)):
        return Comment(plain[1])
    match = read_match(name, arguments[1:], family)
    if isinstance(match, OpaqueMatch) and (name in KNOWN_MATCHES or not _is_settled(arguments)):
        return None
    return match


def _saved_target(name: str, arguments: str, chains: Container[str], family: Family) -> Target | None:
    if not arguments:
        if name in VERDICTS:
            return Verdict(name)
        if name in chains or name not in TARGET_EXTENSIONS:
            return Jump(name)
    if name == "DNAT" and name not in chains and (plain := _PLAIN_DNAT.fullmatch(arguments)):
        return Dnat(plain[1])
    if name in chains:
        return None
    target = extension_target(name, arguments[1:], family)
    if isinstance(target, OpaqueTarget) and (name in KNOWN_TARGETS or not _is_settled(arguments)):
        return None
    return target


def _saved_matches(text: str, family: Family) -> tuple[Match, ...] | None:
    matches: list[Match] = []
    for name, arguments in _MATCH.findall(text):
        match = _saved_match(name, arguments, family)
        if match is None:
            return None
        matches.append(match)
    return tuple(matches)


def read_saved_rule(line: str, chains: Container[str], family: Family) -> tuple[str, Rule] | None:
    """
    Read *line* (without counters) if it is spelled as `iptables-save` does, else answer None.

    Raises:
        RulesetError: A prefix is none.
    """
    found = _LINE.fullmatch(line)
    if found is None:
        return None
    (chain, not_s, source, not_d, destination, not_i, in_interface, not_o, out_interface, not_p, protocol) = (
        found.group(*range(1, 12))
    )
    fragment, match_text, jump, target_name, arguments = found.group(12, 13, 14, 15, 16)
    matches = _saved_matches(match_text, family)
    if matches is None or (jump == "g" and arguments):
        return None
    target: Target | None = None
    if jump:
        target = Jump(target_name, True) if jump == "g" else _saved_target(target_name, arguments, chains, family)
        if target is None:
            return None
    return chain, Rule(
        source=printed_prefix(source, negated=not_s is not None) if source else "",
        destination=printed_prefix(destination, negated=not_d is not None) if destination else "",
        in_interface=interface_name(in_interface or ""),
        out_interface=interface_name(out_interface or ""),
        protocol=protocol_name(protocol) if protocol else "",
        fragment=fragment[1:] if fragment else "",
        source_negated=not_s is not None,
        destination_negated=not_d is not None,
        in_interface_negated=not_i is not None,
        out_interface_negated=not_o is not None,
        protocol_negated=not_p is not None,
        matches=matches,
        target=target,
    )
