"""The lab, its servers and its clients: what they see without rules, and how they name what rules do to them."""

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.errors import NamespaceError
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.testing.lab import BOTH, Attachment, Lab
from kproxy_ipt.testing.shares import assert_shares
from kproxy_ipt.testing.sockets import Protocol, sctp_available
from kproxy_ipt.testing.traffic import Outcome

pytestmark = pytest.mark.kernel

_SERVICE = {Family.IPV4: "10.96.0.10", Family.IPV6: "fd00:10:96::10"}
_PROGRAM = {Family.IPV4: "iptables", Family.IPV6: "ip6tables"}


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """A lab without any rule whose places all answer on port 8080."""
    with Lab() as made:
        for place in (*made.pods, made.node, made.remote, made.client):
            place.serve(8080)
            place.serve(8080, protocol="udp")
        yield made


@pytest.fixture
def fresh() -> Iterator[Lab]:
    """A lab of its own, for a test that loads rules."""
    with Lab() as made:
        yield made


@pytest.mark.parametrize("family", BOTH)
@pytest.mark.parametrize("protocol", ["tcp", "udp"])
def test_everyone_reaches_everyone_without_rules(lab: Lab, family: Family, protocol: Protocol) -> None:
    """Pod, node, remote pod and client reach each other directly, and are seen with their own address."""
    places = (lab.pod("podB"), lab.node, lab.remote, lab.client)
    for source in (lab.pod("podA"), lab.remote, lab.client):
        for target in places:
            traffic = source.send(target.address(family), 8080, protocol=protocol)

            assert traffic.names == {target.name: 1}, f"{source.name} to {target.name}"
            assert traffic.seen_addresses == {source.address(family): 1}, f"{source.name} to {target.name}"


def test_namespaces_of_a_lab_are_its_own(lab: Lab) -> None:
    """A second lab lives beside the first, and what answers in one does not answer in the other."""
    with Lab() as other:
        traffic = other.client.send(other.pod("podA").address(), 8080)

        assert traffic.outcomes == {Outcome.REFUSED: 1}
        assert not {place.netns for place in lab.pods} & {place.netns for place in other.pods}


@pytest.mark.parametrize("problem", [KeyboardInterrupt, RuntimeError])
def test_nothing_is_left_after_an_error(problem: type[BaseException]) -> None:
    """Whatever ends the block, the namespaces are gone, servers and open sessions notwithstanding."""
    with suppress(problem), Lab() as lab:
        names = [place.netns for place in (*lab.pods, lab.node, lab.client, lab.remote)]
        lab.node.serve(80)
        raise problem

    assert [name for name in names if Path("/run/netns", name).exists()] == []


def test_set_up_that_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """An `ip` command that is refused is reported with its text, and what was made before is removed."""
    monkeypatch.setattr("kproxy_ipt.testing.topology.links", lambda *_: ["link add nonsense type nonsense"])
    ours = f"*-{os.getpid()}-*"
    before = sorted(Path("/run/netns").glob(ours))

    with pytest.raises(NamespaceError, match=r"could not be set up: .*Unknown device type"), Lab():
        pass
    assert sorted(Path("/run/netns").glob(ours)) == before


@pytest.mark.parametrize("pods", [("podA", "podA"), ("a-name-too-long",), ("client",)])
def test_unusable_pod_names_are_refused(pods: tuple[str, ...]) -> None:
    """Names that come twice, do not fit an interface or belong to another place are mistakes of the caller."""
    with pytest.raises(ValueError, match="pods need names of their own"):
        Lab(pods)


@pytest.mark.parametrize("family", BOTH)
@pytest.mark.parametrize("protocol", ["tcp", "udp"])
def test_dropped_packets_are_a_timeout(fresh: Lab, family: Family, protocol: Protocol) -> None:
    """A DROP rule in the way gives a timeout after the time that was asked for."""
    pod = fresh.pod("podB")
    pod.serve(8080, protocol=protocol)
    fresh.node.run(_PROGRAM[family], "-A", "FORWARD", "-p", protocol, "-j", "DROP")

    traffic = fresh.client.send(pod.address(family), 8080, protocol=protocol, count=20, timeout_s=0.2)

    assert traffic.outcomes == {Outcome.TIMEOUT: 20}
    assert 0.2 <= traffic.took_s < 2


@pytest.mark.parametrize("family", BOTH)
def test_packet_that_was_lost_shows_as_sent_again(fresh: Lab, family: Family) -> None:
    """A connection whose SYN was dropped once is answered all the same; one that lost nothing sent nothing again."""
    pod = fresh.pod("podB")
    pod.serve(8080)
    first_syn = ("-p", "tcp", "--syn", "-m", "statistic", "--mode", "nth", "--every", "4", "--packet", "0")
    fresh.node.run(_PROGRAM[family], "-A", "FORWARD", *first_syn, "-j", "DROP")

    traffic = [fresh.client.send(pod.address(family), 8080, timeout_s=30.0) for _ in range(3)]

    assert [{Outcome.ANSWERED: 1}] * 3 == [each.outcomes for each in traffic]
    assert [1, 0, 0] == [each.sent_again for each in traffic]


