"""
Every form of rule that we write, as something that can be tried: one small chain each, hooked where such rules stand.

Forms of an optional part may be missing (`rules/fallbacks.py` says what is done then); without any other nothing works.
A test holds this table against the matches and targets that `kproxy_ipt/rules` uses.
"""

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.rules.balance import affinity_match, one_in
from kproxy_ipt.rules.dispatch import REJECT
from kproxy_ipt.rules.fixed import LOCAL_DESTINATION, LOCAL_SOURCE
from kproxy_ipt.rules.options import INVALID_COUNTER
from kproxy_ipt.ruleset.matches import Comment, Conntrack, Mark, Match, Nfacct, PortMatch, StatisticNth
from kproxy_ipt.ruleset.model import Chain, Rule, Ruleset, Table
from kproxy_ipt.ruleset.targets import Dnat, Jump, Masquerade, SetMark, Target, Verdict
from kproxy_ipt.state.model import OptionalPart

PROBE_COUNTER = INVALID_COUNTER
"""The accounting object that must exist where the form of nfacct is tried."""

DEEPEST_JUMP = 15
"""Chains below a built-in one that a packet passes at most: nf_tables allows 16 in all."""

_CHAIN = "KUBE-PREFLIGHT"
_BIT = 0x4000
_RETURN = Verdict("RETURN")


class RuleForm(msgspec.Struct, frozen=True, kw_only=True):
    """
    One form.

    Attributes:
        name: For people: `match recent`.
        extension: The match or target as the kernel names it; "" where it is a matter of the tables themselves.
        part: What it belongs to, or None: nothing works without it.
        table: Where it is tried.
        hook: The built-in chain that leads there.
        rules: Tried in a chain of their own.
        chains: Further chains that *rules* jump to.
        concerns: What needs it, where *part* is None.
    """

    name: str
    extension: str = ""
    part: OptionalPart | None = None
    table: str = "nat"
    hook: str = "PREROUTING"
    rules: tuple[Rule, ...]
    chains: tuple[Chain, ...] = ()
    concerns: str = ""


BASELINE = RuleForm(name="chain of our own", rules=(Rule(target=_RETURN),), concerns="everything")
"""What any backend takes; where it is refused, nothing can be told about others."""


def rule_forms(family: Family) -> tuple[RuleForm, ...]:
    """All forms for *family*, those that nothing works without first."""
    return (BASELINE, *_required_forms(family), *optional_forms(family))


def _matching(*matches: Match, protocol: str = "", target: Target = _RETURN) -> Rule:
    return Rule(protocol=protocol, matches=matches, target=target)


def _ports(protocol: str) -> tuple[Rule, ...]:
    return tuple(_matching(PortMatch(protocol, ports), protocol=protocol) for ports in ((80, 80), (30000, 30015), None))


def _required_forms(family: Family) -> tuple[RuleForm, ...]:
    address = "127.0.0.1" if family is Family.IPV4 else "[::1]"
    states = (("NEW",), ("INVALID",), ("RELATED", "ESTABLISHED"))
    guard = Conntrack(("RELATED", "ESTABLISHED", "DNAT"), negated=True)
    dnat = _matching(PortMatch("tcp"), protocol="tcp", target=Dnat(f"{address}:80"))
    reject = Rule(target=REJECT[family])
    return (
        RuleForm(
            name="match comment",
            extension="comment",
            rules=(_matching(Comment("a/b:c d")),),
            concerns="nearly all rules",
        ),
        RuleForm(
            name="match conntrack",
            extension="conntrack",
            table="filter",
            hook="FORWARD",
            rules=(*(_matching(Conntrack(each)) for each in states), _matching(guard)),
            concerns="forwarding, Services without endpoints, the guard of 127.0.0.0/8",
        ),
        RuleForm(
            name="match mark",
            extension="mark",
            hook="POSTROUTING",
            rules=(_matching(Mark(_BIT, _BIT)), _matching(Mark(_BIT, _BIT, negated=True))),
            concerns="masquerading",
        ),
        RuleForm(
            name="target MARK",
            extension="MARK",
            rules=(Rule(target=SetMark(_BIT, _BIT)), Rule(target=SetMark(_BIT, 0))),
            concerns="masquerading",
        ),
        RuleForm(
            name="target MASQUERADE",
            extension="MASQUERADE",
            hook="POSTROUTING",
            rules=(Rule(target=Masquerade()),),
            concerns="traffic from outside, hairpin traffic",
        ),
        RuleForm(name="target DNAT", extension="DNAT", rules=(dnat,), concerns="every Service with an endpoint"),
        RuleForm(
            name="target REJECT",
            extension="REJECT",
            table="filter",
            hook="FORWARD",
            rules=(reject,),
            concerns="Services without endpoints",
        ),
        RuleForm(name="ports of tcp", extension="tcp", rules=_ports("tcp"), concerns="Services of protocol TCP"),
        RuleForm(name="ports of udp", extension="udp", rules=_ports("udp"), concerns="Services of protocol UDP"),
        _depth_form(),
    )


