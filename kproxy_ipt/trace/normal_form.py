"""
What the rules of one class of packets do, in a form that does not depend on how they are cut into chains.

`Blocks` holds the rules of each built-in chain that a packet of the class can meet: without comments and counters,
without conditions that the class fixes, jumps without conditions replaced by the rules that they lead to, and a row of
dices as one choice with the share of each way. Two Rulesets whose blocks are equal treat every packet of the class
alike; where they are not, they may do so all the same.
"""

from collections.abc import Iterator, Mapping

import msgspec

from kproxy_ipt.addresses import canonical_address
from kproxy_ipt.errors import RulesetError
from kproxy_ipt.ruleset.matches import PROBABILITY_ONE, OpaqueMatch, Recent, StatisticNth, StatisticRandom
from kproxy_ipt.ruleset.model import Chain, Ruleset, Table
from kproxy_ipt.ruleset.targets import Dnat, Jump, Masquerade, OpaqueTarget, Reject, Snat, Target, Verdict
from kproxy_ipt.trace.act import HARMLESS
from kproxy_ipt.trace.classes import address_number
from kproxy_ipt.trace.hooks import FORWARD, INPUT, NAT, OUTPUT, PREROUTING, TABLES_OF_HOOK
from kproxy_ipt.trace.indexed import Condition, IndexedChain, IndexedRule, Place, Places, recent_names
from kproxy_ipt.trace.packet import Host

_DEEPEST = 64
_STATEFUL = (Recent, StatisticNth, OpaqueMatch)
"""Matches that may remember something, so that a rule counts even if it has no target."""

_STAYS = frozenset((*HARMLESS, "CONNMARK", "CT", "NOTRACK"))
"""Targets without a class of their own that leave the destination as it is."""


class Block(msgspec.Struct, frozen=True):
    """
    Rules in order.

    Attributes:
        clauses: The rules.
        ends: Whether no packet gets past the last one.
        returns: Whether a packet may leave it other than by its end, so that it cannot be put in the place of a jump.
    """

    clauses: tuple["Clause", ...] = ()
    ends: bool = False
    returns: bool = False


class Choice(msgspec.Struct, frozen=True):
    """
    Exactly one of several blocks that all end: share, in parts of 1, and block.

    Shares are not exact: those of a row of 1,000 dices are fractions of 31,000 bits.
    """

    ways: tuple[tuple[float, Block], ...]


class Clause(msgspec.Struct, frozen=True):
    """A rule: *action* is a target, the block of a chain that is jumped to, a choice, or None."""

    conditions: tuple[Condition, ...]
    action: Target | Block | Choice | None
    goto: bool = False


Blocks = Mapping[tuple[str, str], Block]
"""By table and hook; only those that hold anything."""


class IndexedRuleset:
    """A Ruleset whose rules are found by destination and port."""

    def __init__(self, ruleset: Ruleset, host: Host) -> None:
        self.ruleset = ruleset
        self.host = host
        names = recent_names(ruleset)
        self.tables = {
            table.name: {chain.name: IndexedChain(chain, ruleset.family, names) for chain in table.chains.values()}
            for table in ruleset.tables.values()
        }

    def view(self, place: Place, protocol: str | None) -> "View":
        """What packets of *protocol* to *place* can meet; None stands for any protocol."""
        return View(self, place, protocol)


