"""A daemon that reaches the API through the very Service whose rules it writes."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config
from kproxy_ipt.daemon.machine import Target
from kproxy_ipt.daemon.sync import sync_once
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.objects.model import EndpointSlice
from kproxy_ipt.testing.api_server import ApiServer
from kproxy_ipt.testing.daemon_process import DaemonProcess, lab_arguments, wait_until
from kproxy_ipt.testing.desired import ApiObject, objects_of
from kproxy_ipt.testing.lab import NODE_NAME, Lab, Place
from kproxy_ipt.testing.lab_objects import own_node
from kproxy_ipt.testing.objects import endpoint_slice, service

pytestmark = pytest.mark.kernel

_V4 = Family.IPV4
_PORT = 6443
_PORTS = 5
_API = service("kubernetes", cluster_ip="10.96.0.1", ports=[_PORT])
_WEB = service("web", cluster_ip="10.96.0.20")


def _behind(pod: Place, *, ports: int = 1) -> list[EndpointSlice]:
    """A slice for each port of a pod, so that many ports give it many parts of the new connections."""
    return [
        endpoint_slice(_API, [pod.address()], name=f"{pod.name.lower()}-{number}", ports=[_PORT + number])
        for number in range(ports)
    ]


def _serve(stack: ExitStack, pod: Place) -> ApiServer:
    """An API server on the loopback of a pod, which lets connections from outside in."""
    server = ApiServer()
    with inside(pod.netns):
        stack.enter_context(server)
    pod.write_sysctl("ipv4/conf/all/route_localnet", "1")
    rule = (
        "-A",
        "PREROUTING",
        "-p",
        "tcp",
        "--dport",
        f"{_PORT}:{_PORT + _PORTS}",
        "-j",
        "DNAT",
        "--to",
        f"127.0.0.1:{server.port}",
    )
    pod.run("iptables-nft", "-t", "nat", *rule)
    return server


@pytest.fixture
def node() -> Iterator[Lab]:
    """A lab whose node reaches cluster IPs at all, as every node with a default route does."""
    with Lab() as made:
        made.node.run("ip", "route", "replace", "default", "via", made.client.address(_V4))
        yield made


def test_dead_api_server_behind_the_own_service_is_left_for_a_living_one(node: Lab) -> None:
    """The API server in use dies: through the same address the daemon gets to the other one, and drops the dead one."""
    dying, living = node.pods
    with ExitStack() as stack:
        first, second = (_serve(stack, pod) for pod in (dying, living))
        objects: list[ApiObject] = [own_node(), _API, *_behind(dying)]
        target = Target(netns=node.node.netns, backend="nft", families=(_V4,))
        assert sync_once(lambda: objects_of(objects), Config(), NODE_NAME, target).error is None
        first.put(*objects)
        daemon = DaemonProcess(node.node.netns, *lab_arguments(f"http://10.96.0.1:{_PORT}", "nft"))
        daemon.command = ["nsenter", f"--net=/run/netns/{node.node.netns}", *daemon.command]
        stack.enter_context(daemon)
        daemon.wait_in_step()
        wait_until(lambda: first.watches() == 3, "watches through the Service")
        first.put(*_behind(living, ports=_PORTS))
        wait_until(lambda: _rules(node).count(living.address()) >= _PORTS, "both servers behind the Service")
        second.store = first.store
        first.stop()
        second.delete("EndpointSlice", _behind(dying)[0].metadata.name)
        second.put(_WEB, endpoint_slice(_WEB, ["10.244.1.20"]))

        wait_until(lambda: "10.244.1.20:80" in _rules(node), "news of the living server")
        wait_until(lambda: dying.address() not in _rules(node), "the dead one is gone")


def _rules(lab: Lab) -> str:
    return lab.node.run("iptables-nft", "-t", "nat", "-S")
