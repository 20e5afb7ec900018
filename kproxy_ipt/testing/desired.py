"""
From API objects to desired rules in one call, for tests that say what the rules of some objects are.

Nothing is checked here: odd objects go in as they are, in any order.
"""

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config
from kproxy_ipt.objects import events
from kproxy_ipt.objects.events import Kind, Put
from kproxy_ipt.objects.model import EndpointSlice, Node, Objects, Service
from kproxy_ipt.rules.build import Desired, build_ruleset
from kproxy_ipt.ruleset.render import render_chain
from kproxy_ipt.state.model import MachineFacts, Snapshot
from kproxy_ipt.state.snapshot import node_facts, take_snapshot

ApiObject: TypeAlias = events.ApiObject
"""An object that plays a part in the rules."""

KINDS: Mapping[type[ApiObject], Kind] = {
    Service: Kind.SERVICES,
    EndpointSlice: Kind.ENDPOINT_SLICES,
    Node: Kind.NODES,
}
"""The kind of each."""


def put_of(api_object: ApiObject) -> Put:
    """What a source says of an object that was added or changed."""
    return Put(KINDS[type(api_object)], api_object)


def _identity(api_object: ApiObject) -> tuple[str, str]:
    return (api_object.metadata.namespace or "", api_object.metadata.name)


def objects_of(api_objects: Iterable[ApiObject]) -> Objects:
    """Sort *api_objects* into what a source would hand on: by kind, namespace and name."""
    ordered = sorted(api_objects, key=_identity)
    return Objects(
        services=tuple(found for found in ordered if isinstance(found, Service)),
        endpoint_slices=tuple(found for found in ordered if isinstance(found, EndpointSlice)),
        nodes=tuple(found for found in ordered if isinstance(found, Node)),
    )


def snapshot_of(*api_objects: ApiObject, family: Family = Family.IPV4, node_name: str = "node1") -> Snapshot:
    """The state of *family* that *api_objects* describe, as seen from *node_name*."""
    objects = objects_of(api_objects)
    return take_snapshot(objects, family, node_facts(objects.nodes, node_name))


def desired_for(
    *api_objects: ApiObject,
    family: Family = Family.IPV4,
    node_name: str = "node1",
    config: Config | None = None,
    machine: MachineFacts | None = None,
) -> Desired:
    """
    The rules of *family* for *api_objects*.

    Args:
        api_objects: In any order.
        family: The family.
        node_name: Own node name, lower case.
        config: Default the default configuration: no cluster CIDR, so no test for local traffic.
        machine: Default a machine without addresses that has both nfacct counters.
    """
    snapshot = snapshot_of(*api_objects, family=family, node_name=node_name)
    return build_ruleset(snapshot, config or Config(), machine or MachineFacts())


def rule_lines(desired: Desired, table: str, chain: str) -> tuple[str, ...]:
    """The `-A` lines of one chain of *desired*, in order; () for a chain that is not there."""
    found = desired.ruleset.chain(table, chain)
    return render_chain(found) if found else ()
