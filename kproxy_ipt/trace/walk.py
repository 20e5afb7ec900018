"""
One packet through all hooks of one Ruleset: everything that can become of it, with exact shares.

The way of a packet from outside: PREROUTING, then by its destination INPUT, or FORWARD and POSTROUTING. Of the node
itself: OUTPUT, POSTROUTING, and if it is for the node too, back in over the loopback interface: PREROUTING, INPUT.
`nat` is asked for the first packet of a flow only, once for the destination and once for the source; its first rule
that translates, or accepts, ends it.

Nothing is sampled. Where chance decides, the ways part with the shares that the kernel uses: 715827883/2**31, not 1/3
(see `distribution.nominal`). Where a rule asks for something that cannot be known, one answer is assumed and said in
`Outcome.assumptions`: rate limits are not exceeded, clients are not yet known to `recent`, interfaces that are not
given are none that a rule names, and matches that are not understood do not match. Only rules that can decide about a
packet get such a line; a rule that logs does not.

Not modelled: routes, `rp_filter`, forwarding switched off, and what a socket answers.
"""

from collections.abc import Iterator
from fractions import Fraction

import msgspec

from kproxy_ipt.errors import RulesetError
from kproxy_ipt.ruleset.model import Chain, Rule, Ruleset
from kproxy_ipt.ruleset.render import render_rule
from kproxy_ipt.ruleset.targets import Jump, OpaqueTarget
from kproxy_ipt.trace.act import HARMLESS, Acted, Fate, act
from kproxy_ipt.trace.evaluate import NO, evaluate, is_local
from kproxy_ipt.trace.hooks import FORWARD, INPUT, NAT, OUTPUT, POSTROUTING, PREROUTING, RAW, TABLES_OF_HOOK
from kproxy_ipt.trace.moving import Moving, assuming, start
from kproxy_ipt.trace.packet import End, Host, Origin, Outcome, Packet, Step

_DEEPEST = 128
"""Jumps within jumps; the kernel refuses rules that go in circles."""

_LOOPBACK = "lo"
_UNTRACKED = "UNTRACKED"


def walk(ruleset: Ruleset, packet: Packet, host: Host) -> tuple[Outcome, ...]:
    """
    Everything that can become of *packet*.

    Args:
        ruleset: All tables that matter; one that is missing has no rules.
        packet: Of the family of *ruleset*.
        host: Decides what is local.

    Returns:
        One outcome for each path, in the order of the rules; their shares add up to 1.

    Raises:
        RulesetError: Another family, or jumps that go in circles.
    """
    if packet.family is not ruleset.family:
        raise RulesetError(f"a packet of {packet.family} cannot walk rules of {ruleset.family}")
    return tuple(_Walk(ruleset, host).outcomes(start(packet)))


class _Walk:
    """One walk: the rules and the machine that all its parts share."""

    def __init__(self, ruleset: Ruleset, host: Host) -> None:
        self._ruleset = ruleset
        self._host = host

    def outcomes(self, moving: Moving) -> Iterator[Outcome]:
        """From the first hook on."""
        if moving.packet.origin is Origin.NODE:
            for sent in self._survivors(OUTPUT, moving):
                yield from sent if isinstance(sent, tuple) else self._leave(sent)
            return
        for arrived in self._survivors(PREROUTING, moving):
            yield from arrived if isinstance(arrived, tuple) else self._route(arrived)

    def _route(self, moving: Moving) -> Iterator[Outcome]:
        """The routing decision on a packet that came in."""
        if is_local(moving.destination, self._host):
            for delivered in self._survivors(INPUT, moving):
                yield from delivered if isinstance(delivered, tuple) else (_accepted(delivered, locally=True),)
            return
        for forwarded in self._survivors(FORWARD, moving):
            yield from forwarded if isinstance(forwarded, tuple) else self._leave(forwarded)

    def _leave(self, moving: Moving) -> Iterator[Outcome]:
        """Out by an interface; what the node sends to itself comes back in."""
        comes_back = moving.packet.origin is Origin.NODE and is_local(moving.destination, self._host)
        if comes_back:
            moving = msgspec.structs.replace(moving, out_interface=_LOOPBACK)
        for left in self._survivors(POSTROUTING, moving):
            if isinstance(left, tuple):
                yield from left
            elif comes_back:
                yield from self._come_back(left)
            else:
                yield _accepted(left, locally=False)

    def _come_back(self, moving: Moving) -> Iterator[Outcome]:
        back = msgspec.structs.replace(moving, in_interface=_LOOPBACK, out_interface="", has_looped=True)
        for arrived in self._survivors(PREROUTING, back):
            yield from arrived if isinstance(arrived, tuple) else self._route(arrived)

    def _survivors(self, hook: str, moving: Moving) -> Iterator[Moving | tuple[Outcome]]:
        """Those that pass all tables of *hook*, and, as a tuple of one, the outcomes of those that do not."""
        return self._tables(hook, TABLES_OF_HOOK[hook], msgspec.structs.replace(moving, hook=hook))

    def _tables(self, hook: str, tables: tuple[str, ...], moving: Moving) -> Iterator[Moving | tuple[Outcome]]:
        for position, table in enumerate(tables):
            chain = self._ruleset.chain(table, hook)
            if chain is None or (table == NAT and not _wants_nat(moving)):
                continue
            for fate, after in self._base_chain(table, chain, _seen_by(table, moving)):
                if fate is Fate.ACCEPT:
                    yield from self._tables(hook, tables[position + 1 :], _tracked(table, after))
                else:
                    yield (_refused(fate, after),)
            return
        yield moving

    def _base_chain(self, table: str, chain: Chain, moving: Moving) -> Iterator[Acted]:
        for fate, after in self._rules(table, chain, 0, moving, 0):
            if fate not in (Fate.GO_ON, Fate.RETURN):
                yield Acted(fate, after)
                continue
            dropped = chain.policy == "DROP"
            step = dropped or table == "filter"
            policy = _with_step(after, table, chain.name, f"policy {chain.policy}") if step else after
            yield Acted(Fate.DROP if dropped else Fate.ACCEPT, policy)

    def _rules(self, table: str, chain: Chain, index: int, moving: Moving, depth: int) -> Iterator[Acted]:
        """From rule *index* of *chain* to its end; `GO_ON` and `RETURN` both leave it for its caller."""
        rules, host = chain.rules, self._host
        if depth > _DEEPEST:
            raise RulesetError(f"jumps of table {table} go in circles at chain {chain.name}")
        while index < len(rules):
            rule = rules[index]
            index += 1
            answer = evaluate(rule, moving, host)
            if answer is NO:
                continue
            if answer.share == 0:
                moving = _passed(moving, table, chain, rule, answer.assumption)
                continue
            taken = _take(moving, table, chain, index, depth, rule, answer.share, answer.assumption)
            going_on = []
            for acted in self._act(table, rule, taken, depth):
                if acted.fate is Fate.GO_ON:
                    going_on.append(acted.moving)
                else:
                    yield acted
            if answer.share < 1:
                spared = _passed(moving, table, chain, rule, answer.assumption)
                going_on.append(msgspec.structs.replace(spared, share=moving.share * (1 - answer.share)))
            if not going_on:
                return
            for branch in going_on[:-1]:
                yield from self._rules(table, chain, index, branch, depth)
            moving = going_on[-1]
        yield Acted(Fate.GO_ON, moving)

    def _act(self, table: str, rule: Rule, moving: Moving, depth: int) -> Iterator[Acted]:
        """What the target of a rule that matches does, jumps followed."""
        target = rule.target
        if not isinstance(target, Jump):
            yield _marked(act(target, moving))
            return
        chain = self._ruleset.chain(table, target.chain)
        if chain is None:
            yield Acted(Fate.GO_ON, assuming(moving, f"chain {target.chain} of {table} is not known: taken as empty"))
            return
        for fate, after in self._rules(table, chain, 0, moving, depth + 1):
            if fate in (Fate.GO_ON, Fate.RETURN):
                yield Acted(Fate.RETURN if target.goto else Fate.GO_ON, after)
            else:
                yield Acted(fate, after)


