"""Every single damage of the tables is repaired in time and named, in every shape, and what is not ours stays."""

import signal
from collections.abc import Iterator

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.machine import BackendWish
from kproxy_ipt.testing.daemon_process import DaemonProcess, LogLine, lab_arguments, wait_until
from kproxy_ipt.testing.damage import HARMS, DamagedTables, foreign_lines, own_lines
from kproxy_ipt.testing.lab import Lab
from kproxy_ipt.testing.lab_objects import TARGET_PORT, cluster_ip, endpoints, open_service, own_node
from kproxy_ipt.testing.object_folder import ObjectFolder
from kproxy_ipt.testing.promptness import quickest
from kproxy_ipt.testing.traffic import Outcome

pytestmark = pytest.mark.kernel

_V4 = Family.IPV4
_BOUND_S = {"nft": 2.0, "legacy": 5.0}
_SHAPES = {
    "linear": ("--dispatch", "linear", "--balance", "linear"),
    "tree": ("--dispatch", "tree", "--balance", "grouped"),
}


class Node:
    """A daemon on a node with foreign rules."""

    def __init__(self, lab: Lab, backend: BackendWish, daemon: DaemonProcess) -> None:
        self.lab, self.backend, self.daemon = lab, backend, daemon
        self.tables = DamagedTables(lab.node, backend)
        self.add_foreign()
        self.wanted = own_lines(self.tables.save())

    def add_foreign(self) -> None:
        """Rules of others; the comparison that they lead to is over, so that it finds no damage by chance."""
        compared = self.daemon.metric("kproxy_ipt_syncs_total", kind="full")
        self.tables.add_foreign()
        self.daemon.wait_for_metric("kproxy_ipt_syncs_total", compared + 1, kind="full")

    def is_whole(self) -> bool:
        """Whether all of ours is as it was."""
        return self.wanted == own_lines(self.tables.save())


@pytest.fixture(scope="module", params=list(_SHAPES))
def node(
    request: pytest.FixtureRequest, backend: BackendWish, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Node]:
    """In step: one Service that answers, and some of many endpoints."""
    path = tmp_path_factory.mktemp("damage")
    with Lab() as lab:
        lab.pods[1].serve(TARGET_PORT)
        web = open_service(_V4)
        others = [open_service(_V4, f"other-{number}", number=number, node_port=30080 + number) for number in (12, 14)]
        many = [endpoints(other, _V4, *(f"10.244.2.{10 + host}" for host in range(40))) for other in others]
        objects = ObjectFolder(path / "objects", own_node(), web, endpoints(web, _V4, lab.pods[1]), *others, *many)
        arguments = (*lab_arguments(objects.path, backend), *_SHAPES[request.param])
        with DaemonProcess(lab.node.netns, *arguments) as daemon:
            daemon.wait_in_step()
            yield Node(lab, backend, daemon)


@pytest.mark.parametrize("name", HARMS)
def test_damage_is_repaired_in_time_and_named(node: Node, name: str) -> None:
    """2 s (legacy: 5 s) later all is as it was; log and metric name it, and foreign rules are the same bytes."""
    harm, told = HARMS[name], len(node.daemon.log("drift repaired"))

    def repaired() -> list[LogLine]:
        return node.daemon.log("drift repaired")[told:]

    repairs = node.daemon.metric("kproxy_ipt_drift_repairs_total")
    foreign = foreign_lines(node.tables.save())

    def damage() -> float:
        harm.damage(node.tables)
        return wait_until(node.is_whole, f"{name} repaired")

    took_s = quickest(damage, _BOUND_S[node.backend])
    node.daemon.wait_for_metric("kproxy_ipt_drift_repairs_total", repairs + 1)
    tables = {table for table, _ in node.tables.lost}
    wait_until(lambda: tables <= {line["table"] for line in repaired()}, "all tables are told")
    lines = repaired()
    left = foreign_lines(node.tables.save())
    if not harm.spares_others:
        node.add_foreign()

    assert took_s < _BOUND_S[node.backend]
    assert not harm.spares_others or foreign == left
    assert {chain for _, chain in node.tables.lost} & {str(chain) for line in lines for chain in _first(line["first"])}
    assert {Outcome.ANSWERED: 1} == node.lab.pods[0].send(cluster_ip(_V4), 80).outcomes


def _first(chains: object) -> list[object]:
    return chains if isinstance(chains, list) else []


def test_jump_below_a_rule_of_others_stays_there(node: Node) -> None:
    """Who comes first in a built-in chain is not ours to decide: nothing is written, and no fight begins."""
    before = node.daemon.metric("kproxy_ipt_transactions_total")
    compared = node.daemon.metric("kproxy_ipt_syncs_total", kind="full")
    jump = next(line for line in node.tables.rules("nat", "PREROUTING") if line.endswith("-j KUBE-SERVICES"))
    moved = f"*nat\n{jump.replace('-A', '-D', 1)}\n{jump}\nCOMMIT\n"
    node.tables.restore(moved, keeps_others=True)
    rules = node.tables.rules("nat", "PREROUTING")
    node.daemon.wait_for_metric("kproxy_ipt_syncs_total", compared + 1, kind="full")

    assert jump == rules[-1]
    assert rules == node.tables.rules("nat", "PREROUTING")
    assert before == node.daemon.metric("kproxy_ipt_transactions_total")


def test_leftovers_in_the_other_backend_are_left_alone(node: Node) -> None:
    """Rules of an earlier proxy in the tables that we do not write: theirs stay, ours stay, nothing is compared."""
    other = DamagedTables(node.lab.node, "legacy" if node.backend == "nft" else "nft")
    chain, before = node.tables.chain("KUBE-SVC-"), node.daemon.metric("kproxy_ipt_transactions_total")
    other.restore(f"*nat\n:KUBE-SERVICES -\n:{chain} -\n-A KUBE-SERVICES -j {chain}\nCOMMIT\n")
    left = own_lines(other.save())
    node.daemon.signal(signal.SIGHUP)
    skipped = node.daemon.metric("kproxy_ipt_syncs_total", kind="full")
    node.daemon.wait_for_metric("kproxy_ipt_syncs_total", skipped + 1, kind="full")

    assert node.is_whole()
    assert left == own_lines(other.save())
    assert before == node.daemon.metric("kproxy_ipt_transactions_total")
