"""Which endpoints each traffic policy may use: the decision table, row by row."""

from collections.abc import Sequence

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.selection.usable import UsableEndpoints, usable_endpoints
from kproxy_ipt.state.model import Endpoint, NodeFacts, ServicePort

READY, DRAINING, NOT_READY, DEAD = "R", "S", "N", "D"
CONDITIONS = {
    READY: (True, True, False),
    DRAINING: (False, True, True),
    NOT_READY: (False, False, False),
    DEAD: (False, False, True),
}


def _endpoint(number: int, words: str) -> Endpoint:
    """Build endpoint 10.0.0.*number* of words such as `L R a`: place, condition, zone hint."""
    place, condition, *hints = words.split()
    ready, serving, terminating = CONDITIONS[condition]
    return Endpoint(
        address=f"10.0.0.{number}",
        port=80,
        text=f"10.0.0.{number}:80",
        ready=ready,
        serving=serving,
        terminating=terminating,
        is_local=place == "L",
        zone_hints=tuple(hints),
    )


def _usable(policies: str, *endpoints: str, zone: str = "a") -> UsableEndpoints:
    """Choose for *policies* `internal/external`, with a node port unless they end in `-`."""
    internal, external = policies.rstrip("-").split("/")
    port = ServicePort(
        namespace="ns",
        name="web",
        port_name="",
        text="ns/web",
        protocol="tcp",
        family=Family.IPV4,
        cluster_ip="10.96.0.1",
        port=80,
        node_port=0 if policies.endswith("-") else 30080,
        internal_local=internal == "L",
        external_local=external == "L",
    )
    known = [_endpoint(number, words) for number, words in enumerate(endpoints, start=1)]
    return usable_endpoints(port, known, NodeFacts(name="node1", zone=zone))


def _numbers(endpoints: Sequence[Endpoint]) -> str:
    return "".join(endpoint.address[-1] for endpoint in endpoints)


# policies, endpoints, numbers of the cluster list, of the local list, of both; usable anywhere
ROWS = [
    ("C/C-", ("R R a", "R R b", "R R c", "R R a"), "14", "", "14", True),
    ("C/L", ("L R a", "L R b", "R R c", "R R a"), "14", "12", "124", True),
    ("L/C", ("L R a", "L R b", "R R c", "R R a"), "14", "12", "124", True),
    ("C/C-", ("R R a", "R R b", "R R c", "R N a"), "1", "", "1", True),
    ("C/C-", ("R N a", "R R b", "R R c", "R N a"), "23", "", "23", True),
    ("C/C-", ("R R a", "R R b", "R R", "R R a"), "1234", "", "1234", True),
    ("L/C-", (), "", "", "", False),
    ("L/C-", ("R R", "R R"), "", "", "", True),
    ("L/C-", ("L R", "R R"), "", "1", "1", True),
    ("L/C-", ("R S", "R S"), "", "", "", True),
    ("L/C-", ("R N", "R D"), "", "", "", False),
    ("C/C-", ("L N", "R D"), "", "", "", False),
    ("C/C-", ("L S", "R S"), "12", "", "12", True),
    ("L/C", ("L R", "R R"), "12", "1", "12", True),
    ("L/L", ("R R", "R R"), "12", "", "12", True),
    ("L/L", ("R S", "R S"), "12", "", "12", True),
    ("C/L", ("R R", "L D", "L S", "R S"), "1", "3", "13", True),
    ("C/L-", ("L R", "R R"), "12", "", "12", True),
    # one local list that lives from draining endpoints while the cluster has ready ones
    ("L/C", ("L S", "R R"), "2", "1", "12", True),
    ("L/L", ("L S", "L R", "R R"), "23", "2", "23", True),
    ("C/C", (), "", "", "", False),
    ("L/L", ("L N", "R D"), "", "", "", False),
    # draining endpoints have no topology: all of them are the fallback
    ("C/C-", ("R S a", "R S b"), "12", "", "12", True),
]


@pytest.mark.parametrize(("policies", "endpoints", "cluster", "local", "reachable", "any_usable"), ROWS)
def test_endpoints_for_each_policy(
    policies: str, endpoints: tuple[str, ...], cluster: str, local: str, reachable: str, *, any_usable: bool
) -> None:
    """Both lists, their union and the verdict on the cluster are as in the decision table."""
    usable = _usable(policies, *endpoints)

    assert (cluster, local) == (_numbers(usable.cluster), _numbers(usable.local))
    assert reachable == _numbers(usable.reachable)
    assert any_usable is usable.any_usable


FIVE = ("L R", "L R", "L S", "L D", "R R")
FIVE_REMOTE = ("L R", "L R", "R S", "R D", "R R")


@pytest.mark.parametrize(
    ("policies", "endpoints", "from_pod", "from_outside"),
    [
        ("C/L", FIVE, "125", "12"),
        ("C/C", FIVE_REMOTE, "125", "125"),
        ("C/L", ("L D", "L S", "L S", "L D", "R R"), "5", "23"),
        ("C/C", ("L D", "L S", "L S", "L D", "R R"), "5", "5"),
        ("C/L", ("L D", "L S", "L S", "R D", "R S"), "235", "23"),
        ("C/C", ("L D", "L S", "L S", "R D", "R S"), "235", "235"),
        ("C/L", ("R S",), "1", ""),
        ("C/C", ("R S",), "1", "1"),
    ],
)
def test_terminating_endpoints_serve_where_nothing_ready_is_left(
    policies: str, endpoints: tuple[str, ...], from_pod: str, from_outside: str
) -> None:
    """The fall back is decided for each policy by itself, and never reaches endpoints that do not serve."""
    usable = _usable(policies, *endpoints)
    outside = usable.local if policies == "C/L" else usable.cluster

    assert (from_pod, from_outside) == (_numbers(usable.cluster), _numbers(outside))


@pytest.mark.parametrize("policies", ["C/L", "C/C", "L/C-"])
def test_endpoints_that_do_not_serve_are_usable_for_nobody(policies: str) -> None:
    """A service with none but those is refused everywhere."""
    assert not _usable(policies, "L D", "R D").any_usable


def test_lists_keep_the_order_of_the_endpoints() -> None:
    """The union is no concatenation: it is in the order of the text."""
    usable = _usable("C/L", "L R b", "R R a", "L R b", "R R a")

    assert tuple(map(_numbers, (usable.cluster, usable.local, usable.reachable))) == ("24", "13", "1234")
