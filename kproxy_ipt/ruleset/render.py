"""
Ruleset -> text: the only writer of iptables syntax.

There is one text per rule: the one that `iptables-save` 1.8.9 prints for it (nft and legacy print the same). The same
text is fed to `iptables-restore`, so that comparing what we want with what the kernel has is comparing strings.
Values are printed as they are: whoever builds a rule gives canonical prefixes, names and masks, as `matches.py`,
`targets.py` and `model.py` ask for; `parse.py` does so with foreign text.

Goals: byte-stable output, and speed (100,000 rules in well under a second): one small function for each class, picked
by type; those whose values repeat a lot remember their texts. Decided against: `shlex` quoting, which is not the
quoting of iptables.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from kproxy_ipt.errors import RulesetError
from kproxy_ipt.ruleset.edits import (
    AppendRule,
    DeleteChain,
    DeleteRule,
    EditChain,
    EnsureChain,
    InsertRule,
    RestoreInput,
    Transaction,
    WriteChain,
)
from kproxy_ipt.ruleset.matches import (
    PROBABILITY_ONE,
    AddressType,
    Comment,
    Conntrack,
    Mark,
    Match,
    Nfacct,
    OpaqueMatch,
    PortMatch,
    Recent,
    StatisticNth,
    StatisticRandom,
)
from kproxy_ipt.ruleset.model import Chain, Counters, Rule, Ruleset, Table
from kproxy_ipt.ruleset.targets import (
    Dnat,
    Jump,
    Masquerade,
    OpaqueTarget,
    Reject,
    SetMark,
    Snat,
    Target,
    Verdict,
)

_QUOTED_ONLY = re.compile(r"""[A-Za-z0-9_-]*[^A-Za-z0-9_"'\\\n\0-][^"'\\\n\0]*""")
"""Texts that iptables puts between quotes without escaping anything in them: nearly all comments."""

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPED = re.compile(r"""["'\\]""")

_ALL_ONES = 0xFFFFFFFF


def quote(text: str) -> str:
    """
    Write *text* as one word, as iptables does: bare if it holds only letters, digits, `_` and `-`, else quoted.

    Raises:
        RulesetError: *text* holds a line break or NUL, which no word of a rule can.

    Source: `xtables_save_string` of libxtables 1.8.9.
    """
    if _QUOTED_ONLY.fullmatch(text):
        return f'"{text}"'
    if _BARE.fullmatch(text):
        return text
    if "\n" in text or "\0" in text:
        raise RulesetError(f"line break or NUL in the text {text!r} of a rule, expected printable text")
    escaped = _ESCAPED.sub(r"\\\g<0>", text)
    return f'"{escaped}"'


def _not(negated: bool) -> str:  # noqa: FBT001 - the field of the same name
    return "! " if negated else ""


def _comment(match: Comment) -> str:
    return f" -m comment --comment {quote(match.text)}"


@lru_cache(maxsize=1024)
def _conntrack(match: Conntrack) -> str:
    return f" -m conntrack {_not(match.negated)}--ctstate {','.join(match.states)}"


@lru_cache(maxsize=1024)
def _mark(match: Mark) -> str:
    mask = "" if match.mask == _ALL_ONES else f"/{match.mask:#x}"
    return f" -m mark {_not(match.negated)}--mark {match.value:#x}{mask}"


@lru_cache(maxsize=1024)
def _address_type(match: AddressType) -> str:
    source = f" {_not(match.source_negated)}--src-type {match.source}" if match.source else ""
    destination = f" {_not(match.destination_negated)}--dst-type {match.destination}" if match.destination else ""
    return f" -m addrtype{source}{destination}"


def _ports(ports: tuple[int, int]) -> str:
    first, last = ports
    return str(first) if first == last else f"{first}:{last}"


@lru_cache(maxsize=16384)
def _port_match(match: PortMatch) -> str:
    source = f" {_not(match.source_negated)}--sport {_ports(match.source)}" if match.source else ""
    destination = f" {_not(match.destination_negated)}--dport {_ports(match.destination)}" if match.destination else ""
    return f" -m {match.protocol}{source}{destination}"


@lru_cache(maxsize=16384)
def _statistic_random(match: StatisticRandom) -> str:
    probability = match.probability / PROBABILITY_ONE
    return f" -m statistic --mode random {_not(match.negated)}--probability {probability:.11f}"


@lru_cache(maxsize=1024)
def _statistic_nth(match: StatisticNth) -> str:
    return f" -m statistic --mode nth {_not(match.negated)}--every {match.every} --packet {match.packet}"


def _recent(match: Recent) -> str:
    seconds = f" --seconds {match.seconds}" if match.seconds else ""
    reap = " --reap" if match.reap else ""
    hitcount = f" --hitcount {match.hitcount}" if match.hitcount else ""
    rttl = " --rttl" if match.rttl else ""
    return (
        f" -m recent {_not(match.negated)}--{match.action}{seconds}{reap}{hitcount}{rttl}"
        f" --name {match.name} --mask {match.mask} --{match.side}"
    )


def _nfacct(match: Nfacct) -> str:
    return f" -m nfacct --nfacct-name  {match.name}"


def _opaque_match(match: OpaqueMatch) -> str:
    return f" -m {match.name} {match.arguments}" if match.arguments else f" -m {match.name}"


def _jump(target: Jump) -> str:
    return f" -g {target.chain}" if target.goto else f" -j {target.chain}"


def _verdict(target: Verdict) -> str:
    return f" -j {target.name}"


def _reject(target: Reject) -> str:
    return f" -j REJECT --reject-with {target.reject_with}"


def _set_mark(target: SetMark) -> str:
    return f" -j MARK --set-xmark {target.value:#x}/{target.mask:#x}"


def _dnat(target: Dnat) -> str:
    random = " --random" if target.random else ""
    persistent = " --persistent" if target.persistent else ""
    return f" -j DNAT --to-destination {target.to_destination}{random}{persistent}"


def _snat(target: Snat) -> str:
    random = " --random" if target.random else ""
    random_fully = " --random-fully" if target.random_fully else ""
    persistent = " --persistent" if target.persistent else ""
    return f" -j SNAT --to-source {target.to_source}{random}{random_fully}{persistent}"


def _masquerade(target: Masquerade) -> str:
    to_ports = f" --to-ports {target.to_ports}" if target.to_ports else ""
    random = " --random" if target.random else ""
    random_fully = " --random-fully" if target.random_fully else ""
    return f" -j MASQUERADE{to_ports}{random}{random_fully}"


def _opaque_target(target: OpaqueTarget) -> str:
    return f" -j {target.name} {target.arguments}" if target.arguments else f" -j {target.name}"


MATCH_WRITERS: Mapping[type[Match], Callable[[Any], str]] = {
    Comment: _comment,
    Conntrack: _conntrack,
    Mark: _mark,
    AddressType: _address_type,
    PortMatch: _port_match,
    StatisticRandom: _statistic_random,
    StatisticNth: _statistic_nth,
    Recent: _recent,
    Nfacct: _nfacct,
    OpaqueMatch: _opaque_match,
}
"""The writer of each match class; what it writes begins with a space."""

TARGET_WRITERS: Mapping[type[Target], Callable[[Any], str]] = {
    Jump: _jump,
    Verdict: _verdict,
    Reject: _reject,
    SetMark: _set_mark,
    Dnat: _dnat,
    Snat: _snat,
    Masquerade: _masquerade,
    OpaqueTarget: _opaque_target,
}
"""The writer of each target class; what it writes begins with a space."""


def _interfaces(rule: Rule) -> str:
    incoming = f" {_not(rule.in_interface_negated)}-i {rule.in_interface}" if rule.in_interface else ""
    outgoing = f" {_not(rule.out_interface_negated)}-o {rule.out_interface}" if rule.out_interface else ""
    return incoming + outgoing


def _header(rule: Rule) -> str:
    """Everything of *rule* in front of its matches, with a space before each part."""
    text = ""
    if rule.source:
        text = f" ! -s {rule.source}" if rule.source_negated else f" -s {rule.source}"
    if rule.destination:
        text += f" ! -d {rule.destination}" if rule.destination_negated else f" -d {rule.destination}"
    if rule.in_interface or rule.out_interface:
        text += _interfaces(rule)
    if rule.protocol:
        text += f" ! -p {rule.protocol}" if rule.protocol_negated else f" -p {rule.protocol}"
    return f"{text} {rule.fragment}" if rule.fragment else text


def render_specification(rule: Rule) -> str:
    """The text of *rule* without command and chain; "" or a text that begins with a space."""
    text = _header(rule)
    for match in rule.matches:
        text += MATCH_WRITERS[type(match)](match)
    target = rule.target
    return text if target is None else text + TARGET_WRITERS[type(target)](target)


def render_rule(chain: str, rule: Rule) -> str:
    """
    The line of *rule* in *chain* as `iptables-save` prints it, without counters: `-A CHAIN ...`.

    Raises:
        RulesetError: A comment holds a line break.
    """
    return f"-A {chain}{render_specification(rule)}"


def render_chain(chain: Chain) -> tuple[str, ...]:
    """The `-A` lines of *chain* in order, without counters."""
    prefix = f"-A {chain.name}"
    return tuple([prefix + render_specification(rule) for rule in chain.rules])


def _counters(counters: Counters) -> str:
    return f"[{counters.packets}:{counters.bytes}]"


def _save_lines(table: Table) -> Iterator[str]:
    yield f"*{table.name}"
    for chain in table.chains.values():
        counters = f" {_counters(chain.counters)}" if chain.counters else ""
        yield f":{chain.name} {chain.policy}{counters}"
    for chain in table.chains.values():
        for line, rule in zip(render_chain(chain), chain.rules, strict=True):
            yield f"{_counters(rule.counters)} {line}" if rule.counters else line
    yield "COMMIT"


def _text(lines: Iterable[str]) -> str:
    text = "\n".join(lines)
    return f"{text}\n" if text else ""


def render_save(ruleset: Ruleset) -> str:
    """
    The whole save text: tables and chains in the order of *ruleset*, counters where the values hold them.

    Without comment lines, therefore byte-stable; "" for a Ruleset without tables.
    """
    return _text(line for table in ruleset.tables.values() for line in _save_lines(table))


def _chain_lines(transaction: Transaction) -> Iterator[str]:
    for edit in transaction.edits:
        if isinstance(edit, WriteChain | EnsureChain | DeleteChain):
            yield f":{edit.name} - [0:0]"


def _written_lines(transaction: Transaction) -> Iterator[str]:
    for edit in transaction.edits:
        if isinstance(edit, WriteChain):
            yield from edit.rules


def _changed_lines(transaction: Transaction) -> Iterator[str]:
    for edit in transaction.edits:
        if isinstance(edit, InsertRule):
            yield f"-I {edit.chain} {edit.position}{render_specification(edit.rule)}"
        elif isinstance(edit, EditChain):
            yield from (f"-D {line[3:]}" for line in edit.deleted)
            yield from (f"-I {edit.name} {at} {line[4 + len(edit.name) :]}" for at, line in edit.inserted)
        elif isinstance(edit, AppendRule):
            yield f"-A {edit.chain}{render_specification(edit.rule)}"
        elif isinstance(edit, DeleteRule):
            yield f"-D {edit.chain}{render_specification(edit.rule)}"


def _transaction_lines(transaction: Transaction) -> Iterator[str]:
    yield f"*{transaction.table}"
    yield from dict.fromkeys(_chain_lines(transaction))
    yield from _written_lines(transaction)
    yield from _changed_lines(transaction)
    for edit in transaction.edits:
        if isinstance(edit, DeleteChain):
            yield f"-X {edit.name}"
    yield "COMMIT"


def render_input(restore_input: RestoreInput) -> str:
    """
    The text for `iptables-restore --noflush`: one `*table ... COMMIT` section a transaction.

    A chain line empties a chain that exists, so each chain is declared once, before all rules. "" for no transaction.
    """
    return _text(line for transaction in restore_input.transactions for line in _transaction_lines(transaction))