def _depth_form() -> RuleForm:
    names = [f"{_CHAIN}-D{level}" for level in range(2, DEEPEST_JUMP + 1)]
    targets: list[Target] = [*(Jump(name) for name in names[1:]), _RETURN]
    chains = tuple(Chain(name, (Rule(target=target),)) for name, target in zip(names, targets, strict=True))
    return RuleForm(
        name=f"jumps {DEEPEST_JUMP} deep",
        rules=(Rule(target=Jump(names[0])),),
        chains=chains[::-1],
        concerns="dispatch as a tree: say dispatch: linear",
    )


def optional_forms(family: Family) -> tuple[RuleForm, ...]:
    """The forms that rules can do without, one for each part and a second one for the rotation of statistic."""
    affinity = (
        _matching(affinity_match("KUBE-SEP-PREFLIGHT", "set", family)),
        _matching(affinity_match("KUBE-SEP-PREFLIGHT", "rcheck", family, timeout_s=10800)),
    )
    return (
        RuleForm(
            name="match addrtype",
            extension="addrtype",
            part=OptionalPart.ADDRTYPE,
            rules=(_matching(LOCAL_DESTINATION), _matching(LOCAL_SOURCE)),
        ),
        RuleForm(name="match recent", extension="recent", part=OptionalPart.RECENT, rules=affinity),
        RuleForm(
            name="match statistic, random",
            extension="statistic",
            part=OptionalPart.STATISTIC,
            rules=(_matching(one_in(3)),),
        ),
        RuleForm(
            name="match statistic, nth",
            extension="statistic",
            part=OptionalPart.STATISTIC,
            rules=(_matching(StatisticNth(3)),),
        ),
        RuleForm(name="ports of sctp", extension="sctp", part=OptionalPart.SCTP, rules=_ports("sctp")),
        RuleForm(
            name="match nfacct", extension="nfacct", part=OptionalPart.NFACCT, rules=(_matching(Nfacct(PROBE_COUNTER)),)
        ),
        RuleForm(
            name="MASQUERADE --random-fully",
            extension="MASQUERADE",
            part=OptionalPart.RANDOM_FULLY,
            hook="POSTROUTING",
            rules=(Rule(target=Masquerade(random_fully=True)),),
        ),
    )


def forms_ruleset(forms: tuple[RuleForm, ...], family: Family) -> Ruleset:
    """*forms* together: a chain for each, and the rules of built-in chains that lead to it."""
    tables: dict[str, dict[str, Chain]] = {}
    for number, form in enumerate(forms):
        own = Chain(f"{_CHAIN}-{number}", form.rules)
        chains = tables.setdefault(form.table, {})
        chains.update((chain.name, chain) for chain in (*form.chains, own))
        hook = chains.get(form.hook, Chain(form.hook, policy="ACCEPT"))
        chains[form.hook] = Chain(hook.name, (*hook.rules, Rule(target=Jump(own.name))), policy="ACCEPT")
    return Ruleset(family, {name: Table(name, chains) for name, chains in tables.items()})
