"""Zone and node hints, and the falling back between them."""

import pytest

from kproxy_ipt.selection.topology import TopologyMode, by_topology, topology_mode
from kproxy_ipt.state.model import Endpoint, NodeFacts

ALL, ZONE, NODE = TopologyMode.ALL, TopologyMode.SAME_ZONE, TopologyMode.SAME_NODE


def _endpoints(zones: tuple[str, ...], nodes: tuple[str, ...] = ()) -> tuple[Endpoint, ...]:
    """Build one endpoint for each text of *zones*: `ab` is a hint for the zones a and b, "" is none."""
    return tuple(
        Endpoint(
            address=f"10.0.0.{number}",
            port=80,
            text=f"10.0.0.{number}:80",
            zone_hints=tuple(zone),
            node_hints=tuple(nodes[number - 1].split()) if nodes else (),
        )
        for number, zone in enumerate(zones, start=1)
    )


@pytest.mark.parametrize(
    ("node", "zones", "nodes", "mode", "chosen"),
    [
        (NodeFacts(name="n", zone="a"), ("a", "b", "c", "a"), (), ZONE, "14"),
        (NodeFacts(name="n"), ("a", "b", "c", "a"), (), ALL, "1234"),
        (NodeFacts(name="n", zone="b"), ("a", "a"), (), ALL, "12"),
        (NodeFacts(name="n", zone="a"), ("a", "b", "", "a"), (), ALL, "1234"),
        (NodeFacts(name="n", zone="a"), ("", "b", "a", "a"), (), ALL, "1234"),
        (NodeFacts(name="n", zone="c"), ("abc", "bc", "bd", "c"), (), ZONE, "124"),
        (NodeFacts(name="n1", zone="a"), ("a", "b", "c", "a"), ("n1", "n2", "n3", "n4"), NODE, "1"),
        (NodeFacts(name="n1", zone="a"), ("a", "b", "", "a"), ("n1", "", "n3", "n4"), ALL, "1234"),
        (NodeFacts(name="n1", zone="a"), ("a", "b", "c", "a"), ("n1", "", "n3", "n4"), ZONE, "14"),
        (NodeFacts(name="n0", zone="a"), ("a", "b", "c", "a"), ("n1", "n2", "n3", "n4"), ZONE, "14"),
        (NodeFacts(name="n0", zone="x"), ("a", "b", "c", "a"), ("n1", "n2", "n3", "n4"), ALL, "1234"),
        (NodeFacts(name="n1"), ("", ""), ("n1 n2", "n2"), NODE, "1"),
        (NodeFacts(name="n", zone="a"), ("", ""), (), ALL, "12"),
    ],
)
def test_hints_choose_endpoints(
    node: NodeFacts, zones: tuple[str, ...], nodes: tuple[str, ...], mode: TopologyMode, chosen: str
) -> None:
    """Same node before same zone before all; one endpoint without a hint turns that kind of hint off."""
    ready = _endpoints(zones, nodes)

    assert mode is topology_mode(ready, node)
    assert chosen == "".join(endpoint.address[-1] for endpoint in by_topology(ready, node))


def test_no_endpoints_have_no_topology() -> None:
    """Nothing is chosen from nothing."""
    assert ALL is topology_mode((), NodeFacts(name="n", zone="a"))
    assert by_topology((), NodeFacts(name="n", zone="a")) == ()


def test_node_without_a_zone_matches_an_empty_zone_hint() -> None:
    """The comparison is one of plain texts."""
    hinted = Endpoint(address="10.0.0.1", port=80, text="10.0.0.1:80", zone_hints=("",))

    assert ZONE is topology_mode((hinted,), NodeFacts(name="n"))
