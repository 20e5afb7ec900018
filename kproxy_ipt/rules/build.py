"""
A snapshot becomes the desired rules: the table of contents of this package, calls only.

What one service port contributes (`ServicePortRules`) is computed by itself and never changes, so a caller that keeps
it has to recompute only the service ports that changed.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

import msgspec

from kproxy_ipt.config.model import Config
from kproxy_ipt.rules.dispatch import DispatchRules, dispatch_rules
from kproxy_ipt.rules.dispatch_tree import DispatchTree, Entry, Place, dispatch_key
from kproxy_ipt.rules.fallbacks import served_without
from kproxy_ipt.rules.fixed import (
    BASE_JUMPS,
    BaseJump,
    forward_chain,
    loopback_guard,
    mark_masquerade_chain,
    node_port_jumps,
    postrouting_chain,
)
from kproxy_ipt.rules.names import KUBE_FIREWALL, KUBE_FORWARD
from kproxy_ipt.rules.options import RuleOptions, rule_options
from kproxy_ipt.rules.service_chains import chain_names, service_chains
from kproxy_ipt.rules.shared_chains import PLACES, keeps_its_form, wants_tree
from kproxy_ipt.ruleset.model import Chain, Rule, Ruleset, Table
from kproxy_ipt.selection.usable import usable_endpoints
from kproxy_ipt.state.model import MachineFacts, NodeFacts, ServiceState, Snapshot


class ServicePortRules(msgspec.Struct, frozen=True):
    """What one service port contributes: chains of its own, and rules in shared chains."""

    text: str
    chains: tuple[Chain, ...]
    dispatch: DispatchRules

    @property
    def owners(self) -> dict[str, str]:
        """The own chains, each with the text of the service port."""
        return {own.name: self.text for own in self.chains}


class Desired(msgspec.Struct, frozen=True, kw_only=True):
    """
    The rules that one family should have.

    Attributes:
        ruleset: Our chains in the tables filter and nat, complete; a chain of a service port only after those that it
            jumps to. KUBE-FIREWALL is among them only if we have a rule in it.
        base_jumps: Rules of built-in chains, in the order of insertion at the top.
        shared_chains: `(table, chain)` that must exist but whose rules are not ours to judge.
        owners: Text of the service port for each chain that belongs to one.
        service_count: Services with an address of the family.
        service_port_count: Their ports.
        endpoint_count: Over all service ports, usable or not.
        keeping: Shared chains that stay row or tree, whichever the kernel has; see `branched` of `build_ruleset`.
    """

    ruleset: Ruleset
    base_jumps: tuple[BaseJump, ...]
    shared_chains: tuple[tuple[str, str], ...]
    owners: Mapping[str, str]
    service_count: int
    service_port_count: int
    endpoint_count: int
    keeping: frozenset[Place] = frozenset()


def build_ruleset(
    snapshot: Snapshot, config: Config, machine: MachineFacts, branched: frozenset[Place] = frozenset()
) -> Desired:
    """
    The rules for *snapshot*.

    The result depends on nothing else: the same on every run and on every node of the same name and addresses.

    Args:
        snapshot: What the objects mean.
        config: The effective configuration.
        machine: Facts of the machine.
        branched: Shared chains that are trees in the kernel: between two bounds they stay what they are.
    """
    endpoint_count = sum(len(state.endpoints) for state in snapshot.services.values())
    options = rule_options(config, snapshot.node, machine, snapshot.family, endpoint_count=endpoint_count)
    contributions = [service_port_rules(state, snapshot.node, options) for state in snapshot.services.values()]
    return assemble(contributions, options, endpoint_count=endpoint_count, branched=branched)


def service_port_rules(state: ServiceState, node: NodeFacts, options: RuleOptions) -> ServicePortRules:
    """What the service port of *state* contributes, which is nothing where the machine lacks a part that it needs."""
    if options.lacking:
        served = served_without(options.lacking, state, node)
        if served is None:
            return ServicePortRules(state.service_port.text, (), DispatchRules())
        service_port, usable = served
    else:
        service_port = state.service_port
        usable = usable_endpoints(service_port, state.endpoints, node)
    names = chain_names(service_port)
    return ServicePortRules(
        service_port.text,
        tuple(service_chains(service_port, usable, names, options)),
        dispatch_rules(service_port, usable, names, options),
    )


def assemble(
    contributions: Iterable[ServicePortRules],
    options: RuleOptions,
    *,
    endpoint_count: int,
    branched: frozenset[Place] = frozenset(),
) -> Desired:
    """Put fixed chains and *contributions* together, in the order given; *branched* as for `build_ruleset`."""
    parts = list(contributions)
    owners = {name: text for part in parts for name, text in part.owners.items()}
    nat = {own.name: own for part in parts for own in part.chains}
    nat.update((fixed.name, fixed) for fixed in (mark_masquerade_chain(options), postrouting_chain(options)))
    filters = {KUBE_FORWARD: forward_chain(options)}
    tables = {"nat": nat, "filter": filters}
    keeping: set[Place] = set()
    for field, place in PLACES.items():
        end = tuple(node_port_jumps(options)) if field == "nat_services" else ()
        row = tuple(chain.from_iterable(getattr(part.dispatch, field) for part in parts))
        dispatch = _shared_chains(place, row, end, options, is_tree=place in branched)
        tables[place.table].update((one.name, one) for one in dispatch)
        if keeps_its_form(options.dispatch, len(row)):
            keeping.add(place)
    if options.node_ports.localhost:
        filters[KUBE_FIREWALL] = Chain(KUBE_FIREWALL, (loopback_guard(),))
    shared = () if KUBE_FIREWALL in filters else (("filter", KUBE_FIREWALL),)
    return Desired(
        ruleset=Ruleset(options.family, {"filter": Table("filter", filters), "nat": Table("nat", nat)}),
        base_jumps=BASE_JUMPS,
        shared_chains=shared,
        owners=owners,
        service_count=len({part.text.partition(":")[0] for part in parts}),
        service_port_count=len(parts),
        endpoint_count=endpoint_count,
        keeping=frozenset(keeping),
    )


def _shared_chains(
    place: Place, row: tuple[Rule, ...], end: tuple[Rule, ...], options: RuleOptions, *, is_tree: bool
) -> Iterator[Chain]:
    """The chain of *place*, which *end* ends, and before it those that it leads to if it is a tree."""
    if not wants_tree(options.dispatch, len(row), is_tree=is_tree):
        yield Chain(place.chain, (*row, *end))
        return
    tree = DispatchTree[Rule](place, options.family)
    tree.replace(
        (),
        (
            Entry(dispatch_key(rule, options.family, ports_first=place.ports_first), ("", "", position), rule)
            for position, rule in enumerate(row)
        ),
    )
    for node in tree.ordered():
        yield Chain(node.name, (*(one.rule for one in node.contents), *(end if node.name == place.chain else ())))


def with_base_chains(desired: Desired) -> Ruleset:
    """
    The whole tables as a node without any other rule has them after a sync: built-in chains with our jumps included.

    Used to show and to compare; what is written is planned from the parts.
    """
    tables: dict[str, dict[str, Chain]] = {name: dict(table.chains) for name, table in desired.ruleset.tables.items()}
    for table, name in desired.shared_chains:
        tables[table].setdefault(name, Chain(name))
    for jump in desired.base_jumps:
        base = tables[jump.table].get(jump.chain)
        below = base.rules if base else ()
        tables[jump.table][jump.chain] = Chain(jump.chain, (jump.rule, *below), policy="ACCEPT")
    return Ruleset(desired.ruleset.family, {name: Table(name, chains) for name, chains in tables.items()})
