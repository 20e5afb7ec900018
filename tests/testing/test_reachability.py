"""Reading off what becomes of traffic, and finding gaps between two moments."""

from kproxy_ipt.ruleset.scan import scan_save
from kproxy_ipt.testing.reachability import Reachability, gaps, reachability

TEXT = """*filter
:KUBE-SERVICES - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
-A KUBE-SERVICES -d 10.0.0.2/32 -p tcp -m tcp --dport 80 -j REJECT
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-FW-X - [0:0]
:KUBE-SEP-X - [0:0]
-A PREROUTING -j KUBE-SERVICES
-A KUBE-SERVICES -d 10.0.0.1/32 -p tcp -m tcp --dport 80 -j KUBE-FW-X
-A KUBE-SERVICES -d 10.0.0.1/32 -p tcp -m tcp --dport 80 -j KUBE-SEP-X
-A KUBE-FW-X -s 10.9.0.0/16 -j KUBE-SEP-X
-A KUBE-SEP-X -p tcp -m tcp -j DNAT --to-destination 10.1.0.1:80
COMMIT
"""
FIRST, SECOND = ("10.0.0.1/32", "tcp", "80"), ("10.0.0.2/32", "tcp", "80")


def _state(endpoints: str = "", *, refused: bool = False) -> Reachability:
    found = frozenset(endpoints.split())
    return Reachability(
        endpoints={FIRST: found} if found else {},
        refused=frozenset({FIRST} if refused else ()),
        known_endpoints=found,
        unguarded=frozenset(),
    )


def test_addresses_lead_to_the_endpoints_of_their_first_rule() -> None:
    """Jumps are followed; refused addresses and restricted ones that nobody guards are told apart."""
    found = reachability(scan_save(TEXT))

    assert found.endpoints == {FIRST: frozenset({"10.1.0.1:80"})}
    assert found.refused == {SECOND}
    assert found.unguarded == {FIRST}


def test_nothing_is_reachable_without_the_jump_from_prerouting() -> None:
    """Chains that no packet enters have no effect."""
    assert reachability(scan_save(TEXT.replace("-A PREROUTING -j KUBE-SERVICES\n", ""))).endpoints == {}


def test_steady_states_have_no_gap() -> None:
    """Old endpoints, then new ones, is how a change should look."""
    assert gaps([]) == ()
    assert gaps([_state("a"), _state("a b"), _state("b")]) == ()
    assert gaps([_state("a"), _state(refused=True)]) == ()


def test_lost_endpoints_foreign_endpoints_and_slipping_traffic_are_gaps() -> None:
    """Each is told with the number of the state."""
    assert "state 1" in gaps([_state("a"), _state(), _state("b")])[0]
    assert "leads to ['c']" in gaps([_state("a"), _state("a c"), _state("b")])[0]
    assert "neither translated nor refused" in gaps([_state("a"), _state(), _state(refused=True)])[0]


def test_restricted_address_without_a_guard_is_a_gap() -> None:
    """At any moment, the first and the last included."""
    assert gaps([reachability(scan_save(TEXT))]) == (f"state 0: {FIRST} is open to everybody",)
