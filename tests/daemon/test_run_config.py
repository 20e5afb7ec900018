"""A configuration file that changes under a running daemon: what counts is in the kernel soon, the rest is named."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kproxy_ipt.daemon.machine import Target
from kproxy_ipt.testing.daemon_process import DaemonProcess, wait_until
from kproxy_ipt.testing.lab import NODE_NAME
from kproxy_ipt.testing.object_folder import ObjectFolder
from kproxy_ipt.testing.objects import endpoint_slice, node, service

pytestmark = pytest.mark.kernel

_HEAD = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
_FIRST = f"{_HEAD}clusterCIDR: 10.244.0.0/16\niptables: {{minSyncPeriod: 10ms, syncPeriod: 30s}}\n"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The file, mounted as a ConfigMap is: a link to a file in a linked folder."""
    _swap(tmp_path, _FIRST)
    path = tmp_path / "config.conf"
    path.symlink_to("..data/config.conf")
    return path


@pytest.fixture
def daemon(target: Target, config: Path, tmp_path: Path) -> Iterator[DaemonProcess]:
    """A daemon in step that follows the file."""
    web = service()
    folder = ObjectFolder(tmp_path / "objects", node(NODE_NAME), web, endpoint_slice(web))
    arguments = ("--from", str(folder.path), "--backend", "nft", "--config", str(config))
    with DaemonProcess(str(target.netns), *arguments) as made:
        made.wait_in_step()
        yield made


def _swap(folder: Path, text: str) -> None:
    """What the kubelet does: a new folder, and the link turned to it at once."""
    number = len(list(folder.glob("..20*")))
    versioned = folder / f"..20{number:02}"
    versioned.mkdir()
    (versioned / "config.conf").write_text(text)
    draft = folder / "..data_tmp"
    draft.symlink_to(versioned.name)
    draft.replace(folder / "..data")


def _rewrite(folder: Path, text: str) -> None:
    """What an editor does."""
    (folder / "..data" / "config.conf").write_text(text)


@pytest.mark.parametrize("change", [_swap, _rewrite])
@pytest.mark.usefixtures("daemon")
def test_new_cluster_cidr_and_masquerade_all_are_in_the_kernel(
    tmp_path: Path, look: Callable[..., str], change: Callable[[Path, str], None]
) -> None:
    """A rewritten file as well as a swapped ConfigMap are followed without a restart."""
    change(tmp_path, _FIRST.replace("10.244.0.0/16", "10.200.0.0/16"))
    wait_until(lambda: "! -s 10.200.0.0/16" in look("iptables-nft-save"), "the new clusterCIDR")
    change(tmp_path, _FIRST.replace("minSyncPeriod", "masqueradeAll: true, minSyncPeriod"))

    wait_until(lambda: "! -s 10.2" not in look("iptables-nft-save"), "masqueradeAll")
    assert "cluster IP" in look("iptables-nft-save")


def test_new_address_of_metrics_needs_a_restart_and_says_so(daemon: DaemonProcess, tmp_path: Path) -> None:
    """What cannot be followed is named in the log, and the old value stays in force."""
    _swap(tmp_path, f"{_FIRST}metricsBindAddress: 127.0.0.1:19249\n")
    line = daemon.wait_for_log("configuration", after_a_restart_only=["metrics_bind_address"])

    assert [] == line["taken_over"]
    assert 200 == daemon.get("/metrics", 10249).status


def test_broken_file_keeps_the_old_configuration(
    daemon: DaemonProcess, tmp_path: Path, look: Callable[..., str]
) -> None:
    """A file that cannot be understood changes nothing, is named, and a good one after it counts."""
    before = look("iptables-nft-save").splitlines()[1:]
    _swap(tmp_path, "iptables: [")
    wait_until(lambda: any("refused" in line for line in daemon.log("configuration")), "the refusal")
    after = look("iptables-nft-save").splitlines()[1:]
    _swap(tmp_path, _FIRST.replace("10.244.0.0/16", "10.201.0.0/16"))

    wait_until(lambda: "! -s 10.201.0.0/16" in look("iptables-nft-save"), "the good file")
    assert [line for line in before if "-A" in line] == [line for line in after if "-A" in line]


def test_same_content_is_no_change(daemon: DaemonProcess, tmp_path: Path) -> None:
    """A ConfigMap that is mounted again with the same text takes nothing over, the one after it does."""
    _swap(tmp_path, _FIRST)
    _swap(tmp_path, f"{_FIRST}nodePortAddresses: [127.0.0.0/8]\n")
    daemon.wait_for_log("configuration", taken_over=["node_port_addresses"])

    assert 1 == len([line for line in daemon.log("configuration") if "taken_over" in line])