def _wants_nat(moving: Moving) -> bool:
    """Whether the kernel asks `nat`: destination and source of a flow are each settled once."""
    return moving.state == "NEW" and not moving.has_looped


def _seen_by(table: str, moving: Moving) -> Moving:
    """As *table* sees it: `raw` comes before conntrack, so a packet has no record there, which counts as `INVALID`."""
    if table != RAW or moving.has_looped or moving.state == _UNTRACKED:
        return moving
    return msgspec.structs.replace(moving, state="INVALID")


def _tracked(table: str, moving: Moving) -> Moving:
    """After *table*: conntrack looks at what `raw` did not exempt."""
    if table != RAW or moving.state == _UNTRACKED:
        return moving
    return msgspec.structs.replace(moving, state=moving.packet.state)


def _passed(moving: Moving, table: str, chain: Chain, rule: Rule, assumption: str) -> Moving:
    """*moving* with what was assumed about *rule*, if the rule can decide about the packet."""
    target = rule.target
    if not assumption or target is None or (isinstance(target, OpaqueTarget) and target.name in HARMLESS):
        return moving
    return assuming(moving, f"{table} {render_rule(chain.name, rule)}: {assumption}")


def _take(
    moving: Moving, table: str, chain: Chain, position: int, depth: int, rule: Rule, share: Fraction, assumption: str
) -> Moving:
    """*moving* as it takes the rule at *position*."""
    step = Step(
        hook=moving.hook,
        table=table,
        chain=chain.name,
        position=position,
        depth=depth,
        line=render_rule(chain.name, rule),
        mark=moving.mark,
        share=share,
        assumption=assumption,
    )
    taken = msgspec.structs.replace(moving, share=moving.share * share, path=(*moving.path, step))
    return _passed(taken, table, chain, rule, assumption)


def _marked(acted: Acted) -> Acted:
    """The last step shows the mark as it is after it."""
    fate, moving = acted
    last = moving.path[-1]
    if last.mark == moving.mark:
        return acted
    path = (*moving.path[:-1], msgspec.structs.replace(last, mark=moving.mark))
    return Acted(fate, msgspec.structs.replace(moving, path=path))


def _with_step(moving: Moving, table: str, chain: str, line: str) -> Moving:
    step = Step(hook=moving.hook, table=table, chain=chain, position=0, depth=0, line=line, mark=moving.mark)
    return msgspec.structs.replace(moving, path=(*moving.path, step))


def _outcome(end: End, moving: Moving, *, locally: bool = False, reject_with: str = "") -> Outcome:
    return Outcome(
        end=end,
        share=moving.share,
        destination=moving.destination,
        destination_port=moving.destination_port,
        translated=moving.destination_translated,
        source=moving.source,
        masqueraded=moving.source_translated,
        delivered_locally=locally,
        reject_with=reject_with,
        mark=moving.mark,
        assumptions=moving.assumptions,
        path=moving.path,
    )


def _accepted(moving: Moving, *, locally: bool) -> Outcome:
    return _outcome(End.ACCEPTED, moving, locally=locally)


def _refused(fate: Fate, moving: Moving) -> Outcome:
    if fate is Fate.DROP:
        return _outcome(End.DROPPED, moving)
    return _outcome(End.REJECTED, moving, reject_with=moving.path[-1].line.rpartition("--reject-with ")[2])
