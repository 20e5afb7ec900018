"""What happens to packets on their way: invalid ones, marks of others, source ports, tunnels."""

import re
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Self

import msgspec
import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config, IptablesConfig
from kproxy_ipt.daemon.report import RunReport
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.testing.lab import Lab, Place
from kproxy_ipt.testing.lab_objects import NODE_PORT, TARGET_PORT, cluster_ip, endpoints, open_service
from kproxy_ipt.testing.topology import CLUSTER_CIDRS
from kproxy_ipt.testing.traffic import Outcome

pytestmark = pytest.mark.kernel

Sync = Callable[..., RunReport]
Iptables = Callable[..., str]

_CONFIG = Config(cluster_cidrs=tuple(CLUSTER_CIDRS.values()))
_SYN, _PSH_ACK = 0x02, 0x18
_FAR = 1 << 29
"""Beyond any window; behind it a segment would pass for one that was sent again."""
_MOST_ROUNDS = 4
"""Were each made in the moment of another one, two would want the same of 64,512 ports in one of 129 rounds."""
_FOREIGN_BITS = "0x00ff0000/0x00ff0000"


class _Stray:
    """Segments of a server's connection that connection tracking finds out of the window; a context manager."""

    def __init__(self, server: Place, family: Family) -> None:
        self._source = server.address(family)
        self._version = socket.AF_INET6 if family is Family.IPV6 else socket.AF_INET
        with inside(server.netns):
            self._raw = socket.socket(self._version, socket.SOCK_RAW, socket.IPPROTO_TCP)
        self._raw.bind((self._source, 0))
        self._raw.setblocking(False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._raw.close()

    def send(self, receiver: str, port: int, count: int = 1) -> None:
        """They acknowledge what *receiver* sent last, so that a reset in answer would be believed."""
        expected, acknowledged = self._numbers(port)
        sequence = (expected + _FAR) % 2**32
        header = struct.pack("!HHIIBBHHH", TARGET_PORT, port, sequence, acknowledged, 5 << 4, _PSH_ACK, 512, 0, 0)
        segment = header + b"stray!"
        ends = socket.inet_pton(self._version, self._source) + socket.inet_pton(self._version, receiver)
        pseudo = ends + struct.pack("!IHH", len(segment), 0, socket.IPPROTO_TCP)
        segment = segment[:16] + struct.pack("!H", _checksum(pseudo + segment)) + segment[18:]
        for _ in range(count):
            self._raw.sendto(segment, (receiver, 0))

    def _numbers(self, port: int) -> tuple[int, int]:
        """The sequence numbers that the peer at *port* expects next, and that follows what it sent."""
        found = (0, 0)
        with suppress(BlockingIOError):
            while True:
                packet = self._raw.recv(65536)
                segment = packet if self._version == socket.AF_INET6 else packet[(packet[0] & 15) * 4 :]
                source, target, sequence, expected = struct.unpack("!HHII", segment[:12])
                if (source, target) == (port, TARGET_PORT):
                    is_syn = bool(segment[13] & _SYN)
                    found = (expected, (sequence + len(segment) - (segment[12] >> 4) * 4 + is_syn) % 2**32)
        return found


def _checksum(text: bytes) -> int:
    total = sum(int.from_bytes(text[at : at + 2], "big") for at in range(0, len(text), 2))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def _packets(iptables: Iptables, lab: Lab, table: str, chain: str, words: str) -> int:
    """The counter of the rule of *chain* whose line holds *words*."""
    lines = iptables(lab, "-t", table, "-v", "-n", "-x", "-L", chain).splitlines()
    return sum(int(line.split()[0]) for line in lines if words in line)


def test_segment_out_of_the_window_does_not_end_a_connection(
    lab: Lab, sync: Sync, iptables: Iptables, family: Family
) -> None:
    """It is not translated back, so whoever got it would answer with a reset; it is dropped and counted instead."""
    web = open_service(family)
    sync(web, endpoints(web, family, lab.remote), config=_CONFIG)
    with _Stray(lab.remote, family) as stray, lab.pod("podA").open_session(cluster_ip(family), 80) as session:
        first = session.ask()
        before = _packets(iptables, lab, "filter", "KUBE-FORWARD", "INVALID")
        stray.send(first.seen_address, first.seen_port, count=3)
        second = session.ask()
        after = _packets(iptables, lab, "filter", "KUBE-FORWARD", "INVALID")

    assert (first.outcome, second.outcome) == (Outcome.ANSWERED, Outcome.ANSWERED)
    assert (first.name, first.seen_port) == (second.name, second.seen_port)
    assert after - before == 3


def test_without_the_rule_that_segment_ends_the_connection(
    lab: Lab, sync: Sync, iptables: Iptables, family: Family
) -> None:
    """So the test above sees what it is there for."""
    web = open_service(family)
    sync(web, endpoints(web, family, lab.remote), config=_CONFIG)
    iptables(lab, "-D", "KUBE-FORWARD", "1")
    with _Stray(lab.remote, family) as stray, lab.pod("podA").open_session(cluster_ip(family), 80) as session:
        first = session.ask()
        stray.send(first.seen_address, first.seen_port)
        outcomes = [session.ask().outcome for _ in range(2)]

    assert Outcome.RESET in outcomes


@pytest.mark.parametrize("bit", [0, 14, 31])
def test_foreign_bits_of_the_mark_survive(fresh: Lab, sync: Sync, iptables: Iptables, family: Family, bit: int) -> None:
    """Only our bit is set and looked at: what others wrote before is there for others behind."""
    web = open_service(family)
    config = msgspec.structs.replace(_CONFIG, iptables=IptablesConfig(masquerade_bit=bit))
    sync(web, endpoints(web, family, fresh.remote), config=config, into=fresh)
    iptables(fresh, "-t", "mangle", "-A", "PREROUTING", "-j", "MARK", "--set-xmark", _FOREIGN_BITS)
    seen = ("-m", "mark", "--mark", _FOREIGN_BITS, "-m", "comment", "--comment", "seen")
    iptables(fresh, "-t", "mangle", "-A", "POSTROUTING", "-m", "conntrack", "--ctstate", "NEW", *seen)
    traffic = fresh.client.send(fresh.node.address(family), NODE_PORT, count=5, timeout_s=3.0)

    assert traffic.outcomes == {Outcome.ANSWERED: 5}
    assert fresh.client.address(family) not in traffic.seen_addresses
    assert _packets(iptables, fresh, "mangle", "POSTROUTING", "seen") == 5


def test_many_masqueraded_connections_at_once_lose_no_packet(lab: Lab, sync: Sync, family: Family) -> None:
    """Source ports are chosen at random, so that two connections hardly ever want one at the same time."""
    web = open_service(family)
    sync(web, endpoints(web, family, lab.remote), config=_CONFIG)
    failed = [_insertions_failed(lab)]
    while len(failed) <= _MOST_ROUNDS and failed[-1] not in failed[:-1]:
        traffic = lab.client.send(lab.node.address(family), NODE_PORT, count=500, parallel=500, timeout_s=8.0)
        failed.append(_insertions_failed(lab))

        assert traffic.outcomes == {Outcome.ANSWERED: 500}
        assert traffic.took_s < 8.0
        # Of 64,512 ports a connection gets its own by chance; without `--random-fully` every one keeps it.
        assert sum(each.seen_port == each.source_port for each in traffic.exchanges) <= 5
    assert failed[-1] == failed[-2]


def _insertions_failed(lab: Lab) -> int:
    return sum(int(number) for number in re.findall(r"insert_failed=(\d+)", lab.node.run("conntrack", "-S")))


@pytest.mark.parametrize("place", ["node", "podA"])
def test_source_port_that_is_a_node_port_gets_its_replies(lab: Lab, sync: Sync, family: Family, place: str) -> None:
    """Replies of known connections are never taken for connections to the node port."""
    web = open_service(family)
    sync(web, endpoints(web, family, lab.remote), config=_CONFIG)
    client = lab.node if place == "node" else lab.pod(place)
    for address, port in ((cluster_ip(family), 80), (lab.remote.address(family), TARGET_PORT)):
        traffic = client.send(address, port, source_port=NODE_PORT, timeout_s=3.0)
        assert traffic.names == {"remote": 1}


_TUNNEL = {
    Family.IPV4: ("10.77.0.1/24", "10.77.0.2", "24"),
    Family.IPV6: ("fd00:77::1/64", "fd00:77::2", "64"),
}


def test_packets_of_a_tunnel_do_not_carry_our_mark(fresh: Lab, sync: Sync, iptables: Iptables, family: Family) -> None:
    """The mark is gone before the packet is wrapped: what carries it is not masqueraded a second time."""
    node_side, endpoint, length = _TUNNEL[family]
    for place, other in ((fresh.node, fresh.remote), (fresh.remote, fresh.node)):
        link = f"type vxlan id 7 dstport 4789 local {place.address(family)} remote {other.address(family)}"
        place.run("ip", "link", "add", "tunnel", *link.split())
        place.run("ip", "link", "set", "tunnel", "up")
    nodad = ("nodad",) if family is Family.IPV6 else ()
    fresh.node.run("ip", "address", "add", node_side, "dev", "tunnel", *nodad)
    fresh.remote.run("ip", "address", "add", f"{endpoint}/{length}", "dev", "tunnel", *nodad)
    server = fresh.remote.serve(TARGET_PORT, name="behind", addresses=(endpoint,))
    web = open_service(family)
    sync(web, endpoints(web, family, endpoint), config=_CONFIG, into=fresh)
    wrapped = ("-p", "udp", "--dport", "4789", "-m", "comment", "--comment")
    iptables(fresh, "-t", "mangle", "-A", "POSTROUTING", *wrapped, "wrapped")
    iptables(fresh, "-t", "mangle", "-A", "POSTROUTING", *wrapped, "with-mark", "-m", "mark", "--mark", "0x4000/0x4000")
    traffic = fresh.client.send(fresh.node.address(family), NODE_PORT, count=5, timeout_s=3.0)
    server.stop()

    assert traffic.names == {"behind": 5}
    assert set(traffic.seen_addresses) == {node_side.partition("/")[0]}
    assert _packets(iptables, fresh, "mangle", "POSTROUTING", "wrapped") >= 15
    assert _packets(iptables, fresh, "mangle", "POSTROUTING", "with-mark") == 0
