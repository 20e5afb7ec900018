"""Why endpoints are in or out, and why hints are in force or not."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproxy_ipt.addresses import Family
from kproxy_ipt.selection.reasons import Reason, TopologyGuard, endpoint_reasons, topology_decision
from kproxy_ipt.selection.topology import TopologyMode
from kproxy_ipt.selection.usable import usable_endpoints
from kproxy_ipt.state.model import Endpoint, NodeFacts, ServicePort

_NODE = NodeFacts(name="n1", zone="a")
_PORT = ServicePort(
    namespace="shop",
    name="web",
    port_name="",
    text="shop/web",
    protocol="tcp",
    family=Family.IPV4,
    cluster_ip="10.96.0.1",
    port=80,
    node_port=30080,
)
_EXTERNAL_LOCAL = msgspec.structs.replace(_PORT, external_local=True)
_INTERNAL_LOCAL = msgspec.structs.replace(_PORT, internal_local=True, node_port=0)


def _endpoint(number: int = 1, /, **values: object) -> Endpoint:
    address = f"10.0.0.{number}"
    return msgspec.convert({"address": address, "port": 80, "text": f"{address}:80", **values}, Endpoint)


_READY = _endpoint(9)
_DRAINING = {"ready": False, "serving": True, "terminating": True}


@pytest.mark.parametrize(
    ("values", "others", "expected"),
    [
        ({}, (), Reason.READY),
        ({"ready": False}, (), Reason.NOT_READY),
        ({"ready": False, "serving": False, "terminating": True}, (), Reason.NOT_SERVING),
        (_DRAINING, (_READY,), Reason.TERMINATING_READY_EXIST),
        (_DRAINING, (_endpoint(8, ready=False),), Reason.DRAINING_FALLBACK),
        ({"zone_hints": ["b"]}, (_endpoint(9, zone_hints=["a"]),), Reason.OTHER_ZONE),
        ({"node_hints": ["n2"]}, (_endpoint(9, node_hints=["n1"]),), Reason.OTHER_NODE_HINT),
        ({"zone_hints": ["b"]}, (_READY,), Reason.READY),
    ],
)
def test_reason_under_policy_cluster(values: dict[str, object], others: tuple[Endpoint, ...], expected: Reason) -> None:
    """Conditions first, then hints if they are in force; no policy Local, no reason for it."""
    first = endpoint_reasons(_PORT, (_endpoint(**values), *others), _NODE)[0]

    assert (first.cluster, first.local) == (expected, None)
    assert first.cluster is not None
    assert first.cluster.is_in is (expected in (Reason.READY, Reason.DRAINING_FALLBACK))


@pytest.mark.parametrize(
    ("values", "cluster", "local"),
    [
        ({}, Reason.READY, Reason.NOT_LOCAL),
        ({"is_local": True}, Reason.READY, Reason.READY),
        ({"is_local": True, **_DRAINING}, Reason.TERMINATING_READY_EXIST, Reason.DRAINING_FALLBACK),
        ({"is_local": True, "ready": False}, Reason.NOT_READY, Reason.NOT_READY),
    ],
)
def test_policies_are_judged_apart(values: dict[str, object], cluster: Reason, local: Reason) -> None:
    """A ready endpoint elsewhere takes the fallback from policy Cluster, but not from policy Local."""
    first = endpoint_reasons(_EXTERNAL_LOCAL, (_endpoint(**values), _READY), _NODE)[0]

    assert (first.cluster, first.local) == (cluster, local)


def test_policy_that_is_never_used_has_no_reason() -> None:
    """A Service for this node only, without another way in, never sends by policy Cluster."""
    (only,) = endpoint_reasons(_INTERNAL_LOCAL, (_endpoint(is_local=True),), _NODE)

    assert (only.cluster, only.local) == (None, Reason.READY)


@pytest.mark.parametrize(
    ("hints", "zone", "guard", "sentence"),
    [
        ((), "a", TopologyGuard.NO_READY_ENDPOINT, "off: no endpoint is ready"),
        (({}, {}), "a", TopologyGuard.NO_HINTS, "off: no ready endpoint has a hint"),
        (({"zone_hints": ["a"]}, {}), "a", TopologyGuard.MISSING_HINT, "off: endpoint 10.0.0.2:80 has no hint"),
        (({}, {"node_hints": ["n1"]}), "a", TopologyGuard.MISSING_HINT, "off: endpoint 10.0.0.1:80 has no hint"),
        (({"zone_hints": ["a"]},), "", TopologyGuard.NODE_WITHOUT_ZONE, "off: the node has no zone label"),
        (({"zone_hints": ["a"]},), "b", TopologyGuard.NO_HINT_FOR_ZONE, "off: no endpoint is hinted for zone b"),
        (({"node_hints": ["n2"]},), "a", TopologyGuard.NO_HINT_FOR_NODE, "off: no endpoint is hinted for node n1"),
    ],
)
def test_guard_that_turns_hints_off_is_named(
    hints: tuple[dict[str, object], ...], zone: str, guard: TopologyGuard, sentence: str
) -> None:
    """Off says which of the guards decided, with the endpoint or zone it decided by."""
    endpoints = [_endpoint(number, **values) for number, values in enumerate(hints, start=1)]
    decision = topology_decision(_PORT, endpoints, NodeFacts(name="n1", zone=zone))

    assert (decision.mode, decision.guard) == (TopologyMode.ALL, guard)
    assert decision.sentence.startswith(sentence)


def test_policy_local_is_a_guard_of_hints() -> None:
    """Traffic that stays on the node anyway asks for no hints."""
    decision = topology_decision(_INTERNAL_LOCAL, [_endpoint(zone_hints=["a"])], _NODE)

    assert decision.guard is TopologyGuard.POLICY_LOCAL
    assert decision.sentence == "off: internalTrafficPolicy Local asks for no hints"


@pytest.mark.parametrize(
    ("kind", "hint", "mode", "place"),
    [("zone_hints", "a", "same zone", "zone a"), ("node_hints", "n1", "same node", "node n1")],
)
def test_hints_in_force_say_how_many_endpoints_they_leave(kind: str, hint: str, mode: str, place: str) -> None:
    """On names the kind of hint, the place, and what it leaves."""
    decision = topology_decision(_PORT, [_endpoint(1, **{kind: [hint]}), _endpoint(2, **{kind: ["x"]})], _NODE)

    assert (decision.mode, decision.guard) == (mode, None)
    assert decision.sentence == f"on: {mode}: 1 of 2 ready endpoints are hinted for {place}"


def test_every_reason_has_a_sentence() -> None:
    """A reason that nobody can read is none; no two say the same."""
    assert len({reason.sentence for reason in Reason}) == len(Reason)


_ENDPOINTS = st.lists(
    st.fixed_dictionaries(
        {
            **{name: st.booleans() for name in ("ready", "serving", "terminating", "is_local")},
            **{name: st.lists(st.sampled_from(["a", "b", "n1"]), max_size=2) for name in ("zone_hints", "node_hints")},
        }
    ),
    max_size=6,
)


@given(_ENDPOINTS, st.sampled_from(["", "a", "b"]), st.sampled_from([_PORT, _EXTERNAL_LOCAL, _INTERNAL_LOCAL]))
def test_reasons_agree_with_the_choice(values: list[dict[str, object]], zone: str, port: ServicePort) -> None:
    """In by reason is in by rule, under each policy, whatever the conditions; a guard means that no hint counts."""
    node = NodeFacts(name="n1", zone=zone)
    endpoints = tuple(_endpoint(number, **one) for number, one in enumerate(values, start=1))
    found = endpoint_reasons(port, endpoints, node)
    usable = usable_endpoints(port, endpoints, node)

    assert tuple(one.endpoint for one in found if one.cluster and one.cluster.is_in) == usable.cluster
    assert tuple(one.endpoint for one in found if one.local and one.local.is_in) == usable.local
    decision = topology_decision(port, endpoints, node)
    assert (decision.guard is None) is (decision.mode is not TopologyMode.ALL)
