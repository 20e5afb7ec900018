"""
Chains and rules that know no service: masquerading, forwarding, the guard of loopback, jumps from built-in chains.

Source: kube-proxy v1.36, iptables mode.
"""

from collections.abc import Iterator

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.rules.names import (
    KUBE_EXTERNAL_SERVICES,
    KUBE_FIREWALL,
    KUBE_FORWARD,
    KUBE_MARK_MASQ,
    KUBE_NODEPORTS,
    KUBE_POSTROUTING,
    KUBE_PROXY_FIREWALL,
    KUBE_SERVICES,
)
from kproxy_ipt.rules.options import INVALID_COUNTER, RuleOptions
from kproxy_ipt.ruleset.matches import AddressType, Comment, Conntrack, Mark, Match, Nfacct
from kproxy_ipt.ruleset.model import Chain, Rule
from kproxy_ipt.ruleset.targets import Jump, Masquerade, SetMark, Verdict

ACCEPT = Verdict("ACCEPT")
DROP = Verdict("DROP")
MARK_MASQ = Jump(KUBE_MARK_MASQ)
LOCAL_SOURCE = AddressType(source="LOCAL")
LOCAL_DESTINATION = AddressType(destination="LOCAL")

LOOPBACK = {Family.IPV4: "127.0.0.0/8", Family.IPV6: "::1/128"}


class BaseJump(msgspec.Struct, frozen=True):
    """A rule of a built-in chain that leads into one of ours."""

    table: str
    chain: str
    rule: Rule

    @property
    def target(self) -> str:
        """The chain that the rule jumps to."""
        return self.rule.target.chain if isinstance(self.rule.target, Jump) else ""


def _jump(table: str, base: str, comment: str, target: str, *, new_only: bool = False) -> BaseJump:
    matches: list[Match] = [Conntrack(("NEW",))] if new_only else []
    if comment:
        matches.append(Comment(comment))
    return BaseJump(table, base, Rule(matches=tuple(matches), target=Jump(target)))


_EXTERNAL_PORTALS = "kubernetes externally-visible service portals"
_PORTALS = "kubernetes service portals"
_FIREWALL = "kubernetes load balancer firewall"

BASE_JUMPS = (
    _jump("filter", "INPUT", _EXTERNAL_PORTALS, KUBE_EXTERNAL_SERVICES, new_only=True),
    _jump("filter", "FORWARD", _EXTERNAL_PORTALS, KUBE_EXTERNAL_SERVICES, new_only=True),
    _jump("filter", "INPUT", "kubernetes health check service ports", KUBE_NODEPORTS),
    _jump("filter", "FORWARD", _PORTALS, KUBE_SERVICES, new_only=True),
    _jump("filter", "OUTPUT", _PORTALS, KUBE_SERVICES, new_only=True),
    _jump("filter", "FORWARD", "kubernetes forwarding rules", KUBE_FORWARD),
    _jump("filter", "INPUT", _FIREWALL, KUBE_PROXY_FIREWALL, new_only=True),
    _jump("filter", "OUTPUT", _FIREWALL, KUBE_PROXY_FIREWALL, new_only=True),
    _jump("filter", "FORWARD", _FIREWALL, KUBE_PROXY_FIREWALL, new_only=True),
    _jump("nat", "OUTPUT", _PORTALS, KUBE_SERVICES),
    _jump("nat", "PREROUTING", _PORTALS, KUBE_SERVICES),
    _jump("nat", "POSTROUTING", "kubernetes postrouting rules", KUBE_POSTROUTING),
    _jump("filter", "INPUT", "", KUBE_FIREWALL),
    _jump("filter", "OUTPUT", "", KUBE_FIREWALL),
)
"""In the order of insertion: each goes to the top of its chain, so the last of a chain ends up first."""


def local_addresses(match: AddressType, options: RuleOptions) -> Iterator[tuple[str, tuple[Match, ...]]]:
    """
    The ways to say that an address is one of the node's own: a prefix and matches for a rule each, any may fit.

    That is *match* alone, or without addrtype each address by itself.
    """
    if options.local_addresses is None:
        yield "", (match,)
        return
    for address in options.local_addresses:
        yield f"{address}/{options.family.bits}", ()


def mark_masquerade_chain(options: RuleOptions) -> Chain:
    """KUBE-MARK-MASQ: sets our bit of the packet's mark and no other."""
    mark = options.masquerade_mark
    return Chain(KUBE_MARK_MASQ, (Rule(target=SetMark(mark, mark)),))


def postrouting_chain(options: RuleOptions) -> Chain:
    """
    KUBE-POSTROUTING: masquerades packets that carry our bit.

    The bit is cleared before, so that a packet which is encapsulated afterwards is not masqueraded a second time.
    """
    mark = options.masquerade_mark
    comment = Comment("kubernetes service traffic requiring SNAT")
    return Chain(
        KUBE_POSTROUTING,
        (
            Rule(matches=(Mark(mark, mark, negated=True),), target=Verdict("RETURN")),
            Rule(target=SetMark(mark, 0)),
            Rule(matches=(comment,), target=Masquerade(random_fully=options.random_fully)),
        ),
    )


def forward_chain(options: RuleOptions) -> Chain:
    """
    KUBE-FORWARD: accepts marked and known connections where the policy of FORWARD is DROP.

    Packets that connection tracking calls INVALID skip NAT; forwarded with the wrong address they would make the peer
    reset a good connection, so they are dropped, unless the kernel was told to be liberal about them.
    """
    mark = options.masquerade_mark
    return Chain(
        KUBE_FORWARD,
        (
            *_drop_invalid(options),
            Rule(matches=(Comment("kubernetes forwarding rules"), Mark(mark, mark)), target=ACCEPT),
            Rule(
                matches=(
                    Comment("kubernetes forwarding conntrack rule"),
                    Conntrack(("RELATED", "ESTABLISHED")),
                ),
                target=ACCEPT,
            ),
        ),
    )


def _drop_invalid(options: RuleOptions) -> Iterator[Rule]:
    if not options.drop_invalid:
        return
    counted = (Nfacct(INVALID_COUNTER),) if INVALID_COUNTER in options.nfacct_counters else ()
    yield Rule(matches=(Conntrack(("INVALID",)), *counted), target=DROP)


def loopback_guard() -> Rule:
    """
    The rule of KUBE-FIREWALL: keeps others from reaching 127.0.0.0/8.

    Needed once `route_localnet` lets such packets in for the sake of node ports on localhost (CVE-2020-8558).
    """
    return Rule(
        source=LOOPBACK[Family.IPV4],
        source_negated=True,
        destination=LOOPBACK[Family.IPV4],
        matches=(
            Comment("block incoming localnet connections"),
            Conntrack(("RELATED", "ESTABLISHED", "DNAT"), negated=True),
        ),
        target=DROP,
    )


def node_port_jumps(options: RuleOptions) -> Iterator[Rule]:
    """
    The rules that end nat KUBE-SERVICES: what is addressed to the node itself goes on to KUBE-NODEPORTS.

    They must be last, for addresses of services may be addresses of the node as well.
    """
    comment = Comment("kubernetes service nodeports; NOTE: this must be the last rule in this chain")
    target = Jump(KUBE_NODEPORTS)
    entry = options.node_ports
    if not entry.all_addresses:
        for address in entry.addresses:
            yield Rule(destination=f"{address}/{options.family.bits}", matches=(comment,), target=target)
        return
    excluded = "" if entry.localhost else LOOPBACK[options.family]
    yield Rule(
        destination=excluded,
        destination_negated=bool(excluded),
        matches=(comment, LOCAL_DESTINATION),
        target=target,
    )
