"""
Structural difference: which chains of two rule sets do not mean the same, and by which rules.

Rules are compared as values without counters, so that another spelling of a rule (other version of iptables, other
order of options or of matches that have no memory, mask left out) is no difference. The common case, equal text, is
settled by comparing strings; only chains whose text differs are parsed.

Order counts, except in the chains of `UNORDERED`. There it counts where it decides about a packet: rules for the node
ports come last in KUBE-SERVICES of nat, the rule for localhost comes before the general one of its node port, and rules
of the same protocol, destination and port keep their order among themselves.
"""

from collections import Counter
from collections.abc import Container, Hashable, Iterator, Mapping, Sequence
from enum import StrEnum

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.errors import RulesetError
from kproxy_ipt.ruleset.canonical import UNORDERED
from kproxy_ipt.ruleset.matches import AddressType, Comment, Conntrack, Mark, Match, PortMatch
from kproxy_ipt.ruleset.model import Chain, Rule, Ruleset, Table
from kproxy_ipt.ruleset.parse import parse_rule
from kproxy_ipt.ruleset.render import render_chain
from kproxy_ipt.ruleset.scan import SavedChain
from kproxy_ipt.ruleset.targets import Jump

_LOOPBACK = "127.0.0.0/8"
_NODE_PORTS = "KUBE-NODEPORTS"


class DifferenceKind(StrEnum):
    """What is wrong with a chain."""

    MISSING_CHAIN = "missing chain"
    EXTRA_CHAIN = "extra chain"
    CHANGED = "changed"
    ORDER = "order"


class ChainDifference(msgspec.Struct, frozen=True):
    """
    One chain that differs.

    Attributes:
        table: Its table.
        chain: Its name.
        owner: Text of the service port that the chain is for, "" for fixed or unknown chains.
        kind: What is wrong.
        missing: Wanted lines that are not there, in the wanted order; a wanted policy as `:CHAIN POLICY`.
        extra: Lines that are there and not wanted, in their order. Both are empty if only the order is wrong.
    """

    table: str
    chain: str
    owner: str
    kind: DifferenceKind
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()


class _Line(msgspec.Struct, frozen=True):
    """A rule with its text and meaning; a text that is no rule for us has no *rule*, and means itself."""

    text: str
    rule: Rule | None
    meaning: Hashable


def _is_bare(match: Match, rule: Rule) -> bool:
    """Whether *match* only repeats the protocol of *rule*: some versions print `-m tcp` alone, others do not."""
    has_ports = isinstance(match, PortMatch) and (match.destination or match.source)
    is_port_match = isinstance(match, PortMatch) and match.protocol == rule.protocol
    return is_port_match and not has_ports and not rule.protocol_negated


def _positive(ports: tuple[int, int] | None, negated: bool) -> tuple[tuple[int, int] | None, bool]:  # noqa: FBT001
    """A negated range at one end of all ports as the range of the others: so nf_tables prints it back."""
    if ports and negated and ports[0] == 0 and ports[1] < 65535:
        return (ports[1] + 1, 65535), False
    if ports and negated and ports[1] == 65535 and ports[0] > 0:
        return (0, ports[0] - 1), False
    return ports, negated


def _with_positive_ports(match: PortMatch) -> PortMatch:
    destination, destination_negated = _positive(match.destination, match.destination_negated)
    source, source_negated = _positive(match.source, match.source_negated)
    return PortMatch(match.protocol, destination, source, destination_negated, source_negated)


def _settled_matches(rule: Rule) -> tuple[Match, ...]:
    """The matches in an order of their own: comments, then the others; none is moved past one that has a memory."""
    comments = sorted((match for match in rule.matches if isinstance(match, Comment)), key=repr)
    settled: list[Match] = [*comments]
    pure: list[Match] = []
    for match in rule.matches:
        if isinstance(match, Comment) or _is_bare(match, rule):
            continue
        if isinstance(match, Conntrack | Mark | AddressType | PortMatch):
            pure.append(_with_positive_ports(match) if isinstance(match, PortMatch) else match)
            continue
        settled += [*sorted(pure, key=repr), match]
        pure = []
    return (*settled, *sorted(pure, key=repr))


def rule_meaning(rule: Rule) -> Rule:
    """*rule* as a value that is equal for all spellings of it: without counters, matches in a fixed order."""
    return msgspec.structs.replace(rule, matches=_settled_matches(rule), counters=None)


def _wanted_lines(chain: Chain) -> list[_Line]:
    return [_Line(text, rule, rule_meaning(rule)) for text, rule in zip(render_chain(chain), chain.rules, strict=True)]


def _saved_lines(lines: Sequence[str], chains: Container[str], family: Family) -> Iterator[_Line]:
    for text in lines:
        try:
            _, rule = parse_rule(text, chains, family=family)
        except RulesetError:
            yield _Line(text, None, text)
        else:
            yield _Line(text, rule, rule_meaning(rule))


def _surplus(lines: Sequence[_Line], others: Sequence[_Line]) -> tuple[str, ...]:
    """The texts of the *lines* that *others* lack, each as often as it is missing."""
    left = Counter(line.meaning for line in others)
    texts: list[str] = []
    for line in lines:
        if left[line.meaning] > 0:
            left[line.meaning] -= 1
        else:
            texts.append(line.text)
    return tuple(texts)


def _destination_ports(rule: Rule) -> tuple[int, int] | None:
    return next((match.destination for match in rule.matches if isinstance(match, PortMatch)), None)