@pytest.mark.parametrize("family", BOTH)
@pytest.mark.parametrize("protocol", ["tcp", "udp"])
def test_rejected_packets_are_refused_every_time(fresh: Lab, family: Family, protocol: Protocol) -> None:
    """A REJECT rule gives a refusal at once, for each of 200 clients: ICMP errors are not limited in a lab."""
    pod = fresh.pod("podB")
    pod.serve(8080, protocol=protocol)
    fresh.node.run(_PROGRAM[family], "-A", "FORWARD", "-p", protocol, "-j", "REJECT")

    traffic = fresh.client.send(pod.address(family), 8080, protocol=protocol, count=200)

    assert traffic.outcomes == {Outcome.REFUSED: 200}
    assert traffic.sent_again == 0, "a refusal that is found by the second SYN takes a second"


@pytest.mark.parametrize("family", BOTH)
def test_session_to_a_rejected_address_is_refused(fresh: Lab, family: Family) -> None:
    """Opening a session against a REJECT rule raises what a program would see."""
    fresh.node.run(_PROGRAM[family], "-A", "FORWARD", "-p", "tcp", "-j", "REJECT")

    with pytest.raises(ConnectionRefusedError):
        fresh.client.open_session(fresh.pod("podB").address(family), 8080)


@pytest.mark.parametrize("family", BOTH)
def test_session_to_a_silent_address_times_out(fresh: Lab, family: Family) -> None:
    """Opening a session against a DROP rule gives up after the time that was asked for."""
    fresh.node.run(_PROGRAM[family], "-A", "FORWARD", "-p", "tcp", "-j", "DROP")

    with pytest.raises(TimeoutError):
        fresh.client.open_session(fresh.pod("podB").address(family), 8080, timeout_s=0.2)


@pytest.mark.parametrize("protocol", ["tcp", "udp"])
def test_closed_port_is_refused(lab: Lab, protocol: Protocol) -> None:
    """Where nobody listens the machine itself refuses."""
    assert lab.client.send(lab.pod("podA").address(), 9, protocol=protocol).outcomes == {Outcome.REFUSED: 1}


def test_missing_route_is_unreachable(lab: Lab) -> None:
    """A pod range that nobody owns is told apart from a refusal."""
    lab.node.run("ip", "route", "add", "unreachable", "10.244.9.0/24")

    assert lab.client.send("10.244.9.1", 80).outcomes == {Outcome.UNREACHABLE: 1}


@pytest.mark.parametrize("family", BOTH)
@pytest.mark.parametrize("protocol", ["tcp", "udp"])
def test_each_exchange_is_balanced_anew(fresh: Lab, family: Family, protocol: Protocol) -> None:
    """Three thousand exchanges through a rule that halves them come out as halves: each one is a flow of its own."""
    append = [_PROGRAM[family], "-t", "nat", "-A", "PREROUTING", "-d", _SERVICE[family], "-p", protocol]
    chance = ["-m", "statistic", "--mode", "random", "--probability", "0.5"]
    for pod, match in zip(fresh.pods, (chance, []), strict=True):
        pod.serve(8080, protocol=protocol)
        address = pod.address(family) if family is Family.IPV4 else f"[{pod.address(family)}]"
        fresh.node.run(*append, *match, "-j", "DNAT", "--to-destination", f"{address}:8080")

    def ask() -> Mapping[str, int]:
        fresh.node.run("conntrack", "-F")
        traffic = fresh.client.send(_SERVICE[family], 80, protocol=protocol, count=3000)
        assert traffic.outcomes == {Outcome.ANSWERED: 3000}
        assert len({each.source_port for each in traffic.exchanges}) == 3000
        return traffic.names

    assert_shares(ask, {"podA": 1, "podB": 1})


def test_client_has_many_source_addresses(lab: Lab) -> None:
    """Each of 200 source addresses is used in turn and seen by the server, in both families."""
    for family, prefix in ((Family.IPV4, "198.18.1."), (Family.IPV6, "2001:db8:18::")):
        sources = [f"{prefix}{number}" for number in range(1, 201)]

        traffic = lab.client.send(lab.pod("podA").address(family), 8080, count=400, sources=sources)

        assert traffic.seen_addresses == dict.fromkeys(sources, 2)


def test_remote_namespace_stands_for_many_pods(lab: Lab) -> None:
    """Another address of the remote pod range answers with the name that was given to it."""
    lab.remote.serve(9000, name="other", addresses=["10.244.2.99"])

    assert lab.pod("podA").send("10.244.2.99", 9000).names == {"other": 1}


