"""A daemon that ends and starts again under load: nobody notices, and nothing is written."""

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.kernel.nfacct import ensure_counters
from kproxy_ipt.rules.options import NFACCT_COUNTERS
from kproxy_ipt.testing.daemon_process import DaemonProcess, lab_arguments
from kproxy_ipt.testing.lab import Lab
from kproxy_ipt.testing.lab_objects import NODE_PORT, balancer_ip, cluster_ip, endpoints, open_service, own_node
from kproxy_ipt.testing.object_folder import ObjectFolder
from kproxy_ipt.testing.recorded import recorded_case
from kproxy_ipt.testing.shims import Shims
from kproxy_ipt.testing.steady_traffic import SteadyConnections, SteadyStreams

pytestmark = pytest.mark.kernel

_CASE = Path(__file__).parents[1] / "golden" / "26-node-port-cluster"
_TRANSACTIONS = "kproxy_ipt_transactions_total"
_STREAMS = 20


@pytest.fixture
def shims(tmp_path: Path, backend: str) -> Shims:
    """Counts restores."""
    made = Shims(tmp_path / "shims")
    made.install(f"iptables-{backend}-restore", f"ip6tables-{backend}-restore")
    return made


@pytest.fixture
def restores(shims: Shims, backend: str) -> Callable[[], int]:
    """How many restore programs were started so far."""
    return lambda: shims.restores(backend)


@pytest.fixture
def daemon(lab: Lab, backend: str, tmp_path: Path, shims: Shims) -> Iterator[DaemonProcess]:
    """A daemon in step, with a TCP and a UDP Service of two endpoints each."""
    lab.node.run("conntrack", "-F")
    tcp = open_service(Family.IPV4)
    udp = open_service(Family.IPV4, "dns", number=11, node_port=30053, protocol="UDP")
    objects = [own_node(), *(part for one in (tcp, udp) for part in (one, endpoints(one, Family.IPV4, *lab.pods[1:3])))]
    folder = ObjectFolder(tmp_path / "objects", *objects)
    arguments = lab_arguments(folder.path, backend, family=None)
    with DaemonProcess(lab.node.netns, *arguments, shims=shims.folder) as made:
        made.wait_in_step()
        yield made


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_restart_under_load_loses_nothing_and_restores_nothing(
    lab: Lab, daemon: DaemonProcess, restores: Callable[[], int], number: signal.Signals
) -> None:
    """New connections from two clients all succeed, UDP flows stay on their backends, no restore program runs."""
    with ExitStack() as stack:
        targets = [(cluster_ip(Family.IPV4), 80), ("192.0.2.10", NODE_PORT), (balancer_ip(Family.IPV4), 80)]
        clients = [stack.enter_context(SteadyConnections(lab.pods[0], *targets[0]))]
        clients += [stack.enter_context(SteadyConnections(lab.client, *target)) for target in targets[1:]]
        sessions = [
            stack.enter_context(lab.pods[0].open_session(cluster_ip(Family.IPV4, 11), 80, protocol="udp"))
            for _ in range(_STREAMS)
        ]
        with SteadyStreams(sessions) as streams:
            daemon.wait_for_metric("kproxy_ipt_syncs_total", 2)
            before = restores()
            daemon.stop(number)
            daemon.start()
            daemon.wait_in_step()
            written = daemon.metric(_TRANSACTIONS)

    assert (0, 0) == (restores() - before, written)
    assert [{}, {}, {}] == [dict(client.failures) for client in clients]
    assert all(client.exchanges for client in clients)
    assert [0, 0, 0] == [client.sent_again for client in clients]
    assert (0, {1}) == (streams.unanswered, {len(names) for names in streams.names})


def test_restart_ends_no_flow_of_a_live_endpoint(lab: Lab, daemon: DaemonProcess) -> None:
    """Twice restarted, the tracked flows are the same as before."""
    with lab.pods[0].open_session(cluster_ip(Family.IPV4, 11), 80, protocol="udp") as session:
        names = {session.ask().name for _ in range(3)}
        for _ in range(2):
            daemon.stop()
            daemon.start()
            daemon.wait_in_step()
            names.add(session.ask().name)

    assert 1 == len(names)
    assert all(0 == line["deleted"] for line in daemon.log("conntrack"))


def test_terminated_daemon_says_so_and_leaves_its_rules(
    lab: Lab, daemon: DaemonProcess, backend: str, restores: Callable[[], int]
) -> None:
    """SIGTERM: exit code 0, rules unchanged, ports closed, no restore."""
    before, count = lab.node.run(f"iptables-{backend}-save", "-t", "nat"), restores()

    code = daemon.stop()

    after = lab.node.run(f"iptables-{backend}-save", "-t", "nat")
    assert (0, count, _rules(before)) == (code, restores(), _rules(after))
    assert "" == lab.node.run("ss", "-Hltn", "sport", "=", ":10256", "or", "sport", "=", ":10249")
    assert daemon.log("stopped")


def test_rules_of_kube_proxy_are_taken_over_in_place(
    lab: Lab, backend: str, tmp_path: Path, restores: Callable[[], int], shims: Shims
) -> None:
    """Started over what a kube-proxy wrote for the same objects, no service chain is written again."""
    case = recorded_case(_CASE)
    with inside(lab.node.netns):
        ensure_counters(NFACCT_COUNTERS)
    for family, program in ((Family.IPV4, "iptables"), (Family.IPV6, "ip6tables")):
        lab.node.run(f"{program}-{backend}-restore", stdin=case.canonical[family])
    folder = ObjectFolder(tmp_path / "taken", *case.objects.services, *case.objects.endpoint_slices)
    folder.put(*case.objects.nodes)
    (tmp_path / "config.yaml").write_bytes((_CASE / "config.yaml").read_bytes())
    arguments = ("--from", str(folder.path), "--backend", backend, "--config", str(tmp_path / "config.yaml"))

    with DaemonProcess(lab.node.netns, *arguments, node_name=case.node_name, shims=shims.folder) as daemon:
        daemon.wait_in_step()
        written = daemon.metric("kproxy_ipt_chains_written_total")

    assert (0, 0) == (written, restores())


def test_dispatch_in_another_order_is_put_in_order_without_loss(
    lab: Lab, daemon: DaemonProcess, backend: str, restores: Callable[[], int]
) -> None:
    """As kube-proxy leaves the order of KUBE-SERVICES to chance, a takeover writes that chain, under traffic, only."""
    daemon.stop()
    rules = _rules_of_chain(lab.node.run(f"iptables-{backend}-save", "-t", "nat"), "KUBE-SERVICES")
    reordered = ["*nat", ":KUBE-SERVICES -", *reversed(rules[:-1]), rules[-1], "COMMIT", ""]
    lab.node.run(f"iptables-{backend}-restore", "--noflush", stdin="\n".join(reordered))
    before = restores()

    with SteadyConnections(lab.client, balancer_ip(Family.IPV4), 80) as client:
        daemon.start()
        daemon.wait_in_step()
        written = daemon.metric("kproxy_ipt_chains_written_total")

    after = _rules_of_chain(lab.node.run(f"iptables-{backend}-save", "-t", "nat"), "KUBE-SERVICES")
    assert (1, 1, rules, {}) == (written, restores() - before, after, dict(client.failures))


def _rules(save_text: str) -> list[str]:
    return [line for line in save_text.splitlines() if line.startswith("-A")]


def _rules_of_chain(save_text: str, chain: str) -> list[str]:
    return [line for line in _rules(save_text) if line.split()[1] == chain]
