"""A daemon on a machine that lacks optional parts: it gets in step, serves what it can, and says what it cannot."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.testing.daemon_process import DaemonProcess, wait_until
from kproxy_ipt.testing.lab import Lab
from kproxy_ipt.testing.lab_objects import (
    NODE_PORT,
    answering_lab,
    cluster_ip,
    endpoints,
    open_service,
    own_node,
)
from kproxy_ipt.testing.object_folder import ObjectFolder
from kproxy_ipt.testing.objects import service
from kproxy_ipt.testing.shims import Shims

pytestmark = pytest.mark.kernel

_V4 = Family.IPV4
_RESTORE = "iptables-nft-restore"


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Two pods that answer."""
    with answering_lab() as made:
        yield made


@pytest.fixture
def folder(tmp_path: Path, lab: Lab) -> ObjectFolder:
    """A Node, a Service with affinity and one of SCTP."""
    sticky = service("sticky", cluster_ip=cluster_ip(_V4), affinity_timeout_s=60)
    stream = open_service(_V4, "stream", number=11, node_port=30081, protocol="SCTP")
    slices = (endpoints(each, _V4, *lab.pods) for each in (sticky, stream))
    return ObjectFolder(tmp_path / "objects", own_node(), sticky, stream, *slices)


def _daemon(lab: Lab, folder: ObjectFolder, shims: Shims) -> DaemonProcess:
    arguments = ("--from", str(folder.path), "--backend", "nft", "--family", "ipv4")
    return DaemonProcess(lab.node.netns, *arguments, shims=shims.folder)


@pytest.mark.parametrize("part", ["nfacct", "--random-fully", "recent", "addrtype", "sctp", "statistic"])
def test_daemon_gets_in_step_without_a_part(lab: Lab, folder: ObjectFolder, tmp_path: Path, part: str) -> None:
    """No sync fails, nobody is set aside for a refusal, Services answer, and the part is named once."""
    shims = Shims(tmp_path / "shims")
    shims.install(_RESTORE)
    shims.lack(_RESTORE, part)
    with _daemon(lab, folder, shims) as daemon:
        daemon.wait_in_step()

        assert lab.pods[0].send(cluster_ip(_V4), 80).names
        assert [line["lacking"] for line in daemon.log("missing part")] == [part.removeprefix("--")]
        assert not daemon.log("sync failed")
        assert not daemon.log("service set aside")
        assert daemon.metric("kproxy_ipt_fallback_services", part=part.removeprefix("--")) == (
            {"recent": 1, "sctp": 1, "addrtype": 1, "statistic": 2}.get(part, 0)
        )


def test_daemon_counts_services_that_come_and_go(lab: Lab, folder: ObjectFolder, tmp_path: Path) -> None:
    """A Service with affinity more and less; the log names the one that came."""
    shims = Shims(tmp_path / "shims")
    shims.install(_RESTORE)
    shims.lack(_RESTORE, "recent")
    more = service("more", cluster_ip=cluster_ip(_V4, 12), affinity_timeout_s=60)
    with _daemon(lab, folder, shims) as daemon:
        daemon.wait_in_step()
        folder.put(more, endpoints(more, _V4, *lab.pods))
        line = daemon.wait_for_log("served with less", count=2)
        daemon.wait_for_metric("kproxy_ipt_fallback_services", 2, part="recent")
        folder.remove(more)

        wait_until(lambda: daemon.metric("kproxy_ipt_fallback_services", part="recent") == 1, "the Service is gone")
        assert line["first"] == ["default/more"]


def test_node_ports_follow_addresses_without_addrtype(lab: Lab, folder: ObjectFolder, tmp_path: Path) -> None:
    """An address that the node gets later answers node ports as well, without a restart."""
    shims = Shims(tmp_path / "shims")
    shims.install(_RESTORE)
    shims.lack(_RESTORE, "addrtype")
    web = open_service(_V4, "web", number=13)
    folder.put(web, endpoints(web, _V4, lab.pods[1]))
    with _daemon(lab, folder, shims) as daemon:
        daemon.wait_in_step()
        lab.node.run("ip", "address", "add", "198.51.100.77/32", "dev", "lo")

        wait_until(lambda: lab.client.send("198.51.100.77", NODE_PORT, timeout_s=0.2).names, "the new address")
        assert not daemon.log("sync failed")


def test_machine_that_has_everything_is_told_nothing(lab: Lab, folder: ObjectFolder, tmp_path: Path) -> None:
    """One probe for the family, no line in the log, no series."""
    shims = Shims(tmp_path / "shims")
    shims.install(_RESTORE)
    with _daemon(lab, folder, shims) as daemon:
        daemon.wait_in_step()

        assert not daemon.log("missing part")
        assert shims.calls(_RESTORE, among=" -n") == 1
        assert b"kproxy_ipt_fallback_services{" not in daemon.get("/metrics", 10249).body
