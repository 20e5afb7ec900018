"""What kube-proxy's iptables mode is known to do badly, against the process as a whole and a real kernel."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.testing.daemon_process import DaemonProcess, lab_arguments, wait_until
from kproxy_ipt.testing.lab_objects import own_node
from kproxy_ipt.testing.namespaces import temporary_namespace
from kproxy_ipt.testing.object_folder import ObjectFolder
from kproxy_ipt.testing.objects import endpoint_slice, service, service_port
from kproxy_ipt.testing.shims import Shims

pytestmark = pytest.mark.kernel

WEB = service("web", service_type="NodePort", ports=[service_port(node_port=30080)])
SIX = service("six", cluster_ip="fd00:10:96::6")
Look = Callable[..., str]


@pytest.fixture
def netns() -> Iterator[str]:
    """A namespace of one test."""
    with temporary_namespace("weak") as name:
        yield name


@pytest.fixture
def look(netns: str) -> Look:
    """Run a program in the namespace."""

    def run(*command: str) -> str:
        with inside(netns):
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    return run


@pytest.fixture
def folder(tmp_path: Path) -> ObjectFolder:
    """A Node and a Service of each family with one endpoint."""
    pods = (endpoint_slice(WEB), endpoint_slice(SIX, ["fd00:10:244::2"]))
    return ObjectFolder(tmp_path / "objects", own_node(), WEB, SIX, *pods)


@pytest.fixture
def shims(tmp_path: Path) -> Shims:
    """Scripts in front of the restore programs."""
    made = Shims(tmp_path / "shims")
    made.install("iptables-nft-restore", "ip6tables-nft-restore", "iptables-nft-save")
    return made


def test_first_run_that_fails_is_tried_again_though_nothing_changes(
    netns: str, folder: ObjectFolder, shims: Shims
) -> None:
    """Weakness: a first run that fails leaves the node without rules until something changes."""
    shims.act("iptables-nft-restore", 'case "$*" in *--noflush*) exit 4;; esac')
    with DaemonProcess(netns, *lab_arguments(folder.path, "nft"), shims=shims.folder) as daemon:
        daemon.wait_for_log("sync failed")
        shims.relent("iptables-nft-restore")

        assert daemon.wait_in_step()


@pytest.mark.parametrize(
    ("backend", "harm"),
    [
        ("nft", "-t nat -F KUBE-SERVICES"),
        ("nft", "-t nat -F"),
        ("nft", "-t filter -F"),
        ("nft", "-t nat -F PREROUTING"),
        ("legacy", "-t nat -F"),
        ("legacy", "-t filter -F"),
    ],
)
def test_flush_of_any_table_or_chain_is_repaired_within_seconds(
    netns: str, folder: ObjectFolder, look: Look, backend: str, harm: str
) -> None:
    """Weakness: only the loss of a chain in mangle is noticed, once a period; a flush or a lost jump never is."""

    def rules() -> list[str]:
        text = look(f"iptables-{backend}-save")
        return sorted(line for line in text.splitlines() if line.startswith("-A"))

    with DaemonProcess(netns, *lab_arguments(folder.path, backend)) as daemon:
        daemon.wait_in_step()
        before = rules()
        look(f"iptables-{backend}", *harm.split())

        daemon.wait_for_log("drift repaired")
        wait_until(lambda: rules() == before, "all rules are back")


def test_new_address_of_the_node_answers_node_ports_at_once(netns: str, folder: ObjectFolder, look: Look) -> None:
    """Weakness: addresses of interfaces change without a run; node ports answer at some later change."""
    arguments = (*lab_arguments(folder.path, "nft"), "--nodeport-addresses", "198.51.100.0/24")
    with DaemonProcess(netns, *arguments) as daemon:
        daemon.wait_in_step()
        look("ip", "address", "add", "198.51.100.7/32", "dev", "lo")

        wait_until(lambda: "-d 198.51.100.7/32" in look("iptables-nft-save"), "rules follow")


def test_slow_family_does_not_delay_the_first_rules_of_the_other(
    netns: str, folder: ObjectFolder, shims: Shims, look: Look
) -> None:
    """Weakness: IPv6 waits for the first run of IPv4."""
    shims.hold("iptables-nft-restore")
    with DaemonProcess(netns, *lab_arguments(folder.path, "nft", family=None), shims=shims.folder) as daemon:
        wait_until(lambda: "fd00:10:244::2" in look("ip6tables-nft-save"), "IPv6 has its rules")

        assert "KUBE-SVC" not in look("iptables-nft-save")
        shims.relent("iptables-nft-restore")
        daemon.wait_in_step()


def test_changed_pod_is_written_without_a_listing(netns: str, folder: ObjectFolder, shims: Shims, look: Look) -> None:
    """Weakness: each run lists whole tables, which takes longer the more rules there are."""
    with DaemonProcess(netns, *lab_arguments(folder.path, "nft"), shims=shims.folder) as daemon:
        daemon.wait_in_step()
        listings = shims.calls("iptables-nft-save")
        folder.put(endpoint_slice(WEB, ["10.244.1.9"]))
        wait_until(lambda: "10.244.1.9:80" in look("/usr/sbin/iptables-nft-save"), "the pod is there")

        assert shims.calls("iptables-nft-save") == listings
