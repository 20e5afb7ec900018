"""Packets to a Service that the kernel refuses, and to the others, while the daemon looks for it and afterwards."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.testing.daemon_process import DaemonProcess, lab_arguments, wait_until
from kproxy_ipt.testing.lab import Lab
from kproxy_ipt.testing.lab_objects import (
    answering_lab,
    cluster_ip,
    endpoints,
    open_service,
    own_node,
    remote_pod,
)
from kproxy_ipt.testing.object_folder import ObjectFolder
from kproxy_ipt.testing.shims import Shims
from kproxy_ipt.testing.steady_traffic import SteadyConnections

pytestmark = pytest.mark.kernel

_PROGRAMS = {Family.IPV4: "iptables", Family.IPV6: "ip6tables"}
# A target that the kernel allows in POSTROUTING alone takes the place of one endpoint.
_POISON = """case "$*" in *--noflush*)
    sed '/{address}/s/-j DNAT --to-destination .*/-j MASQUERADE/' | "$REAL" "$@"; exit $?;;
esac"""


@pytest.fixture
def lab() -> Iterator[Lab]:
    """Two pods that answer, and tables that no other backend has written."""
    with answering_lab() as made:
        yield made


@pytest.mark.parametrize("backend", ["nft", "legacy"])
@pytest.mark.parametrize("family", list(Family))
def test_refused_service_answers_as_before_and_others_as_wanted(
    lab: Lab, tmp_path: Path, backend: str, family: Family
) -> None:
    """No connection to its old endpoint fails, a new Service answers, and a changed one too once it is a good one."""
    bad, program = remote_pod(family, 101), f"{_PROGRAMS[family]}-{backend}-restore"
    shims = Shims(tmp_path / "shims")
    shims.install(program)
    shims.act(program, _POISON.format(address=bad))
    web, other = open_service(family), open_service(family, "other", number=11, node_port=30081)
    folder = ObjectFolder(tmp_path / "objects", own_node(), web, endpoints(web, family, lab.pods[1]))
    arguments = lab_arguments(folder.path, backend, family=family)
    with contextlib.ExitStack() as stack:
        daemon = stack.enter_context(DaemonProcess(lab.node.netns, *arguments, shims=shims.folder))
        daemon.wait_in_step()
        with SteadyConnections(lab.pods[0], cluster_ip(family), 80) as client:
            folder.put(other, endpoints(other, family, lab.pods[1]), endpoints(web, family, lab.pods[1], bad))
            daemon.wait_for_log("service set aside", service="default/web", rules="the last good ones stay")
            wait_until(lambda: lab.pods[0].send(cluster_ip(family, 11), 80, timeout_s=0.2).names, "the other Service")
            folder.put(endpoints(web, family, *lab.pods))
            daemon.wait_for_log("service no longer set aside", service="default/web")

        assert client.failures == {}
        assert client.exchanges
        wait_until(lambda: len(set(lab.pods[0].send(cluster_ip(family), 80, count=8).names)) == 2, "both endpoints")
