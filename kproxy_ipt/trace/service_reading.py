"""
The rules of KUBE-* chains read back: what each service port does, whoever wrote the rules.

Entries are found by the comments of rules in shared chains, everything behind them by following jumps. Whatever does
not fit the model is kept as text (`unread`, `leftovers`), so that two views that are equal leave nothing uncompared.
"""

import re
from collections.abc import Mapping

import msgspec

from kproxy_ipt.rules.names import is_service_chain
from kproxy_ipt.rules.shared_chains import PLACES
from kproxy_ipt.ruleset.matches import AddressType, Comment, Match, Nfacct, PortMatch
from kproxy_ipt.ruleset.model import Chain, Rule, Ruleset
from kproxy_ipt.ruleset.render import render_rule
from kproxy_ipt.ruleset.targets import Jump
from kproxy_ipt.trace.branches import as_rows
from kproxy_ipt.trace.conditions import address_words
from kproxy_ipt.trace.row_shares import without_comment
from kproxy_ipt.trace.service_chains import DispatchView, ServiceReader, fate, rules_of
from kproxy_ipt.trace.service_views import EntryKind, EntryView, ServiceView

_SERVICE_PORT = r"[a-z0-9.-]+/[a-z0-9.-]+(?::[a-z0-9-]+)?"
_OWNED = re.compile(rf"({_SERVICE_PORT})(?: (.*))?")

SHARED_CHAINS = tuple((place.table, place.chain) for place in PLACES.values())
"""Chains that hold rules of many service ports."""

_LOCAL_DESTINATION = AddressType(destination="LOCAL")


class Reading(msgspec.Struct, frozen=True):
    """
    A Ruleset read as services.

    Attributes:
        services: By `namespace/name:port/protocol`, sorted.
        leftovers: Rules of shared chains that belong to no service port, by table and chain, in order.
        orphans: Chains of service ports that nothing leads to.
    """

    services: Mapping[str, ServiceView]
    leftovers: Mapping[tuple[str, str], tuple[Rule, ...]]
    orphans: tuple[Chain, ...]


def read_services(ruleset: Ruleset) -> Mapping[str, ServiceView]:
    """
    What each service port does, by `namespace/name:port/protocol`, sorted.

    A service port without any rule (headless, or only refused in the other family) is not there.
    """
    return read_ruleset(ruleset).services


def read_ruleset(ruleset: Ruleset) -> Reading:
    """Services and what is left over in the chains that they share, dispatch trees read as rows."""
    ruleset = as_rows(ruleset)
    found: dict[tuple[str, str], DispatchView] = {}
    leftovers: dict[tuple[str, str], tuple[Rule, ...]] = {}
    for table, name in SHARED_CHAINS:
        rest = [rule for rule in rules_of(ruleset, table, name) if not _take(rule, table, name, found)]
        leftovers[table, name] = tuple(rest)
    services = {
        f"{text}/{protocol}": ServiceReader(ruleset, service, (text, protocol)).view()
        for (text, protocol), service in sorted(found.items())
    }
    reached = {name for view in services.values() for name in view.chains}
    nat = ruleset.tables.get("nat")
    orphans = tuple(
        chain
        for name, chain in (nat.chains if nat else {}).items()
        if is_service_chain("nat", name) and name not in reached
    )
    return Reading(services, leftovers, orphans)


def comment_of(rule: Rule) -> str:
    """The first comment of *rule*, "" without one."""
    return next((match.text for match in rule.matches if isinstance(match, Comment)), "")


def owner_of(rule: Rule) -> tuple[str, str]:
    """The service port text that the comment of *rule* begins with, and the rest of it; two empty texts if none."""
    found = _OWNED.fullmatch(comment_of(rule))
    return (found[1], found[2] or "") if found else ("", "")


def _take(rule: Rule, table: str, chain: str, found: dict[tuple[str, str], DispatchView]) -> bool:
    """Put *rule* down for its service port; False if it has none."""
    text, role = owner_of(rule)
    if not text:
        return False
    protocol = rule.protocol or "any"
    kind = _kind(table, chain, role)
    if kind is EntryKind.HEALTH_CHECK:  # its own protocol says nothing about the service port
        protocol = next((known for (name, known) in found if name == text), protocol)
    service = found.setdefault((text, protocol), DispatchView())
    entry = _entry(rule, kind) if kind else None
    if entry:
        service.entries.append(entry)
    else:
        service.unread.append(render_rule(f"{table} {chain}", without_comment(rule)))
    if table == "nat" and isinstance(rule.target, Jump):
        service.targets.append(rule.target.chain)
    return True


def _kind(table: str, chain: str, role: str) -> EntryKind | None:
    if table == "nat":
        if chain == "KUBE-NODEPORTS":
            return EntryKind.NODE_PORT
        return EntryKind(role) if role in ("cluster IP", "external IP", "loadbalancer IP") else None
    if chain == "KUBE-NODEPORTS":
        return EntryKind.HEALTH_CHECK
    return EntryKind.GUARDED if chain == "KUBE-PROXY-FIREWALL" else EntryKind.REFUSED


def _entry(rule: Rule, kind: EntryKind) -> EntryView | None:
    """*rule* as an entry, None if it asks for anything that an entry does not hold."""
    asked = [match for match in rule.matches if not isinstance(match, Comment | Nfacct)]
    address = address_words(rule.destination)
    if _LOCAL_DESTINATION in asked and not address and kind is EntryKind.REFUSED:
        asked.remove(_LOCAL_DESTINATION)
    ports = next((match.destination for match in asked if isinstance(match, PortMatch)), None)
    target = fate(rule)
    expected: list[Match] = [PortMatch(rule.protocol, ports)]
    header = Rule(destination=rule.destination, protocol=rule.protocol, matches=rule.matches, target=rule.target)
    if ports is None or ports[0] != ports[1] or asked != expected or not target:
        return None
    if msgspec.structs.replace(rule, counters=None) != header:
        return None
    return EntryView(kind, address, ports[0], target, any(isinstance(match, Nfacct) for match in rule.matches))
