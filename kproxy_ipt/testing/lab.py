"""
A small cluster of network namespaces on one machine: no Kubernetes, no containers, real packets.

::

     podA 10.244.1.11   podB 10.244.1.12 ...         one namespace each, a veth pair to the node
              |               |
            node n1: gateway 10.244.1.1, eth0 192.0.2.10
                              |
            wire: a bridge, 192.0.2.0/24
              |               |
     remote 10.244.2.21     client 192.0.2.50        a pod on node n2 (192.0.2.20); a host outside the cluster

IPv6 is the same with fd00:10:244:1::11, 2001:db8::10, fd00:10:244:2::21 and 2001:db8::50. The rules under test belong
into `node`. The client reaches every address outside its link through the node, as a router of a provider would have
it, and has many more source addresses (`MANY_CLIENTS`). The remote namespace owns all of 10.244.2.0/24, as several
remote pods.

Speed comes from one `ip -batch` for each namespace and from doing without everything that makes one wait: duplicate
address detection, spanning tree, router discovery, limits on ICMP errors.
"""

import fcntl
import socket
import struct
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from kproxy_ipt.addresses import Family
from kproxy_ipt.errors import NamespaceError
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.testing import topology
from kproxy_ipt.testing.namespaces import temporary_namespace, wait_for_neighbours, write_net_sysctls
from kproxy_ipt.testing.servers import Responders, Server
from kproxy_ipt.testing.sockets import Protocol
from kproxy_ipt.testing.topology import BOTH, Attachment
from kproxy_ipt.testing.traffic import Session, Traffic, open_session, send

__all__ = ["BOTH", "NODE_NAME", "REMOTE_NODE_NAME", "Attachment", "Lab", "Place"]

NODE_NAME = "n1"
REMOTE_NODE_NAME = "n2"
_MOST_PODS = 80
_LONGEST_NAME = 10
_TIMEOUT_S = 60.0
_POLL_S = 0.001
_SIOCGIFFLAGS = 0x8913
_RUNNING = 0x40


@dataclass(frozen=True)
class Place:
    """
    One namespace of a lab.

    Attributes:
        name: `node`, `client`, `remote`, or the name of the pod; servers answer with it.
        netns: Name of the network namespace, as in `ip netns`.
        addresses: Its own address of each family of the lab.
    """

    name: str
    netns: str
    addresses: Mapping[Family, str]
    _responders: Responders = field(repr=False)

    def address(self, family: Family = Family.IPV4) -> str:
        """Its address of a family; KeyError where the lab lacks the family."""
        return self.addresses[family]

    def run(self, *command: str, stdin: str | None = None) -> str:
        """
        Run a program in the namespace.

        Returns:
            Its standard output.

        Raises:
            NamespaceError: It failed; the text holds its standard error.
        """
        return _run(["nsenter", f"--net=/run/netns/{self.netns}", *command], stdin)

    def serve(self, port: int, *, protocol: Protocol = "tcp", name: str = "", addresses: Sequence[str] = ()) -> Server:
        """
        Answer on a port until the lab ends or `Server.stop`.

        Args:
            port: 1 to 65535.
            protocol: `tcp`, `udp` or `sctp`.
            name: What to answer with, default the name of the place.
            addresses: Where to answer, default the own addresses. A wildcard is no good choice for UDP where the place
                has several addresses: the answer may leave from another one than was asked.

        Raises:
            OSError: The port is taken, or the protocol is missing.
        """
        where = addresses or tuple(self.addresses.values())
        return self._responders.serve(self.netns, name or self.name, port, protocol=protocol, addresses=where)

    def send(
        self,
        address: str,
        port: int,
        *,
        protocol: Protocol = "tcp",
        count: int = 1,
        sources: Sequence[str] = (),
        source_port: int = 0,
        timeout_s: float = 1.0,
        parallel: int = 64,
    ) -> Traffic:
        """Ask *count* times from here; see `kproxy_ipt.testing.traffic.send`."""
        return send(
            self.netns,
            address,
            port,
            protocol=protocol,
            count=count,
            sources=sources,
            source_port=source_port,
            timeout_s=timeout_s,
            parallel=parallel,
        )

    def open_session(
        self,
        address: str,
        port: int,
        *,
        protocol: Protocol = "tcp",
        source: str = "",
        source_port: int = 0,
        timeout_s: float = 1.0,
    ) -> Session:
        """Open a session that stays; see `kproxy_ipt.testing.traffic.open_session`."""
        return open_session(
            self.netns,
            address,
            port,
            protocol=protocol,
            source=source,
            source_port=source_port,
            timeout_s=timeout_s,
        )

    def write_sysctl(self, path: str, value: str) -> None:
        """Write a value under `/proc/sys/net`, for example `ipv4/conf/all/route_localnet`."""
        with inside(self.netns):
            Path("/proc/sys/net", path).write_text(value, encoding="ascii")


