"""
From kube-proxy to us and back under traffic: no new connection fails on the way, and nothing of ours is left.

kube-proxy's part is played by what it wrote (a recorded case) or would write (our row of rules, which equals all
recorded cases), fed to the restore program in its way: all its chains declared, which empties them, and chains with its
prefixes that it does not know deleted.
"""

import fcntl
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Dispatch, ShapeConfig
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.kernel.nfacct import ensure_counters
from kproxy_ipt.objects.model import EndpointSlice, Service
from kproxy_ipt.rules.build import with_base_chains
from kproxy_ipt.rules.options import NFACCT_COUNTERS
from kproxy_ipt.ruleset.render import render_save
from kproxy_ipt.testing.daemon_process import DaemonProcess, wait_until
from kproxy_ipt.testing.desired import desired_for
from kproxy_ipt.testing.lab import Lab
from kproxy_ipt.testing.object_folder import ObjectFolder
from kproxy_ipt.testing.objects import endpoint_slice, service, service_port, slice_endpoint
from kproxy_ipt.testing.recorded import recorded_case
from kproxy_ipt.testing.steady_traffic import SteadyConnections

pytestmark = pytest.mark.kernel

_FOLDER = Path(__file__).parents[1] / "golden" / "26-node-port-cluster"
_CASE = recorded_case(_FOLDER)
_LOCAL, _REMOTE = "10.244.1.5", "10.244.2.7"
_CLUSTER_IP, _NODE_PORT = "10.96.10.1", 30080
_WORDS = {Family.IPV4: "iptables", Family.IPV6: "ip6tables"}
_PREFIXES = ("KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-", "KUBE-SEP-")
_CLEANED = {
    "nat": {"KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-POSTROUTING", "KUBE-MARK-MASQ", "KUBE-PROXY-CANARY"},
    "filter": {
        "KUBE-SERVICES",
        "KUBE-EXTERNAL-SERVICES",
        "KUBE-FORWARD",
        "KUBE-NODEPORTS",
        "KUBE-PROXY-FIREWALL",
        "KUBE-PROXY-CANARY",
    },
}
"""What `kube-proxy --cleanup` deletes by name, by table; chains with its prefixes in nat come on top."""
_PACE = 60
"""Connections of each client in each phase, at least."""


def _fillers() -> list[Service | EndpointSlice]:
    """As many Services as make a dispatch tree have branches."""
    made: list[Service | EndpointSlice] = []
    for number in range(1, 41):
        one = service(f"filler-{number}", cluster_ip=f"10.96.20.{number}", ports=[service_port(80)])
        made += [one, endpoint_slice(one, [slice_endpoint(_REMOTE, node_name="node2")], ports=[8080])]
    return made


def _saves(fillers: Sequence[Service | EndpointSlice]) -> dict[Family, str]:
    """What kube-proxy has in its tables: what was recorded, or the same with more Services."""
    if not fillers:
        return _CASE.canonical
    linear = msgspec.structs.replace(_CASE.config, shape=ShapeConfig(dispatch=Dispatch.LINEAR))
    everything = (*_CASE.objects.services, *_CASE.objects.endpoint_slices, *_CASE.objects.nodes, *fillers)
    return {
        family: render_save(
            with_base_chains(
                desired_for(*everything, family=family, node_name=_CASE.node_name, config=linear, machine=_CASE.machine)
            )
        )
        for family in Family
    }


