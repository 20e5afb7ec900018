"""The chains of one service port read back, from its rules in shared chains to its endpoints, by following jumps."""

from collections import defaultdict
from fractions import Fraction

import msgspec

from kproxy_ipt.rules.names import KUBE_MARK_MASQ, endpoint_chain_name, is_service_chain
from kproxy_ipt.ruleset.matches import Match, PortMatch, Recent
from kproxy_ipt.ruleset.model import Chain, Rule, Ruleset
from kproxy_ipt.ruleset.render import render_rule
from kproxy_ipt.ruleset.targets import Dnat, Jump, Reject, Verdict
from kproxy_ipt.trace.conditions import address_words, condition_words
from kproxy_ipt.trace.row_shares import RowShares, leads_to_place, without_comment
from kproxy_ipt.trace.service_views import EndpointView, EntryView, ServiceView


class DispatchView(msgspec.Struct):
    """What rules in shared chains say about a service port: *targets* are the chains that they lead to."""

    entries: list[EntryView] = msgspec.field(default_factory=list)
    targets: list[str] = msgspec.field(default_factory=list)
    unread: list[str] = msgspec.field(default_factory=list)


def rules_of(ruleset: Ruleset, table: str, name: str) -> tuple[Rule, ...]:
    """The rules of a chain, () if it is not there."""
    chain = ruleset.chain(table, name)
    return chain.rules if chain else ()


_FATES = {
    "KUBE-SVC-": "all endpoints",
    "KUBE-SVL-": "local endpoints",
    "KUBE-EXT-": "external policy",
    "KUBE-FW-": "source ranges",
}


def fate(rule: Rule) -> str:
    """Where *rule* leads, as `EntryView.fate` says it; "" if that is no place of a service port."""
    match rule.target:
        case Jump(chain, goto=False) if is_service_chain("nat", chain):
            return next((words for prefix, words in _FATES.items() if chain.startswith(prefix)), "")
        case Reject():
            return "refused"
        case Verdict("DROP"):
            return "dropped"
        case Verdict("ACCEPT"):
            return "accepted"
        case _:
            return ""


