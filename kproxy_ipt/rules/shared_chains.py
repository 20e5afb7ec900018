"""
The chains that all service ports share: which they are, and whether each is a row of rules or a tree.

A row is what kube-proxy writes. A tree costs a packet the same however many rules there are.
"""

from collections.abc import Iterator, Mapping

from kproxy_ipt.config.model import Dispatch
from kproxy_ipt.rules.dispatch_tree import Place, is_branched
from kproxy_ipt.rules.names import (
    KUBE_EXTERNAL_SERVICES,
    KUBE_NODEPORTS,
    KUBE_PROXY_FIREWALL,
    KUBE_SERVICES,
)
from kproxy_ipt.ruleset.scan import SavedTables

PLACES: Mapping[str, Place] = {
    "nat_services": Place("nat", KUBE_SERVICES),
    "nat_node_ports": Place("nat", KUBE_NODEPORTS, ports_first=True),
    "filter_services": Place("filter", KUBE_SERVICES),
    "filter_external": Place("filter", KUBE_EXTERNAL_SERVICES, ports_first=True),
    "filter_node_ports": Place("filter", KUBE_NODEPORTS, ports_first=True),
    "filter_firewall": Place("filter", KUBE_PROXY_FIREWALL),
}
"""
Where the dispatch rules of a service port go, by field of `DispatchRules`.

In KUBE-EXTERNAL-SERVICES rules for node ports, which have no address, stand among rules for addresses.
"""

TREE_FROM = 1000
"""Rules of one chain from which on `auto` makes a tree of it."""

ROW_BELOW = 800
"""Rules of one chain below which `auto` makes a row of a tree again, so that a Service more or less moves nothing."""


def wants_tree(dispatch: Dispatch, rules: int, *, is_tree: bool) -> bool:
    """
    Whether a shared chain is to be a tree.

    Args:
        dispatch: The configured way.
        rules: Number of its rules.
        is_tree: What it is now.
    """
    if dispatch is Dispatch.AUTO:
        return rules >= (ROW_BELOW if is_tree else TREE_FROM)
    return dispatch is Dispatch.TREE


def branched_places(actual: SavedTables) -> frozenset[Place]:
    """The places that are trees in the kernel."""
    return frozenset(_branched(actual))


def _branched(actual: SavedTables) -> Iterator[Place]:
    for place in PLACES.values():
        saved = actual.chain(place.table, place.chain)
        if saved is not None and is_branched(saved.lines):
            yield place
