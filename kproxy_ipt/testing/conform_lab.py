"""
A network of namespaces made for one case, so that its flows can be sent with the addresses that the table names.

::

     pod0 (sources)   eth0 (sources)   alone0 (one source) ...      a namespace behind each interface of the node
            |               |                |
           node: the addresses of the case on eth0; the rules under test
                            |
                          ends0            one namespace that owns all endpoints, and all destinations that are no
                                           address of the node

Every endpoint and every destination answers with the address and port that it was asked at. So an answer tells which
endpoint was reached, or that nobody translated the packet. Each link has addresses of its own (100.64.N.0/30,
fd64:0:N::/64) in front of the others: masqueraded packets carry these, never an address of the case.

A source that is an endpoint too, or a destination, has a namespace to itself: what it sends to itself must leave it.
"""

import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from kproxy_ipt.addresses import Family, canonical_address, family_of, is_loopback
from kproxy_ipt.errors import NamespaceError
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.objects.model import Objects
from kproxy_ipt.testing import topology
from kproxy_ipt.testing.flows import endpoint_text
from kproxy_ipt.testing.namespaces import temporary_namespace, wait_for_neighbours, write_net_sysctls
from kproxy_ipt.testing.scene import Scene
from kproxy_ipt.testing.servers import Responders
from kproxy_ipt.testing.sockets import Protocol, sctp_available
from kproxy_ipt.testing.traffic import Exchange, Traffic, send
from kproxy_ipt.trace.packet import Origin, Packet

ENDPOINTS_INTERFACE = "ends0"
NODE = ""
"""In the place of an interface: the node itself."""

_RECENT = Path("/proc/thread-self/net/xt_recent")
"""The lists of the match `recent` in the namespace of the thread; one that `/` is written to is emptied."""
_SYSCTLS = {
    "ipv4/conf/all/accept_local": "1",
    # A closed connection keeps its port for a minute otherwise, and flows to a thousand endpoints need more than all.
    "ipv4/tcp_max_tw_buckets": "0",
}
_TABLE = 77
_TIMEOUT_S = 60.0
_PROTOCOLS: Mapping[str, Protocol] = {"tcp": "tcp", "udp": "udp", "sctp": "sctp"}