class ServiceReader:
    """Follows the jumps of one service port, once."""

    def __init__(self, ruleset: Ruleset, service: DispatchView, identity: tuple[str, str]) -> None:
        self.ruleset = ruleset
        self.service = service
        self.identity = identity
        self.unread = list(service.unread)
        self.chains: set[str] = set()
        self.groups: set[str] = set()
        self.schedulers: dict[str, None] = {}
        self.balanced: dict[str, tuple[EndpointView, ...]] = {}
        self.masquerade: list[str] = []
        self.external: list[str] = []
        self.ranges: list[str] | None = None

    def view(self) -> ServiceView:
        """The whole view."""
        waiting = list(dict.fromkeys(self.service.targets))
        while waiting:
            name = waiting.pop(0)
            if is_service_chain("nat", name) and name not in self.chains:
                self.chains.add(name)
                waiting += self._read(name)
        return ServiceView(
            text=self.identity[0],
            protocol=self.identity[1],
            entries=tuple(sorted(self.service.entries)),
            endpoints=self._of("KUBE-SVC-"),
            local_endpoints=self._of("KUBE-SVL-"),
            masquerade=tuple(self.masquerade),
            external=tuple(self.external),
            source_ranges=None if self.ranges is None else tuple(self.ranges),
            unread=tuple(self.unread),
            scheduler=" and ".join(sorted(self.schedulers)),
            chains=frozenset(self.chains),
            groups=frozenset(self.groups),
        )

    def _of(self, prefix: str) -> tuple[EndpointView, ...]:
        found = [one for name, views in self.balanced.items() if name.startswith(prefix) for one in views]
        return tuple(sorted(found, key=lambda one: one.destination))

    def _read(self, name: str) -> list[str]:
        chain = self.ruleset.chain("nat", name)
        if chain is None:
            self.unread.append(f"chain {_role(name)} is missing")
            return []
        if name.startswith("KUBE-EXT-"):
            return self._read_external(chain)
        if name.startswith("KUBE-FW-"):
            return self._read_firewall(chain)
        if name.startswith(("KUBE-SVC-", "KUBE-SVL-")):
            self._read_balancing(chain)
        else:
            self.unread += [f"{name} is entered directly"]
        return []

    def _keep(self, chain: str, rule: Rule) -> None:
        self.unread.append(render_rule(_role(chain), without_comment(rule)))

    def _read_external(self, chain: Chain) -> list[str]:
        targets: list[str] = []
        for rule in chain.rules:
            words = ", ".join(condition_words(rule))
            step = "masquerade" if _marks(rule) else fate(rule)
            if not step:
                self._keep(chain.name, rule)
                continue
            self.external.append(f"{words}: {step}" if words else step)
            if isinstance(rule.target, Jump) and not _marks(rule):
                targets.append(rule.target.chain)
        return targets

    def _read_firewall(self, chain: Chain) -> list[str]:
        self.ranges = []
        targets: list[str] = []
        for rule in chain.rules:
            target = rule.target.chain if isinstance(rule.target, Jump) else ""
            if target.startswith("KUBE-EXT-") and condition_words(rule) in (
                (f"from {address_words(rule.source)}",),
                (),
            ):
                self.ranges.append(rule.source or "any")
                targets.append(target)
            elif rule.target is not None or condition_words(rule):
                self._keep(chain.name, rule)
        return targets

    def _read_balancing(self, chain: Chain) -> None:
        row = RowShares()
        shares: dict[str, Fraction] = defaultdict(Fraction)
        asked: dict[str, int] = {}
        for rule in chain.rules:
            known = _known_client(rule)
            if row.remaining == 1 and _marks(rule):
                self._read_masquerade(chain.name, rule)
            elif row.remaining == 1 and known:
                asked[_place(rule)] = known
            else:
                self._read_choice(chain.name, rule, row, shares)
        self._end_row(chain.name, row, Fraction(1))
        self.unread += [f"{_role(chain.name)}: only known clients reach {name}" for name in asked if name not in shares]
        self.balanced[chain.name] = tuple(
            self._endpoint(name, share, asked.get(name, 0)) for name, share in shares.items()
        )

    def _read_choice(self, chain: str, rule: Rule, row: RowShares, shares: dict[str, Fraction]) -> None:
        """A rule that takes some connections; those for a group are divided among its endpoints."""
        taken = row.take(rule) if row.remaining else Fraction(0)
        name = _place(rule)
        if taken and name.startswith("KUBE-SEP-"):
            shares[name] += taken
        elif not taken or name in self.chains:  # no balancing rule, or one that leads in a circle or twice to a group
            self._keep(chain, rule)
        else:
            self._read_group(name, taken, shares)

    def _read_group(self, name: str, share: Fraction, shares: dict[str, Fraction]) -> None:
        self.chains.add(name)
        self.groups.add(name)
        row = RowShares()
        inner: dict[str, Fraction] = defaultdict(Fraction)
        for rule in rules_of(self.ruleset, "nat", name):
            self._read_choice(name, rule, row, inner)
        self._end_row(name, row, share)
        for endpoint, part in inner.items():
            shares[endpoint] += share * part

    def _end_row(self, chain: str, row: RowShares, share: Fraction) -> None:
        """What the row that *share* of all connections came to leaves over reaches nothing."""
        self.schedulers.update(row.schedulers)
        if row.remaining:
            lost = f"{float(share * row.remaining * 100):.3g} %"
            self.unread.append(f"{_role(chain)}: {lost} of connections reach no endpoint")

    def _read_masquerade(self, chain: str, rule: Rule) -> None:
        """A rule for exactly one cluster IP entry is told by its other conditions alone."""
        whole = condition_words(rule)
        own = {
            f"{rule.protocol} {one.port} to {one.address}" for one in self.service.entries if one.kind == "cluster IP"
        }
        if whole and whole[0] in own:
            self.masquerade.append(", ".join(whole[1:]) or "always")
        else:
            self._keep(chain, rule)

    def _endpoint(self, name: str, share: Fraction, asked_s: int) -> EndpointView:
        self.chains.add(name)
        rules = rules_of(self.ruleset, "nat", name)
        target = rules[-1].target if rules else None
        if not isinstance(target, Dnat) or target != Dnat(target.to_destination):
            self.unread += [f"{name} leads nowhere", *(render_rule(name, without_comment(rule)) for rule in rules)]
            return EndpointView(name, share, asked_s)
        destination = target.to_destination
        shown = f"chain of {destination}"
        remembers = self._read_dnat(name, shown, rules[-1])
        if bool(asked_s) != remembers:
            self.unread.append(f"{shown}: clients are {'remembered' if remembers else 'asked for'} in vain")
        if name != endpoint_chain_name(*self.identity, destination):
            self.unread.append(f"{shown}: unusual name {name}")
        hairpin = Rule(source=_own_prefix(destination), target=Jump(KUBE_MARK_MASQ))
        rest = [without_comment(rule) for rule in rules[:-1]]
        self.unread += [render_rule(shown, rule) for rule in rest if rule != hairpin]
        return EndpointView(destination, share, asked_s, hairpin in rest)

    def _read_dnat(self, name: str, shown: str, rule: Rule) -> bool:
        """Whether the rule that rewrites also remembers the client."""
        bare = without_comment(rule)
        remembering = [match for match in bare.matches if _is_set(match, name)]
        expected = Rule(protocol=self.identity[1], target=rule.target, matches=(PortMatch(self.identity[1]),))
        others = tuple(match for match in bare.matches if match not in remembering)
        if msgspec.structs.replace(bare, matches=others) != expected:
            self.unread.append(render_rule(shown, bare))
        return bool(remembering)


def _is_set(match: Match, name: str) -> bool:
    return isinstance(match, Recent) and match.name == name and match.action == "set" and not match.negated


def _role(chain: str) -> str:
    return "-".join(chain.split("-")[:2])


def _marks(rule: Rule) -> bool:
    return rule.target == Jump(KUBE_MARK_MASQ)


def _place(rule: Rule) -> str:
    return rule.target.chain if isinstance(rule.target, Jump) else ""


def _known_client(rule: Rule) -> int:
    """Seconds for which *rule* sends a client back to an endpoint chain, 0 if it is no such rule."""
    recent = [match for match in rule.matches if isinstance(match, Recent)]
    name = _place(rule)
    if len(recent) != 1 or not name.startswith("KUBE-SEP-") or not leads_to_place(rule, recent):
        return 0
    one = recent[0]
    usual = Recent(name, "rcheck", one.mask, seconds=one.seconds, reap=one.reap)
    return one.seconds if one == usual else 0


def _own_prefix(destination: str) -> str:
    address = destination.rpartition(":")[0]
    return f"{address[1:-1]}/128" if address.startswith("[") else f"{address}/32"
