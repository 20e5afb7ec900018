"""Tracked flows under a running daemon: stale ones end with the sync that makes them stale, live ones go on."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.testing.daemon_process import DaemonProcess, lab_arguments, wait_until
from kproxy_ipt.testing.lab import Lab
from kproxy_ipt.testing.lab_objects import NODE_PORT, balancer_ip, cluster_ip, endpoints, open_service, own_node
from kproxy_ipt.testing.object_folder import ObjectFolder
from kproxy_ipt.testing.shims import Shims
from kproxy_ipt.testing.traffic import Exchange, Outcome, Session

pytestmark = pytest.mark.kernel

_SOURCE_PORT = 41000


@pytest.fixture
def shims(tmp_path: Path) -> Shims:
    """Nothing is in anybody's place yet."""
    return Shims(tmp_path / "shims")


@pytest.fixture
def folder(lab: Lab, tmp_path: Path) -> ObjectFolder:
    """What the daemon follows: the Node only."""
    lab.node.run("conntrack", "-F")
    return ObjectFolder(tmp_path / "objects", own_node())


@pytest.fixture
def daemon(lab: Lab, backend: str, family: Family, folder: ObjectFolder, shims: Shims) -> Iterator[DaemonProcess]:
    """A daemon of one family in step with the folder."""
    arguments = lab_arguments(folder.path, backend, family=family)
    with DaemonProcess(lab.node.netns, *arguments, shims=shims.folder) as made:
        made.wait_in_step()
        yield made


def _asked_until(session: Session, name: str) -> Exchange:
    """Ask on the same socket until *name* answers."""
    answers: list[Exchange] = []

    def is_there() -> bool:
        answers.append(session.ask(timeout_s=0.1))
        return answers[-1].name == name

    wait_until(is_there, f"{name} answers")
    return answers[-1]


@pytest.mark.usefixtures("daemon")
def test_open_udp_socket_reaches_an_endpoint_that_came_later(lab: Lab, family: Family, folder: ObjectFolder) -> None:
    """A client that kept sending while the Service had no endpoint reaches the first one on the same socket."""
    dns = open_service(family, protocol="UDP")
    folder.put(dns)
    with lab.pods[0].open_session(cluster_ip(family), 80, protocol="udp", source_port=_SOURCE_PORT) as session:
        session.ask(timeout_s=0.05)
        folder.put(endpoints(dns, family, lab.pods[1]))

        assert "podB" == _asked_until(session, "podB").name


@pytest.mark.usefixtures("daemon")
def test_all_entries_of_a_udp_service_follow_a_replaced_endpoint(
    lab: Lab, family: Family, folder: ObjectFolder
) -> None:
    """Open sockets on cluster IP, node port, load balancer IP and external IP all move to the new endpoint."""
    dns = open_service(family, protocol="UDP")
    folder.put(dns, endpoints(dns, family, lab.pods[1]))
    entries = [(balancer_ip(family), 80), (balancer_ip(family, 28), 80), (lab.node.address(family), NODE_PORT)]
    with ExitStack() as stack:
        sessions = [stack.enter_context(lab.client.open_session(*entry, protocol="udp")) for entry in entries]
        sessions.append(stack.enter_context(lab.pods[0].open_session(cluster_ip(family), 80, protocol="udp")))
        for session in sessions:
            _asked_until(session, "podB")
        folder.put(endpoints(dns, family, lab.pods[2]))

        assert ["podC"] * 4 == [_asked_until(session, "podC").name for session in sessions]


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize("with_slice", [False, True])
def test_deleted_udp_service_ends_its_flows(
    lab: Lab, family: Family, folder: ObjectFolder, *, with_slice: bool
) -> None:
    """After the Service, or Service and slice, are gone no datagram reaches the old endpoint."""
    dns = open_service(family, protocol="UDP")
    behind = endpoints(dns, family, lab.pods[1])
    folder.put(dns, behind)
    with lab.client.open_session(balancer_ip(family), 80, protocol="udp") as session:
        _asked_until(session, "podB")
        folder.remove(dns, *((behind,) if with_slice else ()))
        # One answer may be late on a busy machine, not five in a row.
        wait_until(
            lambda: not any(session.ask(timeout_s=0.1).name for _ in range(5)), "the old endpoint is out of reach"
        )

        assert session.ask().name == ""


