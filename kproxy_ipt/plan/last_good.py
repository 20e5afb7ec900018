"""
The rules that a Service has in the kernel: what stays while the kernel refuses its new ones.

They are read from a listing, not remembered: so they are what really stands, whoever wrote it, and a restart or a
switch from kube-proxy loses nothing. Whose a line of a shared chain is, its comment tells: it begins with the service
port.
"""

from collections.abc import Collection, Iterator, Mapping

from kproxy_ipt.addresses import Family
from kproxy_ipt.errors import RulesetError
from kproxy_ipt.plan.actual import holds_rule, same_rules
from kproxy_ipt.plan.contribution import NOTHING, Contribution
from kproxy_ipt.plan.dispatch_lines import SharedLine, SharedLines
from kproxy_ipt.plan.wanted import Lines
from kproxy_ipt.rules.dispatch_tree import BRANCH_COMMENT, Place, dispatch_key
from kproxy_ipt.rules.names import is_changing_chain, is_service_chain
from kproxy_ipt.rules.shared_chains import PLACES
from kproxy_ipt.ruleset.matches import Comment
from kproxy_ipt.ruleset.model import Rule
from kproxy_ipt.ruleset.parse import parse_rule
from kproxy_ipt.ruleset.scan import SavedTables, jumps_to
from kproxy_ipt.state.tracker import ServiceName

_ENDPOINT_CHAIN = "KUBE-SEP-"


def standing_rules(
    actual: SavedTables, names: Collection[ServiceName], family: Family
) -> Mapping[ServiceName, Contribution]:
    """
    What *names* have in the kernel; Services without a line in a shared chain are left out.

    Args:
        actual: The tables filter and nat.
        names: Services that are asked for.
        family: Of the tables.
    """
    shared: dict[ServiceName, dict[Place, list[SharedLine]]] = {}
    chains: dict[ServiceName, dict[str, Lines]] = {}
    owners: dict[ServiceName, dict[str, str]] = {}
    for place in PLACES.values():
        for line, rule in _row(actual, place, place.chain):
            text = _comment(rule).partition(" ")[0]
            name = _service_of(text)
            if name not in names:
                continue
            key = dispatch_key(rule, family, ports_first=place.ports_first)
            shared.setdefault(name, {}).setdefault(place, []).append(SharedLine(key, line))
            found = chains.setdefault(name, {})
            for chain in _own_chains(actual, jumps_to(line) or "", found):
                owners.setdefault(name, {})[chain] = text
    return {
        name: Contribution(chains[name], owners.get(name, {}), {place: tuple(lines) for place, lines in places.items()})
        for name, places in shared.items()
    }


def stands(wanted: Contribution, standing: Contribution, family: Family) -> bool:
    """Whether all of *wanted* is in force: chains that nothing leads to are not, though the kernel took them."""
    for name, lines in wanted.chains.items():
        saved = standing.chains.get(name)
        if saved is None or not same_rules(lines, saved, family):
            return False
    for place, shared in wanted.shared.items():
        texts = tuple(line.text for line in standing.shared.get(place, ()))
        if not all(line.text in texts or holds_rule(texts, line.text, family) for line in shared):
            return False
    return True


def still_serving(standing: Contribution, wanted: Contribution) -> Contribution:
    """
    The part of *standing* that is right for a Service that wants *wanted*.

    Lines for addresses and ports that are no longer the Service's go, for they may be somebody else's by now. Nothing
    stays of a Service all of whose endpoints have changed: its rules would lead to nobody.
    """
    entries = {(place.ports_first, line.key) for place, lines in wanted.shared.items() for line in lines}
    shared: SharedLines = {
        place: kept
        for place, lines in standing.shared.items()
        if (kept := tuple(line for line in lines if (place.ports_first, line.key) in entries))
    }
    endpoints = {name for name in standing.chains if name.startswith(_ENDPOINT_CHAIN)}
    if not shared or (endpoints and endpoints.isdisjoint(wanted.chains)):
        return NOTHING
    return Contribution(standing.chains, standing.owners, shared)


def _row(actual: SavedTables, place: Place, chain: str) -> Iterator[tuple[str, Rule]]:
    """The rules of a shared chain, those of its parts in their places, each as a line of the first chain."""
    saved = actual.chain(place.table, chain)
    for line in saved.lines if saved else ():
        try:
            rule = parse_rule(line)[1]  # the family does not matter: only comment, destination and port are asked
        except RulesetError:
            continue  # nobody's of ours
        part = jumps_to(line) or ""
        if _comment(rule).startswith(BRANCH_COMMENT) and is_changing_chain(place.table, part):
            yield from _row(actual, place, part)
        else:
            yield f"-A {place.chain}{line[3 + len(chain) :]}", rule


def _own_chains(actual: SavedTables, chain: str, found: dict[str, Lines]) -> Iterator[str]:
    """Add the chains from *chain* on that are not in *found*, each after those that it jumps to; gives their names."""
    saved = actual.chain("nat", chain)
    if saved is None or chain in found or not is_service_chain("nat", chain):
        return
    for line in saved.lines:
        yield from _own_chains(actual, jumps_to(line) or "", found)
    found[chain] = saved.lines
    yield chain


def _service_of(service_port_text: str) -> ServiceName:
    namespace, _, rest = service_port_text.partition("/")
    return namespace, rest.partition(":")[0]


def _comment(rule: Rule) -> str:
    return next((match.text for match in rule.matches if isinstance(match, Comment)), "")