class _KubeProxy:
    """Writes and cleans as kube-proxy does."""

    def __init__(self, lab: Lab, backend: str, saves: dict[Family, str]) -> None:
        self._node = lab.node
        self._backend = backend
        self._saves = saves

    def chains(self, family: Family, table: str) -> set[str]:
        """Those that are there and begin with KUBE-."""
        text = self._node.run(f"{_WORDS[family]}-{self._backend}-save", "-t", table)
        return set(re.findall(r"^:(KUBE-\S+) ", text, re.MULTILINE))

    def start(self) -> None:
        """Its jumps first, where they are missing, then a full sync."""
        for family, save in self._saves.items():
            self._restore(family, "".join(self._section(family, save, table) for table in ("filter", "nat")))

    def clean_up(self) -> None:
        """`--cleanup`: the jumps, then the chains by their names and prefixes."""
        for family in Family:
            for table, names in _CLEANED.items():
                here = self.chains(family, table)
                going = sorted(here & names | {name for name in here if table == "nat" and name.startswith(_PREFIXES)})
                text = self._node.run(f"{_WORDS[family]}-{self._backend}-save", "-t", table)
                jumps = [line for line in text.splitlines() if re.match(r"-A [A-Z]+ .*-j KUBE-(?!FIREWALL)", line)]
                lines = [f":{name} - [0:0]" for name in going]
                lines += [re.sub("^-A", "-D", jump) for jump in jumps] + [f"-X {name}" for name in going]
                self._restore(family, f"*{table}\n" + "\n".join(lines) + "\nCOMMIT\n")

    def _section(self, family: Family, save: str, table: str) -> str:
        body = save.partition(f"*{table}\n")[2].partition("COMMIT\n")[0].splitlines()
        own = [line.split()[0][1:] for line in body if line.startswith(":KUBE-")]
        rules = [line for line in body if line.startswith("-A KUBE-")]
        present = self._node.run(f"{_WORDS[family]}-{self._backend}-save", "-t", table).splitlines()
        missing = [line for line in body if re.match(r"-A [A-Z]+ ", line) and line not in present]
        stale = sorted(
            name
            for name in self.chains(family, table)
            if table == "nat" and name.startswith(_PREFIXES) and name not in own
        )
        lines = [*(f":{name} - [0:0]" for name in (*own, *stale)), *missing, *rules, *(f"-X {name}" for name in stale)]
        return f"*{table}\n" + "\n".join(lines) + "\nCOMMIT\n"

    def _restore(self, family: Family, text: str) -> None:
        program = f"{_WORDS[family]}-{self._backend}-restore"
        self._node.run(program, "-w", "5", "--noflush", "--counters", stdin=text)


def _place_endpoints(lab: Lab) -> None:
    """The endpoints of the recorded case: one on this node, one on another."""
    pod = lab.pods[1]
    lab.node.run("ip", "route", "replace", f"{_LOCAL}/32", "via", pod.address())
    pod.run("ip", "address", "add", f"{_LOCAL}/32", "dev", "lo")
    pod.serve(8080, addresses=(_LOCAL,))
    lab.remote.serve(8080, addresses=(_REMOTE,))
    with inside(lab.node.netns):
        ensure_counters(NFACCT_COUNTERS)


@contextmanager
def _clients(lab: Lab) -> Iterator[list[SteadyConnections]]:
    """A pod that goes to the cluster IP and a host outside that goes to the node port, without pause."""
    with ExitStack() as stack:
        clients = [
            stack.enter_context(SteadyConnections(lab.pods[0], _CLUSTER_IP, 80)),
            stack.enter_context(SteadyConnections(lab.client, "192.0.2.10", _NODE_PORT)),
        ]
        _let_pass(clients)
        yield clients
        _let_pass(clients)


def _let_pass(clients: Sequence[SteadyConnections]) -> None:
    """Wait for many more connections of each client."""
    wanted = [len(client.exchanges) + _PACE for client in clients]
    wait_until(
        lambda: all(len(one.exchanges) >= count for one, count in zip(clients, wanted, strict=True)), "connections"
    )


def _daemon(
    lab: Lab, backend: str, folder: Path, dispatch: str, *further: str, lock: Path | None = None
) -> DaemonProcess:
    arguments = ("--from", str(folder / "objects"), "--backend", backend, "--config", str(folder / "config.yaml"))
    return DaemonProcess(
        lab.node.netns,
        *arguments,
        "--dispatch",
        dispatch,
        *further,
        node_name=_CASE.node_name,
        environment={} if lock is None else {"XTABLES_LOCKFILE": str(lock)},
    )


def _write_objects(folder: Path, fillers: Sequence[Service | EndpointSlice]) -> None:
    objects = (*_CASE.objects.services, *_CASE.objects.endpoint_slices, *_CASE.objects.nodes, *fillers)
    ObjectFolder(folder / "objects", *objects)
    (folder / "config.yaml").write_bytes((_FOLDER / "config.yaml").read_bytes())


def _no_failure(clients: Sequence[SteadyConnections]) -> bool:
    """No connection failed, and none needed a second packet."""
    return all(not client.failures and not client.sent_again for client in clients)


@pytest.mark.parametrize("dispatch", ["linear", "tree"])
def test_switch_there_and_back_fails_no_new_connection(fresh: Lab, backend: str, dispatch: str, tmp_path: Path) -> None:
    """C99: kube-proxy, then our daemon, then kube-proxy again; afterwards its clean-up leaves no chain of ours."""
    fillers = _fillers() if dispatch == "tree" else []
    kube_proxy = _KubeProxy(fresh, backend, _saves(fillers))
    _place_endpoints(fresh)
    _write_objects(tmp_path, fillers)
    kube_proxy.start()
    theirs = kube_proxy.chains(Family.IPV4, "nat")
    with _clients(fresh) as clients:
        with _daemon(fresh, backend, tmp_path, dispatch) as daemon:
            daemon.wait_in_step()
            ours = kube_proxy.chains(Family.IPV4, "nat")
            _let_pass(clients)
            assert 0 == daemon.stop()
        _let_pass(clients)
        kube_proxy.start()
        back = kube_proxy.chains(Family.IPV4, "nat")

    assert _no_failure(clients), [dict(client.failures) for client in clients]
    assert (dispatch == "tree") == (len(ours) > len(theirs) + 2)
    assert theirs | {"KUBE-PROXY-CANARY"} >= back >= theirs
    kube_proxy.clean_up()
    left = {name for family in Family for table in ("nat", "filter") for name in kube_proxy.chains(family, table)}
    assert left <= {"KUBE-FIREWALL"}


