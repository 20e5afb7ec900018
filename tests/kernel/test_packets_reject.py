"""Services without endpoints, with real packets: refused at once where kube-proxy refuses, left alone elsewhere."""

from collections.abc import Callable

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.report import RunReport
from kproxy_ipt.testing.lab import Lab, Place
from kproxy_ipt.testing.lab_objects import NODE_PORT, balancer_ip, cluster_ip, endpoint, endpoints, open_service
from kproxy_ipt.testing.sockets import Protocol
from kproxy_ipt.testing.topology import BOTH
from kproxy_ipt.testing.traffic import Outcome

pytestmark = pytest.mark.kernel

Sync = Callable[..., RunReport]
_DROPPED_S = 0.3
_RANGES = ("203.0.113.0/24", "2001:db8:113::/64")
_REFUSED = {Outcome.REFUSED: 1}


@pytest.fixture(scope="module", autouse=True)
def host_servers(lab: Lab) -> None:
    """Servers of the host that have the node port: without a rule of ours they would answer."""
    lab.node.serve(NODE_PORT, name="host")
    lab.node.serve(NODE_PORT, protocol="udp", name="host")


@pytest.fixture(scope="module", autouse=True)
def uplink(lab: Lab) -> None:
    """Somebody at the end of the node's default route answers for one cluster IP."""
    for address in (cluster_ip(family, 40) for family in BOTH):
        lab.client.run("ip", "address", "add", address, "dev", "lo")
        lab.client.serve(9999, name="uplink", addresses=[address])
        lab.client.serve(80, protocol="udp", name="uplink", addresses=[address])


def _refusals(lab: Lab, family: Family) -> list[tuple[Place, str, int]]:
    """
    Place, address and port of each connection that is refused.

    The load balancer IP and the external IP are refused where they are forwarded: from outside and from pods. For the
    node itself no chain of the table filter is asked.
    """
    cluster, node_port = (cluster_ip(family), 80), (lab.node.address(family), NODE_PORT)
    external = [(balancer_ip(family, number), 80) for number in (8, 28)]
    return [
        *((lab.pod("podA"), *entry) for entry in (cluster, node_port, *external)),
        *((lab.node, *entry) for entry in (cluster, node_port)),
        *((lab.client, *entry) for entry in (cluster, node_port, *external)),
    ]


@pytest.mark.parametrize("ranges", [(), _RANGES], ids=["open", "ranges"])
@pytest.mark.parametrize("state", ["no slice", "empty slice", "not serving"])
@pytest.mark.parametrize("protocol", ["tcp", "udp"])
def test_service_without_endpoints_is_refused_at_once(
    lab: Lab, sync: Sync, family: Family, protocol: Protocol, state: str, ranges: tuple[str, ...]
) -> None:
    """Pod, node and client are refused with the first packet at every entry, though a host server has the node port."""
    web = open_service(family, protocol=protocol.upper(), source_ranges=ranges)
    gone = endpoint(lab.pod("podB"), family, ready=False, serving=False)
    slices = {
        "no slice": [],
        "empty slice": [endpoints(web, family)],
        "not serving": [endpoints(web, family, gone)],
    }
    sync(web, *slices[state])

    for place, address, port in _refusals(lab, family):
        traffic = place.send(address, port, protocol=protocol)

        assert traffic.outcomes == _REFUSED, f"{place.name} to {address} port {port}"
        assert traffic.sent_again == 0, f"{place.name} to {address} port {port}"


def test_refusal_ends_with_the_first_endpoint_and_returns_with_the_last(lab: Lab, sync: Sync, family: Family) -> None:
    """What was refused is answered as soon as there is an endpoint, and refused again when it is gone."""
    web = open_service(family)
    observed = []
    for places in ([], [lab.pod("podB")], []):
        sync(web, endpoints(web, family, *places))
        for place, address, port in _refusals(lab, family):
            observed.append(set(place.send(address, port).outcomes))

    count = len(_refusals(lab, family))
    assert observed == [{Outcome.REFUSED}] * count + [{Outcome.ANSWERED}] * count + [{Outcome.REFUSED}] * count


def test_process_on_the_node_is_not_refused_at_an_address_of_nobody(lab: Lab, sync: Sync, family: Family) -> None:
    """From the node itself a load balancer IP without endpoints is no business of ours: the packet goes its way."""
    web = open_service(family)
    sync(web)

    assert lab.node.send(balancer_ip(family), 80, timeout_s=_DROPPED_S).outcomes == {Outcome.TIMEOUT: 1}


@pytest.mark.parametrize("has_endpoint", [True, False], ids=["endpoint", "no-endpoint"])
def test_port_that_the_service_lacks_is_not_refused(
    lab: Lab, sync: Sync, family: Family, *, has_endpoint: bool
) -> None:
    """A packet to another port or protocol of a cluster IP is routed like any other, to whoever answers there."""
    web = open_service(family, number=40)
    sync(web, endpoints(web, family, *([lab.pod("podB")] if has_endpoint else [])))

    other_port = lab.pod("podA").send(cluster_ip(family, 40), 9999)
    other_protocol = lab.pod("podA").send(cluster_ip(family, 40), 80, protocol="udp")

    assert other_port.names == other_protocol.names == {"uplink": 1}
