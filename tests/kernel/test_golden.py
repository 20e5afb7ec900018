"""
Every recorded case, written into a real kernel by the library: what iptables-save prints is what kube-proxy made.

The namespace is that of the recording: `lo`, and `eth0` with the node's addresses. It is shared by the cases of one
backend, and each case takes its rules out again.
"""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import yaml

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.check import check
from kproxy_ipt.daemon.cleanup import clean_up
from kproxy_ipt.daemon.machine import BackendWish, Target
from kproxy_ipt.daemon.sync import sync_once
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.kernel.sysctls import read_sysctl, write_sysctl
from kproxy_ipt.objects.model import Objects
from kproxy_ipt.ruleset.canonical import canonical
from kproxy_ipt.ruleset.scan import scan_save
from kproxy_ipt.sources.files import read_paths
from kproxy_ipt.testing.namespaces import temporary_namespace
from kproxy_ipt.testing.recorded import RecordedCase, recorded_case

pytestmark = pytest.mark.kernel

GOLDEN = Path(__file__).parents[1] / "golden"
CASES = sorted(path.parent for path in GOLDEN.glob("*/case.yaml"))
SAVE = {
    ("nft", Family.IPV4): "iptables-nft-save",
    ("nft", Family.IPV6): "ip6tables-nft-save",
    ("legacy", Family.IPV4): "iptables-legacy-save",
    ("legacy", Family.IPV6): "ip6tables-legacy-save",
}
_INTERFACES = """
link set lo up
link add eth0 type veth peer name far
link set far addrgenmode none up
addr add 172.31.0.2/30 dev eth0
addr add fd00:31::2/64 dev eth0 nodad
link set eth0 up
"""


class Node(msgspec.Struct, frozen=True):
    """A namespace like that of the recording, and the backend that is tried in it."""

    netns: str
    backend: BackendWish

    @property
    def target(self) -> Target:
        """Where to write."""
        return Target(netns=self.netns, backend=self.backend)

    def save(self, family: Family) -> str:
        """What the save program prints."""
        with inside(self.netns):
            return subprocess.run([SAVE[self.backend, family]], check=True, capture_output=True, text=True).stdout


class Case(msgspec.Struct, frozen=True):
    """A recorded case, and the way a command would read its objects."""

    recorded: RecordedCase
    read_objects: Callable[[], Objects]


@pytest.fixture(scope="module", params=["nft", "legacy"])
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    """A node for all cases of one backend."""
    with temporary_namespace("golden") as netns:
        subprocess.run(["ip", "-n", netns, "-batch", "-"], input=_INTERFACES, text=True, check=True)
        yield Node(netns, request.param)


@pytest.fixture(params=CASES, ids=lambda folder: folder.name)
def case(request: pytest.FixtureRequest, node: Node) -> Iterator[Case]:
    """One case, with its sysctls set; afterwards they are as before, and no rule is left."""
    folder: Path = request.param
    sysctls = yaml.safe_load((folder / "case.yaml").read_text()).get("sysctls") or {}
    with inside(node.netns):
        before = {name: read_sysctl(name) for name in (*sysctls, "net.netfilter.nf_conntrack_tcp_be_liberal")}
        for name, value in sysctls.items():
            assert write_sysctl(name, str(value)).problem == ""
    yield Case(recorded_case(folder), lambda: read_paths([str(folder / "objects.yaml")]))
    clean_up(node.target)
    with inside(node.netns):
        for name, old in before.items():
            write_sysctl(name, old or "0")
    assert [node.save(family).count("KUBE") for family in Family] == [0, 0]


def _node_ports_in_order(save: str) -> bool:
    """The two orders that the canonical form hides: node ports come last, and localhost before the general rule."""
    nat = scan_save(save).tables["nat"]
    jumps = [line.endswith("-j KUBE-NODEPORTS") for line in nat["KUBE-SERVICES"].lines]
    general: set[str] = set()
    for line in nat["KUBE-NODEPORTS"].lines:
        port = line.rpartition("--dport ")[2].split()[0] + line.partition(" -p ")[2][:4]
        if "-d 127.0.0.0/8" not in line:
            general.add(port)
        elif port in general:
            return False
    return jumps == sorted(jumps)


def test_kernel_holds_the_rules_of_kube_proxy(case: Case, node: Node) -> None:
    """Same text as recorded, on both backends and families; then a second sync writes nothing, a check sees nothing."""
    recorded = case.recorded
    read, config, name = case.read_objects, recorded.config, recorded.node_name

    first = sync_once(read, config, name, node.target)
    saves = {family: node.save(family) for family in Family}
    second = sync_once(read, config, name, node.target)
    checked = check(read, config, name, node.target)

    assert (first.error, first.unavailable, second.error, checked.error) == (None, {}, None, None)
    assert {family: canonical(save) for family, save in saves.items()} == recorded.canonical
    assert all(_node_ports_in_order(save) for save in saves.values())
    assert [report.transactions for report in second.families.values()] == [0, 0]
    assert [report.differences for report in checked.families.values()] == [(), ()]
