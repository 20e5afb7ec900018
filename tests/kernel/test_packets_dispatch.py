"""A thousand Services behind a dispatch tree: every packet reaches its own Service, and no other packet reaches any."""

from collections.abc import Callable, Iterator
from ipaddress import ip_address

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config, Dispatch, ShapeConfig
from kproxy_ipt.daemon.check import check
from kproxy_ipt.daemon.machine import BackendWish, Target
from kproxy_ipt.daemon.report import RunReport
from kproxy_ipt.objects.model import EndpointSlice, Objects, Service
from kproxy_ipt.rules import shared_chains
from kproxy_ipt.testing.lab import NODE_NAME, Lab
from kproxy_ipt.testing.lab_objects import cluster_ip, own_node
from kproxy_ipt.testing.objects import endpoint_slice, service, service_port, slice_port
from kproxy_ipt.testing.traffic import Outcome

pytestmark = pytest.mark.kernel

Sync = Callable[..., RunReport]

_SERVICES = 1000
_WITHOUT_ENDPOINTS = 10
_FIRST_TARGET_PORT, _FIRST_NODE_PORT = 20_000, 30_000
_CONFIGS = {
    dispatch: Config(
        cluster_cidrs=("10.244.0.0/16", "fd00:10:244::/56"),
        shape=ShapeConfig(dispatch=dispatch),
    )
    for dispatch in Dispatch
}


def _number(position: int) -> int:
    """Cluster IPs that leave gaps between them."""
    return 1000 + 37 * position


def _objects(lab: Lab, family: Family) -> list[Service | EndpointSlice]:
    """Each Service has a target port of its own; the last ones have no endpoint."""
    found: list[Service | EndpointSlice] = []
    for position in range(_SERVICES):
        one = service(
            f"s{position}",
            service_type="NodePort",
            cluster_ip=cluster_ip(family, _number(position)),
            ports=[service_port(80, node_port=_FIRST_NODE_PORT + position, protocol="UDP")],
        )
        found.append(one)
        if position < _SERVICES - _WITHOUT_ENDPOINTS:
            ports = [slice_port(_FIRST_TARGET_PORT + position, protocol="UDP")]
            pod = lab.pod("podB").address(family)
            found.append(endpoint_slice(one, (pod,), address_type=family.api_name, ports=ports))
    return found


@pytest.fixture(scope="module")
def answering(lab: Lab) -> Iterator[None]:
    """The pod answers at the target port of each Service with the Service's name."""
    pod = lab.pod("podB")
    servers = [
        pod.serve(_FIRST_TARGET_PORT + position, name=f"s{position}", protocol="udp")
        for position in range(_SERVICES - _WITHOUT_ENDPOINTS)
    ]
    yield
    for server in servers:
        server.stop()


@pytest.mark.usefixtures("answering")
def test_every_packet_reaches_its_service_and_no_other(lab: Lab, sync: Sync, family: Family) -> None:
    """Cluster IPs and node ports of all Services; addresses and ports beside them are nobody's."""
    objects = _objects(lab, family)
    report = sync(*objects, config=_CONFIGS[Dispatch.TREE])
    client, outside, node = lab.pod("podA"), lab.client, lab.node.address(family)
    served = range(_SERVICES - _WITHOUT_ENDPOINTS)

    assert report.families[family].chains > 2 * _SERVICES + 100
    for position in served:
        traffic = client.send(cluster_ip(family, _number(position)), 80, protocol="udp", timeout_s=5.0)
        assert traffic.names == {f"s{position}": 1}
    for position in served[::10]:
        traffic = outside.send(node, _FIRST_NODE_PORT + position, protocol="udp", timeout_s=5.0)
        assert traffic.names == {f"s{position}": 1}
    for position in range(_SERVICES - _WITHOUT_ENDPOINTS, _SERVICES):
        traffic = client.send(cluster_ip(family, _number(position)), 80, protocol="udp")
        assert traffic.outcomes == {Outcome.REFUSED: 1}
    for position in served[::100]:
        address = ip_address(cluster_ip(family, _number(position)))
        for target, port in ((address + 1, 80), (address - 1, 80), (address, 81), (address, 79)):
            assert not client.send(str(target), port, protocol="udp", timeout_s=0.1).names
    assert not outside.send(node, _FIRST_NODE_PORT + _SERVICES + 500, protocol="udp", timeout_s=0.1).names


def test_between_the_bounds_everything_stays_what_it_is(
    lab: Lab,
    sync: Sync,
    iptables: Callable[..., str],
    backend: BackendWish,
    family: Family,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run knows nothing of the one before it but what the kernel has; a check judges alike."""
    monkeypatch.setattr(shared_chains, "TREE_FROM", 40)
    monkeypatch.setattr(shared_chains, "ROW_BELOW", 20)
    objects, config = _objects(lab, family), _CONFIGS[Dispatch.AUTO]
    target = Target(netns=lab.node.netns, backend=backend, families=(family,))
    is_tree: list[bool] = []
    sync(config=config)
    for services in (30, 40, 30, 19, 30):
        some = objects[: 2 * services]
        sync(*some, config=config)
        found = Objects(
            services=tuple(one for one in some if isinstance(one, Service)),
            endpoint_slices=tuple(one for one in some if isinstance(one, EndpointSlice)),
            nodes=(own_node(),),
        )
        assert check(lambda: found, config, NODE_NAME, target).families[family].differences == ()  # noqa: B023
        is_tree.append("services at" in iptables(lab, "-t", "nat", "-S", "KUBE-SERVICES"))

    assert is_tree == [False, True, True, False, False]


@pytest.mark.usefixtures("answering")
def test_row_becomes_a_tree_and_a_row_again_under_traffic(lab: Lab, sync: Sync, family: Family) -> None:
    """No packet is lost on the way there and back, nothing is left over, and a second look finds nothing to do."""
    objects = _objects(lab, family)[:200]
    client = lab.pod("podA")
    sync(*objects, config=_CONFIGS[Dispatch.LINEAR])
    chains: list[int] = []
    for dispatch in (Dispatch.TREE, Dispatch.LINEAR, Dispatch.AUTO):
        report = sync(*objects, config=_CONFIGS[dispatch])
        again = sync(*objects, config=_CONFIGS[dispatch])
        chains.append(report.families[family].chains)
        assert again.families[family].transactions == 0
        for position in range(0, 100, 7):
            traffic = client.send(cluster_ip(family, _number(position)), 80, protocol="udp", timeout_s=5.0)
            assert traffic.names == {f"s{position}": 1}

    assert chains[0] > chains[1] == chains[2]