class Lab:
    """
    The namespaces of the picture above; a context manager that makes them and takes them away, whatever happens.

    Names on the machine are unique, so that several labs can live at once.
    """

    def __init__(
        self,
        pods: Sequence[str] = ("podA", "podB"),
        *,
        families: Sequence[Family] = BOTH,
        attachment: Attachment = Attachment.ROUTED,
    ) -> None:
        """
        Describe a lab; nothing is made yet.

        Args:
            pods: Names of the local pods; their addresses end in 11, 12 and so on, in this order.
            families: Address families to set up.
            attachment: How the pods hang on the node.

        Raises:
            ValueError: A name is too long for an interface or taken, or there are too many.
        """
        taken = [*pods, "wire", "node", "client", "remote"]
        if len(set(taken)) != len(taken) or len(pods) > _MOST_PODS or any(len(pod) > _LONGEST_NAME for pod in pods):
            raise ValueError(f"pods need names of their own, up to {_LONGEST_NAME} long, at most {_MOST_PODS}: {pods}")
        self._pod_names = tuple(pods)
        self._families = tuple(families)
        self._attachment = attachment
        self._stack = ExitStack()
        self._places: dict[str, Place] = {}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._build(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the servers and remove the namespaces."""
        self._places.clear()
        self._stack.close()

    @property
    def node(self) -> Place:
        """The node under test."""
        return self._places["node"]

    @property
    def client(self) -> Place:
        """A host outside the cluster."""
        return self._places["client"]

    @property
    def remote(self) -> Place:
        """A pod on another node."""
        return self._places["remote"]

    def pod(self, name: str) -> Place:
        """The local pod of that name; KeyError if there is none."""
        if name not in self._pod_names:
            raise KeyError(name)
        return self._places[name]

    @property
    def pods(self) -> tuple[Place, ...]:
        """All local pods, in the order of their addresses."""
        return tuple(self._places[name] for name in self._pod_names)

    def _build(self, stack: ExitStack) -> None:
        addresses = topology.addresses(self._pod_names, self._families)
        netns_names = {label: stack.enter_context(temporary_namespace(label)) for label in ("wire", *addresses)}
        # Entered last and left first: an open socket would keep its namespace alive.
        responders = stack.enter_context(Responders())
        for label, own in addresses.items():
            self._places[label] = Place(label, netns_names[label], own, responders)
        for label, netns in netns_names.items():
            write_net_sysctls(netns, topology.sysctls(label))
        _run_batches({"here": ""}, {"here": topology.links(netns_names, self._pod_names)})
        _run_batches(netns_names, topology.bridges(self._pod_names, self._attachment))
        _run_batches(netns_names, topology.activation(self._pod_names, self._attachment))
        for label, ports in topology.bridge_ports(self._pod_names, self._attachment).items():
            _wait_for_ports(netns_names[label], ports)
        pods = {name: addresses[name] for name in self._pod_names}
        _run_batches(netns_names, topology.configuration(pods, self._families, self._attachment))
        for netns in netns_names.values():
            wait_for_neighbours(netns)


def _run_batches(netns_names: Mapping[str, str], commands_by_label: Mapping[str, Sequence[str]]) -> None:
    """Run one `ip -batch` for each label, all at once; a name "" is the current namespace."""
    started = []
    for label, commands in commands_by_label.items():
        where = ["-n", netns_names[label]] if netns_names[label] else []
        started.append((subprocess.Popen(["ip", *where, "-batch", "-"], stdin=-1, stderr=-1, text=True), commands))
    failures = []
    for process, commands in started:
        _, errors = process.communicate("\n".join(commands) + "\n", timeout=_TIMEOUT_S)
        if process.returncode:
            failures.append(errors.strip())
    if failures:
        raise NamespaceError("the lab could not be set up: " + "; ".join(failures))


def _wait_for_ports(netns: str, ports: Sequence[str]) -> None:
    """
    Wait until the ports of a bridge run, a millisecond as a rule.

    A worker of the kernel notices a carrier a moment after the link came up, and a bridge port that was not noticed yet
    drops packets. The worker holds the lock of the network configuration: what is configured next comes after it.
    """
    deadline_s = time.monotonic() + _TIMEOUT_S
    with inside(netns):
        probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with probe:
        while waiting := [port for port in ports if not _flags(probe, port) & _RUNNING]:
            if time.monotonic() > deadline_s:
                raise NamespaceError(f"interfaces of {netns} do not come up: {', '.join(waiting)}")
            time.sleep(_POLL_S)


def _flags(probe: socket.socket, name: str) -> int:
    answer = fcntl.ioctl(probe, _SIOCGIFFLAGS, struct.pack("16sH14x", name.encode(), 0))
    return int(struct.unpack_from("H", answer, 16)[0])


def _run(command: Sequence[str], stdin: str | None) -> str:
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if done.returncode:
        raise NamespaceError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
