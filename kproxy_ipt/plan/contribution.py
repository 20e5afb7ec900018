"""What one Service adds to the rules of a family, as text."""

from collections.abc import Mapping

import msgspec

from kproxy_ipt.plan.dispatch_lines import SharedLines, shared_lines
from kproxy_ipt.plan.wanted import Lines, chain_lines
from kproxy_ipt.rules.build import service_port_rules
from kproxy_ipt.rules.options import RuleOptions
from kproxy_ipt.state.model import ServiceState


class Contribution(msgspec.Struct, frozen=True):
    """
    The rules of one Service.

    Attributes:
        chains: Its own chains of the table nat, each after those that it jumps to.
        owners: Chain -> text of the service port, for each of them.
        shared: Its lines in shared chains.
    """

    chains: Mapping[str, Lines]
    owners: Mapping[str, str]
    shared: SharedLines


NOTHING = Contribution({}, {}, {})


def contribution_of(states: tuple[ServiceState, ...], options: RuleOptions) -> Contribution:
    """The rules of a Service that means *states*; it depends on nothing else."""
    parts = [service_port_rules(state, options.node, options) for state in states]
    return Contribution(
        chain_lines(own for part in parts for own in part.chains),
        {name: text for part in parts for name, text in part.owners.items()},
        shared_lines(parts, options.family),
    )