class Port(msgspec.Struct, frozen=True):
    """Where somebody answers: a canonical address, 1 to 65535, and `tcp`, `udp` or `sctp`."""

    address: str
    port: int
    protocol: Protocol


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a lab needs for some packets.

    Attributes:
        owned: Interface of the node -> addresses of the namespace behind it; the first one is `ENDPOINTS_INTERFACE`.
        alone: Source -> interface of the namespace that it has to itself; one of *owned* too.
        node_interface: Has the *node_addresses*.
        node_addresses: Of the case, without loopback.
        ports: Who answers; `NODE` or interface -> ports.
        families: Of the packets; the lab has no others.
    """

    owned: Mapping[str, tuple[str, ...]]
    alone: Mapping[str, str]
    node_interface: str
    node_addresses: tuple[str, ...]
    ports: Mapping[str, tuple[Port, ...]]
    families: tuple[Family, ...]

    def sender(self, packet: Packet) -> str:
        """The interface behind which *packet* is sent, or `NODE`."""
        if packet.origin is Origin.NODE:
            return NODE
        return self.alone.get(packet.source) or packet.in_interface or self.node_interface


def endpoint_ports(objects: Objects) -> tuple[Port, ...]:
    """All addresses and ports of the slices, whatever their conditions."""
    found = (
        Port(address, port.port, _PROTOCOLS[(port.protocol or "TCP").lower()])
        for endpoint_slice in objects.endpoint_slices
        for endpoint in endpoint_slice.endpoints or ()
        for text in endpoint.addresses or ()
        for port in endpoint_slice.ports or ()
        if (address := canonical_address(text)) and port.port and (port.protocol or "TCP").lower() in _PROTOCOLS
    )
    return tuple(dict.fromkeys(found))


def layout_of(scene: Scene, objects: Objects, packets: Sequence[Packet]) -> Layout:
    """The layout in which *packets* of *scene* can be sent to, and answered by, the endpoints of *objects*."""
    node_addresses = tuple(sorted(one for one in scene.host.addresses if not is_loopback(one)))
    outside = scene.interfaces["outside"]
    destinations = tuple(
        Port(packet.destination, packet.destination_port, _PROTOCOLS[packet.protocol]) for packet in packets
    )
    families = tuple(dict.fromkeys(packet.family for packet in packets))
    known = (*endpoint_ports(objects), *destinations)
    ports = tuple(dict.fromkeys(port for port in known if family_of(port.address) in families))
    targets = {port.address for port in ports}
    remote = [packet for packet in packets if packet.origin is not Origin.NODE]
    alone_sources = sorted({packet.source for packet in remote if packet.source in targets})
    alone = {source: f"alone{number}" for number, source in enumerate(alone_sources)}
    owned: dict[str, dict[str, None]] = {ENDPOINTS_INTERFACE: {}, outside: {}}
    for packet in remote:
        interface = alone.get(packet.source) or packet.in_interface or outside
        owned.setdefault(interface, {})[packet.source] = None
    placed: dict[str, list[Port]] = {}
    for port in ports:
        is_node = port.address in node_addresses or is_loopback(port.address)
        place = NODE if is_node else alone.get(port.address, ENDPOINTS_INTERFACE)
        placed.setdefault(place, []).append(port)
        if place == ENDPOINTS_INTERFACE:
            owned[ENDPOINTS_INTERFACE][port.address] = None
    return Layout(
        owned={interface: tuple(addresses) for interface, addresses in owned.items()},
        alone=alone,
        node_interface=outside,
        node_addresses=node_addresses,
        ports={place: tuple(some) for place, some in placed.items()},
        families=families,
    )


@dataclass
class ConformLab:
    """
    The namespaces of a `Layout`; made by `conform_lab`.

    Attributes:
        layout: What was made.
        netns: `NODE` or interface -> name of the namespace.
    """

    layout: Layout
    netns: Mapping[str, str]
    _routes: dict[str, str] = field(default_factory=dict)

    @property
    def node(self) -> str:
        """Name of the namespace for the rules under test."""
        return self.netns[NODE]

    def remembers_clients(self) -> bool:
        """Whether the rules keep clients in lists of the match `recent`."""
        with inside(self.node):
            return any(_RECENT.iterdir()) if _RECENT.exists() else False

    def send(self, packet: Packet, *, count: int, timeout_s: float, as_strangers: bool = False) -> Traffic:
        """
        Open *count* connections whose first packets are like *packet*, with source ports of the kernel's choice.

        Args:
            packet: From whom, to where.
            count: Number of connections.
            timeout_s: How long each may take.
            as_strangers: One after the other, the clients that the rules remember forgotten before each.

        Raises:
            NamespaceError: The way back could not be laid.
            OSError: The kernel lacks the protocol.
        """
        sender = self.layout.sender(packet)
        if sender != NODE and self._routes.get(packet.source) != sender:
            _batch(self.node, packet.family, [f"route replace {_way(self.layout, packet.source, sender)}"])
            self._routes[packet.source] = sender
        exchanges: list[Exchange] = []
        while len(exchanges) < count:
            if as_strangers:
                self._forget_clients()
            traffic = send(
                self.netns[sender],
                packet.destination,
                packet.destination_port,
                protocol=_PROTOCOLS[packet.protocol],
                count=1 if as_strangers else count,
                sources=(packet.source,),
                timeout_s=timeout_s,
            )
            exchanges += traffic.exchanges
        return Traffic(tuple(exchanges))

    def _forget_clients(self) -> None:
        with inside(self.node):
            for remembered in _RECENT.iterdir():
                remembered.write_text("/", encoding="ascii")


@contextmanager
def conform_lab(layout: Layout) -> Iterator[ConformLab]:
    """
    Make the namespaces of *layout*, give the lab, take everything away.

    Raises:
        NamespaceError: No privilege, no iproute2, or an interface cannot have the name that the case wants.
        OSError: A port cannot be listened on.
    """
    with ExitStack() as stack:
        netns = {place: stack.enter_context(temporary_namespace(place or "node")) for place in (NODE, *layout.owned)}
        responders = stack.enter_context(Responders())
        for place, name in netns.items():
            write_net_sysctls(name, topology.sysctls("remote" if place else "node") | _SYSCTLS)
        links = [
            f"link add name {interface} netns {netns[NODE]} type veth peer name eth0 netns {netns[interface]}"
            for interface in layout.owned
        ]
        _batch("", None, links)
        _batch(netns[NODE], None, [f"link set {interface} up" for interface in layout.owned])
        for interface in layout.owned:
            _batch(netns[interface], None, ["link set eth0 up"])
        for family in layout.families:
            _batch(netns[NODE], family, list(_node_lines(layout, family)))
            for number, (interface, addresses) in enumerate(layout.owned.items()):
                is_alone = interface in layout.alone.values()
                _batch(netns[interface], family, list(_far_lines(addresses, family, number, is_alone=is_alone)))
        for name in netns.values():
            wait_for_neighbours(name)
        _serve(responders, layout, netns)
        yield ConformLab(layout, netns)


def _serve(responders: Responders, layout: Layout, netns: Mapping[str, str]) -> None:
    for place, ports in layout.ports.items():
        for port in ports:
            if port.protocol != "sctp" or sctp_available():
                name = endpoint_text(port.address, port.port)
                responders.serve(netns[place], name, port.port, protocol=port.protocol, addresses=(port.address,))


def _link_address(family: Family, number: int, *, far: bool) -> str:
    last = 2 if far else 1
    return f"100.64.{number}.{last}" if family is Family.IPV4 else f"fd64:0:{number:x}::{last}"


def _own(address: str, length: int, device: str) -> str:
    return f"address add {address}/{length} dev {device}{' nodad' if ':' in address else ''}"


def _way(layout: Layout, address: str, interface: str) -> str:
    """The route of the node to an address behind one of its interfaces."""
    family = family_of(address)
    gateway = _link_address(family, tuple(layout.owned).index(interface), far=True)
    return f"{address}/{family.bits} via {gateway} dev {interface}"


def _node_lines(layout: Layout, family: Family) -> Iterator[str]:
    length = 30 if family is Family.IPV4 else 64
    for number, interface in enumerate(layout.owned):
        yield _own(_link_address(family, number, far=False), length, interface)
    yield f"route add default via {_link_address(family, 0, far=True)} dev {ENDPOINTS_INTERFACE}"
    for address in _of_family(layout.node_addresses, family):
        yield _own(address, family.bits, layout.node_interface)
    for address in _of_family(layout.alone, family):
        yield f"route add {_way(layout, address, layout.alone[address])}"


def _far_lines(addresses: Sequence[str], family: Family, number: int, *, is_alone: bool) -> Iterator[str]:
    length = 30 if family is Family.IPV4 else 64
    gateway = _link_address(family, number, far=False)
    yield _own(_link_address(family, number, far=True), length, "eth0")
    yield f"route add default via {gateway} dev eth0"
    for address in _of_family(addresses, family):
        yield _own(address, family.bits, "eth0")
        if is_alone:
            # Only what comes in is for the address; what is sent to it from here goes to the node like all else.
            yield f"route add default via {gateway} dev eth0 table {_TABLE}"
            yield "rule add pref 1 iif eth0 lookup local"
            yield f"rule add pref 2 iif lo to {address}/{family.bits} lookup {_TABLE}"
            yield "rule add pref 3 lookup local"
            yield "rule del pref 0"


def _of_family(addresses: Iterable[str], family: Family) -> Iterator[str]:
    return (address for address in addresses if family_of(address) is family)


def _batch(netns: str, family: Family | None, commands: Sequence[str]) -> None:
    """Run lines of `ip -batch` in a namespace, "" for the current one."""
    flag = {None: [], Family.IPV4: ["-4"], Family.IPV6: ["-6"]}[family]
    where = ["-n", netns] if netns else []
    done = subprocess.run(
        ["ip", *flag, *where, "-batch", "-"],
        input="\n".join(commands) + "\n",
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise NamespaceError(f"the lab could not be set up: {done.stderr.strip()}")
