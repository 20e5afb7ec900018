"""
A snapshot becomes wanted rules as text, service port by service port: values of rules live only until they are text.

The text is what `build_ruleset` and `wanted_of` give together. With 50,000 endpoints the values take 60 MiB and the
text 30 MiB; what only plans and writes needs no values.
"""

from collections.abc import Iterator

import msgspec

from kproxy_ipt.config.model import Config
from kproxy_ipt.plan.wanted import Lines, Wanted, chain_lines, wanted_of
from kproxy_ipt.rules.build import Desired, ServicePortRules, assemble, service_port_rules
from kproxy_ipt.rules.dispatch_tree import Place
from kproxy_ipt.rules.options import RuleOptions, rule_options
from kproxy_ipt.state.model import MachineFacts, Snapshot


class WantedSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """
    What one family should have.

    Attributes:
        wanted: All rules.
        service_count: Services with an address of the family.
        service_port_count: Their ports.
        endpoint_count: Over all service ports, usable or not.
        keeping: As in `Desired`.
    """

    wanted: Wanted
    service_count: int
    service_port_count: int
    endpoint_count: int
    keeping: frozenset[Place] = frozenset()

    @property
    def chain_count(self) -> int:
        """Chains of both tables."""
        return sum(len(chains) for chains in self.wanted.tables.values())

    @property
    def rule_count(self) -> int:
        """Rules of both tables."""
        return sum(len(lines) for chains in self.wanted.tables.values() for lines in chains.values())


def wanted_snapshot(
    snapshot: Snapshot, config: Config, machine: MachineFacts, branched: frozenset[Place] = frozenset()
) -> WantedSnapshot:
    """The rules for *snapshot*; it depends on nothing else, as `build_ruleset`."""
    endpoint_count = sum(len(state.endpoints) for state in snapshot.services.values())
    options = rule_options(config, snapshot.node, machine, snapshot.family, endpoint_count=endpoint_count)
    own: dict[str, Lines] = {}
    owners: dict[str, str] = {}
    parts = _without_chains(snapshot, options, own, owners)
    shared = assemble(parts, options, endpoint_count=endpoint_count, branched=branched)
    return WantedSnapshot(
        wanted=_joined(own, owners, shared),
        service_count=shared.service_count,
        service_port_count=shared.service_port_count,
        endpoint_count=endpoint_count,
        keeping=shared.keeping,
    )


def _without_chains(
    snapshot: Snapshot, options: RuleOptions, own: dict[str, Lines], owners: dict[str, str]
) -> Iterator[ServicePortRules]:
    """The contributions without their own chains, which go into *own* as text."""
    for state in snapshot.services.values():
        part = service_port_rules(state, snapshot.node, options)
        own.update(chain_lines(part.chains))
        owners.update(part.owners)
        yield msgspec.structs.replace(part, chains=())


def _joined(own: dict[str, Lines], owners: dict[str, str], shared: Desired) -> Wanted:
    """Chains of service ports come first, as `Desired` has them."""
    wanted = wanted_of(shared)
    own.update(wanted.tables["nat"])
    owners.update(wanted.owners)
    return msgspec.structs.replace(wanted, tables={**wanted.tables, "nat": own}, owners=owners)