class View:
    """The part of one Ruleset for one class of packets, read on demand."""

    def __init__(self, indexed: IndexedRuleset, place: Place, protocol: str | None) -> None:
        self._indexed = indexed
        self._place = place
        self._protocol = protocol
        self._memo: dict[tuple[str, str, Places], Block] = {}
        self.met: dict[tuple[str, str], dict[int, IndexedRule]] = {}

    def places(self) -> Places:
        """The first destination and all those that DNAT may give a packet, in order of appearance."""
        for hook in (PREROUTING, OUTPUT):
            self._block_of(NAT, hook, (self._place,), 0)
        found = {self._place: None}
        for (table, _), rules in self.met.items():
            for met in rules.values() if table == NAT else ():
                target = met.rule.target
                if isinstance(target, Dnat):
                    place = _place_behind(target, self._place, self._indexed.host)
                    if place is None:
                        return None
                    found[place] = None
                elif isinstance(target, OpaqueTarget) and target.name not in _STAYS:
                    return None
        return tuple(found)

    def blocks(self, places: Places) -> Blocks:
        """Everything that packets of the class can meet, if *places* are all their destinations."""
        return {
            (table, hook): block
            for hook, tables in TABLES_OF_HOOK.items()
            for table in tables
            if (block := self._base(table, hook, places)).clauses
        }

    def _base(self, table: str, hook: str, places: Places) -> Block:
        chain = self._indexed.tables.get(table, {}).get(hook)
        seen = (self._place,) if table == NAT and hook in (PREROUTING, OUTPUT) else _at_hook(hook, places)
        if chain is None or seen == ():
            return Block()
        block = self._block_of(table, hook, seen, 0)
        if chain.policy == "DROP" and not block.ends:
            return Block((*block.clauses, Clause((), Verdict("DROP"))), ends=True)
        return block

    def _block_of(self, table: str, name: str, places: Places, depth: int) -> Block:
        key = (table, name, places)
        found = self._memo.get(key)
        if found is None:
            if depth > _DEEPEST:
                raise RulesetError(f"jumps of table {table} go in circles at chain {name}")
            found = self._memo[key] = self._read(table, name, places, depth)
        return found

    def _read(self, table: str, name: str, places: Places, depth: int) -> Block:
        chain = self._indexed.tables.get(table, {}).get(name)
        if chain is None:
            return Block()
        met = self.met.setdefault((table, name), {})
        clauses: list[Clause] = []
        for rule, conditions in chain.kept(places, self._protocol):
            met[rule.position] = rule
            target = rule.rule.target
            if isinstance(target, Jump):
                inner = self._block_of(table, target.chain, places, depth + 1)
                clauses += _jump(conditions, inner, goto=target.goto)
            elif target is not None or any(isinstance(one, _STATEFUL) for one in conditions):
                clauses.append(Clause(conditions, target))
            if clauses and _is_end(clauses[-1]):
                break
        return _block(_with_choice(clauses))

    def restricted(self) -> Ruleset:
        """The rules that were met, as a Ruleset of their own; for packets of the class the same as the whole."""
        tables: dict[str, dict[str, Chain]] = {}
        for (table, name), rules in self.met.items():
            chain = self._indexed.tables[table][name]
            kept = tuple(rules[position].rule for position in sorted(rules))
            tables.setdefault(table, {})[name] = Chain(name, kept, chain.policy)
        whole = self._indexed.ruleset
        for table, indexed in self._indexed.tables.items():
            for hook in TABLES_OF_HOOK:
                if hook in indexed:
                    tables.setdefault(table, {}).setdefault(hook, Chain(hook, policy=indexed[hook].policy))
        return Ruleset(whole.family, {name: Table(name, chains) for name, chains in tables.items()})


def _place_behind(target: Dnat, place: Place, host: Host) -> Place | None:
    """Where *target* sends a packet for *place*; None for ranges."""
    address, colon, port = target.to_destination.rpartition(":")
    if not colon or ("." not in address and not target.to_destination.startswith(("[", ":"))):
        address, port = target.to_destination, ""
    canonical = canonical_address(address.strip("[]")) if address else ""
    if canonical is None or not (port.isdigit() or not port):
        return None
    new_port = int(port) if port else place.port
    if not canonical:
        return Place(place.address, new_port, place.is_local)
    return Place(address_number(canonical), new_port, is_local_address(canonical, host))


def is_local_address(address: str, host: Host) -> bool:
    """Whether a canonical address is one of the node."""
    return address in host.addresses or address.startswith("127.") or address == "::1"


def _at_hook(hook: str, places: Places) -> Places:
    if places is None or hook not in (INPUT, FORWARD):
        return places
    return tuple(place for place in places if place.is_local is (hook == INPUT))


def _jump(conditions: tuple[Condition, ...], inner: Block, *, goto: bool) -> Iterator[Clause]:
    """A jump, or the rules behind it where it has no condition and every packet comes back at the end of them."""
    if not conditions and not goto and not inner.returns:
        yield from inner.clauses
    elif goto or inner.clauses or any(isinstance(one, _STATEFUL) for one in conditions):
        yield Clause(conditions, inner, goto)