@pytest.mark.parametrize("protocol", ["tcp", "udp"])
def test_fixed_source_port_is_used_each_time(lab: Lab, protocol: Protocol) -> None:
    """The same source port can be used again at once, for TCP too."""
    traffic = lab.client.send(lab.pod("podA").address(), 8080, protocol=protocol, count=5, source_port=5353)

    assert [each.seen_port for each in traffic.exchanges] == [5353] * 5


@pytest.mark.parametrize("family", BOTH)
@pytest.mark.parametrize("protocol", ["tcp", "udp"])
def test_session_is_the_same_flow_each_time(lab: Lab, family: Family, protocol: Protocol) -> None:
    """A session that is asked again uses its socket again."""
    with lab.client.open_session(lab.pod("podA").address(family), 8080, protocol=protocol) as session:
        first, second = session.ask(), session.ask()

    assert (first.name, second.name) == ("podA", "podA")
    assert first.seen_port == second.seen_port == first.source_port


def test_stopped_server_cuts_its_sessions(fresh: Lab) -> None:
    """After a stop the open session is broken and a new connection is refused; the port can be served again."""
    pod = fresh.pod("podA")
    server = pod.serve(8080)
    with fresh.client.open_session(pod.address(), 8080) as session:
        assert session.ask().outcome is Outcome.ANSWERED

        server.stop()

        assert session.ask().outcome is Outcome.RESET
    assert fresh.client.send(pod.address(), 8080).outcomes == {Outcome.REFUSED: 1}
    pod.serve(8080, name="successor")
    assert fresh.client.send(pod.address(), 8080).names == {"successor": 1}


@pytest.mark.parametrize(
    ("attachment", "outcome"),
    [
        (Attachment.ROUTED, Outcome.ANSWERED),
        (Attachment.HAIRPIN_BRIDGE, Outcome.ANSWERED),
        (Attachment.BRIDGE, Outcome.TIMEOUT),
    ],
)
def test_pod_reaches_itself_where_the_link_turns_packets_round(attachment: Attachment, outcome: Outcome) -> None:
    """A masqueraded connection of a pod to itself works on routed pods and hairpin ports, not on plain bridge ports."""
    with Lab(("podA",), families=[Family.IPV4], attachment=attachment) as lab:
        pod = lab.pod("podA")
        pod.serve(8080)
        target = f"{pod.address()}:8080"
        nat = ["iptables", "-t", "nat", "-A"]
        lab.node.run(*nat, "PREROUTING", "-d", "10.96.0.10", "-p", "tcp", "-j", "DNAT", "--to-destination", target)
        lab.node.run(*nat, "POSTROUTING", "-s", pod.address(), "-d", pod.address(), "-j", "MASQUERADE")

        traffic = pod.send("10.96.0.10", 80, timeout_s=0.9)

        assert traffic.outcomes == {outcome: 1}
        assert set(traffic.seen_addresses) <= {"10.244.1.1"}


@pytest.mark.parametrize("attachment", Attachment)
def test_pods_reach_each_other_on_every_attachment(attachment: Attachment) -> None:
    """Routed or bridged, a pod reaches its neighbour with its own address, in both families."""
    with Lab(attachment=attachment) as lab:
        first, second = lab.pods
        second.serve(8080)

        seen = [first.send(second.address(family), 8080).seen_addresses for family in BOTH]

    assert seen == [{first.address(family): 1} for family in BOTH]


def test_sctp_is_served_where_the_kernel_has_it(fresh: Lab) -> None:
    """SCTP servers answer as those of TCP do."""
    if not sctp_available():
        pytest.skip("this kernel has no SCTP sockets")
    fresh.pod("podA").serve(8080, protocol="sctp")

    assert fresh.client.send(fresh.pod("podA").address(), 8080, protocol="sctp").names == {"podA": 1}


def test_program_that_fails_is_reported_with_its_words(lab: Lab) -> None:
    """The error of a program in the namespace holds what it printed."""
    with pytest.raises(NamespaceError, match=r"ip route show table nonsense: .*nonsense"):
        lab.node.run("ip", "route", "show", "table", "nonsense")


def test_sysctl_is_written_in_the_namespace_alone(lab: Lab) -> None:
    """A value written for the node is not seen in a pod."""
    lab.node.write_sysctl("ipv4/conf/all/route_localnet", "1")

    values = []
    for place in (lab.node, lab.pod("podA")):
        with inside(place.netns):
            values.append(Path("/proc/sys/net/ipv4/conf/all/route_localnet").read_text(encoding="ascii").strip())
    assert values == ["1", "0"]


def test_person_can_ask_a_server(lab: Lab) -> None:
    """The protocol is one line of text: a shell in the namespace gets an answer without our client."""
    script = f"exec 3<>/dev/tcp/{lab.pod('podB').address()}/8080; echo anyone >&3; head -1 <&3"
    enter = ["nsenter", f"--net=/run/netns/{lab.client.netns}", "bash", "-c", script]

    answer = subprocess.run(enter, capture_output=True, text=True, check=True, timeout=10).stdout.split()

    assert list(islice(answer, 2)) == ["podB", lab.client.address()]