def _by_header(lines: Sequence[_Line]) -> dict[Hashable, list[Hashable]]:
    """Lines that can be after the same packets: those of one protocol, destination and port, in their order."""
    groups: dict[Hashable, list[Hashable]] = {}
    for line in lines:
        rule = line.rule
        header = (rule.protocol, rule.destination, _destination_ports(rule)) if rule else line.text
        groups.setdefault(header, []).append(line.meaning)
    return groups


def _is_node_ports_jump(line: _Line) -> bool:
    target = line.rule.target if line.rule else None
    return isinstance(target, Jump) and target.chain == _NODE_PORTS


def _are_node_ports_last(lines: Sequence[_Line]) -> bool:
    jumps = [_is_node_ports_jump(line) for line in lines]
    return jumps == sorted(jumps)


def _is_localhost_first(lines: Sequence[_Line]) -> bool:
    """Whether no rule for localhost stands behind the general rule of its protocol and port."""
    general: set[Hashable] = set()
    for line in lines:
        if line.rule is None:
            continue
        header = (line.rule.protocol, _destination_ports(line.rule))
        if not line.rule.destination:
            general.add(header)
        elif line.rule.destination == _LOOPBACK and header in general:
            return False
    return True


def _is_order_right(table: str, chain: str, wanted: Sequence[_Line], found: Sequence[_Line]) -> bool:
    """Whether *found*, which holds the rules of *wanted*, treats every packet the same."""
    if chain not in UNORDERED.get(table, ()):
        return [line.meaning for line in wanted] == [line.meaning for line in found]
    if table == "nat" and chain == "KUBE-SERVICES" and not _are_node_ports_last(found):
        return False
    if table == "nat" and chain == _NODE_PORTS and not _is_localhost_first(found):
        return False
    return _by_header(wanted) == _by_header(found)


def _compare_lines(
    table: str, chain: str, owner: str, wanted: Sequence[_Line], found: Sequence[_Line]
) -> ChainDifference | None:
    missing, extra = _surplus(wanted, found), _surplus(found, wanted)
    if missing or extra:
        return ChainDifference(table, chain, owner, DifferenceKind.CHANGED, missing, extra)
    if not _is_order_right(table, chain, wanted, found):
        return ChainDifference(table, chain, owner, DifferenceKind.ORDER)
    return None


def compare_chains(
    desired: Mapping[str, Chain],
    actual: Mapping[str, SavedChain],
    *,
    table: str,
    family: Family,
    owners: Mapping[str, str],
    ours: Container[str] | None = None,
) -> tuple[ChainDifference, ...]:
    """
    Compare the chains that should be in *table* with those that are.

    Args:
        desired: Whole chains by name; their rules are all that the chain should hold.
        actual: What `scan_save` read of that table; other chains may be among them.
        table: Name of the table.
        family: Of the rules.
        owners: Chain -> text of the service port that it is for.
        ours: Which chains of *actual* are ours, and extra if they are not desired; None: all of them.

    Returns:
        Differences in the order of *desired*, then extra chains in the order of *actual*; empty if all is well.
    """
    differences: list[ChainDifference] = []
    for name, chain in desired.items():
        saved, lines, owner = actual.get(name), render_chain(chain), owners.get(name, "")
        if saved is None:
            differences.append(ChainDifference(table, name, owner, DifferenceKind.MISSING_CHAIN, missing=lines))
        elif saved.lines != lines:
            found = list(_saved_lines(saved.lines, actual, family))
            difference = _compare_lines(table, name, owner, _wanted_lines(chain), found)
            differences += [difference] if difference else []
    for name, saved in actual.items():
        if name not in desired and (ours is None or name in ours):
            owner = owners.get(name, "")
            differences.append(ChainDifference(table, name, owner, DifferenceKind.EXTRA_CHAIN, extra=saved.lines))
    return tuple(differences)


def _policy_line(chain: Chain) -> str:
    return f":{chain.name} {chain.policy}"


def _compare_two(table: str, wanted: Chain, found: Chain) -> ChainDifference | None:
    difference = None
    if wanted.rules != found.rules:
        difference = _compare_lines(table, wanted.name, "", _wanted_lines(wanted), _wanted_lines(found))
    if wanted.policy == found.policy:
        return difference
    return ChainDifference(
        table,
        wanted.name,
        "",
        DifferenceKind.CHANGED,
        (_policy_line(wanted), *(difference.missing if difference else ())),
        (_policy_line(found), *(difference.extra if difference else ())),
    )


def _compare_tables(wanted: Table, found: Table) -> Iterator[ChainDifference]:
    for name, chain in wanted.chains.items():
        other = found.chains.get(name)
        if other is None:
            lines = render_chain(chain)
            yield ChainDifference(wanted.name, name, "", DifferenceKind.MISSING_CHAIN, missing=lines)
        elif difference := _compare_two(wanted.name, chain, other):
            yield difference
    for name, chain in found.chains.items():
        if name not in wanted.chains:
            yield ChainDifference(wanted.name, name, "", DifferenceKind.EXTRA_CHAIN, extra=render_chain(chain))


def compare_rulesets(wanted: Ruleset, found: Ruleset) -> tuple[ChainDifference, ...]:
    """
    Compare two Rulesets chain by chain: rules by meaning, and policies; a missing table is one without chains.

    Returns:
        Differences table by table, in the order of *wanted*, then of *found*; without owners.
    """
    tables = [*wanted.tables, *(name for name in found.tables if name not in wanted.tables)]
    return tuple(
        difference
        for name in tables
        for difference in _compare_tables(wanted.tables.get(name, Table(name)), found.tables.get(name, Table(name)))
    )
