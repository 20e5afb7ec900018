"""What rules say about tracked flows: which addresses they answer, and which they stop answering."""

from collections.abc import Iterable, Iterator

from kproxy_ipt.addresses import Family, family_of, is_loopback
from kproxy_ipt.errors import RulesetError
from kproxy_ipt.plan.plan import Plan
from kproxy_ipt.rules.fixed import LOOPBACK
from kproxy_ipt.rules.names import KUBE_NODEPORTS, KUBE_SERVICES, is_service_chain
from kproxy_ipt.rules.options import RuleOptions
from kproxy_ipt.ruleset.edits import DeleteChain, EditChain, WriteChain
from kproxy_ipt.ruleset.matches import PortMatch
from kproxy_ipt.ruleset.model import Rule
from kproxy_ipt.ruleset.parse import parse_rule
from kproxy_ipt.ruleset.scan import SavedTables, jumps_to
from kproxy_ipt.ruleset.targets import Jump
from kproxy_ipt.selection.node_ports import NodePortEntry
from kproxy_ipt.state.flows import Entry, EntryOptions


def entry_options(options: RuleOptions, interface_addresses: Iterable[str]) -> EntryOptions:
    """
    How services are entered under *options*.

    Args:
        options: Of one family.
        interface_addresses: Canonical addresses of all interfaces of the node, any family.
    """
    return EntryOptions(
        node_addresses=frozenset(_answering(options.node_ports, interface_addresses, options.family)),
        localhost=options.node_ports.localhost,
        external_ips=options.external_ips,
    )


def leaving_lines(plan: Plan, actual: SavedTables) -> tuple[str, ...]:
    """
    The lines of the table nat that *plan* takes out of chains that have them in *actual*, in the plan's order.

    The effort is proportional to the chains that change. A line that moves to another chain is among them.
    """
    return tuple(_leaving_lines(plan, actual))


def former_entries(lines: Iterable[str], family: Family) -> frozenset[Entry]:
    """
    Where flows were led to a service by rules that are gone.

    Args:
        lines: `-A ...` lines of the table nat, from `leaving_lines`. All but those of dispatch are skipped, whatever
            chain they stand in; so is what cannot be read.
        family: Of the rules.

    Returns:
        The entries, also those that other rules may still lead: `flow_table` knows better.
    """
    return frozenset(entry for line in lines if (entry := _entry(line, family)) is not None)


def _answering(node_ports: NodePortEntry, interface_addresses: Iterable[str], family: Family) -> Iterator[str]:
    if not node_ports.all_addresses:
        yield from node_ports.addresses
        return
    for address in interface_addresses:
        if family_of(address) is family and (node_ports.localhost or not is_loopback(address)):
            yield address


def _leaving_lines(plan: Plan, actual: SavedTables) -> Iterator[str]:
    for transaction in plan.transactions:
        for edit in transaction.edits if transaction.table == "nat" else ():
            if isinstance(edit, EditChain):
                yield from edit.deleted
            elif isinstance(edit, WriteChain | DeleteChain) and (saved := actual.chain("nat", edit.name)):
                staying = frozenset(edit.rules) if isinstance(edit, WriteChain) else frozenset()
                yield from (line for line in saved.lines if line not in staying)


def _entry(line: str, family: Family) -> Entry | None:
    chain = jumps_to(line) or ""
    if " --dport " not in line or not is_service_chain("nat", chain):
        return None
    try:
        where, rule = parse_rule(line)  # the family does not matter: only destination, port and target are asked
    except RulesetError:
        return None
    port = _only_port(rule)
    if not port or not isinstance(rule.target, Jump) or rule.destination_negated:
        return None
    if rule.destination in ("", LOOPBACK[family]):
        # A rule without an address leads to a service only behind the test for addresses of the node.
        return Entry("", port, rule.protocol) if where != KUBE_SERVICES else None
    address, _, length = rule.destination.partition("/")
    return Entry(address, port, rule.protocol) if length == str(family.bits) and where != KUBE_NODEPORTS else None


def _only_port(rule: Rule) -> int:
    """The only destination port that a rule matches, 0 if there is none."""
    for match in rule.matches:
        if isinstance(match, PortMatch) and match.destination and not match.destination_negated:
            first, last = match.destination
            return first if first == last else 0
    return 0
