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
from kproxy_ipt.rules.fixed import (
    BASE_JUMPS,
    BaseJump,
    forward_chain,
    loopback_guard,
    mark_masquerade_chain,
    node_port_jumps,
    postrouting_chain,
)
from kproxy_ipt.rules.names import (
    KUBE_EXTERNAL_SERVICES,
    KUBE_FIREWALL,
    KUBE_NODEPORTS,
    KUBE_PROXY_FIREWALL,
    KUBE_SERVICES,
)
from kproxy_ipt.rules.options import RuleOptions, rule_options
from kproxy_ipt.rules.service_chains import chain_names, service_chains
from kproxy_ipt.ruleset.model import Chain, Rule, Ruleset, Table
from kproxy_ipt.selection.usable import usable_endpoints
from kproxy_ipt.state.model import MachineFacts, NodeFacts, ServiceState, Snapshot


class ServicePortRules(msgspec.Struct, frozen=True):
    """What one service port contributes: chains of its own, and rules in shared chains."""

    text: str
    chains: tuple[Chain, ...]
    dispatch: DispatchRules


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
    """

    ruleset: Ruleset
    base_jumps: tuple[BaseJump, ...]
    shared_chains: tuple[tuple[str, str], ...]
    owners: Mapping[str, str]
    service_count: int
    service_port_count: int
    endpoint_count: int


def build_ruleset(snapshot: Snapshot, config: Config, machine: MachineFacts) -> Desired:
    """
    The rules for *snapshot*.

    The result depends on nothing else: the same on every run and on every node of the same name and addresses.
    """
    endpoint_count = sum(len(state.endpoints) for state in snapshot.services.values())
    options = rule_options(config, snapshot.node, machine, snapshot.family, endpoint_count=endpoint_count)
    contributions = [service_port_rules(state, snapshot.node, options) for state in snapshot.services.values()]
    return assemble(contributions, options, endpoint_count=endpoint_count)


def service_port_rules(state: ServiceState, node: NodeFacts, options: RuleOptions) -> ServicePortRules:
    """What the service port of *state* contributes."""
    service_port = state.service_port
    usable = usable_endpoints(service_port, state.endpoints, node)
    names = chain_names(service_port)
    return ServicePortRules(
        service_port.text,
        tuple(service_chains(service_port, usable, names, options)),
        dispatch_rules(service_port, usable, names, options),
    )


def assemble(contributions: Iterable[ServicePortRules], options: RuleOptions, *, endpoint_count: int) -> Desired:
    """Put fixed chains and *contributions* together, in the order given."""
    parts = list(contributions)
    nat = {own.name: own for part in parts for own in part.chains}
    owners = {own.name: part.text for part in parts for own in part.chains}
    nat.update((fixed.name, fixed) for fixed in _nat_chains(parts, options))
    filters = {fixed.name: fixed for fixed in _filter_chains(parts, options)}
    shared = () if KUBE_FIREWALL in filters else (("filter", KUBE_FIREWALL),)
    return Desired(
        ruleset=Ruleset(options.family, {"filter": Table("filter", filters), "nat": Table("nat", nat)}),
        base_jumps=BASE_JUMPS,
        shared_chains=shared,
        owners=owners,
        service_count=len({part.text.partition(":")[0] for part in parts}),
        service_port_count=len(parts),
        endpoint_count=endpoint_count,
    )


def _joined(contributions: Iterable[tuple[Rule, ...]]) -> tuple[Rule, ...]:
    return tuple(chain.from_iterable(contributions))


def _nat_chains(parts: list[ServicePortRules], options: RuleOptions) -> Iterator[Chain]:
    yield mark_masquerade_chain(options)
    yield postrouting_chain(options)
    yield Chain(KUBE_NODEPORTS, _joined(part.dispatch.nat_node_ports for part in parts))
    services = _joined(part.dispatch.nat_services for part in parts)
    yield Chain(KUBE_SERVICES, (*services, *node_port_jumps(options)))


def _filter_chains(parts: list[ServicePortRules], options: RuleOptions) -> Iterator[Chain]:
    yield forward_chain(options)
    yield Chain(KUBE_SERVICES, _joined(part.dispatch.filter_services for part in parts))
    yield Chain(KUBE_EXTERNAL_SERVICES, _joined(part.dispatch.filter_external for part in parts))
    yield Chain(KUBE_NODEPORTS, _joined(part.dispatch.filter_node_ports for part in parts))
    yield Chain(KUBE_PROXY_FIREWALL, _joined(part.dispatch.filter_firewall for part in parts))
    if options.node_ports.localhost:
        yield Chain(KUBE_FIREWALL, (loopback_guard(),))


def with_base_chains(desired: Desired) -> Ruleset:
    """
    The whole tables as a node without any other rule has them after a sync: built-in chains with our jumps included.

    Used to show and to compare; what is written is planned from the parts.
    """
    tables: dict[str, dict[str, Chain]] = {name: dict(table.chains) for name, table in desired.ruleset.tables.items()}
    for table, name in desired.shared_chains:
        tables[table].setdefault(name, Chain(name))
    for jump in desired.base_jumps:
        base = tables[jump.table].get(jump.chain, Chain(jump.chain, policy="ACCEPT"))
        tables[jump.table][jump.chain] = Chain(base.name, (jump.rule, *base.rules), policy="ACCEPT")
    return Ruleset(desired.ruleset.family, {name: Table(name, chains) for name, chains in tables.items()})
