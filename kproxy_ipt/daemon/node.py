"""The own node: its name, its facts, and what is odd about them."""

from collections.abc import Iterator

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config, DetectLocalMode
from kproxy_ipt.config.node import family_notes, node_ips, startup_notes
from kproxy_ipt.errors import ConfigError
from kproxy_ipt.objects.model import Objects
from kproxy_ipt.selection.local import local_traffic
from kproxy_ipt.state.model import NodeFacts
from kproxy_ipt.state.snapshot import node_facts

_SHOWN_NAMES = 5


def own_node(objects: Objects, config: Config, name: str) -> NodeFacts:
    """
    The facts of the node called *name*.

    Raises:
        ConfigError: Mode NodeCIDR, and the pod ranges of the node are not known: rules would masquerade wrongly.
    """
    facts = node_facts(objects.nodes, name)
    if config.detect_local_mode is DetectLocalMode.NODE_CIDR and not facts.pod_cidrs:
        found = "the Node has none" if facts.known else "there is no such Node among the objects"
        raise ConfigError((f"detectLocalMode NodeCIDR needs spec.podCIDRs of Node {name}: {found}",))
    return facts


def node_notes(objects: Objects, config: Config, node: NodeFacts, families: frozenset[Family]) -> tuple[str, ...]:
    """What is odd about the node, one line each; nothing of it stops a run."""
    return (*range_notes(config, node, families), *_identity_notes(objects, node))


def range_notes(config: Config, node: NodeFacts, families: frozenset[Family]) -> tuple[str, ...]:
    """
    What is odd about the ranges of local traffic on this node, one line each.

    Raises:
        ConfigError: All of them are of a family that the node does not have.
    """
    known = family_notes(config, node_ips(config.bind_address, node.addresses), node.pod_cidrs, families)
    return (*known, *_undetected_notes(config, node, families))


def daemon_notes(config: Config, node: NodeFacts, families: frozenset[Family]) -> tuple[str, ...]:
    """
    Those of `range_notes`, and what is odd about addresses that a daemon opens: node ports, servers.

    Raises:
        ConfigError: As `range_notes`.
    """
    known = startup_notes(config, node_ips(config.bind_address, node.addresses), node.pod_cidrs, families)
    return (*known, *_undetected_notes(config, node, families))


def _undetected_notes(config: Config, node: NodeFacts, families: frozenset[Family]) -> Iterator[str]:
    return (
        f"{family.api_name}: no local traffic detector (clusterCIDR): off-cluster sources are not masqueraded for "
        "cluster IPs, and pods get no short cut past externalTrafficPolicy Local"
        for family in sorted(families)
        if local_traffic(config, node, family) is None
    )


def _identity_notes(objects: Objects, node: NodeFacts) -> Iterator[str]:
    """A name that nothing refers to makes every endpoint look remote, and policy Local fail without a word."""
    if not node.known:
        yield f"no Node object is called {node.name!r}: zone, node addresses and pod ranges are unknown"
    named = {
        endpoint.node_name
        for endpoint_slice in objects.endpoint_slices
        for endpoint in endpoint_slice.endpoints or ()
        if endpoint.node_name
    }
    if named and not node.known and node.name not in named:
        shown = ", ".join(sorted(named)[:_SHOWN_NAMES])
        yield f"no endpoint is on node {node.name!r}, they name {shown}: set --hostname-override if it is one of them"