@pytest.mark.usefixtures("daemon")
def test_local_policy_sees_its_own_endpoint_come_back(lab: Lab, family: Family, folder: ObjectFolder) -> None:
    """With internal policy Local an open socket waits while other nodes alone have endpoints, then gets the new one."""
    dns = open_service(family, protocol="UDP", internal_policy="Local")
    folder.put(dns, endpoints(dns, family, lab.pods[1], lab.remote))
    with lab.pods[0].open_session(cluster_ip(family), 80, protocol="udp") as session:
        _asked_until(session, "podB")
        folder.put(endpoints(dns, family, lab.remote))
        between = {session.ask(timeout_s=0.1).name for _ in range(4)}
        folder.put(endpoints(dns, family, lab.pods[2], lab.remote))

        assert "podC" == _asked_until(session, "podC").name
        assert between <= {"", "podB"}


def test_unrelated_flows_survive_a_change(
    lab: Lab, family: Family, folder: ObjectFolder, daemon: DaemonProcess
) -> None:
    """While one UDP Service changes, sockets of another one and of a TCP Service stay where they were."""
    changing, other = (
        open_service(family, f"udp{number}", number=number, node_port=0, protocol="UDP") for number in (10, 11)
    )
    tcp = open_service(family, "tcp", number=12)
    folder.put(changing, other, tcp, *(endpoints(one, family, *lab.pods[1:4]) for one in (changing, other, tcp)))
    deleted = "kubeproxy_conntrack_reconciler_deleted_entries_total"
    with ExitStack() as stack:
        udp = [
            stack.enter_context(lab.pods[0].open_session(cluster_ip(family, 11), 80, protocol="udp")) for _ in range(6)
        ]
        moving = [
            stack.enter_context(lab.pods[0].open_session(cluster_ip(family, 10), 80, protocol="udp")) for _ in range(6)
        ]
        _wait_for_answers([*udp, *moving])
        stream = stack.enter_context(lab.pods[0].open_session(cluster_ip(family, 12), 80))
        before = [session.ask().name for session in (*udp, stream)]
        folder.put(endpoints(changing, family, lab.pods[4]))
        daemon.wait_for_metric(deleted, len(moving), ip_family=_label(family))

        assert before == [session.ask().name for session in (*udp, stream)]
        assert ["podE"] * 6 == [session.ask().name for session in moving]


def test_flow_that_became_stale_in_a_failed_sync_ends_after_the_retry(
    lab: Lab, family: Family, backend: str, folder: ObjectFolder, daemon: DaemonProcess, shims: Shims
) -> None:
    """Work that belongs to a sync is not forgotten when its restore fails once."""
    restore = f"{'ip6tables' if family is Family.IPV6 else 'iptables'}-{backend}-restore"
    dns = open_service(family, protocol="UDP")
    folder.put(dns, endpoints(dns, family, lab.pods[1]))
    with lab.pods[0].open_session(cluster_ip(family), 80, protocol="udp") as session:
        _asked_until(session, "podB")
        shims.install(restore)
        shims.act(restore, 'case "$*" in *--noflush*) exit 4;; esac')
        folder.put(endpoints(dns, family, lab.pods[2]))
        daemon.wait_for_log("sync failed")
        shims.relent(restore)

        assert "podC" == _asked_until(session, "podC").name
        assert 1 <= daemon.metric("kubeproxy_sync_proxy_rules_iptables_restore_failures_total")


def _wait_for_answers(sessions: list[Session]) -> None:
    for session in sessions:
        wait_until(lambda: session.ask(timeout_s=0.1).outcome is Outcome.ANSWERED, "an answer")  # noqa: B023 - used at once


def _label(family: Family) -> str:
    return family.api_name
