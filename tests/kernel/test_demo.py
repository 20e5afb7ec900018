"""The demo against rules that are written by hand: it must tell right ones from wrong ones."""

from collections.abc import Iterator

import pytest

from kproxy_ipt.testing.demo import PODS, SCENARIOS, measure, serve_everything
from kproxy_ipt.testing.lab import Lab

pytestmark = pytest.mark.kernel

_CLUSTER_IP = SCENARIOS[0]
_STICKY = next(each for each in SCENARIOS if each.sticky)
_NODE_PORT_LOCAL = next(each for each in SCENARIOS if "Local" in each.title)
_DROPPED = next(each for each in SCENARIOS if not each.expected)


@pytest.fixture
def lab() -> Iterator[Lab]:
    """The lab of the demo, with its servers and without rules."""
    with Lab(PODS) as made:
        serve_everything(made)
        yield made


def _load(lab: Lab, *rules: str) -> None:
    lines = [f"-A PREROUTING -p tcp {rule}" for rule in rules]
    lab.node.run("iptables-restore", "--noflush", stdin="\n".join(["*nat", *lines, "COMMIT", ""]))


def _to(pod: str, probability: str = "") -> str:
    address = {"web-1": "10.244.1.13", "web-2": "10.244.1.14", "web-3": "10.244.2.21"}[pod]
    chance = f"-m statistic --mode random --probability {probability} " if probability else ""
    return f"{chance}-j DNAT --to-destination {address}:8080"


def test_rules_with_equal_chances_are_as_promised(lab: Lab) -> None:
    """Three rules that share the connections of a cluster address equally pass."""
    where = "-d 10.96.0.80 --dport 80"
    _load(lab, f"{where} {_to('web-1', '0.33333')}", f"{where} {_to('web-2', '0.5')}", f"{where} {_to('web-3')}")

    assert measure(lab, _CLUSTER_IP).problem == ""


def test_rules_with_unequal_chances_are_found(lab: Lab) -> None:
    """The mistake of equal probabilities in a row of rules is found by the shares."""
    where = "-d 10.96.0.80 --dport 80"
    _load(lab, f"{where} {_to('web-1', '0.33333')}", f"{where} {_to('web-2', '0.33333')}", f"{where} {_to('web-3')}")

    assert measure(lab, _CLUSTER_IP).problem == "shares are off"


def test_missing_rules_are_found(lab: Lab) -> None:
    """Without any rule the connections fail, and the demo says how."""
    assert measure(lab, _NODE_PORT_LOCAL).problem == "expected only answered, got {'refused': 900}"


def test_masquerade_where_the_client_must_be_seen_is_found(lab: Lab) -> None:
    """With policy Local the pods must see the client: a masquerade is found."""
    where = "-d 192.0.2.10 --dport 30081"
    _load(lab, f"{where} {_to('web-1', '0.5')}", f"{where} {_to('web-2')}")
    lab.node.run("iptables", "-t", "nat", "-A", "POSTROUTING", "-p", "tcp", "-j", "MASQUERADE")

    assert measure(lab, _NODE_PORT_LOCAL).problem == "pods must see 192.0.2.50, not ['10.244.1.1']"


def test_missing_affinity_is_found(lab: Lab) -> None:
    """Balancing anew for each connection is not sticky."""
    where = "-d 10.96.0.83 --dport 80"
    _load(lab, f"{where} {_to('web-1', '0.5')}", f"{where} {_to('web-2')}")

    assert measure(lab, _STICKY).problem == "not sticky"


def test_open_load_balancer_address_is_found(lab: Lab) -> None:
    """A load balancer address that answers clients outside its source ranges is found."""
    _load(lab, f"-d 192.0.2.200 --dport 80 {_to('web-1')}")

    assert measure(lab, _DROPPED).problem == "expected only timeout, got {'answered': 20}"
