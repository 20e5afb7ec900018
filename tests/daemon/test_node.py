"""The own node: what is refused, and what is only said."""

import time

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config, DetectLocalMode
from kproxy_ipt.daemon.log import Verbosity, open_log
from kproxy_ipt.daemon.node import node_notes, own_node
from kproxy_ipt.daemon.node_watch import NodeWatch
from kproxy_ipt.errors import ConfigError
from kproxy_ipt.testing.desired import objects_of
from kproxy_ipt.testing.objects import endpoint_slice, node, service, slice_endpoint

_BOTH = frozenset(Family)
_NODE_CIDR = Config(detect_local_mode=DetectLocalMode.NODE_CIDR)


def _notes(node_name: str, *endpoint_nodes: str, config: Config | None = None) -> str:
    addresses = [slice_endpoint(f"10.244.1.{n}", node_name=name) for n, name in enumerate(endpoint_nodes, start=1)]
    objects = objects_of([service(), endpoint_slice("web", addresses), node("n1")])
    config = config or Config()
    return "\n".join(node_notes(objects, config, own_node(objects, config, node_name), _BOTH))


def test_pod_ranges_of_the_node_are_needed_where_they_decide() -> None:
    """Mode NodeCIDR without spec.podCIDRs would masquerade wrongly: refused, and the two causes are told apart."""
    objects = objects_of([node("n1", pod_cidrs=())])

    with pytest.raises(ConfigError, match=r"needs spec.podCIDRs of Node n1: the Node has none"):
        own_node(objects, _NODE_CIDR, "n1")
    with pytest.raises(ConfigError, match=r"needs spec.podCIDRs of Node n2: there is no such Node"):
        own_node(objects, _NODE_CIDR, "n2")


def test_pod_ranges_do_not_matter_in_other_modes() -> None:
    """A Node without ranges, or no Node at all, is good enough."""
    objects = objects_of([node("n1", pod_cidrs=())])

    assert own_node(objects, Config(), "n1").known
    assert not own_node(objects, Config(), "n2").known


def test_pod_ranges_of_the_node_are_found() -> None:
    """Both families of them."""
    objects = objects_of([node("n1", pod_cidrs=("10.244.1.0/24", "fd00::/64"))])

    assert own_node(objects, _NODE_CIDR, "n1").pod_cidrs == ("10.244.1.0/24", "fd00::/64")


@pytest.mark.parametrize("name", ["n1.example.com", "192.0.2.10", "host"])
def test_name_that_nothing_refers_to_is_said(name: str) -> None:
    """C101: host name and node name differ: the names that endpoints have are shown, and what helps."""
    notes = _notes(name, "n1", "n2", "n1")

    assert f"no Node object is called {name!r}" in notes
    assert f"no endpoint is on node {name!r}, they name n1, n2: set --hostname-override" in notes


def test_at_most_five_other_names_are_shown() -> None:
    """A line that names a thousand nodes helps nobody."""
    notes = _notes("other", *(f"m{n}" for n in range(9)))

    assert "they name m0, m1, m2, m3, m4: set" in notes


def test_node_without_endpoints_is_nothing_odd() -> None:
    """A Node object of the name is proof enough, as is an endpoint without a Node object."""
    assert "endpoint" not in _notes("n1", "n2")
    assert "endpoint" not in _notes("n2", "n2")


def test_missing_detector_is_said_for_its_family_alone() -> None:
    """C120: a cluster range of IPv4 leaves IPv6 without one."""
    notes = _notes("n1", "n1", config=Config(cluster_cidrs=("10.244.0.0/16",)))

    assert "IPv6: no local traffic detector" in notes
    assert "IPv4: no local" not in notes


def test_odd_ranges_are_told_when_they_become_odd(capsys: pytest.CaptureFixture[str]) -> None:
    """A daemon says once that nothing detects local traffic, and again only after it was otherwise meanwhile."""
    log = open_log(verbosity=Verbosity(0))
    watch = NodeWatch("n1", Config(), log, time.monotonic)
    for prefixes in ((), (), ("10.0.0.0/8",), ()):
        watch.config = Config(cluster_cidrs=prefixes)
        watch.tell_ranges(frozenset({Family.IPV4}))

    assert capsys.readouterr().err.count("no local traffic detector") == 2


def test_ranges_of_a_family_that_the_node_lacks_end_no_daemon(capsys: pytest.CaptureFixture[str]) -> None:
    """What a single run refuses is a warning for one that goes on."""
    watch = NodeWatch("n1", Config(cluster_cidrs=("fd00::/48",)), open_log(verbosity=Verbosity(0)), time.monotonic)
    watch.tell_ranges(frozenset({Family.IPV4}))

    assert '"level": "warning"' in capsys.readouterr().err