def test_daemon_moves_rules_from_the_other_backend_without_loss(fresh: Lab, backend: str, tmp_path: Path) -> None:
    """Once our rules stand, kube-proxy's in the other backend and those of its nftables mode go, and that is told."""
    other = "legacy" if backend == "nft" else "nft"
    kube_proxy = _KubeProxy(fresh, other, _saves(()))
    _place_endpoints(fresh)
    _write_objects(tmp_path, ())
    kube_proxy.start()
    for family in ("ip", "ip6"):
        fresh.node.run("nft", f"add table {family} kube-proxy")
    fresh.node.run(f"iptables-{other}", "-A", "INPUT", "-s", "198.51.100.1", "-j", "DROP")
    fresh.node.run("ipset", "create", "KUBE-CLUSTER-IP", "hash:ip,port")
    with _clients(fresh) as clients, _daemon(fresh, backend, tmp_path, "auto") as daemon:
        daemon.wait_in_step()
        daemon.wait_for_log("leftover", kind="nftables mode", fate="removed", place="nf_tables ip6")
        daemon.wait_for_metric("kproxy_ipt_leftovers", 1, kind="foreign")
        _let_pass(clients)
        counts = {
            kind: daemon.metric("kproxy_ipt_leftovers", kind=kind, fate=fate)
            for kind, fate in (("nftables mode", "removed"), ("ipvs mode", "kept"), ("foreign", "kept"))
        }
        chains = daemon.metric("kproxy_ipt_leftovers", kind="other backend", fate="removed")

    assert _no_failure(clients), [dict(client.failures) for client in clients]
    assert {name for table in ("nat", "filter") for name in kube_proxy.chains(Family.IPV4, table)} <= {"KUBE-FIREWALL"}
    assert "kube-proxy" not in fresh.node.run("nft", "list", "tables")
    assert "-A INPUT -s 198.51.100.1/32 -j DROP" in fresh.node.run(f"iptables-{other}-save", "-t", "filter")
    assert "KUBE-CLUSTER-IP" in fresh.node.run("ipset", "list", "-n")
    assert {"nftables mode": 2, "ipvs mode": 1, "foreign": 1} == counts
    assert chains > 10


def test_leftovers_that_cannot_be_removed_yet_are_tried_again(fresh: Lab, tmp_path: Path) -> None:
    """Somebody holds the xtables lock when the daemon starts: the log says so, and the rules go after the release."""
    legacy = _KubeProxy(fresh, "legacy", _saves(()))
    _place_endpoints(fresh)
    _write_objects(tmp_path, ())
    legacy.start()
    daemon = _daemon(fresh, "nft", tmp_path, "auto", "--lock-wait", "1", lock=tmp_path / "lock")
    with (tmp_path / "lock").open("w") as held, daemon:
        fcntl.flock(held, fcntl.LOCK_EX)
        daemon.wait_for_log("leftovers", place="legacy ipv4")
        daemon.wait_for_metric("kproxy_ipt_leftovers", 1, kind="other backend", fate="failed")
        still = legacy.chains(Family.IPV4, "nat")
        fcntl.flock(held, fcntl.LOCK_UN)
        wait_until(lambda: not legacy.chains(Family.IPV4, "nat"), "the removal")
        wait_until(lambda: daemon.metric("kproxy_ipt_leftovers", kind="other backend", fate="failed") == 0, "the count")

    assert "KUBE-SERVICES" in still
    assert daemon.log("leftover", kind="other backend", fate="removed")


def test_clean_node_has_no_leftovers_to_tell(fresh: Lab, backend: str, tmp_path: Path) -> None:
    """No line and no number where nothing was found; the other backend's tables do not come into being."""
    _write_objects(tmp_path, ())
    with _daemon(fresh, backend, tmp_path, "auto") as daemon:
        daemon.wait_for_log("looked for leftovers", found=0)

    assert [] == daemon.log("leftover")
    assert [] == daemon.log("leftovers")
    if backend == "nft":
        assert "" == fresh.node.run("cat", "/proc/thread-self/net/ip_tables_names")