def _ends_packet(action: Target | Block | Choice | None) -> bool:
    if isinstance(action, Block):
        return action.ends
    if isinstance(action, Verdict):
        return action.name != "RETURN"
    return isinstance(action, Reject | Dnat | Snat | Masquerade | Choice)


def _always_holds(clause: Clause) -> bool:
    """Whether *clause* acts on every packet; adding to a list of `recent` always succeeds."""
    return all(isinstance(one, Recent) and one.action == "set" and not one.negated for one in clause.conditions)


def _is_end(clause: Clause) -> bool:
    """Whether no packet gets past *clause* in its block."""
    return _always_holds(clause) and (clause.goto or clause.action == Verdict("RETURN") or _ends_packet(clause.action))


def _block(clauses: list[Clause]) -> Block:
    last = clauses[-1] if clauses else None
    return Block(
        tuple(clauses),
        ends=last is not None and _always_holds(last) and not last.goto and _ends_packet(last.action),
        returns=any(clause.goto or clause.action == Verdict("RETURN") for clause in clauses),
    )


def _dice(clause: Clause) -> float | None:
    """The share of packets that *clause* takes for good, None if it is anything but a dice before an end."""
    if len(clause.conditions) != 1 or clause.goto or not _ends_packet(clause.action):
        return None
    if isinstance(clause.action, Block) and clause.action.returns:
        return None
    dice = clause.conditions[0]
    if not isinstance(dice, StatisticRandom):
        return None
    share = dice.probability / PROBABILITY_ONE
    return 1 - share if dice.negated else share


def _with_choice(clauses: list[Clause]) -> list[Clause]:
    """*clauses*, with the dices before the end as one choice."""
    last = len(clauses)
    while last and _dice(clauses[last - 1]) is None:
        last -= 1
    rest = _block(clauses[last:])
    if not last or not rest.ends or rest.returns:
        return clauses
    first = last
    while first and _dice(clauses[first - 1]) is not None:
        first -= 1
    remaining, ways = 1.0, list[tuple[float, Block]]()
    for clause in clauses[first:last]:
        share = remaining * (_dice(clause) or 0)
        way = clause.action if isinstance(clause.action, Block) else Block((Clause((), clause.action),), True)
        ways += _spread(share, way)
        remaining -= share
    ways += _spread(remaining, rest)
    return [*clauses[:first], Clause((), Choice(tuple(ways)))]


def _spread(share: float, block: Block) -> Iterator[tuple[float, Block]]:
    """A way, or the ways of the choice that it is."""
    only = block.clauses[0].action if len(block.clauses) == 1 and not block.clauses[0].conditions else None
    if isinstance(only, Choice):
        for inner, way in only.ways:
            yield share * inner, way
    else:
        yield share, block


def same_block(first: Block, second: Block, tolerance: float) -> bool:
    """Whether two blocks do the same, shares of choices within *tolerance*."""
    if first == second:
        return True
    return (
        len(first.clauses) == len(second.clauses)
        and first.ends is second.ends
        and all(_same_clause(one, two, tolerance) for one, two in zip(first.clauses, second.clauses, strict=True))
    )


def _same_clause(first: Clause, second: Clause, tolerance: float) -> bool:
    if first.conditions != second.conditions or first.goto is not second.goto:
        return False
    if isinstance(first.action, Choice) and isinstance(second.action, Choice):
        return _same_choice(first.action, second.action, tolerance)
    if isinstance(first.action, Block) and isinstance(second.action, Block):
        return same_block(first.action, second.action, tolerance)
    return first.action == second.action


def _same_choice(first: Choice, second: Choice, tolerance: float) -> bool:
    shares, others = _shares(first), _shares(second)
    return shares.keys() == others.keys() and all(
        abs(share - others[block]) <= tolerance for block, share in shares.items()
    )


def _shares(choice: Choice) -> dict[Block, float]:
    found: dict[Block, float] = {}
    for share, block in choice.ways:
        if share:
            found[block] = found.get(block, 0.0) + share
    return found
